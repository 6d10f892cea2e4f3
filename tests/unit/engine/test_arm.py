# SPDX-License-Identifier: Apache-2.0
"""What an arm refuses before it loads anything, in real processes: status, one line, no record."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms import arm_settings
from pytest_laguna.evidence.arms.arm_record import ArmRequest
from tests.unit.engine import support


def run_arm(tmp_path: Path, environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    argv = [sys.executable, "-m", "pytest_laguna.engine.arm", *arguments]
    seen = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, check=False, text=True)
    return seen.returncode, seen.stderr


def environment_of(request: ArmRequest, directory: Path) -> dict[str, str]:
    places = {"PATH": os.environ["PATH"], "HOME": str(directory), "TMPDIR": str(directory), "LC_ALL": "C.UTF-8"}
    return places | arm_settings.environment(request)


def refused(tmp_path: Path, request: ArmRequest, changes: dict[str, str | None]) -> str:
    environment: dict[str, str | None] = {**environment_of(request, tmp_path), **changes}
    request_path, record_path = tmp_path / "request.json", tmp_path / "record.json"
    files.write_new(request_path, files.canonical_json(request.canonical()))
    present = {name: value for name, value in environment.items() if value is not None}
    status, stderr = run_arm(tmp_path, present, str(request_path), str(record_path))
    assert status == 1
    assert not record_path.exists()
    [line] = stderr.splitlines()
    assert line.startswith(arm_settings.FAILED)
    assert "Traceback" in (tmp_path / "record.traceback").read_text()
    return line


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("LAGUNA_LANE", None, "'cpu'"),
        (arm_settings.FLAG, "1", "'0'"),
        ("VLLM_USE_BREAKABLE_CUDAGRAPH", "0", "'1'"),
        ("LAGUNA_PLANTED", "wrong-offset", "'none'"),
        ("VLLM_PLUGINS", "laguna_kv", "None"),
        ("LD_PRELOAD", "", "None"),
        ("MKL_NUM_THREADS", "4", "None"),
    ],
)
def test_any_other_environment_is_refused_by_name(name: str, value: str | None, expected: str, tmp_path: Path) -> None:
    line = refused(tmp_path, support.request(), {name: value})
    assert f"{name}: seen {value!r} in the environment; expected {expected}" in line


def test_a_profile_goes_where_its_arm_is_and_nowhere_else(tmp_path: Path) -> None:
    root, samples = "LAGUNA_REPLAY_PROFILE_ROOT", "LAGUNA_REPLAY_PROFILE_SAMPLES"
    asked = support.request(profile_samples=31)
    assert arm_settings.profile(asked, tmp_path) == {root: str(tmp_path / "profile"), samples: "31"}
    assert arm_settings.profile(support.request(), tmp_path) == {}
    line = refused(tmp_path, asked, {root: "/elsewhere", samples: "31"})
    assert f"{root}: seen '/elsewhere' in the environment; expected '{tmp_path / 'profile'}'" in line


@pytest.mark.parametrize("name", ["LAGUNA_REPLAY_PROFILE_ROOT", "LAGUNA_REPLAY_PROFILE_SAMPLES"])
def test_a_profile_that_was_not_asked_for_is_refused(name: str, tmp_path: Path) -> None:
    line = refused(tmp_path, support.request(), {name: "31"})
    assert f"{name}: seen '31' in the environment; expected None" in line


def test_a_request_that_is_none_is_refused_by_its_field(tmp_path: Path) -> None:
    (tmp_path / "request.json").write_bytes(files.canonical_json({"lane": "tpu"}))
    environment = environment_of(support.request(), tmp_path)
    status, stderr = run_arm(tmp_path, environment, "request.json", "record.json")
    assert status == 1
    assert f"{arm_settings.FAILED}UnusableEvidenceError: request.json: arm: Field required" in stderr


def test_a_missing_request_is_refused(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"]}
    status, stderr = run_arm(tmp_path, environment, str(tmp_path / "none.json"), str(tmp_path / "record.json"))
    assert status == 1
    assert f"{arm_settings.FAILED}UnusableEvidenceError: none.json: cannot be read" in stderr


@pytest.mark.parametrize("arguments", [[], ["one"], ["one", "two", "three"]])
def test_other_arguments_are_refused(arguments: list[str], tmp_path: Path) -> None:
    status, stderr = run_arm(tmp_path, {"PATH": os.environ["PATH"]}, *arguments)
    assert (status, stderr) == (
        2,
        f"{arm_settings.FAILED}seen {len(arguments)} arguments; expected REQUEST.json RECORD.json\n",
    )
