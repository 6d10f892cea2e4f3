# SPDX-License-Identifier: Apache-2.0
"""Gate 3 with an endpoint protocol: legs, paired rows, blocks with their interval, acceptance, and promotion."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from pytest_laguna.analysis.endpoint.figures import change_percent, counter_changes
from pytest_laguna.analysis.statistics import median_interval
from pytest_laguna.evidence.endpoint.analysis import EndpointAnalysis, LegFigures, PairFigures
from pytest_laguna.evidence.endpoint.leg import LegRecord
from pytest_laguna.evidence.endpoint.reader import EndpointEvidence, read_legs
from pytest_laguna.report import charts
from pytest_laguna.report.figures import Drawing, figure
from pytest_laguna.report.markup import Markup, code, details, element, facts, joined, table
from pytest_laguna.report.shown import ShownAttempt

CONFIDENCE = 0.95
"""Confidence of the intervals over prompts, which decide nothing."""


def endpoint_section(shown: ShownAttempt, own: EndpointAnalysis, drawing: Drawing) -> Markup:
    """Measurements of the endpoint campaign."""
    evidence = read_legs(shown.own_directory)
    legs = _as_they_ran(own, evidence)
    return joined([
        element("h3", "Legs"),
        _summary(own),
        _legs(legs),
        *_ended(evidence),
        *_rates(legs, drawing),
        *_acceptance(evidence, drawing),
        element("h3", "Candidate against adjacent control"),
        _pairs(own, _changes(own)),
        *_rows(evidence, _changes(own), drawing),
        *_blocks(own, drawing),
        *_promotion(own),
        *_declared(own),
    ])


def undetectable(own: EndpointAnalysis) -> Iterator[str]:
    """Limits of the legs, one line each."""
    several = own.repetition
    if several is None:
        yield "A single block, or an incomplete set: without an interval no difference is distinguishable from zero."
    else:
        power = "unknown" if several.power is None else f"{several.power:.3f}"
        yield f"Power of these blocks for the frozen effect, with the spread of these starts: {power}."
        yield f"A gain below the margin of {several.margin_percent:g} % is not sought and does not count."
    if own.pairs:
        yield "The interval of a pair is over its prompts; it does not cover the spread between starts."
    if own.null_verdict is not None:
        yield "A/A: every leg is a control. The candidate did not run."
    if not own.exactness.teacher_planned:
        yield "The protocol has no teacher: rows that agree could all be wrong."
    yield "Only the suite's prompts ran, one at a time: other prompts, load and a warm cache are untested."


def _summary(own: EndpointAnalysis) -> Markup:
    exact = own.exactness
    aside = "; those of time are reported and decide nothing on this lane" if own.decides == "exactness" else ""
    pairs = [
        ("blocks", own.label),
        ("rules that decide on this lane", own.decides),
        ("disposition", own.disposition.value),
        ("all published rules", f"{own.published_verdict}{aside}"),
        ("rows equal to the teacher's", f"{exact.teacher} of {exact.teacher_planned}"),
        ("rows equal across legs", f"{exact.cross_leg} of {exact.cross_leg_planned}"),
    ]
    if own.null_verdict is not None:
        pairs.append(("A/A", own.null_verdict.value))
    if own.phase_1 is not None:
        told = "passed" if own.phase_1.passed else "; ".join(own.phase_1.reasons)
        pairs.append(("phase 1", told))
    return facts(pairs)


def _as_they_ran(own: EndpointAnalysis, evidence: EndpointEvidence) -> list[LegFigures]:
    """Figures of the legs in running order; the analysis has them by block and name."""
    figures = {(leg.block, leg.leg): leg for leg in own.legs}
    ran = [(leg.request.block, leg.request.leg) for leg in evidence.legs]
    return [figures[place] for place in ran if place in figures]


def _legs(legs: Sequence[LegFigures]) -> Markup:
    head = (
        "leg",
        "median throughput, legacy",
        "conventional",
        "p10",
        "standard deviation",
        "acceptance rate",
        "target cycle",
    )
    return table(head, [(_name(leg), *_figures(leg)) for leg in legs], class_="numbers")


def _figures(leg: LegFigures) -> tuple[str, ...]:
    return (
        f"{leg.headline:.3f} tokens/s",
        f"{leg.headline_conventional:.3f} tokens/s",
        f"{leg.p10:.3f}",
        f"{leg.stdev:.3f}",
        f"{leg.acceptance_rate:.6f}",
        f"{leg.target_cycle_ms:.4f} ms",
    )


def _name(leg: LegFigures) -> str:
    return f"block {leg.block} {leg.leg}"


def _ended(evidence: EndpointEvidence) -> Iterator[Markup]:
    for leg, ended in evidence.ended.items():
        yield element("p", "Leg ", code(leg), f" left no record: {ended.reason}", class_="notice")


def _rates(legs: Sequence[LegFigures], drawing: Drawing) -> Iterator[Markup]:
    if legs:
        yield figure(
            charts.rates(drawing, {_name(leg): leg.row_rates for leg in legs}),
            "Rates of the legs in running order. A legacy rate is 100 tokens over the 99 intervals between them.",
        )


def _acceptance(evidence: EndpointEvidence, drawing: Drawing) -> Iterator[Markup]:
    runs = {f"block {leg.request.block} {leg.request.leg}": _accepted(leg) for leg in evidence.legs}
    found = {name.removeprefix("block 1 "): shares for name, shares in runs.items() if shares}
    if found:
        yield figure(
            charts.acceptance(drawing, found),
            "Acceptance by position and leg, from the server's own counters over the suite.",
        )


def _accepted(leg: LegRecord) -> list[float]:
    moved = counter_changes(leg.counters_before, leg.counters_after)
    drafts = moved.get("drafts", 0)
    positions = sorted(int(label) for label in leg.counters_after.accepted_per_position if label.isdecimal())
    return [moved[f"accepted_per_position {position}"] / drafts for position in positions] if drafts > 0 else []


def _changes(own: EndpointAnalysis) -> Mapping[str, list[float]]:
    """By pair and prompt: change from the control's rate to the candidate's, in per cent."""
    rates: Mapping[tuple[int, str], list[float]] = {(leg.block, leg.leg): leg.row_rates for leg in own.legs}
    return {
        _pair_name(pair): [
            change_percent(*both)
            for both in zip(rates[pair.block, pair.control], rates[pair.block, pair.candidate], strict=True)
        ]
        for pair in own.pairs
    }


def _pairs(own: EndpointAnalysis, changes: Mapping[str, list[float]]) -> Markup:
    head = (
        "pair",
        "change of median throughput",
        "of median row",
        "95 % over prompts",
        "rows won",
        "cycle saving",
        "acceptance rate",
    )
    rows = [
        (
            _pair_name(pair),
            f"{pair.headline_change_percent:+.4f} %",
            f"{pair.median_row_change_percent:+.4f} %",
            _interval(changes[_pair_name(pair)]),
            f"{pair.rows_won} of {pair.rows}",
            f"{pair.cycle_saving_ms:+.4f} ms",
            f"{pair.acceptance_rate_change:+.6f}",
        )
        for pair in own.pairs
    ]
    return table(head, rows, class_="numbers")


def _pair_name(pair: PairFigures) -> str:
    return f"block {pair.block} {pair.candidate} against {pair.control}"


def _interval(changes: Sequence[float]) -> str:
    interval = median_interval(changes, CONFIDENCE)
    return "too few rows" if interval is None else " to ".join(f"{end:+.4f} %" for end in interval)


def _rows(evidence: EndpointEvidence, changes: Mapping[str, list[float]], drawing: Drawing) -> Iterator[Markup]:
    if changes:
        prompts = [row.prompt_id for row in evidence.legs[0].rows]
        medians = {pair: median_interval(rows, CONFIDENCE) for pair, rows in changes.items()}
        yield figure(
            charts.paired_rows(drawing, prompts, changes, medians),
            "Paired rows: change of each prompt's rate from the adjacent control to the candidate, and below them the"
            " median with its 95 % interval over the prompts of these two starts.",
        )


def _blocks(own: EndpointAnalysis, drawing: Drawing) -> Iterator[Markup]:
    several = own.repetition
    if several is None:
        return
    gains = {f"block {one.block} ({' '.join(one.order)})": 100 * math.expm1(one.contrast) for one in several.blocks}
    together = (several.gain_percent, several.low_percent, several.high_percent)
    yield figure(
        charts.blocks(drawing, gains, together, several.margin_percent),
        "Gain of each block, and of all together with its interval.",
    )
    yield facts([
        ("conclusion", several.conclusion.value),
        ("gain", f"{several.gain_percent:+.4f} % ({several.low_percent:+.4f} % to {several.high_percent:+.4f} %)"),
        ("sign-flip p", f"{several.sign_flip_p:.6f}"),
        ("standard deviation of a start", f"{100 * several.start_stdev:.4f} %"),
    ])


def _promotion(own: EndpointAnalysis) -> Iterator[Markup]:
    promotion = own.promotion
    if promotion is None:
        return
    floor = "none" if promotion.practical_floor is None else f"{promotion.practical_floor} tokens/s"
    yield element("h3", "Promotion")
    yield facts([
        (
            "lower candidate start",
            f"{promotion.value:.6f} tokens/s legacy, {promotion.value_conventional:.6f} conventional",
        ),
        ("approved record", f"{promotion.record} tokens/s"),
        ("above the record", f"{promotion.above_record:+.6f} tokens/s ({promotion.above_record_percent:+.4f} %)"),
        ("practical floor", floor),
        ("promoted", "yes" if promotion.promoted else "no"),
    ])


def _declared(own: EndpointAnalysis) -> Iterator[Markup]:
    rows = [
        (code(leg), fact.replace("_", " "), observation)
        for leg, declared in own.declared.items()
        for fact, observation in declared.items()
    ]
    if rows:
        yield details(f"{len(rows)} declared facts with their observations", table(("leg", "fact", "observed"), rows))
