# SPDX-License-Identifier: Apache-2.0
"""Where the end of what a gate runs is recorded: whoever starts it cannot keep it from the analysis."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from pytest_laguna.analysis.machine.lease import judge_processes
from pytest_laguna.evidence.machine.process import Reason
from pytest_laguna.evidence.machine.reader import read_processes
from pytest_laguna.evidence.reading import present
from pytest_laguna.machine.process import ProcessError
from pytest_laguna.run.arm_runner import ArmRunner
from pytest_laguna.verdict import Verdict
from tests.runner import runner

LEAVES = ["/bin/sh", "-c", "setsid sleep 300 & exit 0"]
RUNS_ON = ["/bin/sleep", "300"]


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    directory = tmp_path / "evidence"
    directory.mkdir()
    return directory


@pytest.fixture
def run(evidence: Path) -> ArmRunner:
    return dataclasses.replace(runner(settle_seconds=0.2), evidence=evidence)


def test_what_a_program_leaves_is_judged_though_nobody_looks_at_its_end(run: ArmRunner, evidence: Path) -> None:
    place = evidence / "clause"
    place.mkdir()
    run(LEAVES, {}, place, 20.0)
    ((verdict, reason),) = judge_processes(read_processes(evidence))
    assert verdict is Verdict.FAIL
    assert reason.startswith("clause/process.json: nothing-left: left behind: ")


def test_so_it_is_where_a_program_runs_outside_the_evidence(run: ArmRunner, evidence: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        place = tmp_path / name / ("x" * 100)
        place.mkdir(parents=True)
        run(LEAVES, {}, place, 20.0)
        assert not (place / "process.json").exists()
    found = judge_processes(read_processes(evidence))
    assert [verdict for verdict, _ in found] == [Verdict.FAIL] * 2
    assert all(reason.startswith(f"processes/{'x' * 64}-") for _, reason in found)


def test_a_link_out_of_the_evidence_does_not_lead_there(run: ArmRunner, evidence: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (evidence / "clause").symlink_to(tmp_path / "outside")
    run(["/bin/true"], {}, evidence / "clause", 20.0)
    processes = read_processes(evidence)
    assert [Path(path).parts[0] for path in processes] == ["processes"]


def test_a_program_that_was_stopped_or_ended_by_its_deadline_leaves_its_record(run: ArmRunner, evidence: Path) -> None:
    for name in ("deadline", "stopped", "thrown"):
        (evidence / name).mkdir()
    run(RUNS_ON, {}, evidence / "deadline", 0.5)
    with run.start(RUNS_ON, {}, evidence / "stopped", 60.0):
        pass
    with pytest.raises(ZeroDivisionError), run.start(RUNS_ON, {}, evidence / "thrown", 60.0):
        _ = 1 // 0
    assert {path: present(process).reason for path, process in read_processes(evidence).items()} == {
        "deadline/process.json": Reason.DEADLINE,
        "stopped/process.json": Reason.STOPPED,
        "thrown/process.json": Reason.STOPPED,
    }


def test_a_record_that_is_there_before_the_end_is_never_taken_for_it(run: ArmRunner, evidence: Path) -> None:
    with pytest.raises(FileExistsError):
        run(["/bin/sh", "-c", "echo {} > process.json"], {}, evidence, 20.0)
    ((verdict, reason),) = judge_processes(read_processes(evidence))
    assert (verdict, reason.startswith("process.json: ")) == (Verdict.VOID, True)


def test_a_program_that_cannot_be_run_leaves_no_record(run: ArmRunner, evidence: Path) -> None:
    start = time.monotonic()
    with pytest.raises(ProcessError, match="expected a running program"):
        run(["/nowhere/program"], {}, evidence, 20.0)
    assert time.monotonic() - start < 10
    assert read_processes(evidence) == {}


def test_without_an_attempt_the_record_lies_where_it_ran(tmp_path: Path) -> None:
    runner()(["/bin/true"], {}, tmp_path, 20.0)
    assert list(read_processes(tmp_path)) == ["process.json"]
