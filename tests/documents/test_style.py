# SPDX-License-Identifier: Apache-2.0
"""The countable part of docs/style.md holds for documents, docstrings, comments and messages."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.documents.commands import ROOT
from tests.documents.style import (
    DERIVED,
    PAGE,
    Style,
    Text,
    banned_words,
    document_text,
    ends_badly,
    has_clause,
    opens_badly,
    python_texts,
    read_style,
    texts,
)

NOT_YET: dict[str, set[str]] = {"words": {"tests"}, "openings": {"tests"}, "endings": {"tests"}, "clauses": set()}
"""Rooms still worded the old way, by check; a room that passes a check must leave its set."""

CLAUSE_SHARE = 0.25
"""Largest share of first lines with a subordinate clause."""

STYLE = read_style(PAGE.read_text())
PRODUCT = ("pytest_laguna", "src")
PLACES = (*PRODUCT, "benchmarks", "changes", "docs", "examples", "gates", "tests", "tools")


def room(path: Path) -> str:
    """Folder of the product, or top folder of the file."""
    parts = path.relative_to(ROOT).parts
    depth = 2 if parts[0] in PRODUCT and len(parts) > 2 else 1
    return "/".join(parts[:depth]) if len(parts) > 1 else "."


def paths() -> Iterator[Path]:
    for place in (ROOT, *(ROOT / name for name in PLACES)):
        for pattern in ("*.py", "*.md"):
            yield from place.glob(pattern) if place == ROOT else place.rglob(pattern)


@functools.cache
def rooms() -> dict[str, list[Text]]:
    found: dict[str, list[Text]] = {}
    for path in sorted(set(paths()) - DERIVED):
        if "data" not in path.parts:
            found.setdefault(room(path), []).extend(texts(path, STYLE))
    return found


def wrong_words(text: Text) -> list[str]:
    return [*banned_words(text, STYLE)]


def wrong_opening(text: Text) -> list[str]:
    return [f"{text.place}: {text.first_line}"] if opens_badly(text, STYLE) else []


def wrong_ending(text: Text) -> list[str]:
    return [f"{text.place}: {text.first_line}"] if ends_badly(text) else []


def found_by(check: str) -> dict[str, list[str]]:
    """Findings of a check by room; for clauses, the rooms above the share."""
    if check == "clauses":
        return {name: ["too many"] for name, (count, of) in clauses().items() if count > CLAUSE_SHARE * of}
    wrong = CHECKS[check]
    return {name: found for name, held in rooms().items() if (found := [line for text in held for line in wrong(text)])}


CHECKS: dict[str, Callable[[Text], list[str]]] = {
    "words": wrong_words,
    "openings": wrong_opening,
    "endings": wrong_ending,
}


def clauses() -> dict[str, tuple[int, int]]:
    """First lines with a clause, and first lines, of each room of the product."""
    product = {name: held for name, held in rooms().items() if name.startswith(PRODUCT)}
    return {name: (sum(map(has_clause, held)), sum(text.docstring for text in held)) for name, held in product.items()}


@pytest.mark.parametrize("check", CHECKS)
def test_texts_are_worded_by_the_page(check: str) -> None:
    found = found_by(check)
    assert [line for name in found.keys() - NOT_YET[check] for line in found[name]] == []


def test_few_first_lines_hang_on_a_clause() -> None:
    judged = {name: counts for name, counts in clauses().items() if name not in NOT_YET["clauses"]}
    count, of = (sum(column) for column in zip((0, 0), *judged.values(), strict=True))
    assert count <= CLAUSE_SHARE * of, {name: counts for name, counts in judged.items() if sum(counts)}


@pytest.mark.parametrize("check", NOT_YET)
def test_a_room_that_is_done_is_no_exception(check: str) -> None:
    assert NOT_YET[check] <= found_by(check).keys(), f"take the others out of NOT_YET[{check!r}]"


EXAMPLE = Style(
    banned={"A/A": ["null"], "finding": ["speaks against", "told by"], "fix": ["mend"], "smallest effect": ["effect"]},
    openings=["What", "That"],
)


def test_the_page_is_read() -> None:
    page = """\
   | write | not |
   |--|--|
   | A/A | null (ids such as `null-exact` stay) |
   | fix | mend, mends |

3. It never begins with "What", "Whether" or "That", and it is short.

