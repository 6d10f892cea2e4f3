# SPDX-License-Identifier: Apache-2.0
"""``python -m pytest_laguna.engine.tiny_pair OUT``: write the pair."""

from __future__ import annotations

import argparse
from pathlib import Path

from .build import build

parser = argparse.ArgumentParser(description="Write the tiny Laguna target and its draft.")
parser.add_argument(
    "out", type=Path, help="directory in which the folders target and draft and their prompts.json are made"
)
build(parser.parse_args().out)
