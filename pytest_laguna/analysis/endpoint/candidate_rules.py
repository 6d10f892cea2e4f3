# SPDX-License-Identifier: Apache-2.0
"""Rules over what each rank of a leg says of the candidate: it is there where it belongs, and its views are used.

Source: the preregistration of the persistent KV-cache views, Gate 2; the exact diagnostic asks the same of its arms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytest_laguna.analysis.arms.arm_pair import CANDIDATE, STOCK
from pytest_laguna.analysis.endpoint.case import LegCase
from pytest_laguna.analysis.endpoint.figures import counter_changes
from pytest_laguna.analysis.findings import Finding
from pytest_laguna.evidence.arms.arm_record import Arm
from pytest_laguna.evidence.arms.candidate_proof import CandidateProof, LayerCounters
from pytest_laguna.evidence.endpoint.leg import RankState
from pytest_laguna.evidence.schemas import parse_model
from pytest_laguna.verdict import Verdict


def candidate_active(case: LegCase) -> Finding | None:
    """Rule ``candidate-active``: the candidate's classes run in every target layer of a candidate leg's ranks.

    On this lane and with the frozen validator; in a control every layer runs vLLM's own. A selector that nobody reads
    leaves everything else right.
    """
    layers = case.plan.topology.target_layers
    expected: tuple[object, ...] = (False, [*STOCK], None, None, layers, 0, 0)
    if case.arm is Arm.GRAPH_CANDIDATE:
        expected = (True, [*CANDIDATE], case.leg.request.lane, case.plan.validator, layers, layers, layers)
    for state in case.states:
        proof = _proof(case, state)
        seen = (
            proof.flag,
            [*proof.backends, *proof.implementations],
            proof.lane,
            proof.validator,
            len(proof.target_layers),
            len(proof.layers),
            proof.target_layers_with_state,
        )
        if seen != expected:
            told = "flag, classes, lane, validator, target layers, those with counters and those with a state"
            return Verdict.FAIL, f"{_named(state)}: {told} {seen}; expected {expected}"
        others = sorted(proof.layers.keys() - {*proof.target_layers})
        if others:
            return Verdict.FAIL, f"{_named(state)}: {others[0]} has counters; expected those of target layers only"
    return None


def views_built_once(case: LegCase) -> Finding | None:
    """Rule ``views-built-once``: each target layer's views were built once, before the first request, and kept.

    A control has none, and counts nothing.
    """
    for state in case.states:
        proof = _proof(case, state)
        if proof.draft_layers_with_state:
            return Verdict.FAIL, f"{_named(state)}: {proof.draft_layers_with_state} draft layers have a state"
        for name, layer in proof.layers.items():
            if (layer.builds, layer.invalidations) != (1, 0):
                told = f"{name} was built {layer.builds} times and discarded {layer.invalidations} times"
                return Verdict.FAIL, f"{_named(state)}: {told}; expected once and never"
        for counter in LayerCounters.model_fields:
            total = sum(getattr(layer, counter) for layer in proof.layers.values())
            if getattr(proof, counter) != total:
                told = f"{counter} is {getattr(proof, counter)}"
                return Verdict.VOID, f"{_named(state)}: {told}; expected {total}, the sum over the layers"
    return None


def views_used(case: LegCase) -> Finding | None:
    """Rule ``views-used``: during the suite every layer's attention took its views in every verification at least.

    A state that was built and then never asked for leaves tokens and classes right. The update's views are asked for
    where it is no part of a graph, as in every prompt that is longer than the captured size.
    """
    if case.arm is not Arm.GRAPH_CANDIDATE:
        return None
    drafts = counter_changes(case.leg.counters_before, case.leg.counters_after).get("drafts", 0)
    for before, after in zip(case.leg.ranks_captured, case.leg.ranks_served, strict=False):
        earlier = _proof(case, before).layers
        for name, later in _proof(case, after).layers.items():
            first = earlier.get(name)
            if first is None:
                return Verdict.FAIL, f"{_named(after)}: {name} has counters that it had not before the first request"
            forward, update = later.forward_hits - first.forward_hits, later.update_hits - first.update_hits
            if forward < max(drafts, 1) or update < 1:
                told = f"{name}: views used {forward} times forward and {update} times in updates during the suite"
                return Verdict.FAIL, f"{_named(after)}: {told}; expected {max(drafts, 1)} and 1 at least"
    return None


CANDIDATE_RULES: Mapping[str, Callable[[LegCase], Finding | None]] = {
    "candidate-active": candidate_active,
    "views-built-once": views_built_once,
    "views-used": views_used,
}


def _proof(case: LegCase, state: RankState) -> CandidateProof:
    return parse_model(dict(state.candidate), CandidateProof, f"{case.place} rank {state.rank} candidate proof")


def _named(state: RankState) -> str:
    return f"rank {state.rank} ({state.moment})"
