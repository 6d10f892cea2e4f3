# SPDX-License-Identifier: Apache-2.0
"""How a process ended, in words, and when its end is a clean one."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from pytest_laguna.evidence.machine.process import FoundProcess, ProcessRecord, Reason

SEVENS: dict[str, Any] = dict.fromkeys(FoundProcess.model_fields, 7)
FOUND = FoundProcess.model_construct(**SEVENS)


def record(**changes: Any) -> ProcessRecord:
    values: dict[str, Any] = {
        "reason": Reason.EXITED, "wait_status": 0, "last_signal": None, "wall_seconds": 1.0,
        "peak_memory_bytes": None, "leftovers": [], "survivors": [], "proven_empty": True, "last_journal_line": None,
    }  # fmt: skip
    return ProcessRecord.model_construct(**(values | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"reason": Reason.SUPERVISOR_LOST},
        {"wait_status": 256},
        {"wait_status": None},
        {"leftovers": [FOUND]},
        {"survivors": [FOUND]},
        {"proven_empty": False},
    ],
    ids=lambda changes: next(iter(changes)) + str(next(iter(changes.values())))[:6],
)
def test_each_part_of_a_clean_end_is_needed(changes: dict[str, Any]) -> None:
    assert record().is_clean
    assert not record(**changes).is_clean


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "exit code 0 after 1.0 s"),
        ({"wait_status": 3 << 8}, "exit code 3 after 1.0 s"),
        ({"wait_status": signal.SIGKILL}, "SIGKILL after 1.0 s"),
        ({"wait_status": 40}, "signal 40 after 1.0 s"),
        ({"wait_status": None}, "exit unknown after 1.0 s"),
        ({"proven_empty": False}, "exit code 0 after 1.0 s; not proven that all its processes have ended"),
    ],
    ids=["clean", "code", "signal", "number", "unknown", "unproven"],
)
def test_an_end_is_told_in_words(changes: dict[str, Any], told: str) -> None:
    assert str(record(**changes)) == f"{Reason.EXITED}, {told}"


def test_a_process_that_survives_needs_no_further_proof_that_something_is_left() -> None:
    told = str(record(survivors=[FOUND], proven_empty=False))
    assert "survived SIGKILL: " in told
    assert "not proven" not in told
