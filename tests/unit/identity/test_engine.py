# SPDX-License-Identifier: Apache-2.0
"""An engine's interpreter, asked and looked at: real ones, each in an environment of its own with one thing changed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_laguna.analysis.arms.engine_identity import BEFORE_ARMS, judge_identity
from pytest_laguna.analysis.arms.identity_case import IdentityCase
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.engine_identity import (
    DiagnosticIdentity,
    EngineIdentity,
    FrozenSources,
    ModelFiles,
    SourceTree,
)
from pytest_laguna.evidence.schemas import Identity
from pytest_laguna.identity import source
from pytest_laguna.identity.engine import HARNESS, PROGRAM, describe_engine, look_at_engine
from pytest_laguna.identity.source import IdentityError
from pytest_laguna.machine.interpreter import UNLISTED, ask
from tests.runner import runner

CANDIDATE = "laguna_kv"
VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"


def install(engine: Path, name: str, *, content: bytes = b"ANSWER = 42\n", direct_url: object = None) -> Path:
    """Install a distribution of one package the way that pip leaves it; returns its metadata."""
    site = engine / "lib" / VERSION / "site-packages"
    metadata = site / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (site / name).mkdir()
    wanted = {
        f"{name}/__init__.py": content,
        f"{metadata.name}/METADATA": f"Name: {name}\nVersion: 1.0\n\nText\n".encode(),
    }
    wanted[f"{name}/part.py"] = b""
    if direct_url is not None:
        wanted[f"{metadata.name}/direct_url.json"] = json.dumps(direct_url).encode()
    rows = []
    for path, data in wanted.items():
        (site / path).write_bytes(data)
        digest = base64.urlsafe_b64encode(bytes.fromhex(files.sha256_bytes(data))).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(data)}")
    rows += [f"{name}/__pycache__/__init__.pyc,,", f"{metadata.name}/RECORD,,"]
    (metadata / "RECORD").write_text("\n".join(rows) + "\n")
    return metadata


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """An environment with copies of both packages, and torch and vLLM as distributions of one package."""
    directory = tmp_path / "engine"
    venv.create(directory, with_pip=False, symlinks=True)
    for package in (CANDIDATE, HARNESS):
        place = source.package_directory(package)
        for path in source.files_in(package, place, source.SOURCE_SUFFIXES | source.BINARY_SUFFIXES).values():
            copied = site(directory) / package / path.relative_to(place)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copied)
    for name in ("torch", "vllm"):
        install(directory, name)
    return directory


def site(engine: Path) -> Path:
    return engine / "lib" / VERSION / "site-packages"


def describe(engine: Path, place: Path, *, candidate: str = CANDIDATE) -> EngineIdentity:
    interpreter = engine / "bin" / "python"
    return describe_engine(interpreter, candidate, place, deadline_seconds=60.0, run=runner())


def judge(engine: EngineIdentity) -> dict[str, str]:
    """What the rules that can be asked before the first arm say of an engine, against this process's own copies."""
    frozen = FrozenSources(
        candidate=source.candidate_sources(CANDIDATE),
        harness=source.package_files(HARNESS, source.SOURCE_SUFFIXES),
    )
    digests = Identity(campaign="0" * 64, candidate=frozen.candidate_sha256, harness=frozen.harness_sha256)
    identity = DiagnosticIdentity(
        attempt=digests,
        frozen=frozen,
        candidate=CANDIDATE,
        python=sys.executable,
        engine=engine,
        engine_after=None,
        models=ModelFiles.model_construct(folders=[]),
        models_around={},
        arm_directories={},
        binaries=[],
    )
    found = judge_identity(IdentityCase(identity, {}, {}, "native"))
    judged = {rule: found[rule] for rule in BEFORE_ARMS}
    return {rule: finding[1] for rule, finding in judged.items() if finding is not None and finding[0] is not None}


