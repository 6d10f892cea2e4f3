# SPDX-License-Identifier: Apache-2.0
"""What a gate shows while it runs and when it is over, through a pipe and on a real terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess

import pytest

from tests.demo import CARD, Project

pytestmark = pytest.mark.sessions

RUNS = """\
import sys

import pytest


@pytest.mark.gate(2)
@pytest.mark.clause("only")
def test_only(prove, arm_runner):
    place = prove.directory / "q1"
    place.mkdir(mode=0o700)
    ended = arm_runner([sys.executable, "-c", "import time; time.sleep(2.5)"], {}, place, 30.0)
    assert ended.exit_code == 0
    prove("ran", seconds=ended.wall_seconds)
"""


@pytest.fixture
def running(project: Project) -> Project:
    """Its gate 2 runs a program for a moment; gate 1 has passed."""
    (project.directory / "checks" / "test_device.py").write_text(RUNS)
    assert project.gate(1).returncode == 0
    return project


def on_terminal(project: Project, *arguments: str) -> str:
    """What a gate writes to a terminal that is its standard output."""
    controller, terminal = pty.openpty()
    command = project.command("--gate=2", f"--cards={CARD}", *arguments)
    environment = project.environment(TERM="xterm")
    process = subprocess.Popen(command, cwd=project.directory, env=environment, stdout=terminal, stderr=terminal)
    os.close(terminal)
    written = b""
    while True:
        try:
            piece = os.read(controller, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        written += piece
    os.close(controller)
    assert process.wait(60) == 0, written.decode()
    return written.decode()


def test_a_pipe_gets_a_plain_line_for_each_change(running: Project) -> None:
    done = running.gate(2)
    assert done.returncode == 0, done.stdout
    assert "\x1b" not in done.stdout
    assert re.search(r"^  q1 +starts +0:00 of 0:30$", done.stdout, re.MULTILINE)
    assert re.search(r"^  q1 +runs +0:0\d of 0:30$", done.stdout, re.MULTILINE)
    assert re.search(r"^  q1 +ended +0:0\d$", done.stdout, re.MULTILINE)


@pytest.mark.sessions(keep=1)
def test_a_terminal_has_one_line_that_is_rewritten(running: Project) -> None:
    written = on_terminal(running)
    assert len(re.findall(r"\r\x1b\[K  q1 +\w+ +0:0\d of 0:30", written)) >= 3
    assert re.search(r"\r\x1b\[K  q1 +ended +0:0\d\r\n", written)


def test_a_quiet_session_has_plain_lines_on_a_terminal_too(running: Project) -> None:
    written = on_terminal(running, "-q")
    assert "\x1b[K" not in written
    assert re.search(r"  q1 +ended +0:0\d\r\n", written)


@pytest.mark.sessions(keep=1)
def test_the_end_has_the_table_the_reason_and_the_next_command(project: Project) -> None:
    project.tests(second="assert False, 'the contract is broken'")
    done = project.gate(1)
    lines = done.stdout.splitlines()
    (first,) = [line for line in lines if line.startswith("PASS        first ")]
    (second,) = [line for line in lines if line.startswith("FAIL        second")]
    assert "the contract is broken" in second
    assert lines.index(first) < lines.index(second)
    (verdict,) = [line for line in lines if line.startswith("gate 1: FAIL: second: call: the contract is broken")]
    (advice,) = [line for line in lines if line.startswith("next: the campaign is closed on this lane")]
    assert lines.index(second) < lines.index(verdict) < lines.index(advice)
    assert lines[-1] == "report: laguna report sealed --out report.html"


def test_what_passes_names_the_next_gate(project: Project) -> None:
    done = project.gate(1)
    assert re.search(r"^next: pytest --gate=2 --campaign=campaign.toml --device=cpu", done.stdout, re.MULTILINE)
    header = rf"gate 1 of demo: lane cpu, campaign digest [0-9a-f]{{12}}, attempt {1:04d}"
    assert re.search(header, done.stdout)


def test_nothing_of_it_is_evidence(running: Project) -> None:
    assert running.gate(2).returncode == 0
    for file in running.attempt(2).rglob("*"):
        assert not file.is_file() or b"of 0:30" not in file.read_bytes()
