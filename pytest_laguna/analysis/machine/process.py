# SPDX-License-Identifier: Apache-2.0
"""From the record of a supervised process to a verdict.

What it left running is a broken contract (FAIL), and stays one whatever else is wrong. How else it ended says nothing
about the optimisation: the evidence is unusable (VOID), or, where nobody knows how it ended, nothing is proven.
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
    """Rule ``nothing-left``: nothing was alive below it when it had ended, and nothing survived SIGKILL."""
    if process.left_behind is not None:
        return Verdict.FAIL, f"left behind: {process.left_behind}"
    if process.survivors:
        return Verdict.FAIL, f"survived SIGKILL: {process.survivors[0]}"
    return None


def supervised_throughout(process: ProcessRecord) -> Finding | None:
    """Rule ``supervised-throughout``: the supervisor and the controller outlived it."""
    if process.reason in _UNWATCHED:
        return Verdict.VOID, f"{process.reason}: nobody watched it to its end"
    return None


def proven_empty(process: ProcessRecord) -> Finding | None:
    """Rule ``proven-empty``: the kernel said that nothing is left below its supervisor."""
    if not process.proven_empty:
        why = f"{process.reason}: " if process.reason in _UNWATCHED else ""
        return Verdict.NOT_PROVEN, f"{why}whether all of it has ended is not proven"
    return None


def ended_by_itself(process: ProcessRecord) -> Finding | None:
    """Rule ``ended-by-itself``: it ended with exit code 0, within its deadline and its memory, and untold."""
    if process.reason is not Reason.EXITED or process.exit_code != 0:
        return Verdict.VOID, str(process)
    if process.last_signal is not None:
        return Verdict.VOID, f"{process}; expected no need for a signal, {exit_words(-process.last_signal)} was sent"
    return None


CLEANLINESS: Mapping[str, Rule] = {
    "nothing-left": nothing_left,
    "supervised-throughout": supervised_throughout,
    "proven-empty": proven_empty,
}
"""What must hold for everything that a gate runs, whatever the run was for."""

PROCESS_RULES: Mapping[str, Rule] = {
    **CLEANLINESS,
    "ended-by-itself": ended_by_itself,
}
"""What must hold for an arm, a packet or a leg besides."""


def judge_cleanliness(process: ProcessRecord) -> Finding:
    """Whether a process and everything below it is gone, with a reason that begins with the rule's id."""
    return _judge(process, CLEANLINESS) or (Verdict.PASS, "nothing left")


def judge_process(process: ProcessRecord) -> Finding:
    """Whether a process ended as a run that counts must, with a reason that begins with the rule's id."""
    return _judge(process, PROCESS_RULES) or (Verdict.PASS, "ended by itself and left nothing")


def _judge(process: ProcessRecord, rules: Mapping[str, Rule]) -> Finding | None:
    """A process that survives SIGKILL is never proven to have ended either: that it is there decides."""
    found = {name: rule(process) for name, rule in rules.items()}
    return decisive([(finding[0], f"{name}: {finding[1]}") for name, finding in found.items() if finding is not None])
