# SPDX-License-Identifier: Apache-2.0
"""``python -m pytest_laguna.engine.tiny_pair OUT``: write the pair."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from .build import build, is_pinned
from .shape import LAYERS, VLLM, Size

parser = argparse.ArgumentParser(description="Write the tiny Laguna target and its draft.")
parser.add_argument("out", type=Path, help="directory for the folders target and draft and their prompts.json")
parser.add_argument("--layers", type=int, default=LAYERS, help="of the target; a multiple of four, eight or more")
parser.add_argument("--tensor-parallel-size", type=int, default=1, help="ranks, 1, 2 or 4; each gets two KV heads")
parser.add_argument("--width", type=int, default=1, help="factor on the hidden size: 1, 4, 16 or 64")
parser.add_argument("--vllm", default=VLLM, help="version to read the pair")
options = parser.parse_args()
try:
    size = Size(options.layers, options.tensor_parallel_size, options.width, options.vllm)
except ValueError as error:
    parser.error(str(error))
digest = build(options.out, size)
sys.stdout.write(json.dumps({"size": str(size), "sha256": digest, "pinned": is_pinned(size)}) + "\n")
