# SPDX-License-Identifier: Apache-2.0
"""Rules over the treatment: the selector is the only one, and each arm ran its selector's implementation.

Most of them judge gate 1's pair of arms too. The rules ``as-asked`` and ``same-models-and-prompt`` prove the two
requests equal.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping

from pytest_laguna.analysis.arms import arm_pair, engine_asked
from pytest_laguna.analysis.arms.arm_pair import Pair
from pytest_laguna.analysis.arms.topology import layer_count
from pytest_laguna.analysis.diagnostic.case import DiagnosticCase, Rule
from pytest_laguna.analysis.findings import Finding, RuleFinding, not_applicable, reported
from pytest_laguna.evidence.arms.arm_record import Arm, ArmRecord, RankReport
from pytest_laguna.evidence.reading import DRAFT_CONFIG, TARGET_CONFIG, present
from pytest_laguna.verdict import UnusableEvidenceError, Verdict


def _of_pair(rule: Callable[[Pair], Finding | None]) -> Rule:
    """Rule over the two graph arms."""
    return lambda case: rule(case.pair())


def _of_candidate(rule: Callable[[Pair], Finding | None]) -> Rule:
    """Rule over the candidate's work, not applicable to A/A."""

    @functools.wraps(rule)
    def judged(case: DiagnosticCase) -> RuleFinding:
        if case.plan.null:
            return not_applicable("A/A campaign: the candidate's slot held a control")
        return rule(case.pair())

    return judged


def candidate_active(case: DiagnosticCase) -> RuleFinding:
    """Rule ``candidate-active``: every layer runs the candidate's classes, or vLLM's own in an A/A campaign."""
    pair = case.pair()
    if not case.plan.null:
        return arm_pair.candidate_active(pair)
    return arm_pair.control_is_stock(dataclasses.replace(pair, control=pair.candidate))


def arm_local(case: DiagnosticCase) -> RuleFinding:
    """Rule ``arm-local``: arm-local variables, different in each arm and no treatment, are listed."""
    control, candidate = (arm.environment for arm in case.pair().arms)
    names = sorted(control.keys() & candidate.keys() - {case.plan.flag})
    return reported(", ".join(name for name in names if control[name] != candidate[name]) or "no variable")


_BY_GRAPHS = frozenset({
    "arguments compilation_config", "resolved cudagraph_capture_sizes", "resolved cudagraph_mode",
    "environment VLLM_USE_BREAKABLE_CUDAGRAPH",
    "environment LAGUNA_REPLAY_PROFILE_ROOT", "environment LAGUNA_REPLAY_PROFILE_SAMPLES",
})  # fmt: skip
"""Settings with another value in an arm without graphs."""

_BY_DRAFT = frozenset({
    "arguments speculative_config", "resolved speculative_method", "resolved speculative_tokens",
    "resolved num_gpu_blocks",
})  # fmt: skip
"""Settings with another value in an arm without a draft, whose cache is all the target's (vLLM 0.26.0 and 0.32.0)."""


def teachers_same_engine(case: DiagnosticCase) -> RuleFinding:
    """Rule ``teachers-same-engine``: q1 and eager ran the control's engine, without its draft and graphs.

    Rule ``teachers-are-stock`` compares the flag.
    """
    flag = f"environment {case.plan.flag}"
    control = _engine(case.record(Arm.GRAPH_CONTROL))
    for arm, own in ((Arm.Q1, _BY_GRAPHS | _BY_DRAFT), (Arm.EAGER, _BY_GRAPHS)):
        seen = _engine(case.record(arm))
        for name in sorted((control.keys() | seen.keys()) - own - {flag}):
            if seen.get(name) != control.get(name):
                told = f"{arm}: {name}: seen {seen.get(name)!r}"
                return Verdict.VOID, f"{told}; expected {control.get(name)!r} as in {Arm.GRAPH_CONTROL}"
        if seen["resolved cudagraph_mode"] != "NONE":
            return Verdict.VOID, f"{arm}: cudagraph_mode: seen {seen['resolved cudagraph_mode']!r}; expected 'NONE'"
    return None


def _engine(record: ArmRecord) -> dict[str, object]:
    """Versions, settings and variables of an arm, by part and name.

    Raises:
        UnusableEvidenceError: the configuration has another form.
    """
    arguments, resolved = engine_asked.configuration(record)
    parts: Mapping[str, Mapping[str, object]] = {
        "version of": record.versions,
        "arguments": arguments,
        "resolved": resolved,
        "environment": arm_pair.without_arm_local(record.environment),
        "rank": {str(report.rank): report.model_runner for report in record.ranks},
    }
    return {f"{part} {name}": value for part, values in parts.items() for name, value in values.items()}


