# SPDX-License-Identifier: Apache-2.0
"""Collects every example of the documentation: commands, Python, TOML and output."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

_BLOCK = re.compile(r"(?:\A|(?<=\n\n)|^#.*\n)((?:(?: {4}.*|)\n)+)", re.MULTILINE)
_FENCED = re.compile(r"^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:\.venv[\w-]*/bin/)?(?:laguna|pytest|make|python|pip install) [^`\n]*)`")


@dataclasses.dataclass(frozen=True)
class Example:
    """An example and its document."""

    document: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}: {self.text.splitlines()[0]}"


def blocks() -> Iterator[Example]:
    """Every indented or fenced block, without indentation and fences."""
    for document in DOCUMENTS:
        content = document.read_text(encoding="utf-8")
        indented = [re.sub("^ {4}", "", found[1], flags=re.MULTILINE) for found in _BLOCK.finditer(content)]
        for text in [*indented, *_FENCED.findall(content)]:
            if text.strip():
                yield Example(document.relative_to(ROOT).as_posix(), text.strip("\n"))


def kind(example: Example) -> str:
    """Kind of an example: ``python``, ``toml``, ``tree``, ``output`` or ``commands``."""
    first = example.text.splitlines()[0]
    if first.startswith(("import ", "from ")):
        return "python"
    if first.startswith("["):
        return "toml"
    if first.startswith("<sealed-root>"):
        return "tree"
    if re.match(r"\S+  +(cpu|cuda|xpu|replays are profiled) ", first):
        return "output"
    return "commands"


def commands() -> Iterator[Example]:
    """Every command line of blocks and of prose, without its comment."""
    for example in blocks():
        if kind(example) == "commands":
            for line in example.text.replace("\\\n", " ").splitlines():
                command = line.partition("  #")[0].strip()
                if command:
                    yield Example(example.document, command)
    for document in DOCUMENTS:
        for found in _INLINE.finditer(document.read_text(encoding="utf-8")):
            yield Example(document.relative_to(ROOT).as_posix(), found[1])


def words(command: str) -> list[str]:
    """Words of a command line as a shell splits it, without brackets around optional words.

    The program is its plain name, without directory, version and variables; ``python -m pytest`` is ``pytest``.
    """
    found = shlex.split(re.sub(r"[\[\]](?!\w*\])", "", command) if "[--" in command else command)
    found = [*itertools.dropwhile(lambda word: re.match(r"[A-Z_]+=", word), found)]
    program = re.sub(r"^(python)3[.\d]*$", r"\1", Path(found[0]).name)
    found = [program, *found[1:]]
    return found[2:] if found[:3] == ["python", "-m", "pytest"] else found
