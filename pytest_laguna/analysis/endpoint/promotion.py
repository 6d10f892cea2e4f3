# SPDX-License-Identifier: Apache-2.0
"""Value for a submission, and the published rules' disposition of a campaign.

Source: the laboratory's two graph crossovers. The value is always the lower candidate start's.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_laguna.analysis.findings import Finding
from pytest_laguna.analysis.wording import shown, shown_apart
from pytest_laguna.evidence.endpoint.analysis import Disposition, Promotion
from pytest_laguna.evidence.endpoint.plan import EndpointThresholds
from pytest_laguna.verdict import Verdict


def weigh(
    candidates: Sequence[tuple[float, float]], controls: Sequence[float], thresholds: EndpointThresholds
) -> Promotion:
    """Figures of a promotion, before the rules over it.

    A start is its median throughput in tokens/s: legacy and conventional of each B leg, legacy of each A leg.
    """
    legacy, conventional = min(candidates)
    multiple = legacy / thresholds.record
    return Promotion(
        value=legacy,
        value_conventional=conventional,
        above_record=legacy - thresholds.record,
        above_record_percent=(multiple - 1) * 100,
        multiple_of_record=multiple,
        lowest_control=min(controls),
        record=thresholds.record,
        practical_floor=thresholds.practical_floor,
        promoted=False,
    )


def lower_start_wins(promotion: Promotion) -> Finding | None:
    """Rule ``lower-start-wins``: the slower candidate start is faster than the slower control start."""
    if promotion.value <= promotion.lowest_control:
        seen, bar = shown_apart(promotion.value, promotion.lowest_control)
        return Verdict.STOP, f"lower candidate start: seen {seen}; expected more than the control's {bar}"
    return None


def above_record(promotion: Promotion) -> Finding | None:
    """Rule ``above-record``: the lower candidate start is strictly above the approved record."""
    if promotion.value <= promotion.record:
        seen = shown(promotion.value, promotion.record)
        return Verdict.STOP, f"lower candidate start: seen {seen}; expected strictly more than {promotion.record}"
    return None


def above_practical_floor(promotion: Promotion, floor: float) -> Finding | None:
    """Rule ``above-practical-floor``: the lower candidate start is strictly above the campaign's floor, if any."""
    if promotion.value <= floor:
        seen = shown(promotion.value, floor)
        return Verdict.STOP, f"lower candidate start: seen {seen}; expected strictly more than {floor}"
    return None


def check(promotion: Promotion) -> dict[str, Finding | None]:
    """Findings of the rules over the promotion; without a floor, its rule is left out."""
    found = {"lower-start-wins": lower_start_wins(promotion), "above-record": above_record(promotion)}
    if promotion.practical_floor is not None:
        found["above-practical-floor"] = above_practical_floor(promotion, promotion.practical_floor)
    return found


def dispose(promotion: Promotion, *, gates_hold: bool) -> Disposition:
    """Published disposition of a complete campaign; the gates are its rules over legs, pairs and campaign."""
    found = {rule for rule, finding in check(promotion).items() if finding is not None}
    if not gates_hold or "lower-start-wins" in found:
        return Disposition.NEGATIVE
    if not found:
        return Disposition.RECORD
    if promotion.practical_floor is None:
        return Disposition.BELOW_RECORD_FLOOR
    return Disposition.BELOW_PRACTICAL_FLOOR
