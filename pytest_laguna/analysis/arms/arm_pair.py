# SPDX-License-Identifier: Apache-2.0
"""Rules over a control and a candidate arm that must differ in the treatment alone and in no result.

Source: the preregistration of the persistent KV-cache views, Gate 1 and Gate 2. A rule returns None or the verdict and
the reason that it found.
"""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Callable, Mapping

from pytest_laguna.analysis.findings import Finding
from pytest_laguna.evidence.arms.arm_record import Arm, ArmRecord, CapturedGraph, Planted, RankReport
from pytest_laguna.evidence.arms.candidate_proof import CandidateProof
from pytest_laguna.evidence.arms.rank_files import STACKS_BEFORE
from pytest_laguna.evidence.schemas import parse_model
from pytest_laguna.verdict import Verdict

STOCK = (
    "vllm.v1.attention.backends.flash_attn.FlashAttentionBackend",
    "vllm.v1.attention.backends.flash_attn.FlashAttentionImpl",
)
"""Backend and implementation of attention with the treatment off."""
CANDIDATE = ("laguna_kv.backend.LagunaFlashAttentionBackend", "laguna_kv.backend.LagunaFlashAttentionImpl")
"""Backend and implementation of attention with the treatment on."""

ARM_LOCAL_VARIABLES = frozenset({
    "LAGUNA_LEASE", STACKS_BEFORE, "VLLM_DIST_IDENT", "VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME",
})  # fmt: skip
"""The token of the lease, when the arm is ended, and the names that vLLM draws at random for a process."""


@dataclasses.dataclass(frozen=True, slots=True)
class Expected:
    """What the campaign froze about the pair.

    Attributes:
        flag: the environment variable that is the sole treatment.
        control: its value in the control.
        treatment: its value in the candidate.
        validator: which implementation of the contract runs.
        completion_tokens: of each arm's one generation.
        graphs: graph segments of the target's capture, per rank.
        breaks: eager boundaries of it.
        target_layers: attention layers of the target.
    """

    flag: str
    control: str
    treatment: str
    validator: str
    completion_tokens: int
    graphs: int
    breaks: int
    target_layers: int


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """Two arms and what is expected of them."""

    control: ArmRecord
    candidate: ArmRecord
    expected: Expected

    @property
    def arms(self) -> tuple[ArmRecord, ArmRecord]:
        """Both, the control first."""
        return self.control, self.candidate


def arms_named(pair: Pair) -> Finding | None:
    """Rule ``arms-named``: the two graph arms, and no planted defect."""
    names = (pair.control.request.arm, pair.candidate.request.arm)
    if names != (Arm.GRAPH_CONTROL, Arm.GRAPH_CANDIDATE):
        return Verdict.VOID, f"arms {names[0]} and {names[1]}; expected graph-control and graph-candidate"
    if pair.candidate.request.planted is not Planted.NONE:
        return Verdict.VOID, f"arm {names[1]} carries the planted defect {pair.candidate.request.planted}"
    return None


def same_request(pair: Pair) -> Finding | None:
    """Rule ``same-request``: model, prompt, tokens and lane are equal."""
    control = pair.control.request.model_dump(exclude={"arm"})
    candidate = pair.candidate.request.model_dump(exclude={"arm"})
    return _differing("request", control, candidate)


def same_engine(pair: Pair) -> Finding | None:
    """Rule ``same-engine``: versions, model runner, engine configuration and prompt tokens are equal."""
    for name in ("versions", "configuration", "prompt_token_sha256"):
        if getattr(pair.control, name) != getattr(pair.candidate, name):
            return Verdict.VOID, f"{name} differ between control and candidate; expected equal"
    runners = {report.model_runner for arm in pair.arms for report in arm.ranks}
    if len(runners) != 1:
        return Verdict.VOID, f"model runners {sorted(runners)}; expected one"
    return None


