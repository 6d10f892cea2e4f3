# SPDX-License-Identifier: Apache-2.0
"""Work on sealed evidence, and check this machine, without running a gate.

Exit codes: the verdict's (0 PASS, 20 STOP, 21 FAIL, 22 VOID, 23 NOT_PROVEN); 4 for wrong use, an unreadable root, or
unwritable output; 141 if nobody reads the output, as for any program ended by SIGPIPE.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib.metadata
import itertools
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from pytest_laguna.analysis.findings import Finding, gravest
from pytest_laguna.campaign import CampaignError, LaneEngine, LaneSettings, ModelFolders, read_campaign
from pytest_laguna.evidence.files import canonical_json, printable, write_new
from pytest_laguna.evidence.root import ATTEMPT, GATES, attempt_directory
from pytest_laguna.evidence.values import Lane
from pytest_laguna.experiments.experiment import Derived, derive, read_attempted
from pytest_laguna.experiments.plans import cards_needed
from pytest_laguna.identity import freezing
from pytest_laguna.identity.source import IdentityError
from pytest_laguna.report.collected import collected_junit
from pytest_laguna.report.trace import trace
from pytest_laguna.verdict import USAGE_EXIT_CODE, NotProvenError, UnusableEvidenceError, Verdict, worst
from pytest_laguna.verify.verification import GateReport, hold_to, verify_attempt, verify_root

if TYPE_CHECKING:
    from pytest_laguna.machine.doctor_xpu import XpuNeeds

LANES: tuple[Lane, ...] = get_args(Lane)

_ROOT_LEVELS = 4
"""Levels of an attempt's directory below its sealed root: campaign, lane, gate, attempt."""

_NAMED_ROOTS = 3
"""Number of candidate roots that fit on a line."""

_NOBODY_READS = 128 + signal.SIGPIPE

_ROOT = "sealed root, or a copy of it"
_OUT = "new file outside the sealed root"


