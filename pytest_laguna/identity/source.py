# SPDX-License-Identifier: Apache-2.0
"""The sources of an attempt: the candidate's and the harness's files, by path and SHA-256."""

from __future__ import annotations

import importlib.util
import site
import sys
from collections.abc import Iterable
from pathlib import Path

from pytest_laguna.evidence import files
from pytest_laguna.evidence.git import git
from pytest_laguna.verdict import JSON

SOURCE_SUFFIXES = frozenset({".py", ".pyi", ".c", ".h"})
SETTINGS = ("pyproject.toml", "pytest.toml", "pytest.ini", "tox.ini", "setup.cfg")
"""Files of pytest settings, which affect how tests run."""

BINARY_SUFFIXES = frozenset({".so"})


class IdentityError(Exception):
    """Something to be identified cannot be found; the line names it."""


def package_directory(package: str) -> Path:
    """Return an installed package's directory without importing it; parents of a dotted name are imported.

    Raises:
        IdentityError: it is not installed, or is not a package with one directory of its own.
    """
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError, TypeError, AttributeError) as error:
        message = f"package {package!r}: seen {error}; expected the import name of an installed package"
        raise IdentityError(message) from error
    if spec is None:
        found = f"package {package}: seen none in {sys.prefix}; expected it installed"
        raise IdentityError(f"{found}; install it, or start pytest in the project that has it")
    locations = list(spec.submodule_search_locations or ())
    if spec.origin is None or len(locations) != 1:
        message = f"package {package}: seen {spec.origin or locations}; expected a package with a directory of its own"
        raise IdentityError(message)
    return Path(locations[0])


def package_files(package: str, suffixes: frozenset[str]) -> dict[str, str]:
    """SHA-256 by path below an installed package, for files with these suffixes."""
    found = files_in(package, package_directory(package), suffixes)
    return {name: files.sha256_file(path.resolve()) for name, path in found.items()}


def files_in(package: str, directory: Path, suffixes: frozenset[str]) -> dict[str, Path]:
    """Files of a copy of a package, by their paths in digests."""
    found = (path for path in directory.rglob("*") if path.suffix in suffixes and "__pycache__" not in path.parts)
    return {f"{package}/{path.relative_to(directory).as_posix()}": path for path in sorted(found)}


def candidate_sources(package: str) -> dict[str, str]:
    """The candidate's sources; its compiled parts differ between machines and are recorded, not compared."""
    return package_files(package, SOURCE_SUFFIXES)


def harness_folders(project: Path, nodeids: Iterable[str]) -> set[Path]:
    """Folders of the gates' test files, and so of their helper modules."""
    return {(project / nodeid.partition("::")[0]).parent for nodeid in nodeids}


def harness_sources(project: Path, nodeids: Iterable[str]) -> dict[str, str]:
    """Digests of the judging code: this package, the gates' test folders, the top conftest, pytest's settings."""
    own = {path for folder in harness_folders(project, nodeids) for path in folder.glob("*.py")}
    own |= {path for name in ("conftest.py", *SETTINGS) if (path := project / name).exists()}
    return package_files("pytest_laguna", SOURCE_SUFFIXES) | {
        path.relative_to(project).as_posix(): files.sha256_file(path.resolve()) for path in sorted(own)
    }


def unfrozen_module(project: Path, candidate: str, nodeids: Iterable[str]) -> str | None:
    """Name a module of this process without a digest, or None.

    Installed modules are identified by their distribution; every other one must be one of the hashed files.
    """
    covered = harness_folders(project, nodeids)
    packages = [package_directory(candidate), package_directory("pytest_laguna")]
    installed = [Path(prefix) for prefix in (sys.prefix, sys.base_prefix)] + [Path(site.getusersitepackages())]
    for name, module in sorted(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "")
        if not file.is_absolute() or not file.exists() or file == project / "conftest.py" or file.parent in covered:
            continue
        if not any(file.is_relative_to(place) for place in (*packages, *installed)):
            return f"{name} ({file.relative_to(project) if file.is_relative_to(project) else file})"
    return None


def git_state(project: Path) -> JSON:
    """Commit, tree and ``dirty`` (changes or untracked files); None outside a git checkout."""
    commit = _answer(project, "rev-parse", "HEAD")
    if commit is None:
        return None
    status = _answer(project, "status", "--porcelain=v2", "-z", "--untracked-files=all")
    return {
        "commit": commit.strip(),
        "tree": (_answer(project, "rev-parse", "HEAD^{tree}") or "").strip(),
        "dirty": status != "",
    }


def _answer(project: Path, *arguments: str) -> str | None:
    result = git(project, *arguments)
    return result.stdout if result is not None and result.returncode == 0 else None
