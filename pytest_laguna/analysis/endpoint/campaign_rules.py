# SPDX-License-Identifier: Apache-2.0
"""Rules over all legs together: their plan, order, servers, settings and equal rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from pytest_laguna.analysis.arms.arm_pair import ARM_LOCAL_VARIABLES
from pytest_laguna.analysis.endpoint.case import CampaignCase, inexact_rows, leg_place
from pytest_laguna.analysis.findings import Finding
from pytest_laguna.evidence.arms.rank_files import PIPES, VARIABLE
from pytest_laguna.evidence.endpoint.analysis import PhaseOne
from pytest_laguna.evidence.endpoint.leg import LegName, LegRecord
from pytest_laguna.evidence.endpoint.plan import leg_name, planned_legs
from pytest_laguna.evidence.machine.idle import seconds_between
from pytest_laguna.verdict import Verdict

LEG_LOCAL_VARIABLES = ARM_LOCAL_VARIABLES | {PIPES, VARIABLE}
"""Variables with another value in each leg: random names, and the ranks' paths for answers and questions."""

PHASE_1_LEGS = 2
"""Legs of the first adjacent pair."""


def teacher_pinned(case: CampaignCase) -> Finding | None:
    """Rule ``teacher-pinned``: the teacher is the frozen one, with a row for every prompt."""
    pin = case.plan.teacher_sha256
    if case.teacher is None:
        return Verdict.NOT_PROVEN, f"teacher: seen none; expected {pin}"
    if case.teacher.digest != pin:
        return Verdict.VOID, f"teacher: seen digest {case.teacher.digest}; expected {pin}"
    if len(case.teacher.rows) != case.plan.suite.prompts:
        return Verdict.VOID, f"teacher: seen {len(case.teacher.rows)} rows; expected {case.plan.suite.prompts}"
    return None


def legs_as_planned(case: CampaignCase) -> Finding | None:
    """Rule ``legs-as-planned``: each leg is the next of the frozen order; none is repeated, replaced or added.

    A leg without a record keeps its place in that order.
    """
    planned = planned_legs(case.campaign, case.plan.blocks)
    gone = {number for number, (_, leg) in enumerate(planned, start=1) if leg_name(number, leg) in case.ended}
    coming = [number for number in range(1, len(planned) + 1) if number not in gone]
    for place, leg in enumerate(case.legs):
        seen = leg_place(leg.request.block, leg.request.leg)
        if place >= len(coming):
            return Verdict.FAIL, f"{seen}: seen as leg {place + 1} with a record; expected no more than {len(coming)}"
        number = coming[place]
        if (leg.request.block, leg.request.leg, leg.request.sequence) != (*planned[number - 1], number):
            expected = leg_place(*planned[number - 1])
            return Verdict.FAIL, f"leg {number}: seen {seen}, number {leg.request.sequence}; expected {expected}"
    return None


def legs_in_order(case: CampaignCase) -> Finding | None:
    """Rule ``legs-in-order``: a leg starts after the previous one has ended."""
    for leg in case.legs:
        if seconds_between(leg.started, leg.ended) <= 0:
            times = f"start {leg.started}, end {leg.ended}"
            return Verdict.VOID, f"{_place(leg)}: seen {times}; expected the end later"
    for earlier, later in itertools.pairwise(case.legs):
        if seconds_between(earlier.ended, later.started) < 0:
            seen = f"seen its start {later.started} before the end {earlier.ended} of {_place(earlier)}"
            return Verdict.VOID, f"{_place(later)}: {seen}; expected one at a time"
    return None


def servers_fresh(case: CampaignCase) -> Finding | None:
    """Rule ``servers-fresh``: no two legs share a server, a nonce or a request."""
    for earlier, later in itertools.combinations(case.legs, 2):
        shared = [
            name
            for name, one, other in (
                ("the server process", _process(earlier), _process(later)),
                ("the nonce", earlier.server.nonce, later.server.nonce),
            )
            if one == other
        ]
        if {row.request_id for row in earlier.rows} & {row.request_id for row in later.rows}:
            shared.append("a request id")
        if shared:
            return Verdict.VOID, f"{_place(earlier)} and {_place(later)}: seen {shared[0]} in both; expected fresh ones"
    return None


def sole_treatment(case: CampaignCase) -> Finding | None:
    """Rule ``sole-treatment``: legs differ in the selector alone, in their requests and in the ranks' own view."""
    settings = [_settings(leg, case.plan.selector.flag) for leg in case.legs]
    for leg, seen in zip(case.legs, settings, strict=True):
        for name in settings[0] | seen:
            value, expected = seen.get(name, "absent"), settings[0].get(name, "absent")
            # Presence is compared too, since a value may be the text "absent".
            if value != expected or (name in seen) != (name in settings[0]):
                told = f"{_place(leg)}: {name}: seen {value}"
                return Verdict.VOID, f"{told}; expected {expected} as in {_place(case.legs[0])}"
    return None


