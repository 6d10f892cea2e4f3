# SPDX-License-Identifier: Apache-2.0
"""Rules over the record of a supervised process.

A process left running is a broken contract (FAIL), whatever else is wrong. Any other wrong end says nothing about the
optimisation: the evidence is unusable (VOID), or nothing is proven if the end is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from pytest_laguna.analysis.findings import Finding, decisive
from pytest_laguna.evidence.machine.process import ProcessRecord, Reason, exit_words
from pytest_laguna.verdict import Verdict

Rule: TypeAlias = Callable[[ProcessRecord], Finding | None]

_UNWATCHED = frozenset({Reason.SUPERVISOR_LOST, Reason.OWNER_GONE})


def nothing_left(process: ProcessRecord) -> Finding | None:
    """Rule ``nothing-left``: nothing below the process outlived it, and nothing survived SIGKILL."""
    if process.left_behind is not None:
        return Verdict.FAIL, f"left behind: {process.left_behind}; expected nothing"
    if process.survivors:
        return Verdict.FAIL, f"survived SIGKILL: {process.survivors[0]}; expected nothing"
    return None


def supervised_throughout(process: ProcessRecord) -> Finding | None:
    """Rule ``supervised-throughout``: the supervisor and the controller outlived the process."""
    if process.reason in _UNWATCHED:
        return Verdict.VOID, f"{process.reason}: seen no watcher at its end; expected supervisor and controller"
    return None


def proven_empty(process: ProcessRecord) -> Finding | None:
    """Rule ``proven-empty``: the kernel reported no process left below the supervisor."""
    if not process.proven_empty:
        why = f"{process.reason}: " if process.reason in _UNWATCHED else ""
        return Verdict.NOT_PROVEN, f"{why}not proven that all its processes have ended; expected proof"
    return None


def ended_by_itself(process: ProcessRecord) -> Finding | None:
    """Rule ``ended-by-itself``: exit code 0, within deadline and memory, and without a signal."""
    if process.reason is not Reason.EXITED or process.exit_code != 0:
        return Verdict.VOID, str(process)
    if process.last_signal is not None:
        return Verdict.VOID, f"{process}; seen {exit_words(-process.last_signal)} sent; expected no signal"
    return None


CLEANLINESS: Mapping[str, Rule] = {
    "nothing-left": nothing_left,
    "supervised-throughout": supervised_throughout,
    "proven-empty": proven_empty,
}
"""Rules for every process of a gate."""

PROCESS_RULES: Mapping[str, Rule] = {
    **CLEANLINESS,
    "ended-by-itself": ended_by_itself,
}
"""Rules for an arm, a packet or a leg."""


def judge_cleanliness(process: ProcessRecord) -> Finding:
    """Judge the end of a process and of all below it; the reason begins with the rule's id."""
    return _judge(process, CLEANLINESS) or (Verdict.PASS, "nothing left")


def judge_process(process: ProcessRecord) -> Finding:
    """Judge the end of a run's process; the reason begins with the rule's id."""
    return _judge(process, PROCESS_RULES) or (Verdict.PASS, "ended by itself and left nothing")


def _judge(process: ProcessRecord, rules: Mapping[str, Rule]) -> Finding | None:
    """Return the deciding finding; a survivor of SIGKILL is a failure before it is an unproven end."""
    found = {name: rule(process) for name, rule in rules.items()}
    return decisive([(finding[0], f"{name}: {finding[1]}") for name, finding in found.items() if finding is not None])
