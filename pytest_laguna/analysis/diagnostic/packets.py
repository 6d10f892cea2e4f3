# SPDX-License-Identifier: Apache-2.0
"""Rules over the parity packets: one a card, each from a fresh process, each with its own rules."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from pytest_laguna.analysis import root_cause
from pytest_laguna.analysis.diagnostic import parity
from pytest_laguna.analysis.diagnostic.case import DiagnosticCase, Rule
from pytest_laguna.analysis.findings import RuleFinding, gravest, not_applicable
from pytest_laguna.analysis.machine.process import judge_process
from pytest_laguna.evidence.arms.arm_record import Arm
from pytest_laguna.evidence.reading import Missing, present, whole
from pytest_laguna.verdict import Verdict


def one_a_card(case: DiagnosticCase) -> RuleFinding:
    """Rule ``one-a-card``: each leased card has a packet, and no other card has one."""
    for position in range(case.plan.ranks):
        case.packet(position)  # raises with the root cause if there is none
    extra = sorted(case.evidence.packets.keys() - set(range(case.plan.ranks)))
    if extra:
        return Verdict.VOID, f"packets/{extra[0]}: seen, unplanned; expected packets of {case.plan.ranks} cards"
    return None


def packets_ended_clean(case: DiagnosticCase) -> RuleFinding:
    """Rule ``packets-ended-clean``: each packet's process ended by itself with code 0 and left no process."""
    for position in range(case.plan.ranks):
        run = case.evidence.packets.get(position)
        if run is None or isinstance(run.process, Missing):
            case.packet(position)  # raises with the root cause if the packet left nothing at all
        verdict, reason = judge_process(present(case.evidence.packets[position].process))
        if verdict is not Verdict.PASS:
            return verdict, f"packets/{position}: {reason}{root_cause.told(case.evidence.packets[position])}"
    return None


def packets_as_asked(case: DiagnosticCase) -> RuleFinding:
    """Rule ``packets-as-asked``: each packet answers its own request, for the card at its position."""
    for position in range(case.plan.ranks):
        record, request = case.packet(position), present(case.evidence.packets[position].request)
        if record.request != request or request.rank != position:
            told = f"seen a record of rank {record.request.rank} and a request of rank {request.rank}"
            return Verdict.VOID, f"packets/{position}: {told}; expected one request for its card"
    return None


def packets_same_engine(case: DiagnosticCase) -> RuleFinding:
    """Rule ``packets-same-engine``: each packet ran the arms' vLLM, torch and Python, under the arms' models.

    Rule ``versions-installed`` requires the versions to be recorded.
    """
    arm = case.record(Arm.EAGER)
    for position in range(case.plan.ranks):
        record = case.packet(position)
        for name, seen in record.versions.items():
            if seen != arm.versions.get(name):
                told = f"seen {name} {seen}; expected the arms' {arm.versions.get(name)}"
                return Verdict.VOID, f"packets/{position}: {told}"
        models = (record.request.target, record.request.draft)
        if models != (arm.request.target, arm.request.draft):
            told = f"seen models {models}; expected the arms' {(arm.request.target, arm.request.draft)}"
            return Verdict.VOID, f"packets/{position}: {told}"
    return None


def packets_own_processes(case: DiagnosticCase) -> RuleFinding:
    """Rule ``packets-own-processes``: each packet ran in a process of its own."""
    arms = whole({arm: run.record for arm, run in case.evidence.arms.items()})
    seen = {report.process: f"{arm} rank {report.rank}" for arm, record in arms.items() for report in record.ranks}
    for position in range(case.plan.ranks):
        process = case.packet(position).process
        if process in seen:
            told = f"seen process {process.pid}, started at tick {process.start_ticks}, also in {seen[process]}"
            return Verdict.VOID, f"packets/{position}: {told}; expected a fresh one"
        seen[process] = f"packets/{position}"
    return None


def _packet_rule(case: DiagnosticCase, name: str) -> RuleFinding:
    """Gravest finding of a packet's own rule over all cards."""
    if case.plan.lane in parity.NOT_APPLICABLE.get(name, ()):
        return not_applicable(f"lane {case.plan.lane}")
    judged = [
        parity.RULES[name](parity.Packet(case.packet(position), case.plan.lane, card, case.plan.queries))
        for position, card in enumerate(case.plan.cards)
    ]
    return gravest([finding for finding in judged if finding is not None])


PARITY_PACKETS: Mapping[str, Rule] = {
    "one-a-card": one_a_card,
    "packets-ended-clean": packets_ended_clean,
    "packets-as-asked": packets_as_asked,
    "packets-same-engine": packets_same_engine,
    "packets-own-processes": packets_own_processes,
    **{name: functools.partial(_packet_rule, name=name) for name in parity.RULES},
}
