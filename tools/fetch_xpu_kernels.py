# SPDX-License-Identifier: Apache-2.0
"""Fetch published vllm-xpu-kernels wheels, to resolve their libraries and run their Python on any machine.

``python -m tools.fetch_xpu_kernels 0.1.12.3 0.1.15.4`` leaves ``wheels/vllm-xpu-kernels-<version>/`` with the wheel's
libraries, of which none is ever loaded, its Python files, ``METADATA`` and ``RECORD``. The wheel itself is fetched by
pip from the index that pip is configured for, checked against the digest below, and not kept.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from tools import fetch_vllm_sources
from tools.fetch_vllm_sources import FetchError, download, require_digest, unpack

WHEELS = {
    "0.1.12.3": "a231e614efe99cd320529452150a52bf789058d5344ae7a046de9acbc91d45e2",
    "0.1.15.4": "4ec262f7afdd07c62defc8286dc9f357569627b996c09b410f7972b653696fe7",
    "0.1.16.2": "86bfa26abbb605fab485236a386e6de07f76320177c456fa96e55c27502af17a",
}
"""SHA-256 of ``vllm_xpu_kernels-<version>-cp38-abi3-manylinux_2_28_x86_64.whl``."""
KEPT_SUFFIXES = (".so", ".py", ".dist-info/METADATA", ".dist-info/RECORD")
PACKAGE = "vllm_xpu_kernels"
FOLDER = Path(__file__).resolve().parent.parent / "wheels"


def fetch(version: str) -> Path:
    """Fetch one version unless it is there, whole or not at all; return the folder of its libraries.

    Raises:
        FetchError: the version is not pinned, or its wheel is not available or another.
    """
    if version not in WHEELS:
        raise FetchError(
            f"version: seen {version}; expected one of {', '.join(WHEELS)}; pin its digest in this file first"
        )
    destination = FOLDER / f"vllm-xpu-kernels-{version}"
    if not (destination / PACKAGE / "flash_attn_interface.py").exists():
        shutil.rmtree(destination, ignore_errors=True)  # an older one, without the Python files
        with tempfile.TemporaryDirectory() as folder:
            wheel = download(f"vllm-xpu-kernels=={version}", Path(folder))
            require_digest(wheel, WHEELS[version])
            unpack(wheel, destination, KEPT_SUFFIXES)
    return destination / PACKAGE


def main() -> int:
    """Fetch the versions named on the command line; as ``fetch_vllm_sources``."""
    return fetch_vllm_sources.main("Fetch the libraries of vllm-xpu-kernels wheels.", fetch)


if __name__ == "__main__":
    sys.exit(main())
