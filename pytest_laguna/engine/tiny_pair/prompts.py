# SPDX-License-Identifier: Apache-2.0
"""Prompts: pieces of streams known to the target, so that it is sure of each following token."""

from __future__ import annotations

import dataclasses

from .corpus import Stream
from .tokenizer import decode


@dataclasses.dataclass(frozen=True, slots=True)
class Prompt:
    """The first tokens of a stream.

    Attributes:
        stream: the text.
        tokens: length of the prompt.
    """

    stream: Stream
    tokens: int

    @property
    def text(self) -> str:
        """Text of the prompt."""
        return decode(self.stream.token_ids(self.tokens))


GATE_2 = {
    "word-chain": Prompt(Stream("words", 13), 34),
    "digits": Prompt(Stream("digits", 2, separator=", "), 48),
    "functions": Prompt(Stream("functions", 2), 66),
    "assignments": Prompt(Stream("assignments", 0, constant=7), 38),
    "letters": Prompt(Stream("letters", 2, separator=", "), 44),
}


def gate_2_prompts() -> dict[str, str]:
    """Texts of gate 2's prompts by name, the content of ``prompts.json``."""
    return {name: prompt.text for name, prompt in GATE_2.items()}
