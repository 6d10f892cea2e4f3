# SPDX-License-Identifier: Apache-2.0
"""Rules over the candidate in each rank of a leg: active in candidate legs alone, with its views in use.

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
    """Rule ``candidate-active``: target layers of a candidate leg run the candidate's classes, others vLLM's own.

    Lane and validator are the plan's. No other rule would find a selector without an effect.
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
            return Verdict.FAIL, f"{_named(state)}: seen {told} {seen}; expected {expected}"
        others = sorted(proof.layers.keys() - {*proof.target_layers})
        if others:
            return Verdict.FAIL, f"{_named(state)}: seen counters of {others[0]}; expected those of target layers only"
    return None


def views_built_once(case: LegCase) -> Finding | None:
    """Rule ``views-built-once``: each target layer's views were built once, before the first request, and kept."""
    for state in case.states:
        proof = _proof(case, state)
        if proof.draft_layers_with_state:
            seen = f"seen {proof.draft_layers_with_state} draft layers with a state"
            return Verdict.FAIL, f"{_named(state)}: {seen}; expected none"
        for name, layer in proof.layers.items():
            if (layer.builds, layer.invalidations) != (1, 0):
                told = f"{name}: seen {layer.builds} builds and {layer.invalidations} invalidations"
                return Verdict.FAIL, f"{_named(state)}: {told}; expected 1 and 0"
        for counter in LayerCounters.model_fields:
            total = sum(getattr(layer, counter) for layer in proof.layers.values())
            if getattr(proof, counter) != total:
                told = f"{counter}: seen {getattr(proof, counter)}"
                return Verdict.VOID, f"{_named(state)}: {told}; expected {total}, the sum over the layers"
    return None


def views_used(case: LegCase) -> Finding | None:
    """Rule ``views-used``: every layer's attention used its views in every verification of the suite.

    Tokens and classes do not show an unused state. The update uses its views outside of graphs, as in every prompt
    longer than the captured size.
    """
    if case.arm is not Arm.GRAPH_CANDIDATE:
        return None
    drafts = counter_changes(case.leg.counters_before, case.leg.counters_after).get("drafts", 0)
    for before, after in zip(case.leg.ranks_captured, case.leg.ranks_served, strict=False):
        earlier = _proof(case, before).layers
        for name, later in _proof(case, after).layers.items():
            first = earlier.get(name)
            if first is None:
                told = f"{name}: seen counters, but none before the first request"
                return Verdict.FAIL, f"{_named(after)}: {told}; expected them at both moments"
            forward, update = later.forward_hits - first.forward_hits, later.update_hits - first.update_hits
            if forward < max(drafts, 1) or update < 1:
                told = f"{name}: seen views used {forward} times forward and {update} times in updates during the suite"
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