class _Parser(argparse.ArgumentParser):
    """Parser that ends wrong use with pytest's exit code for it."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_EXIT_CODE, f"{printable(f'{self.prog}: {message}')}; see {self.prog} --help\n")


def make_parser() -> argparse.ArgumentParser:
    """Parser of the command line; its result has the subcommand's parser as ``used`` and its action as ``run``."""
    version = importlib.metadata.version("pytest-laguna")
    purpose, exit_codes = str(__doc__).split("\n\n")
    parser = _Parser(prog="laguna", description=purpose, epilog=exit_codes)
    parser.add_argument("--version", action="version", version=f"pytest-laguna {version}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    for name, (does, add_arguments) in _COMMANDS.items():
        command = commands.add_parser(
            name, help=does, description=f"{does[0].upper()}{does[1:]}.", epilog="Exit codes: see laguna --help."
        )
        add_arguments(command)
        command.set_defaults(used=command)
    return parser


def _add_verify(command: argparse.ArgumentParser) -> None:
    command.add_argument("root", metavar="ROOT", type=_path, help=_ROOT)
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.add_argument("--junit", metavar="FILE.xml", type=_path, help=f"also write a JUnit report; {_OUT}")
    command.add_argument(
        "--expect",
        action="append",
        default=[],
        type=_digest,
        metavar="DIGEST",
        help="receipt digest of a newest attempt, kept outside the root; may be repeated",
    )
    command.set_defaults(run=lambda chosen: _verify(chosen.root, chosen.expect, chosen.junit, as_json=chosen.json))


def _add_analyze(command: argparse.ArgumentParser) -> None:
    command.add_argument("attempt", metavar="ATTEMPT", type=_path, help="an attempt's directory in its root, or a copy")
    command.add_argument("--out", required=True, metavar="FILE", type=_path, help=_OUT)
    command.set_defaults(run=lambda chosen: _analyze(chosen.attempt, chosen.out))


def _add_report(command: argparse.ArgumentParser) -> None:
    command.add_argument("root", metavar="ROOT", type=_path, help=_ROOT)
    command.add_argument("--out", required=True, metavar="FILE.html", type=_path, help=_OUT)
    command.set_defaults(run=lambda chosen: _report(chosen.root, chosen.out))


def _add_trace(command: argparse.ArgumentParser) -> None:
    command.add_argument("attempt", metavar="ATTEMPT", type=_path, help="an attempt's directory, or a copy of it")
    command.add_argument("--out", required=True, metavar="FILE.json", type=_path, help=_OUT)
    command.set_defaults(run=lambda chosen: _trace(chosen.attempt, chosen.out))


def _add_doctor(command: argparse.ArgumentParser) -> None:
    command.add_argument("--device", choices=LANES, help="check this lane only; exit code 23 if it is not ready")
    command.add_argument("--campaign", type=_path, metavar="FILE", help="also check the needs of this campaign")
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.set_defaults(run=lambda chosen: _doctor(chosen.device, chosen.campaign, as_json=chosen.json))


def _add_freeze(command: argparse.ArgumentParser) -> None:
    command.add_argument("campaign", metavar="CAMPAIGN", type=_path, help="campaign file, in a clean checkout")
    command.set_defaults(run=lambda chosen: _freeze(chosen.campaign, None))


def _add_review(command: argparse.ArgumentParser) -> None:
    command.add_argument("campaign", metavar="CAMPAIGN", type=_path, help="campaign file")
    command.add_argument(
        "--as", required=True, metavar="NAME", dest="reviewer", type=_reviewer, help="reviewer; not the author"
    )
    command.set_defaults(run=lambda chosen: _freeze(chosen.campaign, chosen.reviewer))


_COMMANDS: Mapping[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "verify": ("derive every verdict again from a sealed root's raw files", _add_verify),
    "analyze": ("verify an attempt, and run its frozen analysis again, read-only", _add_analyze),
    "report": ("verify a sealed root, and write it as one HTML file", _add_report),
    "trace": ("write an attempt's profiles as a trace for Perfetto", _add_trace),
    "doctor": ("check whether this machine and environment can run each lane", _add_doctor),
    "freeze": ("write every digest of a campaign beside it, for review", _add_freeze),
    "review": ("record beside a frozen campaign that somebody reviewed it", _add_review),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit code."""
    atexit.register(gc.freeze)  # a last garbage collection takes longer than most commands
    chosen = make_parser().parse_args(arguments)
    try:
        text, code = chosen.run(chosen)
    except (NotProvenError, UnusableEvidenceError) as error:
        verdict = Verdict.VOID if isinstance(error, UnusableEvidenceError) else Verdict.NOT_PROVEN
        text, code = f"{verdict}: {printable(str(error))}\n", verdict.exit_code
    except (_RefusedError, CampaignError, IdentityError, OSError, ValueError) as error:
        place = error.filename if isinstance(error, OSError) else None  # a failed write names none
        reason = f"{place}: {error.strerror}" if isinstance(error, OSError) and place else str(error)
        chosen.used.error(" ".join(reason.split()))
    return _print(text, code)


def _path(text: str) -> Path:
    """Return a path; an empty argument, as from an unset variable, must not choose the current directory."""
    if not text:
        raise argparse.ArgumentTypeError("empty; expected a path")
    return Path(text)


def _digest(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        message = f"{text!r}: expected the SHA-256 of a receipt.json, 64 hexadecimal digits"
        raise argparse.ArgumentTypeError(message)
    return text


class _RefusedError(Exception):
    """Reason for a refused command, on one line."""


def _verify(sealed_root: Path, expected: Sequence[str], junit: Path | None, *, as_json: bool) -> tuple[str, int]:
    """Return a row for each gate, and the worst verdict's exit code.

    Raises:
        _RefusedError: the root cannot be read, or the report not written, or would lie in the root.
    """
    reports = _verified_root(sealed_root, junit)
    reports = hold_to(reports, expected) if expected else reports
    code = worst(report.verdict for report in reports).exit_code
    if junit is not None:
        _write(junit, _unchanged(sealed_root, lambda: collected_junit(sealed_root, reports)))
    if as_json:
        return json.dumps({"gates": [report.to_json() for report in reports]}, indent=2) + "\n", code
    return _table(reports), code


def _verified_root(sealed_root: Path, out: Path | None) -> list[GateReport]:
    """Verify a root; raises _RefusedError if it cannot be read, or ``out`` not written."""
    if out is not None:
        _require_new(out, sealed_root)
    where = repr(str(sealed_root))
    try:
        return _of_the_root(sealed_root, verify_root(sealed_root))
    except (FileNotFoundError, NotADirectoryError) as error:
        meant = _roots_words(_sealed_roots_near(sealed_root)) or "a sealed root"
        raise _RefusedError(f"{where}: not a directory; expected {meant}") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise _RefusedError(f"{where}: cannot be read ({reason}); expected a sealed root") from error


def _of_the_root(place: Path, reports: list[GateReport]) -> list[GateReport]:
    """Return the reports, or one report of a missing attempt or of the sealed root to name instead."""
    if any(report.gate for report in reports):
        return reports
    if meant := _roots_words(_sealed_roots_near(place)):
        told = f"{place}: not itself a sealed root; name {meant}"
        return [GateReport("-", "-", 0, 0, worst(report.verdict for report in reports), told)]
    nothing = GateReport("-", "-", 0, 0, Verdict.NOT_PROVEN, f"{place}: holds no attempt; expected a sealed root")
    return reports or [nothing]


def _report(sealed_root: Path, out: Path) -> tuple[str, int]:
    """Write the report; return as ``_verify``, with the same errors."""
    from pytest_laguna.report.document import report_document, require_matplotlib  # noqa: PLC0415 - verifying needs none

    try:
        require_matplotlib()
    except ValueError as error:
        raise _RefusedError(str(error)) from error
    reports = _verified_root(sealed_root, out)
    _write(out, _unchanged(sealed_root, lambda: report_document(sealed_root, reports)))
    code = worst(report.verdict for report in reports).exit_code
    return f"{_table(reports)}{printable(str(out))}: open it in any browser; it needs no other file\n", code


def _unchanged(sealed_root: Path, content: Callable[[], bytes]) -> bytes:
    """Make content from a verified root; raises _RefusedError if the root changed meanwhile."""
    try:
        return content()
    except (OSError, UnusableEvidenceError) as error:
        raise _RefusedError(f"{sealed_root}: changed while it was read ({error}); run again") from error


def _require_new(out: Path, sealed_root: Path) -> None:
    """Refuse, before any work, an output that exists or would lie in sealed evidence.

    Raises:
        _RefusedError: it does, or its directory is missing.
    """
    if Path(os.path.realpath(out)).is_relative_to(os.path.realpath(sealed_root)):  # resolve() fails on loops of links
        raise _RefusedError(f"{out}: inside {sealed_root}, which stays as it was sealed; name a file elsewhere")
    if os.path.lexists(out):
        raise _RefusedError(f"{out}: exists already; name a new file")
    if not os.path.isdir(out.parent):  # noqa: PTH112 - a name that is too long is no directory either
        raise _RefusedError(f"{out}: no directory {out.parent}; name a new file in an existing one")


def _write(out: Path, content: bytes) -> None:
    """Write a new file; raises _RefusedError."""
    try:
        write_new(out, content)
    except OSError as error:
        reason = f"{out}: cannot be written ({error.strerror}); name a new file in a writable directory"
        raise _RefusedError(reason) from error


def _analyze(attempt: Path, out: Path) -> tuple[str, int]:
    """Return the analysis, and the exit code of the worse verdict: verification's or the analysis's.

    Raises:
        OSError: the attempt cannot be read.
        ValueError: the attempt has no analysis of its own.
        _RefusedError: the output cannot be written, or would lie in its sealed root.
    """
    _require_attempt(attempt, out)
    verified = _verified(Path(os.path.abspath(attempt)))  # noqa: PTH100 - a link must stay one
    analysis: Derived[Any] | None = None
    try:
        analysis = derive(read_attempted(attempt))
        if analysis is None:
            message = f"{attempt}: its gate has no analysis of its own; use laguna verify"
            raise ValueError(message)
        _write(out, analysis.content)
        own = gravest([finding for finding in analysis.clauses.values() if finding]) or (Verdict.PASS, "")
    except UnusableEvidenceError as error:
        own = Verdict.VOID, str(error)
    except NotProvenError as error:
        own = Verdict.NOT_PROVEN, str(error)
    verdict, reason = gravest([verified, own]) or verified
    return f"{verdict}: {printable(reason)}\n{analysis.text if analysis else ''}", verdict.exit_code


def _verified(place: Path) -> Finding:
    """Verdict and reason of an attempt in its place, an absolute path."""
    if not _in_a_root(place):
        reason = f"{place}: not tied to a sealed root; expected <sealed-root>/<campaign>/<lane>/gate<N>/<attempt>"
        return Verdict.NOT_PROVEN, f"{reason}; copy the whole root"
    report = verify_attempt(place.parents[1], GATES.index(place.parent.name) + 1, int(place.name))
    return report.verdict, report.reason


def _in_a_root(place: Path) -> bool:
    """True if an absolute path is that of an attempt in a sealed root."""
    if len(place.parts) < _ROOT_LEVELS + 2 or place.parts[-3] not in LANES or place.parent.name not in GATES:
        return False
    return place.name.isdecimal() and attempt_directory(place.parent, int(place.name)) == place


def _reviewer(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("empty; expected the reviewer's name")
    return text.strip()


def _freeze(campaign: Path, reviewer: str | None) -> tuple[str, int]:
    """Freeze a campaign, or record its review; return the line to print, and the exit code.

    Raises:
        OSError: a file cannot be read or written.
        CampaignError: it is not a campaign.
        IdentityError: the candidate or a model's folder is missing.
        ValueError: the reviewer's name is empty.
        NotProvenError: as ``freezing``.
        UnusableEvidenceError: as ``freezing``.
    """
    if reviewer is None:
        frozen = freezing.freeze(campaign)
        told, digest = freezing.write_frozen(campaign, frozen), frozen.sha256
    else:
        review = freezing.review_frozen(campaign, reviewer)
        told, digest = freezing.write_review(campaign, review), review.frozen
    done = "frozen" if reviewer is None else f"reviewed by {printable(reviewer)}"
    return f"{printable(str(told))}: {done}, digest {digest}; commit it\n", 0


def _trace(attempt: Path, out: Path) -> tuple[str, int]:
    """Write a trace; return the line to print, and exit code 0, since a trace judges nothing.

    Raises:
        OSError: the attempt cannot be read.
        ValueError: it is not an attempt with a profile.
        _RefusedError: the output cannot be written, or would lie in its sealed root.
        NotProvenError: a profile is missing.
        UnusableEvidenceError: a profile cannot be used.
    """
    _require_attempt(attempt, out)
    _write(out, canonical_json(trace(attempt)))
    return f"{printable(str(out))}: open it with Perfetto; each rank has its own clock\n", 0


def _require_attempt(attempt: Path, out: Path) -> None:
    """Require an attempt, and a new output outside it and its sealed root.

    Raises:
        _RefusedError: it is not so.
    """
    if not (attempt / ATTEMPT).is_file():
        raise _RefusedError(f"{attempt}: no {ATTEMPT}; expected an attempt's directory")
    place = Path(os.path.realpath(attempt))
    _require_new(out, place.parents[_ROOT_LEVELS - 1] if _in_a_root(place) else place)


def _doctor(lane: Lane | None, campaign: Path | None, *, as_json: bool) -> tuple[str, int]:
    """Return the diagnosis, and the exit code: NOT_PROVEN's if a named lane is not ready.

    Raises:
        CampaignError: it is not a campaign.
        _RefusedError: its model's configuration does not give the number of cards.
    """
    from pytest_laguna.machine.doctor import diagnose  # noqa: PLC0415 - verifying needs nothing of the machine

    lanes: dict[Lane, LaneSettings] = {}
    project = Path.cwd()
    if campaign is not None:
        named = read_campaign(campaign)
        lanes, project = dict(named.lanes), freezing.find_project(campaign, named) or project
    engines = {name: settings.engine for name, settings in lanes.items()}
    interpreters = {asked: _interpreter(engines.get(asked), project) for asked in LANES if lane in {asked, None}}
    report = diagnose(interpreters, needs=_xpu_needs(lanes.get("xpu"), project))
    code = 0 if lane is None or report.ready(lane) else Verdict.NOT_PROVEN.exit_code
    return report.to_json() if as_json else "\n".join(map(printable, report.to_text().split("\n"))), code


def _interpreter(engine: LaneEngine | None, project: Path) -> Path:
    return Path(sys.executable) if engine is None or engine.interpreter is None else project / engine.interpreter


def _xpu_needs(settings: LaneSettings | None, project: Path) -> XpuNeeds:
    """Needs of the campaign on an XPU host; one card unless its model is there and needs more."""
    from pytest_laguna.machine.doctor_xpu import XpuNeeds  # noqa: PLC0415 - verifying needs nothing of the machine

    engine = None if settings is None else settings.engine
    ranks = 1
    target = project / engine.model.target if engine is not None and isinstance(engine.model, ModelFolders) else None
    if target is not None and target.is_dir():
        try:
            ranks = cards_needed(target)
        except UnusableEvidenceError as error:
            raise _RefusedError(str(error)) from error
    return XpuNeeds(settings=settings, sealed_root=project / "sealed", project=project, ranks=ranks)


def _sealed_roots_near(place: Path) -> list[Path]:
    """The sealed root around or inside a path within it; else every one in this directory."""
    here = Path(os.path.abspath(place))  # noqa: PTH100 - a link must stay one
    inside = (here.glob(f"{below}{ATTEMPT}") for below in ("", "*/", "*/*/", "*/*/*/"))
    above = (parent.glob(ATTEMPT) for parent in here.parents)
    around = _roots_of(itertools.chain(*inside, *above))
    return [*itertools.islice(around, 1)] or sorted({*_roots_of(here.glob(f"*/*/*/gate[123]/*/{ATTEMPT}"))})


def _roots_of(attempt_files: Iterable[Path]) -> Iterator[Path]:
    return (file.parents[_ROOT_LEVELS] for file in attempt_files if _in_a_root(file.parent))


def _roots_words(roots: Sequence[Path]) -> str:
    named = ", ".join(str(root) for root in roots[:_NAMED_ROOTS])
    more = f" and {len(roots) - _NAMED_ROOTS} more" if len(roots) > _NAMED_ROOTS else ""
    return named if len(roots) < 2 else f"one of {len(roots)}: {named}{more}"  # noqa: PLR2004 - one is no choice


def _table(reports: Sequence[GateReport]) -> str:
    """A row for each gate; a report without a gate names its place itself."""
    rows = [
        (
            printable(report.campaign),
            printable(report.lane),
            f"gate {report.gate}",
            f"{report.attempt:04d}",
            report.verdict,
            printable(report.reason),
        )
        for report in reports
        if report.gate
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(5)] if rows else []
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, [*widths, 0], strict=True)) for row in rows]
    others = [f"{report.verdict}: {printable(report.reason)}" for report in reports if not report.gate]
    return "".join(f"{line.rstrip()}\n" for line in [*others, *lines])


def _print(text: str, code: int) -> int:
    """Write to standard output; return ``code``, or another if the text was not written."""
    if sys.stdout is None:  # closed before we started
        return _unwritable("it is closed")
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return _NOBODY_READS
    except OSError as error:
        _discard_output()
        return _unwritable(str(error.strerror))
    return code


def _unwritable(reason: str) -> int:
    if sys.stderr is not None:
        sys.stderr.write(f"laguna: standard output cannot be written ({reason}); redirect it\n")
    return USAGE_EXIT_CODE


def _discard_output() -> None:
    """Discard buffered stdout so exit does not retry the failed write."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