def test_the_engine_is_described_and_its_copies_are_the_frozen_ones(engine: Path, tmp_path: Path) -> None:
    described = describe(engine, tmp_path / "ask")
    state, content = described.state, described.content
    assert state.interpreter == str(engine / "bin" / "python")
    assert state.program == str(Path(sys.executable).resolve())
    assert content.program == files.sha256_file(Path(sys.executable).resolve())
    assert (state.version, state.prefix, state.base_prefix) == (sys.version, str(engine), sys.base_prefix)
    assert str(site(engine)) in state.path
    assert str(engine / "pyvenv.cfg") in state.start_files
    assert state.standard_library == sysconfig.get_path("stdlib")
    assert [found.name for found in state.distributions] == ["torch", "vllm"]
    assert content.packages[CANDIDATE] == source.candidate_sources(CANDIDATE)
    assert state.packages[CANDIDATE].directory == str((site(engine) / CANDIDATE).resolve())
    compiled = [path for name in (CANDIDATE, "pytest_laguna") for path in (site(engine) / name).rglob("*.so")]
    assert content.extensions == {str(path.resolve()): files.sha256_file(path) for path in compiled}
    assert sorted(path.name.partition(".")[0] for path in compiled) == ["_contract", "_replay_clock"]
    assert judge(described) == {}
    assert (tmp_path / "ask" / "process.json").exists()


def install_hook(engine: Path, text: str) -> None:
    """A distribution with a file that Python runs when it starts, as its RECORD says."""
    record = install(engine, "hooked") / "RECORD"
    (site(engine) / "hooked.pth").write_text(text)
    digest = base64.urlsafe_b64encode(bytes.fromhex(files.sha256_bytes(text.encode()))).rstrip(b"=").decode()
    record.write_text(f"{record.read_text()}hooked.pth,sha256={digest},{len(text)}\n")


def older_candidate(engine: Path) -> None:
    path = site(engine) / CANDIDATE / "views.py"
    path.write_bytes(path.read_bytes() + b"\n")


def older_harness(engine: Path) -> None:
    (site(engine) / HARNESS / "campaign.py").unlink()


def candidate_found_first_elsewhere(engine: Path) -> None:
    older = engine / "older" / CANDIDATE
    shutil.copytree(site(engine) / CANDIDATE, older)
    (older / "seam.py").write_bytes(b"")
    install_hook(engine, f"import sys; sys.path.insert(0, {str(older.parent)!r})\n")


def patched_engine(engine: Path) -> None:
    (site(engine) / "vllm" / "__init__.py").write_bytes(b"ANSWER = 43\n")


def lost_file(engine: Path) -> None:
    (site(engine) / "torch" / "part.py").unlink()


def found_first(engine: Path) -> None:
    """Another vLLM earlier on the path."""
    shutil.copytree(site(engine) / "vllm", engine / "mine" / "vllm")
    install_hook(engine, f"import sys; sys.path.insert(0, {str(engine / 'mine')!r})\n")


def directory_beside_a_module(engine: Path) -> None:
    """It wins against the module of its name, which is as it was installed."""
    (site(engine) / "vllm" / "envs").mkdir()
    (site(engine) / "vllm" / "envs" / "__init__.py").write_bytes(b"")


def compiled_without_source(engine: Path) -> None:
    (site(engine) / "torch" / "extra.pyc").write_bytes(b"")


def no_record(engine: Path) -> None:
    (site(engine) / "torch-1.0.dist-info" / "RECORD").unlink()


def no_vllm(engine: Path) -> None:
    shutil.rmtree(site(engine) / "vllm-1.0.dist-info")


def editable_without_git(engine: Path) -> None:
    (engine / "tree").mkdir()
    install(engine, "loose", direct_url={"url": (engine / "tree").as_uri(), "dir_info": {"editable": True}})


def hook(engine: Path) -> None:
    """It is read before anything that an arm imports."""
    (site(engine) / "hook.pth").write_text("import sys\n")


def customization(engine: Path) -> None:
    (site(engine) / "usercustomize.py").write_text("")


def hook_that_a_record_lists_without_its_digest(engine: Path) -> None:
    hook(engine)
    with (install(engine, "loose") / "RECORD").open("a") as record:
        record.write("hook.pth,,\n")


def no_extension(engine: Path) -> None:
    for path in (site(engine) / CANDIDATE).glob("*.so"):
        path.unlink()


