# SPDX-License-Identifier: Apache-2.0
"""The pipelines that the documentation offers: of the published form, and what their scripts make of each exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

CI = Path(__file__).resolve().parents[2] / "examples" / "ci"
SCHEMAS = {"github.yml": "vendor.github-workflows", "gitlab.yml": "vendor.gitlab-ci"}
COMPLETE = {0: 0, 20: 0, 21: 1, 22: 1, 23: 1, 4: 1}
"""What becomes of a gate's exit code where 20 counts as complete."""


def read(name: str) -> dict[Any, Any]:
    content: dict[Any, Any] = yaml.safe_load((CI / name).read_text())
    return content


@pytest.mark.parametrize("name", SCHEMAS)
def test_it_is_of_the_published_form(name: str) -> None:
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", SCHEMAS[name]]
    if name == "gitlab.yml":
        command += ["--data-transform", "gitlab-ci"]
    done = subprocess.run([*command, CI / name], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def scripts(name: str) -> dict[str, str]:
    """Every script by job and step, as a shell gets it."""
    found: dict[str, str] = {}
    for job, content in read(name)["jobs"].items() if name == "github.yml" else read(name).items():
        if name == "github.yml":
            steps = {
                step.get("name", str(place)): step["run"]
                for place, step in enumerate(content["steps"])
                if "run" in step
            }
            found |= {f"{job}: {step}": script for step, script in steps.items()}
        elif isinstance(content, dict) and "script" in content:
            found[job] = "set -e\n" + "\n".join(content["script"])
    return found


SCRIPTS = [(name, step) for name in SCHEMAS for step in scripts(name)]


@pytest.mark.parametrize(("name", "step"), SCRIPTS)
def test_a_shell_can_read_every_script(name: str, step: str) -> None:
    done = subprocess.run(["/bin/bash", "-n"], input=scripts(name)[step], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def ended_with(script: str, code: int, place: Path) -> tuple[int, str]:
    """Run a script where ``pytest`` and ``laguna verify`` end with a code and everything else succeeds."""
    programs = place / "bin"
    programs.mkdir()
    (place / ".venv" / "bin").mkdir(parents=True)
    for name in ("make", "pip", "tar"):
        (programs / name).write_text("#!/bin/sh\nexit 0\n")
    (programs / "laguna").write_text(f'#!/bin/sh\ntest "$1" != verify || exit {code}\n')
    (place / ".venv" / "bin" / "python").write_text(f"#!/bin/sh\nexit {code}\n")
    for program in [*programs.iterdir(), place / ".venv" / "bin" / "python"]:
        program.chmod(0o700)
    for name in ("sealed-gate-1", "sealed-gate-2"):
        (place / name).mkdir()
        (place / name / "sealed.tar").write_text("")
    output = place / "output"
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "GITHUB_OUTPUT": str(output), "CAMPAIGN": "c"}
    done = subprocess.run(
        ["/bin/bash", "-e", "-c", script], cwd=place, env=environment, check=False, capture_output=True, text=True
    )
    return done.returncode, output.read_text() if output.exists() else ""


@pytest.mark.parametrize("code", COMPLETE)
def test_github_takes_a_stop_for_complete_and_promotes_a_pass_alone(code: int, tmp_path: Path) -> None:
    gate = next(script for step, script in scripts("github.yml").items() if step == "gate-2: Gate 2")
    ended, output = ended_with(gate, code, tmp_path)
    assert ended == COMPLETE[code]
    assert output.strip() == f"promoted={'true' if code == 0 else 'false'}"


@pytest.mark.parametrize("code", COMPLETE)
def test_the_job_that_collects_says_the_same(code: int, tmp_path: Path) -> None:
    (collect,) = [script for step, script in scripts("github.yml").items() if step.startswith("collect")]
    assert ended_with(collect, code, tmp_path)[0] == COMPLETE[code]


@pytest.mark.parametrize("job", ["gate-2", "collect"])
@pytest.mark.parametrize("code", COMPLETE)
def test_gitlab_gets_the_exit_code_itself_and_allows_20_alone(job: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "sealed-gate-2.tar").write_text("")
    assert ended_with(scripts("gitlab.yml")[job], code, tmp_path)[0] == code
    assert read("gitlab.yml")[job]["allow_failure"] == {"exit_codes": [20]}


def test_what_gitlab_reads_is_among_the_artifacts() -> None:
    artifacts = read("gitlab.yml")["collect"]["artifacts"]
    assert artifacts["reports"]["junit"] in artifacts["paths"]
    assert "sealed/" in artifacts["paths"]


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_wheel_cache_follows_the_lock_files(name: str) -> None:
    text = (CI / name).read_text()
    assert "requirements/" in text
    assert "cache" in text
