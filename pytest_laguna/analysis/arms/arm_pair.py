# SPDX-License-Identifier: Apache-2.0
"""Rules over a control and a candidate arm: they differ in the treatment alone and in no result.

Source: the preregistration of the persistent KV-cache views, Gate 1 and Gate 2.
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
"""Token of the lease, end time of the arm, and names drawn at random by vLLM for a process."""


@dataclasses.dataclass(frozen=True, slots=True)
class Expected:
    """Frozen facts of the campaign about the pair.

    Attributes:
        flag: environment variable of the treatment, with its values in ``control`` and ``treatment``.
        completion_tokens: of each arm's one generation.
        graphs: graph segments of the target's capture, per rank; ``breaks`` are its eager boundaries.
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
    """Two arms and their expected facts."""

    control: ArmRecord
    candidate: ArmRecord
    expected: Expected

    @property
    def arms(self) -> tuple[ArmRecord, ArmRecord]:
        """Both arms, the control first."""
        return self.control, self.candidate


def arms_named(pair: Pair) -> Finding | None:
    """Rule ``arms-named``: the arms are the two graph arms, without a planted defect."""
    names = (pair.control.request.arm, pair.candidate.request.arm)
    if names != (Arm.GRAPH_CONTROL, Arm.GRAPH_CANDIDATE):
        return Verdict.VOID, f"arms: seen {names[0]} and {names[1]}; expected graph-control and graph-candidate"
    if pair.candidate.request.planted is not Planted.NONE:
        return Verdict.VOID, f"{names[1]}: seen planted defect {pair.candidate.request.planted}; expected none"
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
            return Verdict.VOID, f"{name}: seen a difference between control and candidate; expected none"
    runners = {report.model_runner for arm in pair.arms for report in arm.ranks}
    if len(runners) != 1:
        return Verdict.VOID, f"model runners: seen {sorted(runners)}; expected one"
    return None


def sole_treatment(pair: Pair) -> Finding | None:
    """Rule ``sole-treatment``: the environments differ in the flag and in nothing else.

    Random names do not count, and directories are compared by their place below the arm's own.
    """
    control, candidate = (without_arm_local(arm.environment) for arm in pair.arms)
    flags = (control.pop(pair.expected.flag, None), candidate.pop(pair.expected.flag, None))
    expected = (pair.expected.control, pair.expected.treatment)
    if flags != expected:
        told = f"{pair.expected.flag}: seen {flags[0]!r} and {flags[1]!r}"
        return Verdict.VOID, f"{told}; expected {expected[0]!r} and {expected[1]!r}"
    return _differing("environment", control, candidate)


def whole_generation(pair: Pair) -> Finding | None:
    """Rule ``whole-generation``: one cold generation of the frozen length."""
    for arm in pair.arms:
        seen = (len(arm.token_ids), arm.finish_reason, arm.cached_tokens)
        expected = (pair.expected.completion_tokens, "length", 0)
        if seen != expected:
            return Verdict.FAIL, f"{arm.request.arm}: seen tokens, finish, cached tokens {seen}; expected {expected}"
    return None


def tokens_equal(pair: Pair) -> Finding | None:
    """Rule ``tokens-equal``: token ids and text are bitwise equal; the first difference is named."""
    pairs = zip(pair.control.token_ids, pair.candidate.token_ids, strict=False)
    for position, (control, candidate) in enumerate(pairs):
        if control != candidate:
            return Verdict.FAIL, f"token {position}: seen candidate {candidate}; expected {control}, as the control"
    if pair.control.token_sha256 != pair.candidate.token_sha256:
        told = f"{len(pair.candidate.token_ids)} in the candidate"
        return Verdict.FAIL, f"tokens: seen {told}; expected {len(pair.control.token_ids)}, as in the control"
    if pair.control.text_sha256 != pair.candidate.text_sha256:
        return Verdict.FAIL, "texts: seen a difference with equal tokens; expected none"
    return None


def attention_equal(pair: Pair) -> Finding | None:
    """Rule ``attention-equal``: the target's attention outputs are bitwise equal on every rank."""
    if len(pair.control.ranks) != len(pair.candidate.ranks):
        return Verdict.VOID, f"ranks: seen {len(pair.candidate.ranks)}; expected {len(pair.control.ranks)}"
    for control, candidate in zip(pair.control.ranks, pair.candidate.ranks, strict=True):
        if control.attention != candidate.attention:
            return Verdict.FAIL, f"rank {control.rank}: seen {candidate.attention}; expected {control.attention}"
        if control.attention.layers != pair.expected.target_layers:
            told = f"attention of {control.attention.layers} layers"
            return Verdict.VOID, f"rank {control.rank}: seen {told}; expected {pair.expected.target_layers}"
    return None


