# SPDX-License-Identifier: Apache-2.0
"""HTML from untrusted text: everything except ``Markup`` is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from pytest_laguna.evidence.files import printable


class Markup(str):
    """Text of finished HTML."""

    __slots__ = ()


def element(name: str, *content: str, **attributes: str) -> Markup:
    """HTML element.

    Args:
        name: tag.
        content: escaped unless it is ``Markup``.
        attributes: by name; a trailing underscore is removed, other underscores become dashes.
    """
    named = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    opened = "".join(f' {key}="{html.escape(printable(value))}"' for key, value in named.items())
    return Markup(f"<{name}{opened}>{joined(content)}</{name}>")


def joined(content: Iterable[str], separator: str = "") -> Markup:
    """Join pieces; each is escaped unless it is ``Markup``."""
    return Markup(separator.join(piece if isinstance(piece, Markup) else text(piece) for piece in content))


def text(content: str) -> Markup:
    """Escape text; lines stay lines, other control characters become visible."""
    return Markup("\n".join(html.escape(printable(line.replace("\t", "    "))) for line in content.split("\n")))


def table(head: Sequence[str], rows: Iterable[Sequence[str]], **attributes: str) -> Markup:
    """Table that scrolls by itself if it is wider than the window; empty without rows."""
    lines = [element("tr", *(element("td", cell) for cell in row)) for row in rows]
    if not lines:
        return Markup("")
    titles = element("thead", element("tr", *(element("th", title, scope="col") for title in head)))
    return element("div", element("table", titles, element("tbody", *lines), **attributes), class_="scroll")


def facts(pairs: Iterable[tuple[str, str]]) -> Markup:
    """List of names with their values."""
    return element("dl", *(joined([element("dt", name), element("dd", value)]) for name, value in pairs))


def details(summary: str, *content: str) -> Markup:
    """Folded content under a summary; paper shows the summary only."""
    return element("details", element("summary", summary), *content)


def code(content: str) -> Markup:
    """Path, digest or command."""
    return element("code", content)
