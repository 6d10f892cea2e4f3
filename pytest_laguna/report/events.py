# SPDX-License-Identifier: Apache-2.0
"""Gate 2 with an event profile: intervals of each rank by kind, shares, and the instrument's cost."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_laguna.analysis.wording import shown_in_places
from pytest_laguna.evidence.events.analysis import EventAnalysis, EventPlan
from pytest_laguna.evidence.events.profile import EventProfile
from pytest_laguna.evidence.events.reader import read_events
from pytest_laguna.evidence.reading import PLAN, whole
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.report import charts
from pytest_laguna.report.figures import Drawing, figure
from pytest_laguna.report.markup import Markup, code, element, facts, joined, table
from pytest_laguna.report.shown import ShownAttempt


def events_section(shown: ShownAttempt, own: EventAnalysis, drawing: Drawing) -> Markup:
    """Measurements of the event profile."""
    place = shown.own_directory
    evidence = read_events(place, read_model(place / PLAN, EventPlan).arms)
    profiles = whole(evidence.profiles).values()
    return joined([
        element("h3", "Event profile"),
        facts([
            ("status", own.status or "none: the profile is not complete"),
            ("next step", own.action or "none: the profile is not complete"),
            ("instrument", own.fitness),
            *_fitness(own),
        ]),
        *_timelines(sorted(profiles, key=lambda profile: profile.rank), own, drawing),
        *_categories(own),
        *_ranges(own),
        *_sparse(own, drawing),
    ])


def undetectable(own: EventAnalysis) -> Iterator[str]:
    """Limits of the profile, one line each."""
    yield "An interval is the time between two events of a stream, waiting included; it is not device work alone."
    yield "Ranks have clocks of their own: a critical path across ranks is unknown."
    if own.fitness in {"unmeasured", "not_proven"}:
        yield "The instrument's cost was not measured: all shares may come from a slowed replay."
    if own.selected is not None and own.selected.clock == "host-clock":
        yield "Times come from the host's clock, not from device events: they say nothing about a card."
    if not own.sparse:
        yield "One replay was profiled: the spread between replays is unknown."


def _fitness(own: EventAnalysis) -> Iterator[tuple[str, str]]:
    figures = own.fitness_figures
    if figures is not None:
        slowdown = shown_in_places(figures.slowdown, figures.limit, 4)
        yield "slowdown of a replay by events", f"{slowdown}, limit {figures.limit}"
        kinds = ", ".join(f"{kind} {ratio:.4f}" for kind, ratio in figures.kind_slowdown.items())
        yield "slowdown by kind", f"{kinds}; largest over smallest {figures.spread:.4f}"


def _timelines(profiles: list[EventProfile], own: EventAnalysis, drawing: Drawing) -> Iterator[Markup]:
    if not profiles:
        return
    slowest = own.selected.rank if own.selected else None
    rows = [
        (f"rank {profile.rank}{', slowest' if profile.rank == slowest else ''}", profile.kinds, profile.interval_ns)
        for profile in profiles
    ]
    clock = profiles[0].clock.replace("-", " ")
    yield figure(
        charts.timelines(drawing, rows),
        f"The {len(profiles[0].kinds)} intervals of one replay by rank, in order, by {clock}. Ranks are not aligned.",
    )


def _categories(own: EventAnalysis) -> Iterator[Markup]:
    chosen = own.selected
    if chosen is None:
        return
    percent = chosen.category_percent or {}
    waits = chosen.host
    rows = [
        (
            kind,
            charts.microseconds(nanoseconds),
            f"{percent[kind]:.4f} %" if kind in percent else "withheld",
            "unknown" if waits is None else charts.microseconds(waits.waiting_least_ns.get(kind, 0.0)),
            "unknown" if waits is None else charts.microseconds(waits.waiting_most_ns.get(kind, 0.0)),
        )
        for kind, nanoseconds in chosen.category_ns.items()
    ]
    head = (f"kind, rank {chosen.rank}", "time", "share", "waited for the host at least", "at most")
    yield table(head, rows, class_="numbers")


def _ranges(own: EventAnalysis) -> Iterator[Markup]:
    ranges = own.selected.ranges if own.selected else None
    if ranges is None:
        return
    rows = [
        (
            name.replace("_", " "),
            str(found.count),
            charts.microseconds(found.total_ns),
            charts.microseconds(found.mean_ns),
        )
        for name, found in ranges.classes.items()
    ]
    yield table(("source range", "intervals", "total", "mean"), rows, class_="numbers")
    yield table(
        ("outlier in layer", "range", "duration", "median of its range"),
        [
            (
                str(one.layer),
                code(one.range_class),
                charts.microseconds(one.duration_ns),
                charts.microseconds(one.median_ns),
            )
            for one in ranges.outliers
        ],
    )


def _sparse(own: EventAnalysis, drawing: Drawing) -> Iterator[Markup]:
    if own.sparse:
        ranks = {
            f"rank {rank}": {kind: (share.percent, share.low, share.high) for kind, share in kinds.items()}
            for rank, kinds in own.sparse.items()
        }
        yield figure(
            charts.shares(drawing, ranks),
            "Shares estimated from a sample of intervals of many replays, with 95 % intervals; they decide nothing.",
        )
