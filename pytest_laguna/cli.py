# SPDX-License-Identifier: Apache-2.0
"""The ``laguna`` command: work on evidence without running anything."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from pytest_laguna.verdict import USAGE_EXIT_CODE, worst
from pytest_laguna.verification import GateReport, verify_root


class _Parser(argparse.ArgumentParser):
    """Wrong use ends with pytest's exit code for it, so that every command of the suite agrees."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_EXIT_CODE, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns its exit code."""
    parser = _Parser(prog="laguna", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    verify = commands.add_parser("verify", help="derive every verdict again from a sealed root's raw files")
    verify.add_argument("root", type=Path, metavar="ROOT", help="the sealed root, or a copy of it")
    verify.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args(arguments)
    if not chosen.root.is_dir():
        verify.error(f"{chosen.root}: not a directory; expected a sealed root")
    return _verify(chosen.root, as_json=chosen.json)


def _verify(sealed_root: Path, *, as_json: bool) -> int:
    """Exit code: the worst verdict's; NOT_PROVEN's when there is no attempt at all."""
    reports = verify_root(sealed_root)
    if as_json:
        json.dump({"gates": [report.to_json() for report in reports]}, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(_table(reports) or f"NOT_PROVEN: {sealed_root} holds no attempt\n")
    return worst(report.verdict for report in reports).exit_code


def _table(reports: Sequence[GateReport]) -> str:
    rows = [
        (
            report.campaign,
            report.lane,
            f"gate {report.gate}",
            f"{report.attempt:04d}",
            report.verdict,
            report.reason,
        )
        for report in reports
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(5)] if rows else []
    lines = ("  ".join(text.ljust(width) for text, width in zip(row, [*widths, 0], strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