def cross_leg_exact(case: CampaignCase) -> Finding | None:
    """Rule ``cross-leg-exact``: every later leg equals the first one's rows, token by token: 39 of 39."""
    for leg in case.legs[1:]:
        inexact = inexact_rows(leg.rows, case.legs[0].rows)
        if inexact:
            place, reason = min(inexact.items())
            return Verdict.FAIL, f"{_place(leg)} against {_place(case.legs[0])}: row {place}: {reason}"
    return None


CAMPAIGN_RULES: Mapping[str, Callable[[CampaignCase], Finding | None]] = {
    "teacher-pinned": teacher_pinned,
    "legs-as-planned": legs_as_planned,
    "legs-in-order": legs_in_order,
    "servers-fresh": servers_fresh,
    "sole-treatment": sole_treatment,
    "cross-leg-exact": cross_leg_exact,
}


def phase_1_stop(case: CampaignCase, phase_1: PhaseOne | None) -> Finding | None:
    """Rule ``phase-1-stop``: after a failed phase 1 no further leg is started if timing decides."""
    if phase_1 is not None and phase_1.stops and len(case.legs) > PHASE_1_LEGS:
        seen = f"{_place(case.legs[PHASE_1_LEGS])}: seen after a failed phase 1"
        return Verdict.FAIL, f"{seen}; expected no further leg"
    return None


def a2_after_b2(case: CampaignCase, _: PhaseOne | None) -> Finding | None:
    """Rule ``a2-after-b2``: after a block's second candidate its control runs too, for any result."""
    for block in range(1, case.plan.blocks + 1):
        if case.leg(block, "B2") is not None and case.leg(block, "A2") is None:
            missing = leg_place(block, "A2")
            return Verdict.NOT_PROVEN, f"{missing}: seen no record, though one of B2; expected it for any result of B2"
    return None


def legs_complete(case: CampaignCase, phase_1: PhaseOne | None) -> Finding | None:
    """Rule ``legs-complete``: every planned leg ran, or phase 1 stopped the campaign after two."""
    planned = due_legs(case, phase_1)
    missing = [leg_place(*leg) for leg in planned if case.leg(*leg) is None]
    if missing:
        return Verdict.NOT_PROVEN, f"{missing[0]}: seen no record; expected all of {len(planned)} legs"
    return None


def due_legs(case: CampaignCase, phase_1: PhaseOne | None) -> list[tuple[int, LegName]]:
    """Block and name of all planned legs, or of two if phase 1 stops the campaign."""
    stopped = phase_1 is not None and phase_1.stops
    return planned_legs(case.campaign, case.plan.blocks)[: PHASE_1_LEGS if stopped else None]


def candidate_ran(case: CampaignCase, _: PhaseOne | None) -> Finding | None:
    """Rule ``candidate-ran``: the candidate ran; an A/A campaign proves nothing of it."""
    if case.plan.null:
        return Verdict.NOT_PROVEN, "A/A campaign: seen a control in every leg; expected the candidate in the B legs"
    return None


PROGRESS_RULES: Mapping[str, Callable[[CampaignCase, PhaseOne | None], Finding | None]] = {
    "phase-1-stop": phase_1_stop,
    "a2-after-b2": a2_after_b2,
    "legs-complete": legs_complete,
    "candidate-ran": candidate_ran,
}
"""Rules over the campaign alone, outside of phase 1 and of the published rules."""


def _place(leg: LegRecord) -> str:
    return leg_place(leg.request.block, leg.request.leg)


def _process(leg: LegRecord) -> tuple[int, int]:
    return leg.server.pid, leg.server.start_ticks


def _without(variables: Mapping[str, str], names: AbstractSet[str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name not in names}


def _settings(leg: LegRecord, flag: str) -> dict[str, object]:
    """Settings, equal in every leg, by their name in a finding."""
    told: dict[str, object] = {"lane": leg.request.lane, "model": leg.request.model, "interpreter": leg.server.argv[0]}
    told |= {f"argument {name}": value for name, value in leg.request.engine_arguments.items()}
    told |= {f"variable {name}": value for name, value in _without(leg.request.variables, {flag}).items()}
    for place, state in enumerate(leg.ranks_captured):
        variables = _without(state.variables, {flag, *LEG_LOCAL_VARIABLES})
        seen: dict[str, object] = {f"variable {name}": value for name, value in variables.items()}
        seen |= {f"version of {name}": version for name, version in state.versions.items()}
        seen["model runner"] = state.model_runner
        seen["segment orders"] = [graph.order_sha256 for graph in state.graphs]
        told |= {f"rank {place}'s {name}": value for name, value in seen.items()}
    return told
