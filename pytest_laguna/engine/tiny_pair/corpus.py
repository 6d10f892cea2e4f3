# SPDX-License-Identifier: Apache-2.0
"""The pair's training text: streams in which every item follows from the text before.

Five kinds go on for ever; two end with the end token, and then begin anew. Imports no torch.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

from .tokenizer import END_TOKEN, encode

WORDS = [
    "alpha", "beta", "gamma", "delta", "echo", "fox", "golf", "hotel", "india", "jazz", "kilo", "lima", "mike", "nova",
    "oscar", "papa", "quiz", "romeo", "sierra", "tango", "umbra", "victor", "whisky", "yard",
]  # fmt: skip
Kind: TypeAlias = Literal["digits", "functions", "words", "assignments", "letters", "bullets", "numbered"]


@dataclasses.dataclass(frozen=True, slots=True)
class TextStream:
    """One endless text.

    Attributes:
        kind: of the items.
        position: of the first item.
        constant: the addend of all assignments, 1 to 9.
        separator: between digits, words and letters.
    """

    kind: Kind
    position: int = 0
    constant: int = 1
    separator: str = "\n"

    def token_ids(self, tokens: int) -> list[int]:
        """The first ``tokens`` token ids."""
        seen: list[int] = []
        position = self.position
        while len(seen) < tokens:
            seen += self._item(position)
            position += 1
        return seen[:tokens]

    def _item(self, position: int) -> list[int]:
        digit, number = position % 10, position % len(WORDS)
        match self.kind:
            case "digits":
                return encode(f"{digit}{self.separator}")
            case "functions":
                return encode(f"def f{digit}(x):\n    return x + {digit}\n")
            case "words":
                return encode(f"{WORDS[number]}{self.separator}")
            case "assignments":
                return encode(f"x{(digit + 1) % 10} = x{digit} + {self.constant}\n")
            case "letters":
                return encode(f"{chr(ord('a') + position % 26)}{digit}{self.separator}")
            case "bullets":
                line = f"- {WORDS[number]}\n"
            case "numbered":
                line = f"{number + 1}: {WORDS[number]}\n"
        return [*encode(line), END_TOKEN] if number == len(WORDS) - 1 else encode(line)
