# SPDX-License-Identifier: Apache-2.0
"""What the machine's side of a device gate came to: cards idle before and after, nothing left, the host within limits.

These findings belong to the session and not to a clause: they count whatever its tests say.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_laguna.analysis.findings import Finding
from pytest_laguna.analysis.host import judge_host
from pytest_laguna.analysis.idle import judge_idle
from pytest_laguna.analysis.process import judge_cleanliness
from pytest_laguna.evidence.host import HostLimits
from pytest_laguna.evidence.idle import IdleRequirement
from pytest_laguna.evidence.leased_cards import IDLE_AFTER, IDLE_BEFORE
from pytest_laguna.evidence.machine import MachineEvidence
from pytest_laguna.verdict import Verdict


def judge_machine(evidence: MachineEvidence, idle: IdleRequirement, host: HostLimits) -> list[Finding]:
    """Everything that speaks against the machine's side of an attempt; empty when nothing does.

    Raises:
        UnusableEvidenceError: the output of a management tool is not exactly of its form.
    """
    found = [*_judge_lease(evidence, idle)]
    for path, process in evidence.processes.items():
        found += _against(path, judge_cleanliness(process))
    for path, audit in evidence.audits.items():
        found += _against(path, judge_host(audit, host))
    return found


def _against(path: str, finding: Finding) -> list[Finding]:
    verdict, reason = finding
    return [] if verdict is Verdict.PASS else [(verdict, f"{path}: {reason}")]


def _judge_lease(evidence: MachineEvidence, idle: IdleRequirement) -> Iterator[Finding]:
    if evidence.lease is None:
        yield Verdict.NOT_PROVEN, "no lease is recorded"
        return
    leased = (evidence.lease.token, [card.identity for card in evidence.lease.cards])
    for name, phase, record in ((IDLE_BEFORE, "before", evidence.before), (IDLE_AFTER, "after", evidence.after)):
        if record is None:
            yield Verdict.NOT_PROVEN, f"{name}: missing; whether the cards were idle {phase} the lease is not proven"
        elif (record.token, record.cards) != leased or record.phase != phase:
            yield Verdict.VOID, f"{name}: of another lease, other cards or another phase than {phase}"
        else:
            yield from _against(name, judge_idle(record, idle))