REFUSED: list[tuple[Callable[[Path], None], str, str]] = [
    (older_candidate, "candidate-copy", "seen laguna_kv/views.py "),
    (older_harness, "harness-copy", "seen pytest_laguna/campaign.py absent"),
    (candidate_found_first_elsewhere, "candidate-copy", "older/laguna_kv, imported by "),
    (patched_engine, "engine-as-installed", "vllm 1.0: vllm/__init__.py: not as it was installed"),
    (lost_file, "engine-as-installed", "torch 1.0: torch/part.py: missing"),
    (found_first, "engine-imported", "vllm: seen imported from "),
    (directory_beside_a_module, "engine-as-installed", "vllm 1.0: vllm/envs/__init__.py: no RECORD lists it"),
    (compiled_without_source, "engine-as-installed", "torch 1.0: torch/extra.pyc: no RECORD lists it"),
    (hook, "start-files-known", "hook.pth: seen run at Python's start and in no RECORD"),
    (customization, "start-files-known", "usercustomize.py: seen run at Python's start"),
    (hook_that_a_record_lists_without_its_digest, "start-files-known", "hook.pth: seen run at Python's start"),
    (no_extension, "extension-there", f"{CANDIDATE}: seen no compiled extension; expected one for validator 'native'"),
    (no_record, "engine-as-installed", "torch 1.0: seen no RECORD"),
    (no_vllm, "engine-as-installed", "vllm: seen no distribution"),
    (editable_without_git, "trees-clean", "tree; expected a git checkout"),
]


@pytest.mark.parametrize(("change", "rule", "words"), REFUSED, ids=[change.__name__ for change, *_ in REFUSED])
def test_another_engine_is_told(
    engine: Path, tmp_path: Path, change: Callable[[Path], None], rule: str, words: str
) -> None:
    change(engine)
    [(found, reason)] = judge(describe(engine, tmp_path / "ask")).items()
    assert found == rule
    assert words in reason


