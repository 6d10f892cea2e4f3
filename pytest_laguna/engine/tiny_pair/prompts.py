# SPDX-License-Identifier: Apache-2.0
"""The prompts: pieces of streams that the target has learnt, so that it is sure of each token that follows."""

from __future__ import annotations

import dataclasses
from typing import Any

from .corpus import Stream
from .tokenizer import END_TOKEN, decode

GATE_2_TOKENS = 272
"""Generated after each prompt of gate 2, whose end is always the length."""
SUITE_TOKENS = 160
"""At most so many are generated after each prompt of the endpoint's suite."""


@dataclasses.dataclass(frozen=True, slots=True)
class Prompt:
    """The first tokens of a stream.

    Attributes:
        stream: the text.
        tokens: how many of it are the prompt.
    """

    stream: Stream
    tokens: int

    @property
    def text(self) -> str:
        """The prompt's text."""
        return decode(self.stream.token_ids(self.tokens))

    def continuation(self, tokens: int) -> list[int]:
        """The token ids that follow, up to so many of them, or up to the end token where that comes first."""
        following = self.stream.token_ids(self.tokens + tokens)[self.tokens :]
        return following[: following.index(END_TOKEN) + 1] if END_TOKEN in following else following


GATE_2 = {
    "word-chain": Prompt(Stream("words", 13), 34),
    "digits": Prompt(Stream("digits", 2, separator=", "), 48),
    "functions": Prompt(Stream("functions", 2), 66),
    "assignments": Prompt(Stream("assignments", 0, constant=7), 38),
    "letters": Prompt(Stream("letters", 2, separator=", "), 44),
}

SUITE = {
    "count-with-commas": Prompt(Stream("digits", 5, separator=", "), 60),
    "function-definitions": Prompt(Stream("functions", 4), 108),
    "words-on-lines": Prompt(Stream("words", 3), 96),
    "assignments-plus-three": Prompt(Stream("assignments", 6, constant=3), 84),
    "letters-with-digits": Prompt(Stream("letters", 7, separator=", "), 72),
    "words-in-a-row": Prompt(Stream("words", 18, separator=" "), 88),
    "count-on-lines": Prompt(Stream("digits", 1), 64),
    "more-function-definitions": Prompt(Stream("functions", 9), 144),
    "assignments-plus-eight": Prompt(Stream("assignments", 2, constant=8), 96),
    "words-with-commas": Prompt(Stream("words", 9, separator=", "), 105),
    "bullet-list": Prompt(Stream("bullets", 0), 52),
    "numbered-list": Prompt(Stream("numbered", 0), 104),
    "long-rollover": Prompt(Stream("functions", 0), 711),
}


def gate_2_prompts() -> dict[str, str]:
    """The texts of gate 2's prompts by name, as ``prompts.json`` beside the models has them."""
    return {name: prompt.text for name, prompt in GATE_2.items()}


def suite() -> dict[str, Any]:
    """The endpoint's suite for this pair, as ``endpoint/suites/tiny-laguna.json`` has it."""
    return {
        "schema": "pytest-laguna-suite-v1",
        "suite_id": "tiny-laguna-cold",
        "version": 1,
        "max_tokens": SUITE_TOKENS,
        "rollover_prompt_tokens": max(prompt.tokens for prompt in SUITE.values()),
        "prompts": [{"id": name, "kind": prompt.stream.kind, "text": prompt.text} for name, prompt in SUITE.items()],
    }
