# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of a supervisor before its program runs: in a gate's own test, in an arm and in a leg."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_laguna.evidence import root
from pytest_laguna.evidence.arms.arm_record import Arm
from pytest_laguna.evidence.diagnostic.analysis import NOTICE
from pytest_laguna.evidence.endpoint import reader
from pytest_laguna.machine import process
from pytest_laguna.verdict import Verdict
from tests.acceptance.test_arm_kills import ArmGate
from tests.acceptance.test_endpoint_bad_input import LEGS, Gate
from tests.demo import Project

pytestmark = pytest.mark.faults

KILLED = "seen its supervisor ended at once, by SIGKILL: nothing on standard error; expected a running program"
OWN_TEST = """\
import pytest
from pytest_laguna.machine import process

@pytest.mark.gate(2)
@pytest.mark.clause("only")
def test_only(prove, arm_runner, monkeypatch):
    BODY
    prove("shown")
"""
KILLS = 'monkeypatch.setattr(process, "_PROGRAM", "import os; os.kill(os.getpid(), 9)")'
DIES = """place = prove.directory / "python"
    place.write_text("#!/bin/sh\\nkill -9 $$")
    place.chmod(0o700)"""
OWN = {
    f"{KILLS}; arm_runner(['/bin/true'], {{}}, prove.directory, 30.0)": ("ProcessError: /bin/true in ", KILLED),
    "arm_runner(['/bin/nonesuch'], {}, prove.directory, 30.0)": ("ProcessError: /bin/nonesuch in ", "No such file"),
    f"{DIES}\n    arm_runner.tiny_pair(prove.directory / 'pair', interpreter=place)": (
        "ArmFailedError: tiny pair in ",
        ": exited, SIGKILL after ",
    ),
}
"""What a gate's own test starts, and what is said when it or its supervisor does not come to its end."""


def kill_supervisor_of(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the supervisor end by SIGKILL whose program runs in a directory of this name; it starts in that itself."""
    kill = f"import os; os.path.basename(os.getcwd()) == {name!r} and os.kill(os.getpid(), 9)"
    monkeypatch.setattr(process, "_PROGRAM", f"{kill}; {process._PROGRAM}")


@pytest.mark.faults(keep=1)
@pytest.mark.parametrize("body", OWN)
def test_in_a_gates_own_test_it_is_not_proven(body: str, project: Project) -> None:
    (project.directory / "checks" / "test_device.py").write_text(OWN_TEST.replace("BODY", body))
    assert project.gate(1).returncode == 0
    result = project.gate(2)
    assert (result.returncode, *(told in result.stdout for told in OWN[body])) == (23, True, True), result.stdout
    assert not (project.attempt(2) / root.EVIDENCE / "only" / "process.json").exists()
    code, gates, _ = project.verify()
    assert (code, gates[1]["verdict"]) == (23, "NOT_PROVEN"), gates


def test_in_an_arm_it_is_not_proven_and_no_other_arm_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = ArmGate(tmp_path, monkeypatch)
    gate.write_engine("none", "starts")
    kill_supervisor_of(Arm.Q1.value, monkeypatch)
    analysis = gate.carry_out()
    assert (analysis.verdict, analysis.reason.endswith(f"{KILLED} ({NOTICE})")) == (Verdict.NOT_PROVEN, True), analysis
    assert f"; arms/{Arm.Q1}: no record: " in analysis.reason
    assert gate.started() == [Arm.Q1]


@pytest.mark.faults(keep=1)
@pytest.mark.parametrize("leg", LEGS)
def test_in_a_leg_that_is_void_and_the_gate_not_proven(
    leg: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(tmp_path, {}, monkeypatch)
    kill_supervisor_of(leg, monkeypatch)
    gate.carry_out()
    begun = LEGS if leg in LEGS[2:] else LEGS[: LEGS.index(leg) + 1]
    assert (gate.started, [*reader.read_legs(gate.endpoint).ended]) == (begun, [leg])
    verdict, reason = gate.ended(leg)
    assert (verdict, reason.endswith(KILLED)) == (Verdict.VOID, True), reason
    verdict, reason = gate.clause("legs-in-order")
    assert (verdict, reason.endswith(KILLED)) == (Verdict.NOT_PROVEN, True), reason
