# SPDX-License-Identifier: Apache-2.0
"""HTML from text that nobody vouches for: whatever is not ``Markup`` is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from pytest_laguna.evidence.files import printable


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(name: str, *content: str, **attributes: str) -> Markup:
    """An element.

    Args:
        name: of the element.
        content: what lies in it; what is not ``Markup`` is escaped.
        attributes: by name; a trailing underscore is taken off, and other underscores become dashes.
    """
    named = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    opened = "".join(f' {key}="{html.escape(printable(value))}"' for key, value in named.items())
    return Markup(f"<{name}{opened}>{joined(content)}</{name}>")


def joined(content: Iterable[str], separator: str = "") -> Markup:
    """Pieces one after the other; what is not ``Markup`` is escaped."""
    return Markup(separator.join(piece if isinstance(piece, Markup) else text(piece) for piece in content))


def text(content: str) -> Markup:
    """Escaped text; lines stay lines, and other control characters are shown and not sent."""
    return Markup("\n".join(html.escape(printable(line.replace("\t", "    "))) for line in content.split("\n")))


def table(head: Sequence[str], rows: Iterable[Sequence[str]], **attributes: str) -> Markup:
    """A table; empty where it has no row. What is wider than a window scrolls by itself."""
    lines = [element("tr", *(element("td", cell) for cell in row)) for row in rows]
    if not lines:
        return Markup("")
    titles = element("thead", element("tr", *(element("th", title, scope="col") for title in head)))
    return element("div", element("table", titles, element("tbody", *lines), **attributes), class_="scroll")


def facts(pairs: Iterable[tuple[str, str]]) -> Markup:
    """Names and what they stand for."""
    return element("dl", *(joined([element("dt", name), element("dd", value)]) for name, value in pairs))


def details(summary: str, *content: str) -> Markup:
    """What is folded away until somebody asks; paper shows the summary alone."""
    return element("details", element("summary", summary), *content)


def code(content: str) -> Markup:
    """A path, a digest, a command."""
    return element("code", content)
