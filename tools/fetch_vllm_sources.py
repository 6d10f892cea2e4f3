# SPDX-License-Identifier: Apache-2.0
"""Fetch the Python files of vLLM's published wheels: the candidate's classes are tested on more than one version.

``python tools/fetch_vllm_sources.py 0.26.0 0.33.0`` leaves ``wheels/vllm-<version>/`` with the wheel's ``*.py`` files
and its ``METADATA`` and ``RECORD``: no binary of it is ever loaded. The wheel itself, some 300 MB, is fetched by pip
from the index that pip is configured for, checked against the digest below, and not kept.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

WHEELS = {
    "0.26.0": "adb1e4c9b46d0dfdb094121ae5aad670a42412dd813ed4e5db069ed6a15006de",
    "0.32.0": "5e2ecdc5b0baf72921c288486417ca82778456a448e4fe60b62ee43c0dfc8611",
    "0.33.0": "4b6bdec4ab269990bf70d45a3c1e94c3760a27064513760193b26d6f0da883aa",
}
"""SHA-256 of ``vllm-<version>-cp38-abi3-manylinux_2_28_x86_64.whl``."""
KEPT_SUFFIXES = (".py", ".dist-info/METADATA", ".dist-info/RECORD")
FOLDER = Path(__file__).resolve().parent.parent / "wheels"


class FetchError(Exception):
    """A wheel is not available or not the pinned one."""


def download(requirement: str, folder: Path) -> Path:
    """Download one wheel (``name==version``) with pip, for the pinned platform, whatever this machine's.

    Raises:
        FetchError: pip failed, or left something else than one wheel.
    """
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--only-binary=:all:", "--platform=manylinux_2_28_x86_64", "--implementation=cp", "--abi=abi3",
        "--python-version=3.12", f"--dest={folder}", requirement,
    ]  # fmt: skip
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        seen = (done.stderr.strip().splitlines() or ["nothing said"])[-1]
        raise FetchError(f"{requirement}: seen exit code {done.returncode} of pip ({seen}); expected one wheel")
    return wheels[0]


def require_digest(wheel: Path, expected: str) -> None:
    """Refuse any file but the pinned one.

    Raises:
        FetchError: the SHA-256 differs.
    """
    with wheel.open("rb") as file:
        seen = hashlib.file_digest(file, "sha256").hexdigest()
    if seen != expected:
        raise FetchError(f"{wheel.name}: seen SHA-256 {seen}; expected {expected}; do not use it")


def unpack(wheel: Path, destination: Path, kept: tuple[str, ...] = KEPT_SUFFIXES) -> int:
    """Extract the files of a wheel whose names end so, whole or not at all.

    Returns:
        The number of files.
    """
    destination.parent.mkdir(exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{destination.name}-", dir=destination.parent))
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(kept)]
            archive.extractall(partial, names)  # ZipFile keeps every name inside the folder
        partial.chmod(0o755)
        partial.rename(destination)
    except BaseException:
        shutil.rmtree(partial)
        raise
    return len(names)


def fetch(version: str) -> str:
    """Fetch one version unless it is there; return a line for the user.

    Raises:
        FetchError: the version is not pinned, or its wheel is not available or another.
    """
    if version not in WHEELS:
        raise FetchError(
            f"version: seen {version}; expected one of {', '.join(WHEELS)}; pin its digest in this file first"
        )
    destination = FOLDER / f"vllm-{version}"
    if destination.exists():
        return f"{destination}: there already"
    with tempfile.TemporaryDirectory() as folder:
        wheel = download(f"vllm=={version}", Path(folder))
        require_digest(wheel, WHEELS[version])
        return f"{destination}: {unpack(wheel, destination)} files of {wheel.name}"


def main(description: str = "Fetch the Python files of vLLM's wheels.", one: Callable[[str], object] = fetch) -> int:
    """Fetch the versions named on the command line; return 1 with one line on the first failure."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("versions", nargs="+", metavar="VERSION")
    try:
        for version in parser.parse_args().versions:
            print(one(version))
    except FetchError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
