# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_laguna.machine import doctor, leases
from pytest_laguna.machine.cards_cpu import CpuCards
from pytest_laguna.machine.interpreter import UNLISTED, ask
from pytest_laguna.machine.sweep import Sweep
from tests.unit.machine.fakes import Nvml

ANSWER = {"python": "3.11.7", "torch": "2.13.0", "vllm": "0.32.0", "device": "cpu"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "leases"


def interpreter(directory: Path, program: str) -> Path:
    """Something that is started as a Python would be and answers as the test wants."""
    path = directory / "python"
    path.write_text(f"#!/bin/sh\n{program}\n")
    path.chmod(0o755)
    return path


def answering(directory: Path, *unlisted: str, **changed: str) -> Path:
    answer = {"engine": ANSWER | changed, "unlisted": list(unlisted)}
    return interpreter(directory, f"echo vLLM says something first\necho '{json.dumps(answer)}'")


def test_a_ready_lane_shows_its_cards_and_its_engine(tmp_path: Path, place: Path) -> None:
    report = doctor.diagnose({"cpu": answering(tmp_path)}, directory=place)
    assert report.ready("cpu")
    assert not report.ready("cuda")
    (lane,) = report.lanes
    assert [card.identity for card in lane.cards] == [
        f"cpu-slot-{slot}" for slot in range(len(os.sched_getaffinity(0)))
    ]
    assert lane.engine == doctor.Engine(**ANSWER)
    text = report.to_text()
    assert text.startswith("cpu: ready\n  card 0 = cpu-slot-0 (core ")
    assert "  Python 3.11.7, torch 2.13.0, vLLM 0.32.0 on cpu\n" in text
    assert text.endswith("leases: none\n")


def test_an_interpreter_may_be_named_from_here(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(answering(tmp_path).parent)
    assert doctor.diagnose({"cpu": Path("python")}, directory=place).ready("cpu")


def test_a_lane_without_its_vendors_library_says_how_to_get_it(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    report = doctor.diagnose({"cuda": answering(tmp_path, device="cuda")}, directory=place)
    assert not report.ready("cuda")
    assert [problem.mend for problem in report.lanes[0].problems] == [f"{sys.executable} -m pip install nvidia-ml-py"]
    assert f"    fix: {sys.executable} -m pip install nvidia-ml-py\n" in report.to_text()


def test_a_lane_without_a_card_is_not_ready(tmp_path: Path, place: Path, nvml: Nvml) -> None:
    nvml.cards.clear()
    report = doctor.diagnose({"cuda": answering(tmp_path, device="cuda")}, directory=place)
    assert [(problem.found, problem.mend) for problem in report.lanes[0].problems] == [
        ("cuda: seen no card; expected one", "nvidia-smi -L")
    ]


@pytest.mark.usefixtures("nvml")
def test_an_engine_of_another_lane_is_not_ready(tmp_path: Path, place: Path) -> None:
    python = answering(tmp_path)
    report = doctor.diagnose({"cuda": python}, directory=place)
    (problem,) = report.lanes[0].problems
    assert problem.found == f"cuda: seen vLLM 0.32.0 of {python} on 'cpu'; expected 'cuda'"
    assert problem.mend == f"{python} -m pip install 'pytest-laguna[cuda]'"


def test_a_start_file_that_no_record_lists_is_told_with_its_cure(tmp_path: Path, place: Path) -> None:
    report = doctor.diagnose({"cpu": answering(tmp_path, "/e/_virtualenv.pth", "/e/mine.pth")}, directory=place)
    assert not report.ready("cpu")
    told = "seen a start file of Python's that no RECORD lists; expected none: gate 2 would be VOID"
    assert [(problem.found, problem.mend) for problem in report.lanes[0].problems] == [
        (f"cpu: /e/_virtualenv.pth: {told}", "rm /e/_virtualenv.pth /e/_virtualenv.py; they only patch old distutils"),
        (f"cpu: /e/mine.pth: {told}", "mv /e/mine.pth elsewhere, or have pip install what needs it"),
    ]


def test_an_interpreter_finds_the_start_files_that_no_record_lists(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    for name in ("_virtualenv", "of_a_package"):
        (site / f"{name}.pth").write_text("import sys\n")
    for name, record in (("listed", "of_a_package.pth,sha256=x,11\n"), ("of_the_system", None)):
        metadata = site / f"{name}-1.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Name: {name}\nVersion: 1\n")
        if record is not None:
            (metadata / "RECORD").write_text(record)
    program = f"{UNLISTED}import json; print(json.dumps(unlisted()))"
    done = ask(tmp_path / "env" / "bin" / "python", program, deadline_seconds=60.0)
    assert json.loads(done.stdout) == [str(site / "_virtualenv.pth")], done.stderr


def test_a_python_without_an_engine_says_what_it_lacks(tmp_path: Path, place: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    python = tmp_path / "bare" / "bin" / "python"
    report = doctor.diagnose({"cpu": python}, directory=place)
    (problem,) = report.lanes[0].problems
    assert (
        problem.found
        == f"cpu: {python}: seen ModuleNotFoundError: No module named 'torch'; expected its engine imported"
    )
    assert problem.mend == f"{python} -m pip install 'pytest-laguna[cpu]'"


def test_a_python_that_is_not_there_says_how_to_make_it(tmp_path: Path, place: Path) -> None:
    report = doctor.diagnose({"cpu": tmp_path / "none" / "bin" / "python"}, directory=place)
    (problem,) = report.lanes[0].problems
    assert (problem.found.partition(": seen ")[2], problem.mend) == (
        "No such file or directory; expected a Python that runs",
        f"python3 -m venv {tmp_path / 'none'}",
    )


def test_an_engine_that_hangs_is_ended(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DEADLINE_SECONDS", 0.3)
    python = interpreter(tmp_path, "exec sleep 300")
    report = doctor.diagnose({"cpu": python}, directory=place)
    assert report.lanes[0].problems[0].found == f"cpu: {python}: seen no engine imported in 0.3 s; expected one"


@pytest.mark.parametrize("program", ["echo", "echo '{}'", "echo '{\"python\": 3}'", "echo oops"])
def test_an_answer_of_another_form_is_a_problem(tmp_path: Path, place: Path, program: str) -> None:
    report = doctor.diagnose({"cpu": interpreter(tmp_path, program)}, directory=place)
    assert "; expected its versions" in report.lanes[0].problems[0].found


def test_the_engine_is_asked_without_this_environment(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "surprise")
    python = interpreter(tmp_path, f'env > {tmp_path}/environment; echo "$*" | head -c 5 > {tmp_path}/arguments')
    doctor.diagnose({"cpu": python}, directory=place)
    names = {line.partition("=")[0] for line in (tmp_path / "environment").read_text().splitlines()}
    assert names - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "LANG", "HOME", "VLLM_LOGGING_LEVEL"}
    assert (tmp_path / "arguments").read_text() == "-I -c"


def test_leases_are_shown_as_what_they_are(place: Path) -> None:
    def take(slot: int) -> leases.Lease:
        return leases.acquire(
            CpuCards(3).discover()[slot : slot + 1],
            Path("/sealed/0001"),
            sweep=lambda _token: Sweep([], []),
            idle=lambda _card: None,
            directory=place,
        )

    take(0).release()
    take(1).quarantine("process 7 survives")
    held = take(2)
    report = doctor.diagnose({}, directory=place)
    assert [(lease.identity, lease.state) for lease in report.leases] == [
        ("cpu-slot-0", "released"),
        ("cpu-slot-1", "stale"),
        ("cpu-slot-2", "held"),
    ]
    assert report.problems == [], "a gate on that card ends what is left there, and others are free"
    (remark,) = report.remarks
    assert remark.found == "card cpu-slot-1 is quarantined: seen no release by its last owner; expected one"
    assert f"  - {remark.found}\n    fix: start a gate on it: it ends the bearers of token " in report.to_text()
    assert "  cpu-slot-1: stale: quarantined (process 7 survives) by process " in report.to_text()
    assert "cpu-slot-0" not in report.to_text(), "what was given back is no news"
    held.release()


def test_a_lane_is_not_ready_where_leases_are_not(tmp_path: Path, place: Path) -> None:
    place.mkdir(mode=0o755)
    report = doctor.diagnose({"cpu": answering(tmp_path)}, directory=place)
    assert not report.lanes[0].problems
    assert not report.ready("cpu")
    assert report.to_text().startswith("cpu: not ready\n")
    assert "\n  - leases: seen problems; expected none; see below\nleases: none\n" in report.to_text()


def test_a_lease_directory_that_cannot_be_trusted_is_a_problem(place: Path) -> None:
    place.mkdir(mode=0o755)
    report = doctor.diagnose({}, directory=place)
    assert [(problem.found.partition("; ")[0], problem.mend) for problem in report.problems] == [
        (f"{place}: seen mode 0755", f"chmod 1777 {place}")
    ]


def test_a_damaged_lease_is_a_problem_and_what_is_no_lease_is_a_remark(place: Path) -> None:
    leases.acquire(
        CpuCards(1).discover(), Path("/a"), sweep=lambda _: Sweep([], []), idle=lambda _: None, directory=place
    ).release()
    (place / "cpu-slot-7.lease").write_text("{")
    (place / "cpu-slot-0 (copy).lease").touch()
    report = doctor.diagnose({}, directory=place)
    (problem,), (remark,) = report.problems, report.remarks
    assert problem.found.startswith(f"{place}/cpu-slot-7.lease: ")
    assert problem.mend == "see that no process is left on card cpu-slot-7, then delete that file as its owner or root"
    assert remark.found == f"{place}/cpu-slot-0 (copy).lease: seen no card's name; expected one"
    assert f"  - {remark.found}\n    fix: its owner or root may delete it\n" in report.to_text()


def test_the_report_is_one_json_object(tmp_path: Path, place: Path) -> None:
    report = doctor.diagnose({"cpu": answering(tmp_path)}, directory=place)
    value = json.loads(report.to_json())
    assert (value["schema"], value["lanes"][0]["engine"]) == ("pytest-laguna-doctor-v1", ANSWER)
    assert doctor.DoctorReport.model_validate_json(report.to_json()) == report
