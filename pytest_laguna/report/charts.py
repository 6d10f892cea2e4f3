# SPDX-License-Identifier: Apache-2.0
"""Pictures of the report, each from plain numbers; the tables beside them give the judgement."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_laguna.analysis.statistics import linear_percentile
from pytest_laguna.evidence.arms.replay_profile import SegmentKind
from pytest_laguna.report.figures import COLOURS, MICROSECOND, MICROSECONDS, Drawing, scale
from pytest_laguna.report.markup import Markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 10.0
"""Inches; the page scales it."""

KINDS: tuple[SegmentKind, ...] = ("graph", "attention", "collective", "other")
_GOLDEN = 0.618034
_ROW = 0.42


def side(name: str) -> str:
    """Colour of an arm or leg: the candidate's, or the control's."""
    own = name.rpartition(" ")[2]
    return COLOURS["candidate" if own == "graph-candidate" or own.startswith("B") else "control"]


def distributions(drawing: Drawing, arms: Mapping[str, Mapping[str, Sequence[int]]]) -> Markup:
    """Every sample of each quantity, one row an arm, with its median and the range from p10 to p90.

    ``arms`` holds, by arm from below and by quantity, samples in nanoseconds.
    """
    names = [name for name in next(iter(arms.values())) if all(name in samples for samples in arms.values())]
    rows = math.ceil(len(names) / 2)
    with drawing.axes(WIDTH, 0.25 + 1.05 * rows, rows=rows, columns=2) as canvas:
        for axes, name in zip(canvas.axes, names, strict=False):
            _samples(axes, {arm: samples[name] for arm, samples in arms.items()})
            axes.set_title(name.replace("_", " "))
        for axes in canvas.axes[len(names) :]:
            axes.set_visible(False)
    return canvas.markup


def _samples(axes: Axes, arms: Mapping[str, Sequence[int]]) -> None:
    divisor, unit = scale(max(max(samples) for samples in arms.values()))
    for row, (arm, samples) in enumerate(arms.items()):
        values = [sample / divisor for sample in samples]
        heights = [row + 0.3 * ((index * _GOLDEN) % 1 - 0.5) for index in range(len(values))]
        axes.plot(values, heights, "o", markersize=3, alpha=0.55, color=side(arm), markeredgewidth=0)
        low, middle, high = (linear_percentile(values, fraction) for fraction in (0.1, 0.5, 0.9))
        axes.plot([low, high], [row + 0.3] * 2, color=side(arm), linewidth=1.5)
        axes.plot([middle], [row + 0.3], "|", markersize=9, markeredgewidth=2, color=side(arm))
    axes.set_yticks(range(len(arms)), [*arms])
    axes.set_ylim(-0.4, len(arms) - 0.4)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.set_xlabel(unit, loc="right", labelpad=0)


def savings(
    drawing: Drawing, gates: Mapping[str, tuple[float, tuple[float, float] | None, float | None]], title: str
) -> Markup:
    """Saving of each gate, with its interval and its minimum detectable effect.

    ``gates`` holds, by name from above: saving, interval and minimum detectable effect, all in per cent.
    """
    with drawing.axes(WIDTH, 0.9 + _ROW * len(gates)) as canvas:
        (axes,) = canvas.axes
        for row, (saving, interval, detectable) in enumerate(gates.values()):
            if detectable is not None:
                axes.barh(
                    row, 2 * abs(detectable), left=-abs(detectable), height=0.72, color=COLOURS["line"], alpha=0.6
                )
            if interval is not None:
                axes.plot(interval, [row, row], color=COLOURS["candidate"], linewidth=2)
            filled = COLOURS["candidate"] if interval is not None else "none"
            axes.plot([saving], [row], "o", color=COLOURS["candidate"], markerfacecolor=filled)
        axes.axvline(0, color=COLOURS["soft"], linewidth=1)
        _listed(axes, [name.replace("_", " ") for name in gates])
        axes.set_xlabel(title)
    return canvas.markup


def timelines(drawing: Drawing, rows: Sequence[tuple[str, Sequence[str], Sequence[float]]]) -> Markup:
    """One row a rank: its segments one after the other, in a track and colour for each kind.

    ``rows`` holds, from above: label, kind of each segment, nanoseconds of each segment.
    """
    divisor, unit = scale(max(sum(nanoseconds) for _, _, nanoseconds in rows))
    seen = [kind for kind in KINDS if any(kind in kinds for _, kinds, _ in rows)]
    with drawing.axes(WIDTH, 1.0 + 0.24 * len(seen) * len(rows)) as canvas:
        (axes,) = canvas.axes
        for row, (_, kinds, nanoseconds) in enumerate(rows):
            _timeline(axes, _lanes(row, seen), kinds, [each / divisor for each in nanoseconds])
        for kind in seen:
            axes.plot([], [], "s", color=COLOURS[kind], label=kind, markersize=7)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(seen), borderaxespad=0.2)
        _listed(axes, [label for label, _, _ in rows])
        axes.set_xlim(left=0)
        axes.set_xlabel(f"time within one replay, {unit}")
    return canvas.markup


def _lanes(row: int, kinds: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Lower edge and height of each kind's track within a row."""
    height = 0.84 / len(kinds)
    return {kind: (row - 0.42 + place * height, 0.9 * height) for place, kind in enumerate(kinds)}


