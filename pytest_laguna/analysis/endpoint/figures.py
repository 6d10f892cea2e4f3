# SPDX-License-Identifier: Apache-2.0
"""Derives the rules' figures from legs.

Source of the formulas: the laboratory's endpoint protocol. The order of operations in a change in per cent reproduces
the published figures to the last bit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import cast

from pytest_laguna.analysis.statistics import linear_percentile, sample_stdev
from pytest_laguna.evidence.endpoint.analysis import BlockContrast, LegFigures, PairFigures
from pytest_laguna.evidence.endpoint.leg import Counters, LegName, LegRecord
from pytest_laguna.evidence.endpoint.plan import RATE_TOKENS, Order

NANOSECONDS = 1_000_000_000
ADJACENT: tuple[tuple[LegName, LegName], ...] = (("A1", "B1"), ("A2", "B2"))
"""Adjacent controls and candidates; no other two legs are ever compared."""


def legacy_rate(arrival_ns: Sequence[int]) -> float:
    """Tokens/s over the first 100 tokens, at least as many, by the published count: 100 events over 99 intervals."""
    return RATE_TOKENS * NANOSECONDS / _span(arrival_ns)


def conventional_rate(arrival_ns: Sequence[int]) -> float:
    """Tokens/s over the same tokens, counting intervals: 99 over their span."""
    return (RATE_TOKENS - 1) * NANOSECONDS / _span(arrival_ns)


def change_percent(control: float, candidate: float) -> float:
    """Per cent of the candidate's value above the control's."""
    return (candidate - control) / control * 100


def leg_figures(leg: LegRecord) -> LegFigures | None:
    """Figures of a leg; None without evidence for them, a finding of the leg's rules."""
    moved = counter_changes(leg.counters_before, leg.counters_after)
    drafts, proposed, accepted = (moved.get(name) for name in ("drafts", "draft_tokens", "accepted"))
    seconds = decode_seconds(leg)
    if drafts is None or proposed is None or accepted is None or seconds is None:
        return None
    if drafts < 1 or not 0 <= accepted <= proposed or proposed < 1 or len(leg.rows) < 2:  # noqa: PLR2004
        return None
    if any(not has_rate(row.arrival_ns) for row in leg.rows):
        return None
    rates = [legacy_rate(row.arrival_ns) for row in leg.rows]
    return LegFigures(
        block=leg.request.block,
        leg=leg.request.leg,
        row_rates=rates,
        headline=statistics.median(rates),
        headline_conventional=statistics.median(conventional_rate(row.arrival_ns) for row in leg.rows),
        p10=linear_percentile(rates, 0.1),
        mean=statistics.mean(rates),
        stdev=sample_stdev(rates),
        drafts=drafts,
        draft_tokens=proposed,
        accepted=accepted,
        acceptance_rate=accepted / proposed,
        target_cycle_ms=1000 * seconds / drafts,
    )


def has_rate(arrival_ns: Sequence[int]) -> bool:
    """True if there are enough tokens for a rate, and time passed between the first and the last of them."""
    return len(arrival_ns) >= RATE_TOKENS and _span(arrival_ns) > 0


def counter_changes(before: Counters, after: Counters) -> dict[str, int]:
    """Change of each whole-number counter in both readings; a missing label counts as zero."""
    earlier, later = _whole(before), _whole(after)
    changes = {name: later[name] - earlier[name] for name in earlier.keys() & later.keys()}
    for name in ("accepted_per_position", "finished"):
        first, last = (getattr(counters, name) for counters in (before, after))
        changes |= {f"{name} {label}": last.get(label, 0) - first.get(label, 0) for label in first | last}
    return changes


def decode_seconds(leg: LegRecord) -> float | None:
    """Decode time of all requests, in seconds; None without the server's counter."""
    before, after = leg.counters_before.decode_seconds, leg.counters_after.decode_seconds
    return None if before is None or after is None else after - before


def pair_figures(control: LegFigures, candidate: LegFigures) -> PairFigures:
    """Figures of an adjacent pair with the same prompts in the same order."""
    changes = [change_percent(*rates) for rates in zip(control.row_rates, candidate.row_rates, strict=True)]
    return PairFigures(
        block=control.block,
        control=control.leg,
        candidate=candidate.leg,
        headline_change_percent=change_percent(control.headline, candidate.headline),
        rows_won=sum(change > 0 for change in changes),
        rows=len(changes),
        median_row_change_percent=statistics.median(changes),
        cycle_saving_ms=control.target_cycle_ms - candidate.target_cycle_ms,
        acceptance_rate_change=candidate.acceptance_rate - control.acceptance_rate,
    )


def block_contrast(block: int, order: Order, medians: Mapping[LegName, float]) -> BlockContrast:
    """A block's datum: mean of the candidates' logarithmic median throughputs less the mean of the controls'."""
    logs = {leg: math.log(rate) for leg, rate in medians.items()}
    contrast = (logs["B1"] + logs["B2"]) / 2 - (logs["A1"] + logs["A2"]) / 2
    return BlockContrast(block=block, order=order, contrast=contrast)


def start_stdev(blocks: Sequence[Mapping[LegName, float]]) -> float:
    """Standard deviation of a start's logarithmic median throughput, pooled over the starts of one arm within a block.

    Two starts of one arm differ by this deviation times the square root of two. A block's contrast, a difference of
    two means of two, has this same deviation. ``blocks`` holds the median throughputs of each block's four legs.
    """
    pairs: list[tuple[LegName, LegName]] = [("A1", "A2"), ("B1", "B2")]
    squares = [math.log(block[first] / block[second]) ** 2 / 2 for block in blocks for first, second in pairs]
    return math.sqrt(math.fsum(squares) / len(squares))


def _span(arrival_ns: Sequence[int]) -> int:
    return arrival_ns[RATE_TOKENS - 1] - arrival_ns[0]


def _whole(counters: Counters) -> dict[str, int]:
    """Present whole-number counters without labels."""
    fields = counters.model_dump(exclude={"file", "sha256", "decode_seconds", "accepted_per_position", "finished"})
    return {name: cast("int", value) for name, value in fields.items() if value is not None}
