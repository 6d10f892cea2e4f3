# SPDX-License-Identifier: Apache-2.0
"""What a device gate's session finds of its cards, its lease and its processes, whatever its tests say."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.demo import CARD, Project

DEVICE = """\
import pytest

@pytest.mark.gate(2)
@pytest.mark.clause("only")
def test_only(prove{fixtures}):
    {body}
    prove("shown")
"""


def _device_test(project: Project, body: str, *fixtures: str) -> None:
    names = "".join(f", {name}" for name in fixtures)
    (project.directory / "checks" / "test_device.py").write_text(DEVICE.format(body=body, fixtures=names))


@pytest.mark.parametrize("place", ["prove.directory", "tmp_path"])
def test_what_a_program_leaves_running_fails_the_gate_though_its_test_looks_away(project: Project, place: str) -> None:
    _device_test(
        project,
        f'arm_runner(["/bin/sh", "-c", "setsid sleep 78 & exit 0"], {{}}, {place}, 20.0)',
        "arm_runner",
        "tmp_path",
    )
    assert project.gate(1).returncode == 0
    result = project.gate(2)
    assert (result.returncode, "nothing-left: left behind: pid " in result.stdout) == (21, True), result.stdout
    code, gates, _ = project.verify()
    assert (code, [gate["verdict"] for gate in gates]) == (21, ["PASS", "FAIL"])
    again = project.gate(2)
    assert (again.returncode, "FAIL" in again.stderr) == (4, True), again.stderr


def test_a_lease_that_is_lost_voids_the_gate(project: Project) -> None:
    body = f"""import os, pathlib
    pathlib.Path(f"/tmp/pytest-laguna-{{os.geteuid()}}/cpu-slot-{CARD}.lease").unlink()"""
    _device_test(project, body)
    assert project.gate(1).returncode == 0
    result = project.gate(2)
    assert result.returncode == 22, result.stdout
    assert f"card cpu-slot-{CARD}: its lease in /tmp/pytest-laguna-" in result.stdout
    code, gates, _ = project.verify()
    assert (code, [gate["verdict"] for gate in gates]) == (22, ["PASS", "VOID"])


def test_nothing_runs_on_cards_whose_lease_is_lost(project: Project) -> None:
    body = f"""import os, pathlib
    pathlib.Path(f"/tmp/pytest-laguna-{{os.geteuid()}}/cpu-slot-{CARD}.lease").unlink()
    arm_runner(["/bin/sh", "-c", "touch ran"], {{}}, prove.directory, 20.0)"""
    _device_test(project, body, "arm_runner")
    assert project.gate(1).returncode == 0
    assert project.gate(2).returncode == 22
    assert list((project.attempt(2) / "evidence" / "only").iterdir()) == []


def test_a_stranger_with_a_long_command_is_told_in_a_line(project: Project) -> None:
    body = """import pathlib, time
    pathlib.Path("running").touch()
    while not pathlib.Path("held").exists(): time.sleep(0.05)"""
    _device_test(project, body)
    assert project.gate(1).returncode == 0
    gate = subprocess.Popen(
        project.command("--gate=2", f"--cards={CARD}"),
        cwd=project.directory,
        env=project.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (project.directory / "running").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    sleeps = [sys.executable, "-c", "import time; time.sleep(60) #" + "x" * 5000]
    with subprocess.Popen(sleeps, env={"LAGUNA_CPU_CARDS": str(CARD)}) as stranger:
        time.sleep(0.5)
        (project.directory / "held").touch()
        output, _ = gate.communicate(timeout=100)
        stranger.kill()
    assert (gate.returncode, "INTERNALERROR" in output, "VOID: no-holder: process " in output) == (22, False, True)
    code, gates, _ = project.verify()
    assert (code, [each["verdict"] for each in gates]) == (22, ["PASS", "VOID"])
    project.tests()
    assert project.gate(1).returncode == 0
    assert project.gate(2).returncode == 0, "the card is free again"