def _timeline(
    axes: Axes, lanes: Mapping[str, tuple[float, float]], kinds: Sequence[str], lengths: Sequence[float]
) -> None:
    begin = 0.0
    bars: dict[str, list[tuple[float, float]]] = {}
    for kind, length in zip(kinds, lengths, strict=True):
        bars.setdefault(kind, []).append((begin, length))
        begin += length
    for kind, places in bars.items():
        axes.broken_barh(places, lanes[kind], facecolors=COLOURS[kind], linewidth=0, antialiased=False)


def acceptance(drawing: Drawing, runs: Mapping[str, Sequence[float]]) -> Markup:
    """Share of cycles with the draft's token accepted, by arm or leg and position."""
    positions = max(len(shares) for shares in runs.values())
    with drawing.axes(WIDTH, 2.6) as canvas:
        (axes,) = canvas.axes
        breadth = 0.8 / len(runs)
        for number, (name, shares) in enumerate(runs.items()):
            places = [position + (number - (len(runs) - 1) / 2) * breadth for position in range(1, len(shares) + 1)]
            hatch = ("", "//", "..", "xx", "--")[number % 5]
            axes.bar(
                places,
                [100 * share for share in shares],
                width=breadth * 0.9,
                color=side(name),
                alpha=0.85,
                label=name,
                hatch=hatch,
                edgecolor=COLOURS["paper"],
                linewidth=0,
            )
        axes.set_xticks(range(1, positions + 1))
        axes.set_ylim(0, 100)
        axes.set_xlabel("position of the proposed token")
        axes.set_ylabel("accepted, %")
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.04), ncols=min(len(runs), 8), borderaxespad=0.2)
    return canvas.markup


def rates(drawing: Drawing, legs: Mapping[str, Sequence[float]]) -> Markup:
    """Rate of each row of each leg, in tokens/s, with the leg's median; legs in running order, from above."""
    with drawing.axes(WIDTH, 0.9 + _ROW * len(legs)) as canvas:
        (axes,) = canvas.axes
        for row, (name, values) in enumerate(legs.items()):
            colour = side(name)
            heights = [row + 0.3 * ((index * _GOLDEN) % 1 - 0.5) for index in range(len(values))]
            axes.plot(values, heights, "o", markersize=4, alpha=0.55, color=colour, markeredgewidth=0)
            axes.plot(
                [linear_percentile(list(values), 0.5)], [row], "|", markersize=16, markeredgewidth=2, color=colour
            )
        _listed(axes, [*legs])
        axes.set_xlabel("legacy rate of each row, tokens/s; the bar is the leg's median throughput")
    return canvas.markup


