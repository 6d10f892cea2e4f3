# SPDX-License-Identifier: Apache-2.0
"""One changed fact of a good process record for each rule, and the verdict that it flips."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_laguna.analysis.machine.process import CLEANLINESS, PROCESS_RULES, judge_cleanliness, judge_process
from pytest_laguna.evidence.machine.process import FoundProcess, ProcessRecord, Reason
from pytest_laguna.verdict import Verdict
from tests.caught_first import caught_first

GOOD = ProcessRecord(
    reason=Reason.EXITED,
    wait_status=0,
    last_signal=None,
    wall_seconds=1.5,
    peak_memory_bytes=1 << 20,
    leftovers=[],
    survivors=[],
    proven_empty=True,
    last_journal_line=None,
)
FOUND = FoundProcess(pid=7, command="sleep 300", start_ticks=11)

MUTANTS: list[tuple[str, dict[str, Any], Verdict, str]] = [
    ("nothing-left", {"leftovers": [FOUND]}, Verdict.FAIL, "left behind: pid 7, started at tick 11: sleep 300"),
    ("nothing-left", {"survivors": [FOUND]}, Verdict.FAIL, "survived SIGKILL: pid 7, started at tick 11: sleep 300"),
    ("supervised-throughout", {"reason": Reason.SUPERVISOR_LOST}, Verdict.VOID, "supervisor-lost: seen no watcher"),
    ("supervised-throughout", {"reason": Reason.OWNER_GONE}, Verdict.VOID, "owner-gone: seen no watcher"),
    ("proven-empty", {"proven_empty": False}, Verdict.NOT_PROVEN, "not proven that all its processes have ended"),
    ("ended-by-itself", {"wait_status": 256}, Verdict.VOID, "exited, exit code 1 after 1.5 s"),
    ("ended-by-itself", {"wait_status": 9}, Verdict.VOID, "exited, SIGKILL after 1.5 s"),
    ("ended-by-itself", {"wait_status": None}, Verdict.VOID, "exited, exit unknown after 1.5 s"),
    ("ended-by-itself", {"reason": Reason.DEADLINE}, Verdict.VOID, "deadline, exit code 0 after 1.5 s"),
    ("ended-by-itself", {"reason": Reason.MEMORY}, Verdict.VOID, "memory, exit code 0 after 1.5 s"),
    (
        "ended-by-itself",
        {"last_signal": 2},
        Verdict.VOID,
        "exited, exit code 0 after 1.5 s; seen SIGINT sent; expected no signal",
    ),
    ("ended-by-itself", {"reason": Reason.STOPPED}, Verdict.VOID, "stopped, exit code 0 after 1.5 s"),
]


def test_the_good_record_passes() -> None:
    assert judge_process(GOOD) == (Verdict.PASS, "ended by itself and left nothing")
    assert judge_cleanliness(GOOD) == (Verdict.PASS, "nothing left")


@caught_first("rule changed verdict reason", MUTANTS)
def test_one_fact_flips_the_verdict(rule: str, changed: dict[str, Any], verdict: Verdict, reason: str) -> list[str]:
    found = judge_process(GOOD.model_copy(update=changed))
    assert found[0] is verdict
    assert found[1].startswith(f"{rule}: {reason}")
    cleanliness = judge_cleanliness(GOOD.model_copy(update=changed))
    assert (cleanliness[0] is Verdict.PASS) == (rule not in CLEANLINESS)
    return [name for name, says in PROCESS_RULES.items() if says(GOOD.model_copy(update=changed)) is not None]


LOST: dict[str, Any] = {"reason": Reason.SUPERVISOR_LOST, "wait_status": None, "proven_empty": False}


@pytest.mark.parametrize(
    ("changed", "verdict", "reason"),
    [
        ({"leftovers": [FOUND], "survivors": [FOUND], "proven_empty": False}, Verdict.FAIL, "nothing-left: left"),
        ({"survivors": [FOUND], "proven_empty": False}, Verdict.FAIL, "nothing-left: survived SIGKILL: pid 7"),
        ({"survivors": [FOUND], "reason": Reason.DEADLINE, "proven_empty": False}, Verdict.FAIL, "nothing-left: surv"),
        ({**LOST, "survivors": [FOUND]}, Verdict.FAIL, "nothing-left: survived SIGKILL: pid 7"),
        # The sweep killed the arm itself.
        ({**LOST, "leftovers": [FOUND]}, Verdict.NOT_PROVEN, "proven-empty: supervisor-lost: not proven "),
        (LOST, Verdict.NOT_PROVEN, "proven-empty: supervisor-lost: not proven that all its processes have ended"),
    ],
)
def test_what_is_left_decides_whatever_else_is_wrong(changed: dict[str, Any], verdict: Verdict, reason: str) -> None:
    for judge in (judge_process, judge_cleanliness):
        found = judge(GOOD.model_copy(update=changed))
        assert found[0] is verdict
        assert found[1].startswith(reason)


def test_what_a_sweep_found_is_named_so() -> None:
    lost = GOOD.model_copy(update={**LOST, "leftovers": [FOUND]})
    assert lost.left_behind is None
    assert "; swept: pid 7, started at tick 11: sleep 300; " in str(lost)
    assert "; left behind: pid 7" in str(GOOD.model_copy(update={"leftovers": [FOUND]}))


def test_every_rule_has_a_mutant() -> None:
    assert {rule for rule, *_ in MUTANTS} == set(PROCESS_RULES)
