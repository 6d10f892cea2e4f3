# SPDX-License-Identifier: Apache-2.0
"""Run pytest on another vLLM's Python files: ``on_other_vllm.py FOLDER PYTEST-ARGUMENT...``.

The other version's compiled parts are not there and not needed: what is tested are its attention, configuration,
platform and runner classes. It is told to be a CPU build, by the version text that it asks for, because on a
machine without an accelerator it would otherwise know no platform at all.
"""

from __future__ import annotations

import gc
import importlib.metadata
import logging
import sys
from pathlib import Path

import pytest


def main(folder: str, *arguments: str) -> int:
    """Put the other vLLM first on the path and run pytest."""
    sys.path.insert(0, folder)
    version = importlib.metadata.version

    def cpu_version(distribution_name: str) -> str:
        return version(distribution_name) + ("+cpu" if distribution_name == "vllm" else "")

    importlib.metadata.version = cpu_version
    logging.disable(logging.WARNING)
    gc.disable()
    import vllm

    if not Path(vllm.__file__).is_relative_to(folder):
        sys.exit(f"vllm: expected the one in {folder}, seen {vllm.__file__}")
    print("vllm", vllm.__version__, "from", Path(vllm.__file__).parent)
    return pytest.main(list(arguments))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