def sole_treatment(pair: Pair) -> Finding | None:
    """Rule ``sole-treatment``: the environments differ in the flag and in nothing else.

    What is drawn at random does not count, and directories are compared by their place below the arm's own.
    """
    control, candidate = (without_arm_local(arm.environment) for arm in pair.arms)
    flags = (control.pop(pair.expected.flag, None), candidate.pop(pair.expected.flag, None))
    expected = (pair.expected.control, pair.expected.treatment)
    if flags != expected:
        told = f"{pair.expected.flag} is {flags[0]!r} and {flags[1]!r}"
        return Verdict.VOID, f"{told}; expected {expected[0]!r} and {expected[1]!r}"
    return _differing("environment", control, candidate)


def whole_generation(pair: Pair) -> Finding | None:
    """Rule ``whole-generation``: one cold generation of the frozen length."""
    for arm in pair.arms:
        seen = (len(arm.token_ids), arm.finish_reason, arm.cached_tokens)
        expected = (pair.expected.completion_tokens, "length", 0)
        if seen != expected:
            return Verdict.FAIL, f"{arm.request.arm}: tokens, finish, cached tokens {seen}; expected {expected}"
    return None


def tokens_equal(pair: Pair) -> Finding | None:
    """Rule ``tokens-equal``: token ids and text are bitwise equal; the first difference is named."""
    pairs = zip(pair.control.token_ids, pair.candidate.token_ids, strict=False)
    for position, (control, candidate) in enumerate(pairs):
        if control != candidate:
            return Verdict.FAIL, f"token {position}: control {control}, candidate {candidate}"
    if pair.control.token_sha256 != pair.candidate.token_sha256:
        return Verdict.FAIL, f"{len(pair.control.token_ids)} against {len(pair.candidate.token_ids)} tokens"
    if pair.control.text_sha256 != pair.candidate.text_sha256:
        return Verdict.FAIL, "texts differ though the tokens are equal"
    return None


def attention_equal(pair: Pair) -> Finding | None:
    """Rule ``attention-equal``: the target's attention outputs are bitwise equal on every rank."""
    if len(pair.control.ranks) != len(pair.candidate.ranks):
        return Verdict.VOID, f"{len(pair.control.ranks)} against {len(pair.candidate.ranks)} ranks"
    for control, candidate in zip(pair.control.ranks, pair.candidate.ranks, strict=True):
        if control.attention != candidate.attention:
            return Verdict.FAIL, f"rank {control.rank}: {control.attention}, candidate {candidate.attention}"
        if control.attention.layers != pair.expected.target_layers:
            return Verdict.VOID, f"rank {control.rank}: attention of {control.attention.layers} layers was watched"
    return None


def topology_frozen(pair: Pair) -> Finding | None:
    """Rule ``topology-frozen``: one capture of the target with the frozen segments, the same on every rank and arm.

    Silent loss of all graphs leaves the tokens right: only the counts show it.
    """
    orders = set()
    for arm in pair.arms:
        for report in arm.ranks:
            targets = [graph for graph in report.graphs if graph.model == "target"]
            seen = [_segments(graph) for graph in targets]
            if seen != [(pair.expected.graphs, pair.expected.breaks)]:
                frozen = (pair.expected.graphs, pair.expected.breaks)
                return (
                    Verdict.FAIL,
                    f"{arm.request.arm} rank {report.rank}: graphs and breaks {seen}; expected [{frozen}]",
                )
            orders.add(targets[0].order_sha256)
    if len(orders) != 1:
        return Verdict.FAIL, f"the segment order differs between ranks or arms: {sorted(orders)}"
    return None


