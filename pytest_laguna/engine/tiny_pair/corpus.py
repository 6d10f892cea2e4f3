# SPDX-License-Identifier: Apache-2.0
"""The text that the pair is trained on: endless streams, each determined by what has been seen of it."""

from __future__ import annotations

import random

import torch

from .tokenizer import encode

WORDS = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "echo",
    "fox",
    "golf",
    "hotel",
    "india",
    "jazz",
    "kilo",
    "lima",
    "mike",
    "nova",
    "oscar",
    "papa",
    "quiz",
    "romeo",
    "sierra",
    "tango",
    "umbra",
    "victor",
    "whisky",
    "yard",
]
_KINDS = ("digits", "function", "function", "words", "words", "assignment", "letters")
_LONGEST_ITEM = 40


def batch(generator: random.Random, sequences: int, tokens: int) -> torch.Tensor:
    """Token ids of shape [sequences, tokens]."""
    return torch.tensor([_stream(generator, tokens) for _ in range(sequences)])


def _stream(generator: random.Random, tokens: int) -> list[int]:
    kind = generator.choice(_KINDS)
    position = generator.randrange(260)
    constant = generator.randrange(1, 10)
    separator = generator.choice([" ", ", ", "\n"])
    text = ""
    while len(text) < tokens + _LONGEST_ITEM:
        text += _item(kind, position, constant, separator)
        position += 1
    start = generator.randrange(_LONGEST_ITEM)
    return encode(text[start : start + tokens])


def _item(kind: str, position: int, constant: int, separator: str) -> str:
    digit = position % 10
    if kind == "digits":
        return f"{digit}{separator}"
    if kind == "function":
        return f"def f{digit}(x):\n    return x + {digit}\n"
    if kind == "words":
        return WORDS[position % len(WORDS)] + separator
    if kind == "assignment":
        return f"x{(digit + 1) % 10} = x{digit} + {constant}\n"
    return f"{chr(ord('a') + position % 26)}{position // 3 % 10}{separator}"
