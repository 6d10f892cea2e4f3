# SPDX-License-Identifier: Apache-2.0
"""Rules over the four arms: fresh processes, planned requests, identical tokens and comparable drafts.

Source: the preregistration of the persistent KV-cache views, Gate 2.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from pytest_laguna.analysis.arms import arm_pair, each_arm, rank_rules
from pytest_laguna.analysis.diagnostic.case import SPECULATING_ARMS, DiagnosticCase, Rule
from pytest_laguna.analysis.findings import RuleFinding, reported
from pytest_laguna.analysis.wording import shown_in_places
from pytest_laguna.evidence.arms.arm_record import Acceptance, Arm
from pytest_laguna.evidence.reading import Missing, present
from pytest_laguna.verdict import NotProvenError, Verdict


def nothing_unexpected(case: DiagnosticCase) -> RuleFinding:
    """Rule ``nothing-unexpected``: only the plan's arms and packets left files."""
    if case.evidence.unexpected:
        unexpected = case.evidence.unexpected[0]
        return Verdict.VOID, f"{unexpected}: seen, unplanned; expected the four arms and one packet a card, each once"
    return None


def as_asked(case: DiagnosticCase) -> RuleFinding:
    """Rule ``as-asked``: each arm answers its own request, and the request is the plan's, without a planted defect."""
    return each_arm.judge_requests(case, {arm: _asked(case, arm) for arm in Arm})


def _asked(case: DiagnosticCase, arm: Arm) -> Mapping[str, object]:
    """Fields of an arm's request, from the plan alone."""
    return {
        "arm": arm,
        "profile_samples": case.plan.samples if arm.graphs else 0,
        "event_profile": None,
        "null": case.plan.null,
    }


def models_planned(case: DiagnosticCase) -> RuleFinding:
    """Rule ``models-planned``: the arms loaded the campaign's pair and continued its prompt."""
    return each_arm.judge_models(case.record(Arm.EAGER).request, case.plan.models)


def in_order(case: DiagnosticCase) -> RuleFinding:
    """Rule ``in-order``: the processes of each arm started after all of the arm before it, and after all packets."""
    started = each_arm.started(case)
    if packets := [*_packets_started(case)]:
        started.insert(0, ("the last packet", packets))
    return each_arm.judge_order(started)


def _packets_started(case: DiagnosticCase) -> Iterator[int]:
    """Start ticks of the recorded packets; another rule finds a missing packet."""
    for run in case.evidence.packets.values():
        if not isinstance(run.record, Missing):
            yield run.record.process.start_ticks


def within_process(case: DiagnosticCase) -> RuleFinding:
    """Rule ``within-process``: start and generation of each arm took no longer than its process lived."""
    for arm, record in case.records():
        process = present(case.evidence.arms[arm].process)
        if record.start_seconds + record.generation_seconds > process.wall_seconds:
            told = f"seen a start of {record.start_seconds} s and a generation of {record.generation_seconds} s"
            return Verdict.VOID, f"{arm}: {told}; expected both within the {process.wall_seconds} s of its process"
    return None


def required_pairs(case: DiagnosticCase) -> RuleFinding:
    """Rule ``required-pairs``: tokens and text of the plan's pairs are equal bit for bit."""
    if not case.plan.identical:
        return Verdict.NOT_PROVEN, "plan: seen no pair of arms to be identical; expected one at least"
    for first, second in case.plan.identical:
        difference = each_arm.difference(case.record(first), case.record(second))
        if difference:
            return Verdict.FAIL, f"{first} and {second}: {difference}"
    return None


def other_pairs(case: DiagnosticCase) -> RuleFinding:
    """Rule ``other-pairs``: the comparison of all other pairs is listed."""
    required = {frozenset(pair) for pair in case.plan.identical}
    others = [pair for pair in itertools.combinations(Arm, 2) if frozenset(pair) not in required]
    told = [
        f"{first} and {second} {each_arm.difference(case.record(first), case.record(second)) or 'identical'}"
        for first, second in others
    ]
    return reported("; ".join(told) or "every pair of arms is required to be identical")


def all_identical(case: DiagnosticCase) -> bool:
    """True if all four arms gave the same tokens and text, required or not."""
    return len({(record.token_sha256, record.text_sha256) for _, record in case.records()}) == 1


def attention_equal(case: DiagnosticCase) -> RuleFinding:
    """Rule ``attention-equal``: attention's outputs in both graph arms are equal bit for bit on each rank.

    It decides on the cpu lane only: one thread computes each rank in one order. A device's collectives may add in
    another order from run to run; there the preregistration asks for tokens, and packets compare bytes.
    """
    finding = arm_pair.attention_equal(case.pair())
    if case.plan.lane == "cpu":
        return finding
    return reported(finding[1] if finding else "equal")


