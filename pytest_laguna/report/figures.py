# SPDX-License-Identifier: Apache-2.0
"""Matplotlib figures as inline SVG with the page's colours, readable in light and dark.

The same figure gives the same bytes: the salt of its ids is fixed, and it has no date. Only ``laguna report`` loads
matplotlib.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pytest_laguna.report.markup import Markup, element

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "ink": "#010203",
    "soft": "#010204",
    "line": "#010205",
    "control": "#010206",
    "candidate": "#010207",
    "graph": "#010208",
    "attention": "#010209",
    "collective": "#01020a",
    "other": "#01020b",
    "paper": "#01020c",
}
"""Placeholder colours for matplotlib, replaced by the page's variables."""

_SETTINGS: dict[Any, Any] = {
    "axes.edgecolor": COLOURS["line"],
    "axes.facecolor": "none",
    "axes.labelcolor": COLOURS["soft"],
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": COLOURS["ink"],
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "figure.facecolor": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "grid.color": COLOURS["line"],
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.labelcolor": COLOURS["ink"],
    "path.simplify": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "pytest-laguna",
    "text.color": COLOURS["ink"],
    "text.parse_math": False,
    "xtick.color": COLOURS["line"],
    "xtick.labelcolor": COLOURS["soft"],
    "ytick.color": COLOURS["line"],
    "ytick.labelcolor": COLOURS["ink"],
}

MICROSECOND, MILLISECOND = 1e3, 1e6
"""Nanoseconds."""

MICROSECONDS = "\N{MICRO SIGN}s"


class Drawing:
    """Figures of one document, each with ids of its own."""

    def __init__(self) -> None:
        """Start without figures."""
        self._number = 0

    @contextlib.contextmanager
    def axes(self, width: float, height: float, *, rows: int = 1, columns: int = 1) -> Iterator[_Canvas]:
        """Yield axes to draw on, sized in inches; leaving the block makes the picture."""
        import matplotlib as mpl  # noqa: PLC0415 - verifying needs none of it
        from matplotlib.figure import Figure  # noqa: PLC0415

        with mpl.rc_context():
            mpl.rcdefaults()
            mpl.rcParams.update(_SETTINGS)
            figure = Figure(figsize=(width, height), layout="constrained")
            grid = figure.subplots(rows, columns, squeeze=False)
            canvas = _Canvas(figure, [axes for row in grid for axes in row])
            yield canvas
            self._number += 1
            canvas.markup = _svg(figure, f"f{self._number}-")


class _Canvas:
    """Drawing area.

    Attributes:
        axes: in reading order.
        markup: the picture, once the block is left.
    """

    def __init__(self, figure: Figure, axes: Sequence[Axes]) -> None:
        self.figure = figure
        self.axes = axes
        self.markup = Markup("")


def _svg(figure: Figure, prefix: str) -> Markup:
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    content = stream.getvalue()
    content = content[content.index("<svg") :]
    content = re.sub(r"<metadata>.*?</metadata>\s*", "", content, flags=re.DOTALL)
    content = re.sub(r"(?<![\w-])id=\"([^\"]+)\"", rf'id="{prefix}\1"', content)
    content = re.sub(r"((?:xlink:)?href)=\"#([^\"]+)\"", rf'\1="#{prefix}\2"', content)
    content = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}\1)", content)
    content = re.sub(r"(<svg[^>]*?) height=\"[^\"]*\"", r"\1", content, count=1)
    for name, colour in COLOURS.items():
        content = content.replace(colour, f"var(--{name})")
    return Markup(content.strip())


def figure(picture: Markup, caption: str) -> Markup:
    """Picture with its caption, which is also its text alternative."""
    return element("figure", element("div", picture, role="img", aria_label=caption), element("figcaption", caption))


def scale(largest: float) -> tuple[float, str]:
    """Nanoseconds in the unit of a largest value, and the unit's name."""
    for size, name in ((1e9, "s"), (MILLISECOND, "ms"), (MICROSECOND, MICROSECONDS)):
        if largest >= size:
            return size, name
    return 1.0, "ns"
