# SPDX-License-Identifier: Apache-2.0
"""The endpoint's suite for the tiny pair, and the known continuation of each prompt."""

from __future__ import annotations

from typing import Any

from pytest_laguna.engine.tiny_pair.corpus import TextStream
from pytest_laguna.engine.tiny_pair.prompts import StreamStart
from pytest_laguna.engine.tiny_pair.tokenizer import END_TOKEN

GATE_2_TOKENS = 272
"""Generated after each prompt of gate 2: its generations always end by length."""
SUITE_TOKENS = 160
"""Most tokens generated after each prompt of the suite."""

SUITE = {
    "count-with-commas": StreamStart(TextStream("digits", 5, separator=", "), 60),
    "function-definitions": StreamStart(TextStream("functions", 4), 108),
    "words-on-lines": StreamStart(TextStream("words", 3), 96),
    "assignments-plus-three": StreamStart(TextStream("assignments", 6, constant=3), 84),
    "letters-with-digits": StreamStart(TextStream("letters", 7, separator=", "), 72),
    "words-in-a-row": StreamStart(TextStream("words", 18, separator=" "), 88),
    "count-on-lines": StreamStart(TextStream("digits", 1), 64),
    "more-function-definitions": StreamStart(TextStream("functions", 9), 144),
    "assignments-plus-eight": StreamStart(TextStream("assignments", 2, constant=8), 96),
    "words-with-commas": StreamStart(TextStream("words", 9, separator=", "), 105),
    "bullet-list": StreamStart(TextStream("bullets", 0), 52),
    "numbered-list": StreamStart(TextStream("numbered", 0), 104),
    "long-rollover": StreamStart(TextStream("functions", 0), 711),
}


def continuation(prompt: StreamStart, tokens: int) -> list[int]:
    """Token ids of the stream after a prompt: as many as asked for, or fewer if the end token comes first."""
    following = prompt.stream.token_ids(prompt.tokens + tokens)[prompt.tokens :]
    return following[: following.index(END_TOKEN) + 1] if END_TOKEN in following else following


def suite() -> dict[str, Any]:
    """Content of ``endpoint/suites/tiny-laguna.json``."""
    return {
        "schema": "pytest-laguna-suite-v1",
        "suite_id": "tiny-laguna-cold",
        "version": 1,
        "max_tokens": SUITE_TOKENS,
        "rollover_prompt_tokens": max(prompt.tokens for prompt in SUITE.values()),
        "prompts": [{"id": name, "kind": prompt.stream.kind, "text": prompt.text} for name, prompt in SUITE.items()],
    }