| before | after |
|--|--|
| long | short |
"""
    assert read_style(page) == Style({"A/A": ["null"], "fix": ["mend", "mends"]}, ["What", "Whether", "That"])


def test_the_page_names_what_is_banned_today() -> None:
    assert STYLE.banned["A/A"] == ["null"]
    assert {"mend", "headline", "speaks against"} <= set(STYLE.words)
    assert STYLE.openings == ["What", "Whether", "That"]


@pytest.mark.parametrize(
    "text",
    ["a null campaign", "Null blocks", "it speaks\nagainst a leg", "# it speaks\n    # against a leg", "Mend it."],
)
def test_a_banned_word_is_found(text: str) -> None:
    (found,) = banned_words(Text("here.py:1", text), EXAMPLE)
    assert found.startswith("here.py:1: ")
    assert "; write " in found


@pytest.mark.parametrize(
    "text",
    [
        "`null-exact` and ``null`` stay",
        "rule null-exact",
        "what is written to /dev/null",
        "mending is another word",
        "null_verdict",
        "the smallest\neffect",
    ],
)
def test_an_id_a_code_span_and_the_term_itself_are_no_banned_words(text: str) -> None:
    assert not [*banned_words(Text("here.py:1", text), EXAMPLE)]


def test_the_name_of_an_attribute_is_an_id() -> None:
    text = "An arm.\n\n    Attributes:\n        null: True for A/A."
    assert not [*banned_words(Text("here.py:1", text, docstring=True), EXAMPLE)]
    assert [*banned_words(Text("here.py:1", text.replace("A/A", "null"), docstring=True), EXAMPLE)]


@pytest.mark.parametrize(
    ("text", "docstring", "banned"),
    [
        ("What it found.", True, True),
        ("``That`` is code.", True, False),
        ("That there is one.", True, True),
        ("Whatever it found.", True, False),
        ("Digest of what it found.", True, False),
        ("What a comment may say", False, False),
        ("", True, False),
    ],
)
def test_a_banned_opening_is_told(text: str, *, docstring: bool, banned: bool) -> None:
    assert opens_badly(Text("here.py:1", text, docstring), EXAMPLE) is banned


@pytest.mark.parametrize(
    ("text", "docstring", "bad"),
    [
        ("Digest of the plan.", True, False),
        ("Digest of ``plan.json``, e.g. A.", True, False),
        ("Digest of the plan. Source: RFC 8785.", True, False),
        ("Digest of the plan. Source: RFC 8785. It is short.", True, True),
        ("Digest of the plan", True, True),
        ("Digest of the plan. It is short.", True, True),
        ("Digest of the\nplan.", True, True),
        ("Digest of the plan.\n\nMore of it", True, False),
        ("a message", False, False),
    ],
)
def test_a_first_line_is_one_sentence(text: str, *, docstring: bool, bad: bool) -> None:
    assert ends_badly(Text("here.py:1", text, docstring)) is bad


@pytest.mark.parametrize(
    ("text", "docstring", "clause"),
    [
        ("Rules that hold.", True, True),
        ("Place where it lies.", True, True),
        ("Digest, which is short.", True, True),
        ("Say what is seen.", True, True),
        ("Nowhere else.", True, False),
        ("Rules.\n\nThose that hold.", True, False),
        ("The key ``that``.", True, False),
        ("a message that is long", False, False),
    ],
)
def test_a_clause_is_counted(text: str, *, docstring: bool, clause: bool) -> None:
    assert has_clause(Text("here.py:1", text, docstring)) is clause


SOURCE = '''\
"""A module."""

LIMIT = 1
"""Most bytes."""

# A comment that speaks
# against it.
class Shown:
    """A class."""

    def title(self) -> str:
        """A method."""
        x = 1  # beside it
        return f"a message of {x} bytes"


KEYS = {"null": "the value", "an-id": None}
'''


def test_every_text_of_a_python_file_is_found() -> None:
    found = [*python_texts("here.py", SOURCE, EXAMPLE)]
    assert [text.text for text in found if text.docstring] == ["A module.", "Most bytes.", "A class.", "A method."]
    assert {text.text for text in found if not text.docstring} == {
        "# A comment that speaks\n# against it.",
        "# beside it",
        "a message of ",
        " bytes",
        "the value",
    } - {" bytes"}
    assert "here.py:6" in {text.place for text in found}
    assert [line.partition(";")[0] for text in found for line in banned_words(text, EXAMPLE)] == [
        "here.py:6: 'speaks\\n# against'"
    ]


def test_code_blocks_of_a_document_are_left_out() -> None:
    text = document_text("a.md", "# Head\nWords `code`.\n\n    pytest --null null\n\n```\nnull\n```\n\n* A null item\n")
    assert [*banned_words(text, EXAMPLE)] == ["a.md: 'null'; write 'A/A'"]
