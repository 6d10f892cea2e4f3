# SPDX-License-Identifier: Apache-2.0
"""Rules over an adjacent pair: the candidate against its neighbouring control, and no other.

Source: the laboratory's causal gates of the breakable-graph (2026-07-24) and metadata (2026-07-25) crossovers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from pytest_laguna.analysis.endpoint.figures import change_percent
from pytest_laguna.analysis.findings import Finding
from pytest_laguna.analysis.wording import shown
from pytest_laguna.evidence.endpoint.analysis import LegFigures, PairFigures
from pytest_laguna.evidence.endpoint.leg import LegRecord
from pytest_laguna.evidence.endpoint.plan import EndpointThresholds
from pytest_laguna.verdict import Verdict


def same_prompts(control: LegRecord, candidate: LegRecord) -> Finding | None:
    """Rule ``same-prompts``: both legs have the same prompts, by name, text and tokens, in the same order."""
    for one, other in zip(control.rows, candidate.rows, strict=False):
        asked = [(row.prompt_id, row.prompt_sha256, row.prompt_token_sha256) for row in (one, other)]
        if asked[0] != asked[1]:
            seen = f"prompts {one.prompt_id!r} and {other.prompt_id!r}"
            return Verdict.VOID, f"row {one.index}: seen {seen}; expected one prompt"
    if len(control.rows) != len(candidate.rows):
        return Verdict.VOID, f"rows: seen {len(control.rows)} against {len(candidate.rows)}; expected the same number"
    return None


def acceptance_drift(pair: PairFigures, thresholds: EndpointThresholds) -> Finding | None:
    """Rule ``acceptance-drift``: the acceptance rate changes by at most the bound, in either direction."""
    if abs(pair.acceptance_rate_change) > thresholds.acceptance_drift:
        bound = thresholds.acceptance_drift
        seen = shown(pair.acceptance_rate_change, math.copysign(bound, pair.acceptance_rate_change))
        return Verdict.STOP, f"acceptance rate: seen a change of {seen}; expected at most {bound}"
    return None


def headline(pair: PairFigures, thresholds: EndpointThresholds) -> Finding | None:
    """Rule ``headline``: the candidate's median throughput is ahead by the frozen gain."""
    if not thresholds.headline.reached(pair.headline_change_percent):
        seen = shown(pair.headline_change_percent, thresholds.headline.percent)
        return Verdict.STOP, f"median throughput: seen a gain of {seen} %; expected {thresholds.headline}"
    return None


def rows_won(pair: PairFigures, thresholds: EndpointThresholds) -> Finding | None:
    """Rule ``rows-won``: the candidate is strictly faster in enough rows."""
    if pair.rows_won < thresholds.rows_won:
        return Verdict.STOP, f"rows won: seen {pair.rows_won} of {pair.rows}; expected at least {thresholds.rows_won}"
    return None


def paired_median(pair: PairFigures, thresholds: EndpointThresholds) -> Finding | None:
    """Rule ``paired-median``: the median of the rows' changes reaches the frozen gain."""
    if not thresholds.paired_median.reached(pair.median_row_change_percent):
        seen = shown(pair.median_row_change_percent, thresholds.paired_median.percent)
        return Verdict.STOP, f"median row: seen a gain of {seen} %; expected {thresholds.paired_median}"
    return None


def cycle_saving(pair: PairFigures, thresholds: EndpointThresholds) -> Finding | None:
    """Rule ``cycle-saving``: a target cycle takes less time, by the frozen saving at least."""
    if pair.cycle_saving_ms < thresholds.cycle_saving_ms:
        bound = thresholds.cycle_saving_ms
        seen = shown(pair.cycle_saving_ms, bound)
        return Verdict.STOP, f"target cycle: seen a saving of {seen} ms; expected at least {bound} ms"
    return None


def control_health(control: LegFigures, record: float, percent: float) -> Finding | None:
    """Rule ``control-health``: a control runs at the recorded rate; otherwise no conclusion is possible.

    ``record`` is the approved legacy rate in tokens/s, ``percent`` the largest distance from it.
    """
    change = change_percent(record, control.headline)
    if abs(change) > percent:
        seen = shown(change, math.copysign(percent, change))
        return Verdict.STOP, f"control: seen {seen} % off the record {record}; expected at most {percent} %"
    return None


PAIR_RULES: Mapping[str, Callable[[PairFigures, EndpointThresholds], Finding | None]] = {
    "acceptance-drift": acceptance_drift,
    "headline": headline,
    "rows-won": rows_won,
    "paired-median": paired_median,
    "cycle-saving": cycle_saving,
}
