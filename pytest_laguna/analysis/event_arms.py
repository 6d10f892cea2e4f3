# SPDX-License-Identifier: Apache-2.0
"""Rules over the arms of the event profile campaign: fresh, cold, whole and identical, idle cards around each.

Source: the preregistration of the current-stream event profile, first execution ladder.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping

from pytest_laguna.analysis import surroundings
from pytest_laguna.analysis.arms import judge_models, judge_version
from pytest_laguna.analysis.diagnostic_case import RuleFinding
from pytest_laguna.analysis.engine_identity import IDENTITY_RULES
from pytest_laguna.analysis.event_case import EventCase, EventRule
from pytest_laguna.analysis.host import HOST_RULES
from pytest_laguna.analysis.process import judge_process
from pytest_laguna.analysis.topology import expected_topology, judge_pair, target_layers
from pytest_laguna.evidence.arm_record import Planted, RankProcess
from pytest_laguna.evidence.diagnostic_evidence import Missing, present
from pytest_laguna.evidence.event_analysis import CONFIGURATION, EVENTS, FITNESS, SPARSE, TEACHER
from pytest_laguna.verdict import Verdict


def nothing_unexpected(case: EventCase) -> RuleFinding:
    """Rule ``nothing-unexpected``: no arm beyond those of the plan has left anything."""
    if case.evidence.unexpected:
        return Verdict.VOID, f"{case.evidence.unexpected[0]}: expected {', '.join(case.plan.arms)}, each once"
    return None


def ended_clean(case: EventCase) -> RuleFinding:
    """Rule ``ended-clean``: the process of each arm ended by itself with exit code 0 and left nothing behind."""
    for arm, run in case.evidence.arms.items():
        if isinstance(run.process, Missing):
            case.record(arm)  # raises the root cause where the arm left nothing at all
        verdict, reason = judge_process(present(run.process))
        if verdict is not Verdict.PASS:
            told = f"; {run.record.reason}" if isinstance(run.record, Missing) and run.record.told else ""
            return verdict, f"{arm}: {reason}{told}"
    return None


def as_asked(case: EventCase) -> RuleFinding:
    """Rule ``as-asked``: each arm answers its own request, and the request is the plan's."""
    for arm, record in case.records():
        request = present(case.evidence.arms[arm].request)
        if record.request != request:
            return Verdict.VOID, f"{arm}: the record answers another request than its own"
        for name, expected in _asked(case, arm).items():
            if (seen := getattr(request, name)) != expected:
                return Verdict.VOID, f"{arm}: {name} {seen!r}; expected {expected!r}"
    return None


def _asked(case: EventCase, arm: str) -> Mapping[str, object]:
    """What the plan says of an arm's request."""
    trial = case.plan.fitness.rounds if arm == FITNESS and case.plan.fitness else 0
    return {
        "arm": CONFIGURATION[arm],
        "lane": case.plan.lane,
        "tokens": case.plan.completion_tokens,
        "tensor_parallel_size": case.plan.ranks,
        "collective_breaks": case.plan.collective_breaks,
        "planted": Planted.NONE,
        "profile_samples": 0,
        "event_profile": None if arm == TEACHER else case.plan.topology.order_sha256,
        "event_fitness_rounds": trial,
        "event_sparse_replays": case.plan.sparse_replays if arm == SPARSE else 0,
        "isolated": True,
    }


def same_models_and_prompt(case: EventCase) -> RuleFinding:
    """Rule ``same-models-and-prompt``: one target and the same prompt tokens in all arms."""
    teacher = case.record(TEACHER)
    expected = (teacher.request.target, teacher.request.prompt, teacher.prompt_tokens, teacher.prompt_token_sha256)
    for arm, record in case.records():
        seen = (record.request.target, record.request.prompt, record.prompt_tokens, record.prompt_token_sha256)
        if seen != expected:
            return Verdict.VOID, f"{arm}: target and prompt {seen}; expected {expected} as in {TEACHER}"
    return None


def models_planned(case: EventCase) -> RuleFinding:
    """Rule ``models-planned``: the arms loaded the campaign's pair and continued its prompt."""
    return judge_models(case.record(EVENTS).request, case.plan.models)


def vllm_planned(case: EventCase) -> RuleFinding:
    """Rule ``vllm-planned``: every arm ran the vLLM version of the campaign; a build's own suffix does not count."""
    return judge_version(case.records(), case.plan.vllm)


def own_processes(case: EventCase) -> RuleFinding:
    """Rule ``own-processes``: every rank of every arm ran in a process that no other shared."""
    seen: dict[RankProcess, str] = {}
    for arm, record in case.records():
        for report in record.ranks:
            where = f"{arm} rank {report.rank}"
            if report.process in seen:
                return (
                    Verdict.VOID,
                    f"{where}: its process is also that of {seen[report.process]}; expected a fresh one",
                )
            seen[report.process] = where
    return None


def in_order(case: EventCase) -> RuleFinding:
    """Rule ``in-order``: the processes of each arm started after all of the arm before it."""
    for (earlier, first), (later, second) in itertools.pairwise(case.records()):
        last = max(report.process.start_ticks for report in first.ranks)
        begin = min(report.process.start_ticks for report in second.ranks)
        if begin <= last:
            return Verdict.VOID, f"{later}: started at tick {begin}, {earlier} at {last}; expected it later"
    return None


def one_generation(case: EventCase) -> RuleFinding:
    """Rule ``one-generation``: one generation of the frozen length, which nothing but its length ended."""
    for arm, record in case.records():
        seen, expected = (len(record.token_ids), record.finish_reason), (case.plan.completion_tokens, "length")
        if seen != expected:
            return Verdict.FAIL, f"{arm}: tokens and finish {seen}; expected {expected}"
    return None