def _accepted(case: DiagnosticCase) -> Iterator[tuple[str, Acceptance]]:
    for arm, record in case.records(SPECULATING_ARMS):
        if record.acceptance is None or 0 in {record.acceptance.drafts, record.acceptance.draft_tokens}:
            raise NotProvenError(f"{arm}: seen no draft cycle; expected one at least")
        yield arm, record.acceptance


def depth_equal(case: DiagnosticCase) -> RuleFinding:
    """Rule ``depth-equal``: every speculating arm drafts to the frozen depth."""
    for arm, acceptance in _accepted(case):
        depth = len(acceptance.accepted_per_position)
        if depth != case.plan.draft_tokens:
            return Verdict.FAIL, f"{arm}: seen draft depth {depth}; expected {case.plan.draft_tokens}"
    return None


def proposals_whole(case: DiagnosticCase) -> RuleFinding:
    """Rule ``proposals-whole``: each cycle proposed as many tokens as the draft's depth."""
    for arm, acceptance in _accepted(case):
        expected = acceptance.drafts * case.plan.draft_tokens
        if acceptance.draft_tokens != expected:
            told = f"seen {acceptance.draft_tokens} tokens proposed in {acceptance.drafts} cycles"
            return Verdict.FAIL, f"{arm}: {told}; expected {expected}"
    return None


def cycles_account(case: DiagnosticCase) -> RuleFinding:
    """Rule ``cycles-account``: one first token, and each cycle's accepted tokens and one more, make the answer.

    The last cycle may yield more than the length allows. Equal tokens alone do not show counters of something else.
    """
    for arm, acceptance in _accepted(case):
        yielded = 1 + acceptance.drafts + acceptance.accepted
        if not yielded - case.plan.draft_tokens <= case.plan.completion_tokens <= yielded:
            told = f"seen {acceptance.drafts} cycles and {acceptance.accepted} accepted tokens yield {yielded}"
            return Verdict.VOID, f"{arm}: {told}; expected {case.plan.completion_tokens}"
    return None


def accepted_enough(case: DiagnosticCase) -> RuleFinding:
    """Rule ``accepted-enough``: cycles accept more tokens on average than the plan's bound; a dead draft fails."""
    for arm, acceptance in _accepted(case):
        if acceptance.accepted <= case.plan.accepted_per_cycle * acceptance.drafts:
            told = f"seen {acceptance.accepted} tokens accepted in {acceptance.drafts} cycles"
            return Verdict.FAIL, f"{arm}: {told}; expected more than {case.plan.accepted_per_cycle} each"
    return None


def rate_bounded(case: DiagnosticCase) -> RuleFinding:
    """Rule ``rate-bounded``: accepted over proposed differs between any two speculating arms by at most the bound."""
    rates = {arm: acceptance.accepted / acceptance.draft_tokens for arm, acceptance in _accepted(case)}
    lowest, highest = min(rates, key=rates.__getitem__), max(rates, key=rates.__getitem__)
    difference, bound = rates[highest] - rates[lowest], case.plan.acceptance_rate_difference
    if difference > bound:
        seen = f"{rates[lowest]:.6f} by {lowest} and {rates[highest]:.6f} by {highest}"
        more = shown_in_places(difference, bound, 6)
        return Verdict.FAIL, f"acceptance rate: seen {seen}, {more} more; expected a difference of at most {bound}"
    return None


def accepted_by_position(case: DiagnosticCase) -> RuleFinding:
    """Rule ``accepted-by-position``: the number of cycles with each position accepted is listed."""
    return reported(
        "; ".join(
            f"{arm} {acceptance.accepted_per_position} of {acceptance.drafts}" for arm, acceptance in _accepted(case)
        )
    )


ARMS_FRESH: Mapping[str, Rule] = {
    "nothing-unexpected": nothing_unexpected,
    "ended-clean": each_arm.ended_clean,
    "ranks-answered": rank_rules.ranks_answered,
    "as-asked": as_asked,
    "same-models-and-prompt": each_arm.same_models_and_prompt,
    "models-planned": models_planned,
    "vllm-planned": each_arm.vllm_planned,
    "own-processes": each_arm.own_processes,
    "in-order": in_order,
    "within-process": within_process,
    "one-generation": each_arm.one_generation,
}

TOKENS_IDENTICAL: Mapping[str, Rule] = {
    "required-pairs": required_pairs,
    "ranks-sampled-alike": rank_rules.ranks_sampled_alike,
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
