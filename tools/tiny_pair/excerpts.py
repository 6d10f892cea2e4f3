# SPDX-License-Identifier: Apache-2.0
"""Random excerpts of the streams, as training reads them."""

from __future__ import annotations

import random
from typing import get_args

from pytest_laguna.engine.tiny_pair.corpus import Kind, TextStream

_KINDS: tuple[Kind, ...] = get_args(Kind)
_SEPARATORS = (" ", ", ", "\n")
_LONGEST_ITEM = 40
"""In tokens."""
_POSITIONS = 260


def batch(generator: random.Random, sequences: int, tokens: int) -> list[list[int]]:
    """Token ids of random excerpts, [sequences][tokens]."""
    return [_excerpt(generator, tokens) for _ in range(sequences)]


def _excerpt(generator: random.Random, tokens: int) -> list[int]:
    """Excerpt of a random stream; it may begin in the middle of an item."""
    stream = TextStream(
        generator.choice(_KINDS),
        generator.randrange(_POSITIONS),
        generator.randrange(1, 10),
        generator.choice(_SEPARATORS),
    )
    start = generator.randrange(_LONGEST_ITEM)
    return stream.token_ids(start + tokens)[start:]