def drafts_captured(pair: Pair) -> Finding | None:
    """Rule ``drafts-captured``: the draft's graphs are there, and the same on every rank of both arms.

    Their loss leaves the tokens right as well, and the draft's own speed is no part of what the target's replays show.
    """
    first: list[CapturedGraph] | None = None
    for arm in pair.arms:
        for report in arm.ranks:
            where = f"{arm.request.arm} rank {report.rank}"
            seen = [graph for graph in report.graphs if graph.model == "draft"]
            if not seen:
                return Verdict.FAIL, f"{where}: captured no graph of the draft; expected one"
            first = first or seen
            if seen != first:
                told = f"captured {[_segments(graph) for graph in seen]} of the draft"
                expected = f"{[_segments(graph) for graph in first]} in the same order, as the first rank"
                return Verdict.FAIL, f"{where}: {told}; expected {expected}"
    return None


def drafts_accepted(pair: Pair) -> Finding | None:
    """Rule ``drafts-accepted``: more than one token a cycle is accepted, and both arms accept the same.

    A draft that is never accepted leaves the tokens right: only the counters show it.
    """
    control, candidate = pair.control.acceptance, pair.candidate.acceptance
    if control is None or candidate is None or control.drafts == 0:
        return Verdict.NOT_PROVEN, "no draft cycle is recorded"
    if control.accepted <= control.drafts:
        return (
            Verdict.FAIL,
            f"{control.accepted} tokens accepted in {control.drafts} cycles; expected more than one each",
        )
    if control != candidate:
        return Verdict.FAIL, f"acceptance differs: control {control}, candidate {candidate}"
    return None


def control_is_stock(pair: Pair) -> Finding | None:
    """Rule ``control-is-stock``: with the flag off every layer runs vLLM's own FlashAttention and there is no state."""
    for report in pair.control.ranks:
        proof = candidate_proof(report)
        classes = [*proof.backends, *proof.implementations]
        if proof.flag or proof.layers or classes != [*STOCK]:
            told = f"the control runs {classes}, flag {proof.flag}, {len(proof.layers)} layers with counters"
            return Verdict.FAIL, f"rank {report.rank}: {told}; expected {[*STOCK]}, flag False, 0 layers"
        if len(proof.target_layers) != pair.expected.target_layers:
            return Verdict.FAIL, f"rank {report.rank}: {len(proof.target_layers)} target layers in the control"
    return None


def candidate_active(pair: Pair) -> Finding | None:
    """Rule ``candidate-active``: every layer runs the candidate's classes, on this lane, with the frozen validator."""
    for report in pair.candidate.ranks:
        proof = candidate_proof(report)
        classes = [*proof.backends, *proof.implementations]
        seen = (proof.flag, classes, proof.lane, proof.validator)
        expected = (True, [*CANDIDATE], pair.candidate.request.lane, pair.expected.validator)
        if seen != expected:
            return Verdict.FAIL, f"rank {report.rank}: flag, classes, lane, validator {seen}; expected {expected}"
        if sorted(proof.layers) != sorted(proof.target_layers) or len(proof.layers) != pair.expected.target_layers:
            return (
                Verdict.FAIL,
                f"rank {report.rank}: {len(proof.layers)} layers of {pair.expected.target_layers} count",
            )
    return None


def views_built_once(pair: Pair) -> Finding | None:
    """Rule ``views-built-once``: one state a target layer, none for the draft; every attention call reuses it."""
    for report in pair.candidate.ranks:
        proof = candidate_proof(report)
        if proof.draft_layers_with_state:
            return Verdict.FAIL, f"rank {report.rank}: {proof.draft_layers_with_state} draft layers have a state"
        for name, layer in proof.layers.items():
            if layer.builds != 1 or layer.invalidations != 0:
                return Verdict.FAIL, f"rank {report.rank}: {name} was built {layer.builds} times; expected once"
        if proof.forward_hits < report.attention.calls or proof.update_hits == 0:
            hits = f"{proof.forward_hits} forward and {proof.update_hits} update uses"
            return Verdict.FAIL, f"rank {report.rank}: {hits} in {report.attention.calls} attention calls"
    return None


