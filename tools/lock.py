# SPDX-License-Identifier: Apache-2.0
"""Writes requirements/cpu.txt and dev.txt: each package at one version, by its digests.

``make lock`` runs it with the oldest supported Python, on Linux x86_64, and with pip pointed at PyTorch's
CPU wheel index. pip resolves the ``.in`` files once; then pip is asked, for each supported Python and several
releases of glibc, which file it would take of each version.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements"

PYTHONS = ("3.11", "3.12", "3.13")

# A machine accepts manylinux tags up to its glibc, and some packages ship more than one file because of it.
GLIBC_MINORS = (31, 34, 39)
_LEGACY_TAGS = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}

# PyTorch's CPU wheel index is not within reach everywhere, so the digests that it publishes for 2.13.0+cpu
# (manylinux_2_28, x86_64; CPython 3.11, 3.12, 3.13) are kept here. pip must report one of them.
TORCH_VERSION = "2.13.0+cpu"
TORCH_SHA256 = (
    "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",
    "4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2",
    "3fbf9c9d1f3c10c2d59d04aca426dee9ccc6ceb32d255c61e93acc3b4f75fae6",
)

CPU_HEADER = """\
# Written by `make lock` from cpu.in and cpu-without-dependencies.in. Do not edit.
# For CPython 3.11 to 3.13 on Linux x86_64 with glibc 2.31 or newer:
#     pip install --require-hashes --no-deps -r requirements/cpu.txt
#
# torch is PyTorch's own CPU build. PyPI has only CUDA builds of this release for Linux x86_64, which do not
# import without gigabytes of CUDA libraries, so none of them is listed. Point pip at PyTorch's CPU wheel
# index (PyTorch's "Get started" page names it), once and for all
#     pip config set global.extra-index-url <PyTorch's CPU wheel index>
# or for one call: `make gates PIP_OPTIONS="--extra-index-url <PyTorch's CPU wheel index>"`; or give
# --find-links a folder that holds the wheel.
"""
DEV_HEADER = """\
# Written by `make lock` from dev.in, at the versions of cpu.txt where both name a package. Do not edit.
#     pip install --require-hashes --no-deps -r requirements/dev.txt
"""

Pins = dict[str, str]
"""Normalised package name to version."""


def pip_report(arguments: Sequence[str]) -> list[dict[str, Any]]:
    """Return pip's report of an installation, from ``pip install --dry-run --report``.

    Raises:
        SystemExit: pip failed; its last line says why.
    """
    options = ["--dry-run", "--ignore-installed", "--only-binary=:all:", "--quiet", "--report", "-"]
    command = [sys.executable, "-m", "pip", "install", *options, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"tools/lock.py: {done.stderr.strip().splitlines()[-1]} ({' '.join(arguments)})")
    install: list[dict[str, Any]] = json.loads(done.stdout)["install"]
    return install


def pins_of(report: Iterable[Mapping[str, Any]]) -> Pins:
    """The versions in a report."""
    named = ((package["metadata"]["name"], package["metadata"]["version"]) for package in report)
    return {name.lower().replace("_", "-").replace(".", "-"): version for name, version in named}


def resolve(requirements: str, *options: str) -> Pins:
    """Return pip's choice of versions for a file of requirements."""
    return pins_of(pip_report([*options, "-r", str(REQUIREMENTS / requirements)]))


def platform_tags(glibc_minor: int) -> list[str]:
    """Platform tags of Linux x86_64 with glibc 2.``glibc_minor``, best first."""
    tags = []
    for minor in range(glibc_minor, 4, -1):
        tags.append(f"manylinux_2_{minor}_x86_64")
        if minor in _LEGACY_TAGS:
            tags.append(f"{_LEGACY_TAGS[minor]}_x86_64")
    return [*tags, "linux_x86_64"]


def digests(pins: Pins) -> dict[str, set[str]]:
    """SHA-256 digests of pip's choices of files for these versions, by package name."""
    found: dict[str, set[str]] = {name: set() for name in pins}
    exact = [f"{name}=={version}" for name, version in pins.items()]
    for python in PYTHONS:
        for minor in GLIBC_MINORS:
            tags = [f"--platform={tag}" for tag in platform_tags(minor)]
            interpreter = [f"--python-version={python}", "--implementation=cp", "--target=/nonexistent"]
            for package in pip_report(["--no-deps", *interpreter, *tags, *exact]):
                (name,) = pins_of([package])
                found[name].add(package["download_info"]["archive_info"]["hashes"]["sha256"])
    return found


def torch_digests() -> set[str]:
    """Return the published digests of torch's CPU build, after a check of pip's own.

    Raises:
        SystemExit: pip found another file.
    """
    (package,) = pip_report(["--no-deps", f"torch=={TORCH_VERSION}"])
    seen = package["download_info"]["archive_info"]["hashes"]["sha256"]
    if seen not in TORCH_SHA256:
        raise SystemExit(f"tools/lock.py: torch {TORCH_VERSION}: seen {seen} in pip; expected one of {TORCH_SHA256}")
    return set(TORCH_SHA256)


def render(header: str, pins: Pins, known: Mapping[str, set[str]]) -> str:
    """A requirements file, one package after the other in the order of their names."""
    blocks = []
    for name in sorted(pins):
        hashes = [f"    --hash=sha256:{digest}" for digest in sorted(known[name])]
        blocks.append(" \\\n".join([f"{name}=={pins[name]}", *hashes]))
    return header + "\n" + "\n".join(blocks) + "\n"


def main() -> None:
    """Writes both files."""
    torch = torch_digests()
    cpu = resolve("cpu.in") | resolve("cpu-without-dependencies.in", "--no-deps")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.writelines(f"{name}=={version}\n" for name, version in cpu.items())
        constraints.flush()
        dev = resolve("dev.in", "-c", constraints.name)
    fetched = {name: version for name, version in (cpu | dev).items() if name != "torch"}
    known = digests(fetched) | {"torch": torch}
    (REQUIREMENTS / "cpu.txt").write_text(render(CPU_HEADER, cpu, known))
    (REQUIREMENTS / "dev.txt").write_text(render(DEV_HEADER, dev, known))


if __name__ == "__main__":
    main()
