# SPDX-License-Identifier: Apache-2.0
"""What a device gate's session finds of its cards, its lease and its processes, whatever its tests say."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.demo import CARD, Project

pytestmark = pytest.mark.sessions

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


@pytest.mark.sessions(keep=1)
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


CLEAN = """import json
    from pytest_laguna.evidence import files
    record = json.loads((place / "process.json").read_text())
    record["leftovers"], record["last_signal"] = [], None
    (place / "process.json").unlink()
    (place / "process.json").write_bytes(files.canonical_json(record))"""


@pytest.mark.parametrize(
    "hide",
    [CLEAN, '(place / "process.json").unlink()', "import shutil; shutil.rmtree(place)"],
    ids=["clean", "record", "run"],
)
def test_a_test_cannot_take_back_what_a_program_left_running(project: Project, hide: str) -> None:
    body = f"""place = prove.directory / "run"; place.mkdir()
    arm_runner(["/bin/sh", "-c", "setsid sleep 78 & exit 0"], {{}}, place, 20.0)
    {hide}"""
    _device_test(project, body, "arm_runner")
    assert project.gate(1).returncode == 0
    result = project.gate(2)
    assert (result.returncode, "only/run/process.json: " in result.stdout) == (22, True), result.stdout
    assert [gate["verdict"] for gate in project.verify()[1]] == ["PASS", "VOID"]
    journal = (project.attempt(2) / "journal.jsonl").read_text()
    assert '"reason":"only/run/process.json: nothing-left: left behind: pid ' in journal
    again = project.gate(2)
    assert (again.returncode, "FAIL" in again.stderr) == (4, True), again.stderr


@pytest.mark.sessions(keep=1)
@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("cards/lease.json", "memory_bytes"),
        ("cards/idle-before.json", "seconds"),
        ("only/process.json", "wall_seconds"),
        ("only/host.json", "memory_available_bytes"),
    ],
)
def test_a_record_that_a_test_rewrites_voids_the_gate(project: Project, name: str, field: str) -> None:
    body = f"""import re
    arm_runner(["/bin/true"], {{}}, prove.directory, 20.0)
    path = prove.directory.parent / "{name}"; text = path.read_text(); path.unlink()
    path.write_text(re.sub('"{field}":[0-9.e-]+', '"{field}":7', text))
    assert path.read_text() != text"""
    _device_test(project, body, "arm_runner")
    assert project.gate(1).returncode == 0
    result = project.gate(2)
    assert (result.returncode, f"{name}: records-as-written: seen replaced; expected" in result.stdout) == (22, True)
    assert project.verify()[0] == 22


@pytest.mark.parametrize(("leaves", "code"), [("", 22), ("setsid sleep 78 & ", 21)])
def test_a_program_cannot_write_its_own_end(project: Project, leaves: str, code: int) -> None:
    body = f'arm_runner(["/bin/sh", "-c", "echo x > process.json; {leaves}exit 0"], {{}}, prove.directory, 20.0)'
    _device_test(project, body, "arm_runner")
    assert project.gate(1).returncode == 0
    result = project.gate(2)
    assert (result.returncode, "Traceback" in result.stdout) == (code, False), result.stdout
    journal = (project.attempt(2) / "journal.jsonl").read_text()
    assert "only/process.json: something lay there before it was recorded; moved aside, see found-" in journal
    assert project.verify()[0] == code


def test_what_a_test_itself_leaves_is_no_fail_and_what_bears_the_token_is(project: Project) -> None:
    body = """import multiprocessing
    with multiprocessing.get_context("spawn").Lock(): pass"""
    _device_test(project, body)
    assert project.gate(1).returncode == 0
    result = project.gate(2)
    assert (result.returncode, "was left running by a test: " in result.stdout) == (22, True), result.stdout
    _device_test(
        project,
        """import subprocess
    subprocess.Popen(["sleep", "78"], env={"LAGUNA_LEASE": cards.lease.token}, start_new_session=True)""",
        "cards",
    )
    assert project.gate(1).returncode == 0
    result = project.gate(2)
    assert (result.returncode, "was left running by a test: sleep 78" in result.stdout) == (21, True), result.stdout


@pytest.mark.sessions(keep=1)
def test_a_lease_that_is_lost_voids_the_gate(project: Project) -> None:
    body = f"""import pathlib
    pathlib.Path("/tmp/pytest-laguna/cpu-slot-{CARD}.lease").unlink()"""
    _device_test(project, body)
    assert project.gate(1).returncode == 0
    result = project.gate(2)
    assert result.returncode == 22, result.stdout
    assert f"card cpu-slot-{CARD}: seen its lease in /tmp/pytest-laguna " in result.stdout
    code, gates, _ = project.verify()
    assert (code, [gate["verdict"] for gate in gates]) == (22, ["PASS", "VOID"])


def test_nothing_runs_on_cards_whose_lease_is_lost(project: Project) -> None:
    body = f"""import pathlib
    pathlib.Path("/tmp/pytest-laguna/cpu-slot-{CARD}.lease").unlink()
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
