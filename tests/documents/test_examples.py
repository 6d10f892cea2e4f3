# SPDX-License-Identifier: Apache-2.0
"""Runs every example of the documentation as far as this machine can.

Commands of ``laguna`` run on a sealed root. Gate commands are compared with the options and their campaign. Programs
that measure or train are asked for their options, and ``make`` for its dry run. Downloads for a card are compared with
the versions, the campaign and the revisions of this project.
"""

from __future__ import annotations

import ast
import functools
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

from pytest_laguna import cli
from pytest_laguna.attempt import options
from pytest_laguna.campaign import Amendment, ModelFolders, read_campaign
from pytest_laguna.evidence.files import sha256_file
from pytest_laguna.evidence.machine.xpu_stack import KERNELS, STACKS, TORCH
from tests.demo import Project
from tests.documents.commands import DOCUMENTS, ROOT, Example, blocks, commands, kind, words

COMMANDS = [*dict.fromkeys(commands())]
PLACEHOLDER = re.compile(r"\b[A-Z][A-Z_]+\b")


def of(program: str) -> list[Example]:
    """Distinct commands of a program."""
    found: dict[tuple[str, ...], Example] = {}
    for example in COMMANDS:
        found.setdefault(tuple(words(example.text)), example)
    return [example for command, example in found.items() if command[0] == program]


def ids(examples: list[Example]) -> list[str]:
    return [str(example) for example in examples]


def run(*command: str | Path, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=directory, check=False, capture_output=True, text=True, timeout=300)


PROGRAMS = {"laguna", "pytest", "make", "python", "pip", "tar", "sha256sum", "cd", "git", "hf", "source"}


@pytest.mark.parametrize("example", COMMANDS, ids=ids(COMMANDS))
def test_every_command_is_of_a_program_that_is_tried_here(example: Example) -> None:
    assert words(example.text)[0] in PROGRAMS


def test_there_are_examples_of_all_kinds() -> None:
    assert {kind(example) for example in blocks()} == {"python", "toml", "tree", "output", "commands"}
    assert {words(example.text)[0] for example in COMMANDS} >= PROGRAMS


LAGUNA = of("laguna")
MAY_SAY = {"verify": {0}, "analyze": {4, 0}, "report": {0}, "trace": {4}, "doctor": {0, 23}}
"""Exit codes by command; the demonstration's gates have neither an experiment nor a profile."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with two passed gates, at the path of the examples."""
    project = Project(tmp_path_factory.mktemp("root"))
    for gate in (1, 2):
        done = project.gate(gate)
        assert done.returncode == 0, done.stdout + done.stderr
    return project.directory


@pytest.mark.sessions(keep=5)
@pytest.mark.parametrize("example", LAGUNA, ids=ids(LAGUNA))
def test_a_laguna_command_runs(example: Example, root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "sealed", tmp_path / "sealed", symlinks=True)
    (tmp_path / "campaigns").symlink_to(ROOT / "campaigns")
    lane = tmp_path / "sealed" / "demo" / "cpu"
    receipt = sha256_file(lane / "gate2" / "0001" / "receipt.json")
    places = {
        "CAMPAIGN": "demo",
        "DIGEST": receipt,
        "ATTEMPT": str(lane / "gate2" / "0001"),
        "FILE": "out",
        "ROOT": "sealed",
    }
    text = PLACEHOLDER.sub(lambda found: places.get(found[0], found[0]), example.text)
    name, *arguments = words(text)[1:]
    if name in {"freeze", "review"}:  # they write into a project under git; their own tests do
        if arguments:
            assert cli.make_parser().parse_args([name, *arguments]).used.prog == f"laguna {name}"
        return
    if name == "report":
        pytest.importorskip("matplotlib")
    if not arguments and name != "doctor":  # named in passing
        read = places["ATTEMPT"] if name in {"analyze", "trace"} else "sealed"
        arguments = [read, *(["--out", "out"] if name != "verify" else [])]
    done = run(sys.executable, "-m", "pytest_laguna.cli", name, *arguments, directory=tmp_path)
    assert "Traceback" not in done.stderr
    assert done.returncode in MAY_SAY[name], done.stderr
    if done.returncode == 4:
        assert re.search(r"has no analysis of its own|no replay profile and no event profile", done.stderr)