def environment_as_asked(case: DiagnosticCase) -> RuleFinding:
    """Rule ``environment-as-asked``: each arm began with its request's variables, and no other deciding ones.

    Rules ``sole-treatment`` and ``teachers-are-stock`` compare the flag.
    """
    return engine_asked.judge_environments(case, {case.plan.flag})


def arguments_equal(case: DiagnosticCase) -> RuleFinding:
    """Rule ``arguments-equal``: both arms called each target layer's kernel with the same signatures."""
    for control, candidate in _ranks(case):
        where = f"rank {control.rank}"
        if len(control.kernel_signatures) != case.plan.target_layers:
            told = f"seen signatures of {len(control.kernel_signatures)} layers"
            return Verdict.NOT_PROVEN, f"graph-control {where}: {told}; expected {case.plan.target_layers}"
        for layer in sorted(control.kernel_signatures.keys() | candidate.kernel_signatures.keys()):
            seen = (control.kernel_signatures.get(layer), candidate.kernel_signatures.get(layer))
            if seen[0] != seen[1]:
                return Verdict.FAIL, f"{where}: {layer}: seen control {seen[0]}, candidate {seen[1]}; expected equal"
    return None


def allocations_equal(case: DiagnosticCase) -> RuleFinding:
    """Rule ``allocations-equal``: each watched replay of the candidate allocates as often as the control's."""
    for control, candidate in _ranks(case):
        if not control.allocations:
            where = f"graph-control rank {control.rank}"
            return Verdict.NOT_PROVEN, f"{where}: seen no replay watched for allocations; expected one at least"
        if control.allocations != candidate.allocations:
            told = f"seen control {control.allocations}, candidate {candidate.allocations}"
            return Verdict.FAIL, f"rank {control.rank}: allocations a replay: {told}; expected equal"
    return None


def _ranks(case: DiagnosticCase) -> Iterator[tuple[RankReport, RankReport]]:
    control, candidate = case.pair().arms
    if len(control.ranks) != len(candidate.ranks):
        seen = f"{len(control.ranks)} in the control, {len(candidate.ranks)} in the candidate"
        raise UnusableEvidenceError(f"ranks: seen {seen}; expected as many")
    return zip(control.ranks, candidate.ranks, strict=True)


def teachers_are_stock(case: DiagnosticCase) -> RuleFinding:
    """Rule ``teachers-are-stock``: q1 and eager run without the candidate."""
    for arm in (Arm.Q1, Arm.EAGER):
        record = case.record(arm)
        finding = arm_pair.control_is_stock(dataclasses.replace(case.pair(), control=record))
        if finding is not None:
            return finding[0], f"{arm}: {finding[1]}"
        flag = record.environment.get(case.plan.flag)
        if flag != case.plan.control:
            return Verdict.VOID, f"{arm}: {case.plan.flag}: seen {flag!r}; expected {case.plan.control!r}"
    return None


def layers_of_models(case: DiagnosticCase) -> RuleFinding:
    """Rule ``layers-of-models``: each rank found the attention layers of both configuration files.

    The candidate leaves the draft's layers alone; they have caches of their own, numbered behind the target's.
    """
    target = layer_count(present(case.evidence.target_config), TARGET_CONFIG)
    draft = layer_count(present(case.evidence.draft_config), DRAFT_CONFIG)
    for arm, record in case.records():
        expected = (target, draft if Arm(arm).speculates else 0)
        for report in record.ranks:
            proof = arm_pair.candidate_proof(report)
            seen = (len(proof.target_layers), len(proof.draft_layers))
            if seen != expected:
                told = f"seen target and draft layers {seen}; expected {expected}"
                return Verdict.FAIL, f"{arm} rank {report.rank}: {told}"
    return None


SOLE_TREATMENT: Mapping[str, Rule] = {
    "same-engine": _of_pair(arm_pair.same_engine),
    "sole-treatment": _of_pair(arm_pair.sole_treatment),
    "teachers-same-engine": teachers_same_engine,
    "arguments-as-asked": engine_asked.arguments_as_asked,
    "environment-as-asked": environment_as_asked,
    "arguments-equal": arguments_equal,
    "allocations-equal": allocations_equal,
    "arm-local": arm_local,
}

SELECTOR_PROVEN: Mapping[str, Rule] = {
    "layers-of-models": layers_of_models,
    "teachers-are-stock": teachers_are_stock,
    "control-is-stock": _of_pair(arm_pair.control_is_stock),
    "candidate-active": candidate_active,
    "views-built-once": _of_candidate(arm_pair.views_built_once),
    "views-reach-kernel": _of_candidate(arm_pair.views_reach_kernel),
}