def topology_frozen(pair: Pair) -> Finding | None:
    """Rule ``topology-frozen``: one capture of the target with the frozen segments, the same on every rank and arm.

    Silent loss of all graphs leaves the tokens right: only the counts show it.
    """
    orders = set()
    for arm in pair.arms:
        for report in arm.ranks:
            targets = [graph for graph in report.graphs if graph.model == "target"]
            seen, expected = [_segments(graph) for graph in targets], [(pair.expected.graphs, pair.expected.breaks)]
            if seen != expected:
                where = f"{arm.request.arm} rank {report.rank}"
                return Verdict.FAIL, f"{where}: seen graphs and breaks {seen}; expected {expected}"
            orders.add(targets[0].order_sha256)
    if len(orders) != 1:
        return Verdict.FAIL, f"segment orders: seen {sorted(orders)}; expected one for all ranks and arms"
    return None


def drafts_captured(pair: Pair) -> Finding | None:
    """Rule ``drafts-captured``: the draft's graphs are captured, the same on every rank of both arms.

    Their loss also leaves the tokens right, and the target's replays do not show the draft's speed.
    """
    first: list[CapturedGraph] | None = None
    for arm in pair.arms:
        for report in arm.ranks:
            where = f"{arm.request.arm} rank {report.rank}"
            seen = [graph for graph in report.graphs if graph.model == "draft"]
            if not seen:
                return Verdict.FAIL, f"{where}: seen no captured graph of the draft; expected one"
            first = first or seen
            if seen != first:
                told = f"captured {[_segments(graph) for graph in seen]} of the draft"
                expected = f"{[_segments(graph) for graph in first]} in the first rank's order"
                return Verdict.FAIL, f"{where}: seen {told}; expected {expected}"
    return None


def drafts_accepted(pair: Pair) -> Finding | None:
    """Rule ``drafts-accepted``: more than one token a cycle is accepted, and both arms accept the same.

    A draft never accepted leaves the tokens right: only the counters show it.
    """
    control, candidate = pair.control.acceptance, pair.candidate.acceptance
    if control is None or candidate is None or control.drafts == 0:
        return Verdict.NOT_PROVEN, "acceptance: seen no draft cycle; expected one"
    if control.accepted <= control.drafts:
        told = f"{control.accepted} tokens in {control.drafts} cycles"
        return Verdict.FAIL, f"acceptance: seen {told}; expected more than one each"
    if control != candidate:
        return Verdict.FAIL, f"acceptance: seen candidate {candidate}; expected {control}, as the control"
    return None


def control_is_stock(pair: Pair) -> Finding | None:
    """Rule ``control-is-stock``: with the flag off, every layer runs vLLM's FlashAttention and keeps no state."""
    for report in pair.control.ranks:
        proof = candidate_proof(report)
        classes = [*proof.backends, *proof.implementations]
        if proof.flag or proof.layers or classes != [*STOCK]:
            told = f"the control run {classes}, flag {proof.flag}, {len(proof.layers)} layers with counters"
            return Verdict.FAIL, f"rank {report.rank}: seen {told}; expected {[*STOCK]}, flag False, 0 layers"
        if (layers := len(proof.target_layers)) != (expected := pair.expected.target_layers):
            return Verdict.FAIL, f"rank {report.rank}: seen {layers} target layers in the control; expected {expected}"
    return None


def candidate_active(pair: Pair) -> Finding | None:
    """Rule ``candidate-active``: every layer runs the candidate's classes, on this lane, with the frozen validator."""
    for report in pair.candidate.ranks:
        proof = candidate_proof(report)
        classes = [*proof.backends, *proof.implementations]
        seen = (proof.flag, classes, proof.lane, proof.validator)
        expected = (True, [*CANDIDATE], pair.candidate.request.lane, pair.expected.validator)
        if seen != expected:
            return Verdict.FAIL, f"rank {report.rank}: seen flag, classes, lane, validator {seen}; expected {expected}"
        if sorted(proof.layers) != sorted(proof.target_layers) or len(proof.layers) != pair.expected.target_layers:
            told = f"{len(proof.layers)} layers with counters"
            return (
                Verdict.FAIL,
                f"rank {report.rank}: seen {told}; expected {pair.expected.target_layers} of the target",
            )
    return None


