# SPDX-License-Identifier: Apache-2.0
"""Rules over the four arms: each fresh, cold and whole, the tokens identical, the drafts at work and alike.

Source: the preregistration of the persistent KV-cache views, Gate 2.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping

from pytest_laguna.analysis import arm_pair
from pytest_laguna.analysis.diagnostic_case import (
    SPECULATING_ARMS,
    Case,
    Rule,
    RuleFinding,
    reported,
)
from pytest_laguna.analysis.engine_identity import public_version
from pytest_laguna.analysis.process import judge_process
from pytest_laguna.evidence.arm_record import Acceptance, Arm, ArmRecord, ArmRequest, Planted, RankProcess
from pytest_laguna.evidence.diagnostic import FolderModels, GeneratedModels
from pytest_laguna.evidence.diagnostic_evidence import Missing, present
from pytest_laguna.verdict import NotProvenError, Verdict


def nothing_unexpected(case: Case) -> RuleFinding:
    """Rule ``nothing-unexpected``: no arm and no packet beyond those of the plan has left anything."""
    if case.evidence.unexpected:
        return Verdict.VOID, f"{case.evidence.unexpected[0]}: expected the four arms and one packet a card, each once"
    return None


def ended_clean(case: Case) -> RuleFinding:
    """Rule ``ended-clean``: the process of each arm ended by itself with exit code 0 and left nothing behind."""
    for arm, run in case.evidence.arms.items():
        if isinstance(run.process, Missing):
            case.record(arm)  # raises the root cause where the arm left nothing at all
        verdict, reason = judge_process(present(run.process))
        if verdict is not Verdict.PASS:
            return verdict, f"{arm}: {reason}{case.told(run)}"
    return None


def as_asked(case: Case) -> RuleFinding:
    """Rule ``as-asked``: each arm answers its own request, and the request is the plan's, without a planted defect."""
    for arm in Arm:
        record, request = case.record(arm), present(case.evidence.arms[arm].request)
        if record.request != request:
            return Verdict.VOID, f"{arm}: the record answers another request than its own"
        seen = {name: getattr(request, name) for name in _asked(case, arm)}
        for name, expected in _asked(case, arm).items():
            if seen[name] != expected:
                return Verdict.VOID, f"{arm}: {name} {seen[name]!r}; expected {expected!r}"
    return None


def _asked(case: Case, arm: Arm) -> Mapping[str, object]:
    """What the plan says of an arm's request."""
    return {
        "arm": arm,
        "lane": case.plan.lane,
        "tokens": case.plan.completion_tokens,
        "tensor_parallel_size": case.plan.ranks,
        "collective_breaks": case.plan.collective_breaks,
        "planted": Planted.NONE,
        "profile_samples": case.plan.samples if arm.graphs else 0,
        "event_profile": None,
        "null": case.plan.null,
    }


def same_models_and_prompt(case: Case) -> RuleFinding:
    """Rule ``same-models-and-prompt``: one target, one draft, and the same prompt tokens in all arms."""
    records = {arm: case.record(arm) for arm in Arm}
    teacher = records[Arm.Q1]
    for arm, record in records.items():
        pairs = {
            "target": (teacher.request.target, record.request.target),
            "prompt": (teacher.request.prompt, record.request.prompt),
            "prompt tokens": (_prompt(teacher), _prompt(record)),
            "draft": (records[Arm.EAGER].request.draft if arm.speculates else None, record.request.draft),
        }
        for name, (expected, seen) in pairs.items():
            if seen != expected:
                return Verdict.VOID, f"{arm}: {name} {seen!r}; expected {expected!r} as in the other arms"
    return None


def vllm_planned(case: Case) -> RuleFinding:
    """Rule ``vllm-planned``: every arm ran the vLLM version of the campaign; a build's own suffix does not count."""
    return judge_version(((record.request.arm, record) for record in case.records()), case.plan.vllm)


def judge_version(records: Iterable[tuple[str, ArmRecord]], planned: str) -> RuleFinding:
    """The first arm, by its name, that ran another vLLM version than the planned one."""
    for arm, record in records:
        seen = record.versions.get("vllm", "")
        if public_version(seen) != planned:
            return Verdict.VOID, f"{arm}: vLLM {seen or 'not recorded'}; expected {planned}"
    return None


def models_planned(case: Case) -> RuleFinding:
    """Rule ``models-planned``: the arms loaded the campaign's pair and continued its prompt.

    A pair that the project makes lies in another folder each time; rule ``plan-derived`` knows it by its layers and its
    width.
    """
    return judge_models(case.record(Arm.EAGER).request, case.plan.models)


def judge_models(request: ArmRequest, planned: GeneratedModels | FolderModels) -> RuleFinding:
    """What speaks against the pair of an arm that loads both models."""
    if isinstance(planned, GeneratedModels):
        seen = hashlib.sha256(request.prompt.encode()).hexdigest()
        if seen != planned.prompt_sha256:
            told = f"a prompt with digest {seen}"
            return Verdict.VOID, f"{told}; expected {planned.prompt_sha256}, that of {planned.prompt!r}"
        return None
    for name in FolderModels.model_fields:
        seen, expected = getattr(request, name), getattr(planned, name)
        if seen != expected and not (name != "prompt" and _starts_elsewhere(seen, expected)):
            return Verdict.VOID, f"{name} {seen!r}; expected {expected!r}"
    return None


