# SPDX-License-Identifier: Apache-2.0
"""One line for each run, with phase, elapsed and deadline: rewritten on a terminal, plain elsewhere."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_laguna.report import progress
from pytest_laguna.report.progress import Progress, open_progress, phase_of

STAGES = [
    ("starts", []),
    ("runs", ["stdout.log"]),
    ("graphs are captured", ["ranks/rank-0-captured.json"]),
    ("server is ready", ["metrics-before-suite.prom"]),
    ("row 1", ["row-00.request.json"]),
    ("row 2", ["row-00.sse", "row-01.request.json"]),
    ("server stops", ["metrics-after-suite.prom"]),
    ("ends", ["end.json"]),
]


def write(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("")


def test_a_leg_goes_through_its_phases(tmp_path: Path) -> None:
    leg = tmp_path / "01-A1"
    assert phase_of(leg) == "starts"
    for phase, names in STAGES:
        write(leg, *names)
        assert phase_of(leg) == phase


def test_an_arm_says_when_its_replays_are_profiled(tmp_path: Path) -> None:
    write(tmp_path, "stdout.log", "profile/rank0.json")
    assert phase_of(tmp_path) == "replays are profiled"
    write(tmp_path, "record.json")
    assert phase_of(tmp_path) == "ends"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SECONDS", 0.01)


def shown(directory: Path, during: Callable[[], None], *, live: bool) -> str:
    written: list[str] = []
    with Progress(written.append, live=live).run(directory, 2400.0):
        during()
    return "".join(written)


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.usefixtures("quick")
def test_plain_lines_tell_each_change_once(tmp_path: Path) -> None:
    written: list[str] = []
    arm = tmp_path / "graph-control"
    arm.mkdir()
    with Progress(written.append, live=False).run(arm, 2400.0):
        wait_for(lambda: "starts" in "".join(written))
        write(arm, "stdout.log")
        wait_for(lambda: "runs" in "".join(written))
    text = "".join(written)
    assert "\x1b" not in text
    assert [line.split()[1] for line in text.splitlines() if line.strip()] == ["starts", "runs", "ended"]
    assert re.search(r"^  graph-control +starts +0:00 of 40:00$", text, re.MULTILINE)


@pytest.mark.usefixtures("quick")
def test_a_live_line_is_rewritten_in_place_and_ends_with_one_line(tmp_path: Path) -> None:
    text = shown(tmp_path, lambda: time.sleep(0.1), live=True)
    assert text.count("\r\x1b[K") > 2
    assert text.count("\n") == 2
    assert text.startswith("\n\r\x1b[K")
    assert "ended" in text.rpartition("\r")[2]


def test_a_run_that_raises_has_its_last_line_and_raises(tmp_path: Path) -> None:
    written: list[str] = []
    with pytest.raises(RuntimeError), Progress(written.append, live=False).run(tmp_path / "0", 60.0):
        raise RuntimeError
    assert "ended" in written[-1]


def test_a_number_is_called_by_what_it_counts(tmp_path: Path) -> None:
    assert "  packet 0 " in shown(tmp_path / "packets" / "0", lambda: None, live=False)


def test_only_the_first_line_of_a_test_begins_a_new_one(tmp_path: Path) -> None:
    written: list[str] = []
    shows = Progress(written.append, live=False)
    for _ in range(2):
        with shows.run(tmp_path, 1.0):
            pass
    assert "".join(written).count("\n\n") == 0
    shows.test_began()
    with shows.run(tmp_path, 1.0):
        pass
    assert "".join(written).count("\n\n") == 1


def of_terminal(verbosity: int, term: str = "xterm") -> bool:
    """Whether a session on a real terminal rewrites its line."""
    code = f"from pytest_laguna.report.progress import open_progress; print(open_progress({verbosity}).live)"
    controller, terminal = pty.openpty()
    subprocess.run([sys.executable, "-c", code], stdout=terminal, check=True, env=os.environ | {"TERM": term})
    os.close(terminal)
    said = os.read(controller, 100).decode()
    os.close(controller)
    return said.strip() == "True"


def test_a_terminal_is_rewritten_unless_quiet_or_dumb() -> None:
    assert of_terminal(0)
    assert not of_terminal(-1)
    assert not of_terminal(0, "dumb")


def test_a_pipe_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    reading, writing = os.pipe()
    kept = os.dup(1)
    os.dup2(writing, 1)
    try:
        shows = open_progress(0)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(writing)
    assert not shows.live
    with shows.run(Path("/nowhere/q1"), 1.0):
        pass
    assert b"q1" in os.read(reading, 1000)
    os.close(reading)
