# SPDX-License-Identifier: Apache-2.0
"""What ``make`` installs is locked: one version and the digests of its files for each package, as the inputs ask."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
INPUTS = {"cpu.txt": ("cpu.in", "cpu-without-dependencies.in"), "dev.txt": ("dev.in",)}
PIN = re.compile(r"([a-z0-9-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")


def pins(text: str) -> dict[str, str]:
    """Version by package name; refuses a line that is neither a comment nor part of a pin with digests."""
    rest = PIN.sub("", re.sub(r"(?m)^(?:#.*)?\n", "", text))
    assert not rest, f"expected `name==version` with --hash=sha256 lines, found {rest.splitlines()[0]!r}"
    return {name: version for name, version, _ in PIN.findall(text)}


def locked(name: str) -> dict[str, str]:
    return pins((ROOT / "requirements" / name).read_text())


def asked(name: str) -> list[Requirement]:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("name", INPUTS)
def test_the_lock_answers_its_inputs(name: str) -> None:
    found = locked(name)
    for requirement in (requirement for source in INPUTS[name] for requirement in asked(source)):
        assert requirement.specifier.contains(found[canonicalize_name(requirement.name)]), requirement


@pytest.mark.parametrize("name", INPUTS)
def test_this_environment_is_the_locked_one(name: str) -> None:
    installed = {package: importlib.metadata.version(package) for package in locked(name)}
    assert installed == locked(name), "run `make .venv/packages.stamp`"


def test_both_locks_name_the_same_versions() -> None:
    cpu, dev = locked("cpu.txt"), locked("dev.txt")
    shared = cpu.keys() & dev.keys()
    assert shared
    assert {name: cpu[name] for name in shared} == {name: dev[name] for name in shared}


def test_the_lock_serves_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    found = locked("cpu.txt")
    for requirement in map(Requirement, [*wanted, *project["project"]["optional-dependencies"]["cpu"]]):
        assert requirement.specifier.contains(found[canonicalize_name(requirement.name)]), requirement


@pytest.mark.parametrize(
    "text",
    [
        "torch==2.13.0\n",
        "torch>=2.13.0 \\\n    --hash=sha256:" + "0" * 64 + "\n",
        "torch==2.13.0 \\\n    --hash=sha256:00\n",
        "--extra-index-url somewhere\n",
    ],
)
def test_a_line_without_version_and_digest_is_refused(text: str) -> None:
    with pytest.raises(AssertionError, match="expected `name==version`"):
        pins(f"# head\n\na==1 \\\n    --hash=sha256:{'0' * 64}\n{text}")