PYTEST = of("pytest")


@pytest.mark.parametrize("example", PYTEST, ids=ids(PYTEST))
def test_a_gate_can_be_called_so(example: Example) -> None:
    arguments = words(example.text)[1:]
    assert options.refused_argument(arguments) is None
    given = dict(argument.partition("=")[::2] for argument in arguments)
    assert set(given) <= {name for name, _, _ in options.TABLE} | {"--junitxml"}
    if given["--gate"] == "N":
        return
    gate = options.parse_gate(given["--gate"])
    base = ROOT / "examples" / "prefill-split" if given.get("--campaign") == "campaign.toml" else ROOT
    campaign = read_campaign(base / given.get("--campaign", options.DEFAULT_CAMPAIGN))
    assert campaign.gate_clauses(gate)
    if "--cards" in given:
        assert gate > 1
        assert options.parse_cards(given["--cards"])
    if "--device" in given:
        assert given["--device"] in campaign.lanes


MAKE = of("make")


@pytest.mark.parametrize("example", MAKE, ids=ids(MAKE))
def test_make_knows_the_target(example: Example) -> None:
    done = run("make", "--dry-run", *words(example.text)[1:], directory=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    for argument in words(example.text):
        if argument.startswith("CAMPAIGN="):
            assert read_campaign(ROOT / argument.partition("=")[2]).gates


SOURCE = of("source")


@pytest.mark.parametrize("example", SOURCE, ids=ids(SOURCE))
def test_what_is_sourced_is_of_the_environment_that_make_builds(example: Example) -> None:
    (sourced,) = words(example.text)[1:]
    environment = re.search(r"^BIN := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert environment is not None
    assert sourced == f"{environment[1]}/activate"


PYTHON = of("python")


@pytest.mark.sessions(keep=3)
@pytest.mark.parametrize("example", PYTHON, ids=ids(PYTHON))
def test_a_program_knows_its_options(example: Example) -> None:
    _, *rest = words(example.text)
    if rest[0] == "-c":
        assert any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(ast.parse(rest[1])))
        return
    program = rest[:2] if rest[0] == "-m" else rest[:1]
    used = [word for word in rest[len(program) :] if word.startswith("--")]
    if rest[0] != "-m":
        assert (ROOT / rest[0]).is_file()
        return
    known = help_of(*program)
    for option in used:
        assert option in known


@functools.cache
def help_of(*program: str) -> str:
    done = run(sys.executable, *program, "--help", directory=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


PIP = of("pip")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
XPU = read_campaign(ROOT / options.DEFAULT_CAMPAIGN).lane_settings("xpu")
PUBLISHED = tomllib.loads((ROOT / "campaigns/reference/published-identity-20260725.toml").read_text())["models"]


@pytest.mark.parametrize("example", PIP, ids=ids(PIP))
def test_what_is_installed_is_this_distribution_or_goes_with_the_lane(example: Example) -> None:
    _, command, *rest = words(example.text)
    if command == "list":
        return
    with_value = {"--index-url", "--extra-index-url", "-r"}
    named = [
        word for before, word in zip(["", *rest], rest, strict=False) if word[0] != "-" and before not in with_value
    ]
    assert command == "install"
    assert named or "-r" in rest
    for name in named:
        _check_installed(name)


def _check_installed(name: str) -> None:
    if name in {".", "../vllm"}:  # this checkout, and the one that stands in the document before it
        return
    found = re.fullmatch(r"([\w-]+)(?:\[(\w+)\])?(?:==([\w.]+))?", name)
    assert found is not None
    if found[1] == PROJECT["name"]:
        assert found[2] is None or found[2] in PROJECT["optional-dependencies"]
        return
    assert found[3], f"{name}: expected a version"
    (stack,) = [stack for stack in STACKS if stack.vllm == XPU.vllm]
    assert found[3] == {TORCH: stack.torch, KERNELS: stack.kernels}.get(found[1], found[3])


GIT = of("git")


@pytest.mark.parametrize("example", GIT, ids=ids(GIT))
def test_what_is_cloned_is_the_vllm_of_the_campaign(example: Example) -> None:
    assert f"--branch v{XPU.vllm}" in example.text


HF = of("hf")


@pytest.mark.parametrize("example", HF, ids=ids(HF))
def test_what_is_downloaded_is_what_the_campaign_names_at_the_published_revision(example: Example) -> None:
    _, command, repository, *rest = words(example.text)
    given = dict(zip(rest[::2], rest[1::2], strict=True))
    assert command == "download"
    assert {"repository": repository, "revision": given["--revision"]} in PUBLISHED.values()
    assert XPU.engine is not None
    assert isinstance(XPU.engine.model, ModelFolders)
    assert given["--local-dir"] in {XPU.engine.model.target, XPU.engine.model.draft}


def test_a_root_that_was_packed_as_told_verifies_at_its_place(root: Path, tmp_path: Path) -> None:
    assert {"tar cpf sealed.tar sealed", "tar xpf sealed.tar"} <= {example.text for example in of("tar")}
    assert run("tar", "cpf", tmp_path / "sealed.tar", "sealed", directory=root).returncode == 0
    with tarfile.open(tmp_path / "sealed.tar") as packed:
        packed.extractall(tmp_path, filter="data")  # modes are lost here, as on another machine
    done = run(sys.executable, "-m", "pytest_laguna.cli", "verify", "sealed", directory=tmp_path)
    assert done.returncode == 0, done.stdout


SOURCES = [example for example in blocks() if kind(example) == "python"]


@pytest.mark.parametrize("example", SOURCES, ids=ids(SOURCES))
def test_a_test_that_is_shown_passes_as_a_gate(example: Example, tmp_path: Path) -> None:
    ast.parse(example.text)
    project = Project(tmp_path)
    clause = re.findall(r'clause\("([a-z-]+)"\)', example.text)[0]
    name = re.findall(r"def (test_\w+)", example.text)[0]
    campaign = project.directory / "campaign.toml"
    text = campaign.read_text().replace("first = ", f'{clause} = "checks/test_shown.py::{name}"\nfirst = ', 1)
    campaign.write_text(text)
    made = "def make_views(made=[]):\n    return made\n\n\n"
    (project.directory / "checks" / "test_shown.py").write_text(f"{made}{example.text}\n")
    done = project.gate(1)
    assert done.returncode == 0, done.stdout + done.stderr


TABLES = [example for example in blocks() if kind(example) == "toml"]


@pytest.mark.parametrize("example", TABLES, ids=ids(TABLES))
def test_a_table_that_is_shown_is_one(example: Example) -> None:
    for table in tomllib.loads(example.text)["amendments"]:
        assert Amendment.model_validate(table).reason


def test_links_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
            assert "://" in target or (document.parent / target).exists(), f"{document.name}: {target}"


def test_the_readme_leads_to_every_document() -> None:
    linked = set(re.findall(r"\]\((docs/[\w.-]+\.md)\)", (ROOT / "README.md").read_text()))
    assert linked == {document.relative_to(ROOT).as_posix() for document in DOCUMENTS if document.parent != ROOT}


def test_files_that_are_named_are_there() -> None:
    named = re.compile(r"`((?:campaigns|examples|docs|tools|tests)/[\w./-]+)`")
    for document in DOCUMENTS:
        for path in named.findall(document.read_text()):
            assert (ROOT / path).exists(), f"{document.name}: {path}"


def test_the_readme_is_under_two_screens() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 100