def paired_rows(
    drawing: Drawing,
    prompts: Sequence[str],
    pairs: Mapping[str, Sequence[float]],
    medians: Mapping[str, tuple[float, float] | None],
) -> Markup:
    """Change of each prompt's rate from the adjacent control to the candidate, in per cent.

    ``pairs`` holds the changes by pair, ``medians`` the interval of their median, which is drawn below all prompts.
    """
    with drawing.axes(WIDTH, 1.3 + 0.3 * len(prompts)) as canvas:
        (axes,) = canvas.axes
        for number, (name, changes) in enumerate(pairs.items()):
            marked: dict[str, Any] = {
                "color": COLOURS["candidate"],
                "marker": "osD^v"[number % 5],
                "markerfacecolor": "none" if number % 2 else COLOURS["candidate"],
                "linestyle": "none",
            }
            offset = 0.5 * ((number + 0.5) / len(pairs) - 0.5)
            rows = [row + offset for row in range(len(changes))]
            for row, change in zip(rows, changes, strict=True):
                axes.plot([0, change], [row, row], color=COLOURS["line"], linewidth=1, zorder=1)
            axes.plot(changes, rows, markersize=5, label=name, **marked)
            below, interval = len(changes) + 1.5 * offset, medians[name]
            if interval is not None:
                axes.plot(interval, [below, below], color=COLOURS["candidate"], linewidth=1.5)
            axes.plot([linear_percentile(list(changes), 0.5)], [below], markersize=4, **marked)
        axes.axvline(0, color=COLOURS["soft"], linewidth=1)
        _listed(axes, [*prompts, "median of the rows"])
        axes.set_xlabel("candidate's rate above the control's, %")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=min(len(pairs), 4), borderaxespad=0.2)
    return canvas.markup


def blocks(drawing: Drawing, gains: Mapping[str, float], together: tuple[float, float, float], margin: float) -> Markup:
    """Gain of each block in per cent, and of all together with its interval, against the margin.

    ``together`` holds the gain and the ends of its interval; the lower end must exceed ``margin``.
    """
    names = [*gains, "all blocks"]
    with drawing.axes(WIDTH, 0.9 + _ROW * len(names)) as canvas:
        (axes,) = canvas.axes
        for row, gain in enumerate(gains.values()):
            axes.plot([gain], [row], "o", color=COLOURS["candidate"])
        gain, low, high = together
        axes.plot([low, high], [len(gains)] * 2, color=COLOURS["candidate"], linewidth=2.5)
        axes.plot([gain], [len(gains)], "D", color=COLOURS["candidate"])
        axes.axvline(0, color=COLOURS["soft"], linewidth=1)
        axes.axvline(margin, color=COLOURS["ink"], linewidth=1, linestyle=(0, (4, 3)), label=f"margin {margin:g} %")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.2)
        _listed(axes, names)
        axes.set_xlabel("gain, %")
    return canvas.markup


def shares(drawing: Drawing, ranks: Mapping[str, Mapping[SegmentKind, tuple[float, float, float]]]) -> Markup:
    """Share of each kind of segment by rank, in per cent, with the ends of its interval."""
    with drawing.axes(WIDTH, 0.9 + _ROW * len(ranks)) as canvas:
        (axes,) = canvas.axes
        seen = [kind for kind in KINDS if any(kind in kinds for kinds in ranks.values())]
        for row, kinds in enumerate(ranks.values()):
            for kind, (share, low, high) in kinds.items():
                axes.plot([low, high], [row, row], color=COLOURS[kind], linewidth=3)
                axes.plot([share], [row], "o", color=COLOURS[kind])
        for kind in seen:
            axes.plot([], [], "o", color=COLOURS[kind], label=kind)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(seen), borderaxespad=0.2)
        _listed(axes, [*ranks])
        axes.set_xlim(0, 100)
        axes.set_xlabel("share of the replay's intervals, %")
    return canvas.markup


def microseconds(nanoseconds: float) -> str:
    """Format nanoseconds as microseconds, rounded to a tenth."""
    return f"{nanoseconds / MICROSECOND:,.1f} {MICROSECONDS}"


def _listed(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.set_axisbelow(True)