@pytest.mark.parametrize("change", [change for change, rule, _ in REFUSED if rule == "start-files-known"])
def test_the_doctor_names_the_start_file_that_would_be_refused(
    engine: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    change(engine)
    [reason] = judge(describe(engine, tmp_path / "ask")).values()
    [told] = unlisted(engine)
    assert reason.startswith(f"{told}: seen run at Python's start")


def test_the_doctor_names_none_that_would_be_taken(engine: Path, tmp_path: Path) -> None:
    """One that a RECORD lists, and one beside the standard library, where an operating system lays its own."""
    standard = engine / "standard"
    standard.mkdir()
    at = repr(str(standard))
    install_hook(engine, f"import sys, sysconfig; sysconfig.get_path = lambda _: {at}; sys.path.append({at})\n")
    (standard / "hook.pth").write_text("")
    assert (judge(describe(engine, tmp_path / "ask")), unlisted(engine)) == ({}, [])


def unlisted(engine: Path) -> list[str]:
    """What the doctor tells of an engine's start files."""
    program = f"{UNLISTED}import json; print(json.dumps(unlisted()))"
    done = ask(engine / "bin" / "python", program, deadline_seconds=60.0)
    told: list[str] = json.loads(done.stdout)
    return told


def git(tree: Path, *arguments: str) -> str:
    command = ["git", "-C", str(tree), "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()


def test_an_editable_distribution_is_its_tree_and_commit(engine: Path, tmp_path: Path) -> None:
    tree = engine / "a tree"
    tree.mkdir()
    git(tree, "init", "--quiet")
    git(tree, "commit", "--quiet", "--allow-empty", "-m", "first")
    install(engine, "loose", direct_url={"url": tree.as_uri(), "dir_info": {"editable": True}})
    install(engine, "copied", direct_url={"url": tree.as_uri(), "dir_info": {}})
    described = describe(engine, tmp_path / "clean")
    trees = {found.name: found.editable for found in described.state.distributions}
    commit = git(tree, "rev-parse", "HEAD")
    assert trees == {
        "loose": SourceTree(directory=str(tree), commit=commit, dirty=False),
        "copied": None,
        "torch": None,
        "vllm": None,
    }
    assert judge(described) == {}
    (tree / "changed.py").write_text("")
    assert f"changed; expected commit {commit}" in judge(describe(engine, tmp_path / "dirty"))["trees-clean"]


def touched_module(engine: Path) -> None:
    path = site(engine) / "vllm" / "__init__.py"
    path.write_bytes(path.read_bytes())


def touched_source(engine: Path) -> None:
    path = site(engine) / CANDIDATE / "seam.py"
    path.write_bytes(path.read_bytes())


def added_distribution(engine: Path) -> None:
    install(engine, "late")


def added_start_file(engine: Path) -> None:
    (site(engine) / "late.pth").write_text("# nothing\n")


def added_customization(engine: Path) -> None:
    (site(engine) / "usercustomize.py").write_text("")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (touched_module, "distributions"),
        (touched_source, "packages"),
        (added_distribution, "distributions"),
        (added_start_file, "start_files"),
        (added_customization, "start_files"),
    ],
)
def test_a_later_look_sees_a_change_without_hashing(
    engine: Path, tmp_path: Path, change: Callable[[Path], None], field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = describe(engine, tmp_path / "before").state

    def hashed(path: Path) -> str:
        raise AssertionError(path)

    monkeypatch.setattr(files, "sha256_file", hashed)
    run, interpreter = runner(), engine / "bin" / "python"
    same = look_at_engine(interpreter, CANDIDATE, tmp_path / "same", deadline_seconds=60.0, run=run)
    assert same == before
    time.sleep(0.02)  # the kernel's clock for change times ticks in steps of some milliseconds
    change(engine)
    after = look_at_engine(interpreter, CANDIDATE, tmp_path / "after", deadline_seconds=60.0, run=run)
    assert [name for name in type(before).model_fields if getattr(before, name) != getattr(after, name)] == [field]


def test_a_file_of_two_distributions_is_as_one_of_them_has_it(engine: Path, tmp_path: Path) -> None:
    first, second = install(engine, "first"), install(engine, "second", content=b"ANSWER = 43\n")
    for metadata in (first, second):
        module = f"{metadata.name.partition('-')[0]}/__init__.py"
        record = metadata / "RECORD"
        record.write_text(record.read_text().replace(module, "shared.py"))
    (site(engine) / "shared.py").write_bytes(b"ANSWER = 43\n")
    assert judge(describe(engine, tmp_path / "second")) == {}
    (site(engine) / "shared.py").write_bytes(b"ANSWER = 44\n")
    found = describe(engine, tmp_path / "neither").content.distributions
    assert [found[str(place)].differing for place in (first, second)] == [["shared.py: not as it was installed"]] * 2


def test_what_is_no_engine_is_refused_in_one_line(engine: Path, tmp_path: Path) -> None:
    def refused(number: int, interpreter: Path, candidate: str = CANDIDATE) -> str:
        with pytest.raises(IdentityError) as caught:
            look_at_engine(interpreter, candidate, tmp_path / f"ask{number}", deadline_seconds=60.0, run=runner())
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "none; expected the absolute path of a Python program" in refused(0, tmp_path / "none")
    assert "expected the absolute path" in refused(1, Path("python"))
    assert "expected the absolute path" in refused(2, tmp_path)
    assert "exit code 1" in refused(3, Path(shutil.which("false") or ""))
    assert "package no_such_package: seen nothing; expected one directory; install this project there" in refused(
        4, engine / "bin/python", "no_such_package"
    )
    assert "package json.decoder: seen" in refused(5, engine / "bin/python", "json.decoder")
    metadata = install(engine, "nameless")
    (metadata / "METADATA").write_text("Version: 1.0\n")
    assert "seen no name, 1.0; expected both" in refused(6, engine / "bin/python")
    (metadata / "METADATA").write_text("Name: named\nVersion: 1.0\n")
    (metadata / "direct_url.json").write_text("[]")
    assert "expected an object with a url" in refused(7, engine / "bin/python")


def test_the_program_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", "-B", str(PROGRAM), str(tmp_path / "answer.json"), CANDIDATE]
    subprocess.run(command, check=True)
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["packages"] == {CANDIDATE: {"origin": None, "directories": []}}
