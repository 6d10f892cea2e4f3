# SPDX-License-Identifier: Apache-2.0
"""A small project with a campaign of two gates, for tests of the session: real pytest processes, no vLLM."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_laguna import cli
from pytest_laguna.machine.environment import inherited_runtime_variables

CAMPAIGN = """\
schema = "pytest-laguna-campaign-v1"
name = "demo"
lane = "cpu"
gates = [1, 2]

[preregistration]
title = "A demonstration"
date = 2026-07-25
sha256 = "{zeros}"

[candidate]
package = "demo_candidate"
flag = "DEMO_FLAG"
control = "0"
treatment = "1"
validator = "python"

[lanes.cpu]
vllm = "0.32.0"
idle = {{ snapshots = 2, seconds = 0.1, memory_bytes = 0, settle_seconds = 2.0, foreign_workers = true }}
host = {{ foreign_holders = true }}

[lanes.cpu.bounds]
deadline_seconds = 60.0
settle_seconds = 1.0
interrupt_seconds = 1.0
terminate_seconds = 1.0
kill_seconds = 5.0
memory_limit_bytes = 1_000_000_000

[clauses.1]
first = "checks/test_first.py::test_first"
second = "checks/test_first.py::test_second"

[clauses.2]
only = "checks/test_device.py::test_only"
""".format(zeros="0" * 64)

FIRST = """\
import pytest

@pytest.mark.gate(1)
@pytest.mark.clause("first")
def test_first(prove):
    {first}

@pytest.mark.gate(1)
@pytest.mark.clause("second")
def test_second(prove):
    {second}
"""

DEVICE = """\
import pytest

@pytest.mark.gate(2)
@pytest.mark.clause("only")
def test_only(prove):
    {only}
"""

CARD = os.getpid() * 7 % 800 + 10
"""A process slot of this test process's own, as are the next and the hundredth after it: tests run side by side, and a
card has one lease. No card has four digits."""

# Of the plugins that happen to be installed beside, two load for longer than a small session runs.
PYPROJECT = """\
[tool.pytest.ini_options]
strict = true
pythonpath = ["."]
addopts = ["-p", "no:hypothesispytest", "-p", "no:anyio"]
"""

PROVES = 'prove("shown", seen=[1, 2.5, "three"])'


class Project:
    """The demonstration project in a directory, and what its sessions left there."""

    timeout = 600
    """Seconds that one session may take."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sealed = directory / "sealed"
        (directory / "checks").mkdir()
        (directory / "demo_candidate").mkdir()
        (directory / "demo_candidate" / "__init__.py").write_text("ANSWER = 42\n")
        (directory / "pyproject.toml").write_text(PYPROJECT)
        self.campaign(CAMPAIGN)
        self.tests()

    def campaign(self, text: str) -> None:
        (self.directory / "campaign.toml").write_text(text)

    def tests(self, *, first: str = PROVES, second: str = PROVES, only: str = PROVES) -> None:
        (self.directory / "checks" / "test_first.py").write_text(FIRST.format(first=first, second=second))
        (self.directory / "checks" / "test_device.py").write_text(DEVICE.format(only=only))

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "pytest", "--campaign=campaign.toml", *arguments]

    def environment(self, **variables: str) -> dict[str, str]:
        refused = {*inherited_runtime_variables(os.environ)}
        kept = {name: os.environ[name] for name in os.environ if not name.startswith(("PYTEST", "COV_"))}
        kept = {name: value for name, value in kept.items() if name not in refused}
        return kept | {"PYTHONPATH": str(self.directory)} | variables

    def pytest(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.run(self.command(*arguments), **variables)

    def run(self, command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.directory,
            env=self.environment(**variables),
            capture_output=True,
            text=True,
            check=False,
            timeout=self.timeout,
        )

    def gate(self, number: int, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        cards = [f"--cards={CARD}"] if number > 1 and not any(a.startswith("--cards") for a in arguments) else []
        return self.pytest(f"--gate={number}", *cards, *arguments, **variables)

    def verify(self) -> tuple[int, list[dict[str, Any]], str]:
        """Exit code, the gates of the JSON object, and what stood on standard error."""
        result = laguna("verify", str(self.sealed), "--json")
        return result.returncode, json.loads(result.stdout)["gates"] if result.stdout else [], result.stderr

    def attempt(self, gate: int = 1, number: int = 1) -> Path:
        return self.sealed / "demo" / "cpu" / f"gate{gate}" / f"{number:04d}"


def laguna(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command ``laguna``, called in this process: ``test_cli`` gives it one of its own."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            code = cli.main(arguments)
        except SystemExit as refused:
            code = int(refused.code or 0)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def last_line(result: subprocess.CompletedProcess[str]) -> str:
    """The last line of standard error: where refusals stand."""
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else ""


@contextlib.contextmanager
def writable(path: Path) -> Iterator[None]:
    """Lift the write protection of a sealed attempt for as long as a test damages it."""
    directories = [path, *(entry for entry in path.rglob("*") if entry.is_dir() and not entry.is_symlink())]
    for directory in directories:
        directory.chmod(0o700)
    for entry in path.rglob("*"):
        if entry.is_file() and not entry.is_symlink():
            entry.chmod(0o600)
    yield