def _starts_elsewhere(folder: str | None, planned: str) -> bool:
    """Whether a folder is the planned one with the project's own path before it."""
    return folder is not None and not planned.startswith("/") and folder.endswith(f"/{planned}")


def _prompt(record: ArmRecord) -> tuple[int, str]:
    return record.prompt_tokens, record.prompt_token_sha256


def own_processes(case: Case) -> RuleFinding:
    """Rule ``own-processes``: every rank of every arm ran in a process that no other shared."""
    seen: dict[RankProcess, str] = {}
    for arm in Arm:
        for report in case.record(arm).ranks:
            process = report.process
            if process in seen:
                told = f"process {process.pid}, started at tick {process.start_ticks}, is also that of {seen[process]}"
                return Verdict.VOID, f"{arm} rank {report.rank}: {told}; expected a fresh one"
            seen[process] = f"{arm} rank {report.rank}"
    return None


def in_order(case: Case) -> RuleFinding:
    """Rule ``in-order``: the processes of each arm started after all of the arm before it, and after all packets."""
    started = [(str(arm), _started(case.record(arm))) for arm in Arm]
    if packets := [*_packets_started(case)]:
        started.insert(0, ("the last packet", packets))
    for (earlier, before), (later, after) in itertools.pairwise(started):
        if min(after) <= max(before):
            told = f"started at tick {min(after)}, {earlier} at {max(before)}"
            return Verdict.VOID, f"{later}: {told}; expected the packets, then {', '.join(Arm)}"
    return None


def _started(record: ArmRecord) -> list[int]:
    return [report.process.start_ticks for report in record.ranks]


def _packets_started(case: Case) -> Iterator[int]:
    """Of each packet that left a record; that none is missing is another rule's."""
    for run in case.evidence.packets.values():
        if not isinstance(run.record, Missing):
            yield run.record.process.start_ticks


def within_process(case: Case) -> RuleFinding:
    """Rule ``within-process``: start and generation of each arm took no longer than its process lived."""
    for arm in Arm:
        record, process = case.record(arm), present(case.evidence.arms[arm].process)
        if record.start_seconds + record.generation_seconds > process.wall_seconds:
            told = f"a start of {record.start_seconds} s and a generation of {record.generation_seconds} s"
            return Verdict.VOID, f"{arm}: {told}; expected them within the {process.wall_seconds} s of its process"
    return None


def one_generation(case: Case) -> RuleFinding:
    """Rule ``one-generation``: one generation of the frozen length, which nothing but its length ended."""
    for record in case.records():
        seen, expected = (len(record.token_ids), record.finish_reason), (case.plan.completion_tokens, "length")
        if seen != expected:
            return Verdict.FAIL, f"{record.request.arm}: tokens and finish {seen}; expected {expected}"
    return None


def nothing_cached(case: Case) -> RuleFinding:
    """Rule ``nothing-cached``: no token of the prompt came from a cache."""
    for record in case.records():
        if record.cached_tokens != 0:
            return Verdict.FAIL, f"{record.request.arm}: {record.cached_tokens} cached tokens; expected 0"
    return None


def required_pairs(case: Case) -> RuleFinding:
    """Rule ``required-pairs``: tokens and text of each pair that the plan names are equal bit for bit."""
    if not case.plan.identical:
        return Verdict.NOT_PROVEN, "the plan requires no pair of arms to be identical"
    for first, second in case.plan.identical:
        difference = _difference(case.record(first), case.record(second))
        if difference:
            return Verdict.FAIL, f"{first} and {second}: {difference}"
    return None


def other_pairs(case: Case) -> RuleFinding:
    """Rule ``other-pairs``: whether the other pairs are identical too is listed."""
    required = {frozenset(pair) for pair in case.plan.identical}
    others = [pair for pair in itertools.combinations(Arm, 2) if frozenset(pair) not in required]
    told = [
        f"{first} and {second} {_difference(case.record(first), case.record(second)) or 'identical'}"
        for first, second in others
    ]
    return reported("; ".join(told) or "every pair of arms is required to be identical")


def all_identical(case: Case) -> bool:
    """Whether all four arms gave the same tokens and the same text, required of them or not."""
    return len({(record.token_sha256, record.text_sha256) for record in case.records()}) == 1


def _difference(first: ArmRecord, second: ArmRecord) -> str | None:
    """The first difference between two generations; None when they are equal bit for bit."""
    tokens = itertools.zip_longest(first.token_ids, second.token_ids)
    for position, (one, other) in enumerate(tokens):
        if one != other:
            return f"differ at token {position}: {one} and {other}"
    return "differ in text though not in tokens" if first.text_sha256 != second.text_sha256 else None


