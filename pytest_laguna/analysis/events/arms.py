# SPDX-License-Identifier: Apache-2.0
"""Rules over the event profile's arms: fresh processes, cold caches, equal tokens, idle cards.

Source: the preregistration of the current-stream event profile, first execution ladder.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from pytest_laguna.analysis.arms import each_arm, engine_asked, rank_rules, surroundings
from pytest_laguna.analysis.arms.engine_identity import IDENTITY_RULES
from pytest_laguna.analysis.arms.topology import plan_derived
from pytest_laguna.analysis.events.case import EventCase, EventRule
from pytest_laguna.analysis.findings import RuleFinding
from pytest_laguna.evidence.events.analysis import CONFIGURATION, EVENTS, FITNESS, SPARSE, TEACHER
from pytest_laguna.evidence.reading import ARMS, IDENTITY, PLAN, PROFILE, RECORD
from pytest_laguna.verdict import Verdict


def nothing_unexpected(case: EventCase) -> RuleFinding:
    """Rule ``nothing-unexpected``: only the plan's arms left files."""
    if case.evidence.unexpected:
        unexpected = case.evidence.unexpected[0]
        return Verdict.VOID, f"{unexpected}: seen, unplanned; expected {', '.join(case.plan.arms)}, each once"
    return None


def as_asked(case: EventCase) -> RuleFinding:
    """Rule ``as-asked``: each arm answers its own request, and the request is the plan's."""
    return each_arm.judge_requests(case, {arm: _asked(case, arm) for arm in case.plan.arms})


def _asked(case: EventCase, arm: str) -> Mapping[str, object]:
    """Fields of an arm's request, from the plan alone."""
    trial = case.plan.fitness.rounds if arm == FITNESS and case.plan.fitness else 0
    return {
        "arm": CONFIGURATION[arm],
        "profile_samples": 0,
        "event_profile": None if arm == TEACHER else case.plan.topology.order_sha256,
        "event_fitness_rounds": trial,
        "event_sparse_replays": case.plan.sparse_replays if arm == SPARSE else 0,
        "isolated": True,
    }


def models_planned(case: EventCase) -> RuleFinding:
    """Rule ``models-planned``: the arms loaded the campaign's pair and continued its prompt."""
    return each_arm.judge_models(case.record(EVENTS).request, case.plan.models)


def equal_teacher(case: EventCase) -> RuleFinding:
    """Rule ``equal-teacher``: tokens and text of every arm equal q1's bit for bit."""
    teacher = case.record(TEACHER)
    for arm, record in case.records():
        difference = each_arm.difference(teacher, record)
        if difference:
            return Verdict.FAIL, f"{TEACHER} and {arm}: {difference}"
    return None


def graphs_frozen(case: EventCase) -> RuleFinding:
    """Rule ``graphs-frozen``: each rank with graphs captured the target once, in the plan's segments; q1 none."""
    for arm, record in case.records():
        expected = [] if arm == TEACHER else [case.plan.topology.order_sha256]
        for report in record.ranks:
            seen = [graph.order_sha256 for graph in report.graphs if graph.model == "target"]
            if seen != expected:
                told = f"seen captures of the target in orders {seen}"
                return Verdict.FAIL, f"{arm} rank {report.rank}: {told}; expected {expected}"
    return None


def _identity(case: EventCase, name: str) -> RuleFinding:
    """First finding of one rule over engine, binaries and models, over all cases."""
    findings = [IDENTITY_RULES[name](each) for each in case.identities]
    return next((finding for finding in findings if finding is not None), None)


def closure_bound(case: EventCase) -> RuleFinding:
    """Rule ``closure-bound``: the closure names every checked file with its digest."""
    closure = case.piece(case.evidence.closure)
    for path in sorted(closure.files.keys() | case.evidence.digests.keys()):
        bound, found = closure.files.get(path, "nothing"), case.evidence.digests.get(path, "nothing")
        if bound != found:
            return Verdict.VOID, f"closure.json: {path}: seen {found}; expected {bound}, as bound"
    profiles = [f"{ARMS}/{EVENTS}/{PROFILE}/rank{rank}.json" for rank in range(case.plan.ranks)]
    needed = [PLAN, IDENTITY, *profiles, *(f"{ARMS}/{arm}/{RECORD}" for arm in case.plan.arms)]
    missing = [path for path in needed if path not in closure.files]
    return (Verdict.NOT_PROVEN, f"closure.json: seen no {missing[0]}; expected every check's file") if missing else None


def generations_counted(case: EventCase) -> RuleFinding:
    """Rule ``generations-counted``: each arm made one generation, and none was repeated."""
    seen = case.piece(case.evidence.closure).model_generations
    if seen != len(case.plan.arms):
        return Verdict.VOID, f"closure.json: seen {seen} generations; expected {len(case.plan.arms)}, one an arm"
    return None


ARM_RULES: Mapping[str, Mapping[str, EventRule]] = {
    "identity-exact": {name: functools.partial(_identity, name=name) for name in IDENTITY_RULES},
    "cards-idle": {
        "before-first": surroundings.before_first,
        "after-arms": surroundings.after_arms,
        "after-last": surroundings.after_last,
        "one-lease": surroundings.one_lease,
        "looks-in-order": surroundings.looks_in_order,
    },
    "host-within-limits": surroundings.HOST_WITHIN_LIMITS,
    "arms-fresh": {
        "nothing-unexpected": nothing_unexpected,
        "ended-clean": each_arm.ended_clean,
        "ranks-answered": rank_rules.ranks_answered,
        "as-asked": as_asked,
        "same-models-and-prompt": each_arm.same_models_and_prompt,
        "models-planned": models_planned,
        "vllm-planned": each_arm.vllm_planned,
        "own-processes": each_arm.own_processes,
        "in-order": each_arm.in_order,
        "one-generation": each_arm.one_generation,
        "arguments-as-asked": engine_asked.arguments_as_asked,
        "environment-as-asked": engine_asked.environment_as_asked,
    },
    "cache-cold": each_arm.CACHE_COLD,
    "tokens-identical": {"equal-teacher": equal_teacher, "ranks-sampled-alike": rank_rules.ranks_sampled_alike},
    "topology-unchanged": {"plan-derived": plan_derived, "graphs-frozen": graphs_frozen},
    "closure-bound": {"closure-bound": closure_bound, "generations-counted": generations_counted},
}
"""Rules of each clause without a profile's content."""