def views_reach_kernel(pair: Pair) -> Finding | None:
    """Rule ``views-reach-kernel``: in every target layer the kernel gets the same two tensors at every call, flag on.

    Seen at the kernel and not counted by the candidate, which could count a use and hand over something else. With the
    flag off it gets new ones at every call; otherwise the observer sees nothing.
    """
    for arm in pair.arms:
        for report in arm.ranks:
            where = f"{arm.request.arm} rank {report.rank}"
            if sorted(report.kernel_views) != sorted(candidate_proof(report).target_layers):
                return (
                    Verdict.VOID,
                    f"{where}: kernels of {len(report.kernel_views)} layers seen; expected the target's",
                )
            calls = sum(seen.calls for seen in report.kernel_views.values())
            if calls != report.attention.calls:
                return Verdict.VOID, f"{where}: {calls} kernel calls in {report.attention.calls} attention calls"
            for layer, seen in report.kernel_views.items():
                same = seen.calls if arm is pair.candidate else 1
                if (seen.same_objects, seen.geometries) != (same, 1):
                    told = f"{seen.same_objects} of {seen.calls} calls with the first's views"
                    return (
                        Verdict.FAIL,
                        f"{where}: {layer}: {told}, {seen.geometries} geometries; expected {same} and 1",
                    )
    return None


RULES: Mapping[str, Callable[[Pair], Finding | None]] = {
    "arms-named": arms_named,
    "same-request": same_request,
    "same-engine": same_engine,
    "sole-treatment": sole_treatment,
    "whole-generation": whole_generation,
    "topology-frozen": topology_frozen,
    "drafts-captured": drafts_captured,
    "control-is-stock": control_is_stock,
    "candidate-active": candidate_active,
    "views-built-once": views_built_once,
    "views-reach-kernel": views_reach_kernel,
    "drafts-accepted": drafts_accepted,
    "tokens-equal": tokens_equal,
    "attention-equal": attention_equal,
}

RESULT_RULES = ("tokens-equal", "attention-equal")
"""The rules by which a wrong view that no contract stops must be seen."""


def compare(pair: Pair) -> dict[str, Finding]:
    """What each rule that is not satisfied has to say, by its id; empty when the arms differ in nothing.

    Raises:
        UnusableEvidenceError: a rank's proof does not have its form.
    """
    found = {rule: check(pair) for rule, check in RULES.items()}
    return {rule: finding for rule, finding in found.items() if finding is not None}


def candidate_proof(report: RankReport) -> CandidateProof:
    """What the candidate says of itself on a rank.

    Raises:
        UnusableEvidenceError: it does not have its form.
    """
    return parse_model(dict(report.candidate), CandidateProof, f"rank {report.rank} candidate proof")


def without_arm_local(environment: Mapping[str, str]) -> dict[str, str]:
    """An arm's environment without what is drawn at random, and with its directories by their place below its own."""
    return {
        name: _below(
            value, {"arm": posixpath.dirname(environment.get("HOME", "")), "short": environment.get("TMPDIR", "")}
        )
        for name, value in environment.items()
        if name not in ARM_LOCAL_VARIABLES
    }


def _below(value: str, places: Mapping[str, str]) -> str:
    """A path in the arm's own directory, or in its short one, by its place there; anything else as it is."""
    for name, place in places.items():
        if place and (value == place or value.startswith(f"{place}/")):
            return f"<{name}>{value.removeprefix(place)}"
    return value


def _segments(graph: CapturedGraph) -> tuple[int, int]:
    return graph.graphs, graph.breaks


def _differing(what: str, control: Mapping[str, object], candidate: Mapping[str, object]) -> Finding | None:
    for name in sorted(control.keys() | candidate.keys()):
        if control.get(name) != candidate.get(name):
            seen = f"{control.get(name)!r} against {candidate.get(name)!r}"
            return Verdict.VOID, f"{what}: {name} is {seen}; the flag is the sole treatment"
    return None