def views_built_once(pair: Pair) -> Finding | None:
    """Rule ``views-built-once``: one state a target layer and none for the draft, reused by every attention call."""
    for report in pair.candidate.ranks:
        proof = candidate_proof(report)
        if proof.draft_layers_with_state:
            told = f"{proof.draft_layers_with_state} draft layers with a state"
            return Verdict.FAIL, f"rank {report.rank}: seen {told}; expected none"
        for name, layer in proof.layers.items():
            if layer.builds != 1 or layer.invalidations != 0:
                told = f"{name} built {layer.builds} times and invalidated {layer.invalidations} times"
                return Verdict.FAIL, f"rank {report.rank}: seen {told}; expected once and never"
        if proof.forward_hits < report.attention.calls or proof.update_hits == 0:
            hits = f"{proof.forward_hits} forward and {proof.update_hits} update uses"
            return Verdict.FAIL, f"rank {report.rank}: seen {hits}; expected at least {report.attention.calls} and 1"
    return None


def views_reach_kernel(pair: Pair) -> Finding | None:
    """Rule ``views-reach-kernel``: in every target layer the kernel gets the same two tensors at every call, flag on.

    The kernel's observer decides, since a candidate could count a use and pass other tensors. With the flag off, each
    call gets new ones; otherwise the observer is blind.
    """
    for arm in pair.arms:
        for report in arm.ranks:
            where = f"{arm.request.arm} rank {report.rank}"
            if sorted(report.kernel_views) != sorted(candidate_proof(report).target_layers):
                told = f"kernels of {len(report.kernel_views)} layers"
                return Verdict.VOID, f"{where}: seen {told}; expected the target's layers"
            calls = sum(seen.calls for seen in report.kernel_views.values())
            if calls != report.attention.calls:
                told = f"{calls} kernel calls"
                return Verdict.VOID, f"{where}: seen {told}; expected {report.attention.calls}, as attention calls"
            for layer, seen in report.kernel_views.items():
                same = seen.calls if arm is pair.candidate else 1
                if (seen.same_objects, seen.geometries) != (same, 1):
                    told = (
                        f"{seen.same_objects} of {seen.calls} calls with the same views, {seen.geometries} geometries"
                    )
                    return Verdict.FAIL, f"{where}: {layer}: seen {told}; expected {same} and 1"
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
"""Rules expected to catch a wrong view not stopped by any contract."""


def compare(pair: Pair) -> dict[str, Finding]:
    """Return the finding of each violated rule by its id; UnusableEvidenceError for a malformed candidate proof."""
    found = {rule: check(pair) for rule, check in RULES.items()}
    return {rule: finding for rule, finding in found.items() if finding is not None}


def candidate_proof(report: RankReport) -> CandidateProof:
    """Read a rank's candidate proof; UnusableEvidenceError if it does not have its form."""
    return parse_model(dict(report.candidate), CandidateProof, f"rank {report.rank} candidate proof")


def without_arm_local(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an arm's environment without arm-local variables, its directories named by their place below its own."""
    return {
        name: _below(
            value, {"arm": posixpath.dirname(environment.get("HOME", "")), "short": environment.get("TMPDIR", "")}
        )
        for name, value in environment.items()
        if name not in ARM_LOCAL_VARIABLES
    }


def _below(value: str, places: Mapping[str, str]) -> str:
    """Replace the arm's own or short directory at the beginning of a path by its name."""
    for name, place in places.items():
        if place and (value == place or value.startswith(f"{place}/")):
            return f"<{name}>{value.removeprefix(place)}"
    return value


def _segments(graph: CapturedGraph) -> tuple[int, int]:
    return graph.graphs, graph.breaks


def _differing(subject: str, control: Mapping[str, object], candidate: Mapping[str, object]) -> Finding | None:
    for name in sorted(control.keys() | candidate.keys()):
        if control.get(name) != candidate.get(name):
            told = f"{name} {control.get(name)!r} and {candidate.get(name)!r}"
            return Verdict.VOID, f"{subject}: seen {told}; expected the flag as sole treatment"
    return None