def attention_equal(case: Case) -> RuleFinding:
    """Rule ``attention-equal``: attention's outputs in both graph arms are equal bit for bit on each rank.

    It decides on the cpu lane, where one thread computes each rank in one order. Collectives of a device may add in
    another order from run to run; there the preregistration asks for the tokens, and packets compare bytes.
    """
    finding = arm_pair.attention_equal(case.pair())
    if case.plan.lane == "cpu":
        return finding
    return reported(finding[1] if finding else "equal")


def _accepted(case: Case) -> Iterator[tuple[Arm, Acceptance]]:
    for record in case.records(SPECULATING_ARMS):
        if record.acceptance is None or 0 in {record.acceptance.drafts, record.acceptance.draft_tokens}:
            raise NotProvenError(f"{record.request.arm}: no draft cycle is recorded")
        yield record.request.arm, record.acceptance


def depth_equal(case: Case) -> RuleFinding:
    """Rule ``depth-equal``: every speculating arm drafts to the frozen depth."""
    for arm, acceptance in _accepted(case):
        depth = len(acceptance.accepted_per_position)
        if depth != case.plan.draft_tokens:
            return Verdict.FAIL, f"{arm}: draft depth {depth}; expected {case.plan.draft_tokens}"
    return None


def proposals_whole(case: Case) -> RuleFinding:
    """Rule ``proposals-whole``: each cycle proposed as many tokens as the draft is deep."""
    for arm, acceptance in _accepted(case):
        expected = acceptance.drafts * case.plan.draft_tokens
        if acceptance.draft_tokens != expected:
            told = f"{acceptance.draft_tokens} tokens proposed in {acceptance.drafts} cycles"
            return Verdict.FAIL, f"{arm}: {told}; expected {expected}"
    return None


def cycles_account(case: Case) -> RuleFinding:
    """Rule ``cycles-account``: the tokens are the first one, and of each cycle what was accepted and one more.

    The last cycle may yield more than the length allows. Counters that do not account for the tokens count something
    else, and token equality alone would not show it.
    """
    for arm, acceptance in _accepted(case):
        yielded = 1 + acceptance.drafts + acceptance.accepted
        if not yielded - case.plan.draft_tokens <= case.plan.completion_tokens <= yielded:
            told = f"{acceptance.drafts} cycles and {acceptance.accepted} accepted tokens yield {yielded}"
            return Verdict.VOID, f"{arm}: {told}; expected {case.plan.completion_tokens}"
    return None


def accepted_enough(case: Case) -> RuleFinding:
    """Rule ``accepted-enough``: more is accepted a cycle than the plan's least; a dead draft bounds nothing."""
    for arm, acceptance in _accepted(case):
        if acceptance.accepted <= case.plan.accepted_per_cycle * acceptance.drafts:
            told = f"{acceptance.accepted} tokens accepted in {acceptance.drafts} cycles"
            return Verdict.FAIL, f"{arm}: {told}; expected more than {case.plan.accepted_per_cycle} each"
    return None


def rate_bounded(case: Case) -> RuleFinding:
    """Rule ``rate-bounded``: accepted over proposed differs between any two speculating arms by at most the bound."""
    rates = {arm: acceptance.accepted / acceptance.draft_tokens for arm, acceptance in _accepted(case)}
    lowest, highest = min(rates, key=rates.__getitem__), max(rates, key=rates.__getitem__)
    difference = rates[highest] - rates[lowest]
    if difference > case.plan.acceptance_rate_difference:
        told = f"{lowest} accepts {rates[lowest]:.6f} of its proposals, {highest} {rates[highest]:.6f}"
        return Verdict.FAIL, f"{told}; expected a difference of at most {case.plan.acceptance_rate_difference}"
    return None


def accepted_by_position(case: Case) -> RuleFinding:
    """Rule ``accepted-by-position``: in how many cycles each position was accepted is listed."""
    return reported(
        "; ".join(
            f"{arm} {acceptance.accepted_per_position} of {acceptance.drafts}" for arm, acceptance in _accepted(case)
        )
    )


ARMS_FRESH: Mapping[str, Rule] = {
    "nothing-unexpected": nothing_unexpected,
    "ended-clean": ended_clean,
    "as-asked": as_asked,
    "same-models-and-prompt": same_models_and_prompt,
    "models-planned": models_planned,
    "vllm-planned": vllm_planned,
    "own-processes": own_processes,
    "in-order": in_order,
    "within-process": within_process,
    "one-generation": one_generation,
}

CACHE_COLD: Mapping[str, Rule] = {"nothing-cached": nothing_cached}

TOKENS_IDENTICAL: Mapping[str, Rule] = {
    "required-pairs": required_pairs,
    "attention-equal": attention_equal,
    "other-pairs": other_pairs,
}

DRAFTS_BOUNDED: Mapping[str, Rule] = {
    "depth-equal": depth_equal,
    "proposals-whole": proposals_whole,
    "cycles-account": cycles_account,
    "accepted-enough": accepted_enough,
    "rate-bounded": rate_bounded,
    "accepted-by-position": accepted_by_position,
}
