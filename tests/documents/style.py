# SPDX-License-Identifier: Apache-2.0
"""Reads the countable rules of docs/style.md and finds the texts that break them."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.documents.commands import ROOT

PAGE = ROOT / "docs" / "style.md"
DERIVED = {ROOT / "docs" / "generated-reference.md", PAGE}
"""Pages without words of their own: one is made of docstrings, the other names the banned words."""

_ROW = re.compile(r"^ {3}\| (?P<write>\w[^|]*) \| (?P<banned>[^|]+) \|$", re.MULTILINE)
_NOTE = re.compile(r" \([^)]*\)")
_OPENINGS = re.compile(r"never begins with ([^.]+?), and")
_CODE = re.compile(r"```.*?```|``.+?``|`[^`]+`", re.DOTALL)
_BLOCK = re.compile(r"(?:(?<=\n\n)|\A)(?: {4,}(?![*|-]).*\n+)+", re.MULTILINE)
_ATTRIBUTE = re.compile(r"^ +\w+:(?= )", re.MULTILINE)
_CLAUSE = re.compile(r"\b(?:that|what|which|where)\b", re.IGNORECASE)
_SECOND_SENTENCE = re.compile(r"(?<!e\.g)(?<!i\.e)[.!?] +(?!Source: )[A-Z(]")


@dataclasses.dataclass(frozen=True)
class Style:
    """The countable rules of the page.

    Attributes:
        banned: words and phrases by the term to write instead.
        openings: words that open no docstring.
    """

    banned: dict[str, list[str]]
    openings: list[str]

    @functools.cached_property
    def words(self) -> list[str]:
        """Every banned word or phrase."""
        return [word for row in self.banned.values() for word in row]


@dataclasses.dataclass(frozen=True)
class Text:
    """A document, a docstring, a comment or a message, with its place."""

    place: str
    text: str
    docstring: bool = False

    @functools.cached_property
    def first_line(self) -> str:
        """First line, with code shortened to one letter."""
        return _CODE.sub("X", self.text.strip().partition("\n")[0])


def read_style(page: str) -> Style:
    """Read the table of terms and the banned openings of the page."""
    rows = [(found["write"], _NOTE.sub("", found["banned"])) for found in _ROW.finditer(page)]
    openings = _OPENINGS.search(page)
    return Style(
        banned={write: banned.split(", ") for write, banned in rows if write != "write"},
        openings=re.findall(r'"(\w+)"', openings[1]) if openings else [],
    )


def banned_words(text: Text, style: Style) -> Iterator[str]:
    """Each banned word of a text, with its place and the term to write instead."""
    if not _pattern(*style.words).search(text.text):
        return
    prose = _CODE.sub("`", text.text)
    if text.docstring:
        prose = _ATTRIBUTE.sub("", prose)  # names of fields are ids
    for write, words in style.banned.items():
        without = re.sub(re.escape(write).replace(r"\ ", r"\s+"), "", prose, flags=re.IGNORECASE)
        yield from (f"{text.place}: {found[0]!r}; write {write!r}" for found in _pattern(*words).finditer(without))


@functools.cache
def _pattern(*words: str) -> re.Pattern[str]:
    """Any of the words, outside paths and ids; a phrase may go over lines and their comment marks."""
    alternatives = "|".join(re.escape(word).replace(r"\ ", r"[\s#]+") for word in words)
    return re.compile(rf"(?<![\w/-])(?:{alternatives})(?![\w-])", re.IGNORECASE)


def opens_badly(text: Text, style: Style) -> bool:
    """True if a docstring begins with a banned opening."""
    words = re.findall(r"\w+", text.first_line)
    return text.docstring and bool(words) and words[0] in style.openings


def ends_badly(text: Text) -> bool:
    """True if a docstring's first line is not one sentence with a period, at most followed by its source."""
    line = text.first_line
    return text.docstring and (not line.endswith(".") or _SECOND_SENTENCE.search(line) is not None)


def has_clause(text: Text) -> bool:
    """True if a docstring's first line holds one of the words that open a subordinate clause."""
    return text.docstring and _CLAUSE.search(text.first_line) is not None


def python_texts(place: str, source: str, style: Style) -> Iterator[Text]:
    """Docstrings of a Python file; also messages and comments if the file holds a banned word."""
    tree = ast.parse(source)
    docstrings = {id(constant): constant for constant in _docstrings(tree.body)}
    for constant in docstrings.values():
        yield Text(f"{place}:{constant.lineno}", str(constant.value), docstring=True)
    banned = _pattern(*style.words)
    if banned.search(source):  # the rest is slow
        yield from _messages(place, tree, docstrings)
        if banned.search("\n".join(line.partition("#")[2] for line in source.splitlines() if "#" in line)):
            yield from _comments(place, source)


def _docstrings(body: Sequence[ast.stmt]) -> Iterator[ast.Constant]:
    """Docstrings of modules, classes and functions, and of attributes and constants."""
    for statement in body:
        match statement:
            case ast.Expr(value=ast.Constant(value=str()) as constant):
                yield constant
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.If() | ast.With() | ast.Try():
                yield from _docstrings(statement.body)


def _messages(place: str, tree: ast.Module, docstrings: dict[int, ast.Constant]) -> Iterator[Text]:
    """String literals with a space; others are ids."""
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in docstrings else None
        if isinstance(node, ast.Constant) and isinstance(text, str) and " " in text.strip():
            yield Text(f"{place}:{node.lineno}", text)


def _comments(place: str, source: str) -> Iterator[Text]:
    """Comments, adjacent lines of them together."""
    lines: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(iter(source.splitlines(keepends=True)).__next__):
        if token.type == tokenize.COMMENT:
            if lines and token.start[0] != last + 1:
                yield Text(f"{place}:{first}", "\n".join(lines))
                lines = []
            first = token.start[0] if not lines else first
            last = token.start[0]
            lines.append(token.string)
    if lines:
        yield Text(f"{place}:{first}", "\n".join(lines))


def document_text(place: str, content: str) -> Text:
    """A document without its code blocks."""
    return Text(place, _BLOCK.sub("", content))


def texts(path: Path, style: Style) -> list[Text]:
    """Every text of a file."""
    place, content = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    return [document_text(place, content)] if path.suffix == ".md" else [*python_texts(place, content, style)]