def nothing_cached(case: EventCase) -> RuleFinding:
    """Rule ``nothing-cached``: no token of the prompt came from a cache."""
    for arm, record in case.records():
        if record.cached_tokens != 0:
            return Verdict.FAIL, f"{arm}: {record.cached_tokens} cached tokens; expected 0"
    return None


def equal_teacher(case: EventCase) -> RuleFinding:
    """Rule ``equal-teacher``: tokens and text of every arm are those of q1, bit for bit."""
    teacher = case.record(TEACHER)
    for arm, record in case.records():
        for position, (one, other) in enumerate(itertools.zip_longest(teacher.token_ids, record.token_ids)):
            if one != other:
                return Verdict.FAIL, f"{arm}: token {position} is {other}; expected {one} as in {TEACHER}"
        if record.text_sha256 != teacher.text_sha256:
            return Verdict.FAIL, f"{arm}: differs from {TEACHER} in text though not in tokens"
    return None


def plan_derived(case: EventCase) -> RuleFinding:
    """Rule ``plan-derived``: what the plan expects of the graph follows from the target's configuration file."""
    config = present(case.evidence.target_config)
    derived = expected_topology(config, case.plan.ranks, collective_breaks=case.plan.collective_breaks)
    expected = (derived.order_sha256, target_layers(config))
    if expected != (case.plan.topology.order_sha256, case.plan.target_layers):
        seen = f"the plan expects order {case.plan.topology.order_sha256} in {case.plan.target_layers} layers"
        return Verdict.VOID, f"{seen}; the configuration gives {expected[0]} in {expected[1]}"
    return judge_pair(case.plan.models, config)


def graphs_frozen(case: EventCase) -> RuleFinding:
    """Rule ``graphs-frozen``: each rank with graphs captured the target once, in the plan's segments; q1 nothing."""
    for arm, record in case.records():
        expected = [] if arm == TEACHER else [case.plan.topology.order_sha256]
        for report in record.ranks:
            seen = [graph.order_sha256 for graph in report.graphs if graph.model == "target"]
            if seen != expected:
                return (
                    Verdict.FAIL,
                    f"{arm} rank {report.rank}: captured the target in orders {seen}; expected {expected}",
                )
    return None


def after_arms(case: EventCase) -> RuleFinding:
    """Rule ``after-arms``: the leased cards were idle after each arm."""
    for arm, run in case.evidence.arms.items():
        finding = surroundings.judge_look(case, arm, run.idle, "after", case.plan.cards)
        if finding is not None:
            return finding
    return None


def _identity(case: EventCase, name: str) -> RuleFinding:
    """One rule over engine, binaries and models: the first case that it has something to say of."""
    findings = [IDENTITY_RULES[name](each) for each in case.identities]
    return next((finding for finding in findings if finding is not None), None)


def closure_bound(case: EventCase) -> RuleFinding:
    """Rule ``closure-bound``: the closure names every file that is looked at, each with the digest that it has."""
    closure = case.piece(case.evidence.closure)
    for path in sorted(closure.files.keys() | case.evidence.digests.keys()):
        bound, found = closure.files.get(path, "nothing"), case.evidence.digests.get(path, "nothing")
        if bound != found:
            return Verdict.VOID, f"closure.json: {path} bound as {bound}, found as {found}; expected them equal"
    profiles = [f"arms/{EVENTS}/profile/rank{rank}.json" for rank in range(case.plan.ranks)]
    needed = ["plan.json", "identity.json", *profiles, *(f"arms/{arm}/record.json" for arm in case.plan.arms)]
    missing = [path for path in needed if path not in closure.files]
    return (Verdict.NOT_PROVEN, f"closure.json: without {missing[0]}; expected every check's file") if missing else None


def generations_counted(case: EventCase) -> RuleFinding:
    """Rule ``generations-counted``: as many generations were made as there are arms; none was made again."""
    seen = case.piece(case.evidence.closure).model_generations
    if seen != len(case.plan.arms):
        return Verdict.VOID, f"closure.json: {seen} generations; expected {len(case.plan.arms)}, one an arm"
    return None


ARM_RULES: Mapping[str, Mapping[str, EventRule]] = {
    "identity-exact": {name: functools.partial(_identity, name=name) for name in IDENTITY_RULES},
    "cards-idle": {
        "before-first": surroundings.before_first,
        "after-arms": after_arms,
        "after-last": surroundings.after_last,
        "one-lease": surroundings.one_lease,
        "looks-in-order": surroundings.looks_in_order,
    },
    "host-within-limits": {name: functools.partial(surroundings.judge_host, name=name) for name in HOST_RULES},
    "arms-fresh": {
        "nothing-unexpected": nothing_unexpected,
        "ended-clean": ended_clean,
        "as-asked": as_asked,
        "same-models-and-prompt": same_models_and_prompt,
        "models-planned": models_planned,
        "vllm-planned": vllm_planned,
        "own-processes": own_processes,
        "in-order": in_order,
        "one-generation": one_generation,
    },
    "cache-cold": {"nothing-cached": nothing_cached},
    "tokens-identical": {"equal-teacher": equal_teacher},
    "topology-unchanged": {"plan-derived": plan_derived, "graphs-frozen": graphs_frozen},
    "closure-bound": {"closure-bound": closure_bound, "generations-counted": generations_counted},
}
"""By clause, the rules that do not look into a profile."""
