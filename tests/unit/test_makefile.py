# SPDX-License-Identifier: Apache-2.0
"""What make says where a machine lacks what gates need."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAKE = shutil.which("make")
COMPILED = ("laguna_kv._contract", "pytest_laguna.engine._replay_clock")
ASKED_FOR = (
    "requirements/cpu.txt",
    "requirements/dev.txt",
    ".venv/packages.stamp",
    "pyproject.toml",
    "setup.py",
    "src/laguna_kv/_contract.c",
    "pytest_laguna/engine/_replay_clock.c",
)
"""What the project's stamp needs, the oldest first."""

PYTHON = """\
#!/bin/sh
test "$2" = pip && exit 0
PYTHONPATH="$PWD/packages" exec {python} -S "$@"
"""
"""An environment's: pip leaves what it finds, and only the packages of this directory are there."""


def place(file: Path, content: str = "") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


@pytest.mark.skipif(MAKE is None, reason="no make here")
@pytest.mark.parametrize("missing", [None, *COMPILED])
def test_an_environment_without_what_is_compiled_is_not_ready(tmp_path: Path, missing: str | None) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ASKED_FOR:
        place(tmp_path / name)
    place(tmp_path / ".venv" / "bin" / "python", PYTHON.format(python=sys.executable))
    (tmp_path / ".venv" / "bin" / "python").chmod(0o700)
    for module in COMPILED:
        file = tmp_path / "packages" / f"{module.replace('.', '/')}.py"
        place(file.with_name("__init__.py"))
        if module != missing:
            place(file)
    command = [str(MAKE), ".venv/project.stamp"]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode == 0) is (missing is None), done.stderr
    assert (tmp_path / ".venv" / "project.stamp").exists() is (missing is None)
    if missing is not None:
        assert done.stderr.startswith(f"{missing}: not compiled; gates need a C compiler and Python's headers")
