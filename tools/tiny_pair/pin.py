# SPDX-License-Identifier: Apache-2.0
"""``python -m tools.tiny_pair.pin``: write hashes.json and the endpoint's suite after numbers changed.

Run it after a change of the shipped numbers or the prompts, and commit the result; nothing else runs it.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from pytest_laguna.engine.tiny_pair.build import HASHES, HERE, SHIPPED, hashes, sha256, write
from pytest_laguna.engine.tiny_pair.shape import LAYERS, QUICK_LAYERS, Size

from .suite import suite

SUITE = HERE.parents[1] / "endpoint" / "suites" / "tiny-laguna.json"
OLDER = "0.26.0"
PINNED = (
    *(Size(LAYERS, ranks) for ranks in (1, 2, 4)),
    *(Size(QUICK_LAYERS, ranks) for ranks in (1, 2)),
    Size(LAYERS, 1, vllm=OLDER),
)


def pin() -> None:
    """Write both files."""
    pinned = {"shipped": {name: sha256(HERE / name) for name in SHIPPED}}
    for size in PINNED:
        with tempfile.TemporaryDirectory() as directory:
            write(Path(directory), size)
            pinned[str(size)] = hashes(Path(directory))
    HASHES.write_text(json.dumps(pinned, indent=2) + "\n")
    SUITE.write_text(json.dumps(suite(), indent=2) + "\n")


if __name__ == "__main__":
    pin()
