# SPDX-License-Identifier: Apache-2.0
"""Prompts: pieces of streams known to the target, so that it is sure of each following token."""

from __future__ import annotations

import dataclasses

from .corpus import TextStream
from .tokenizer import decode


@dataclasses.dataclass(frozen=True, slots=True)
class StreamStart:
    """The first tokens of a stream.

    Attributes:
        stream: the text.
        tokens: length of the prompt.
    """

    stream: TextStream
    tokens: int

    @property
    def text(self) -> str:
        """Text of the prompt."""
        return decode(self.stream.token_ids(self.tokens))


GATE_2 = {
    "word-chain": StreamStart(TextStream("words", 13), 34),
    "digits": StreamStart(TextStream("digits", 2, separator=", "), 48),
    "functions": StreamStart(TextStream("functions", 2), 66),
    "assignments": StreamStart(TextStream("assignments", 0, constant=7), 38),
    "letters": StreamStart(TextStream("letters", 2, separator=", "), 44),
}


def gate_2_prompts() -> dict[str, str]:
    """Texts of gate 2's prompts by name, the content of ``prompts.json``."""
    return {name: prompt.text for name, prompt in GATE_2.items()}
