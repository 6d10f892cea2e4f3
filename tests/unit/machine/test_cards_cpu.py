# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pytest_laguna.machine.cards_cpu import MASK_VARIABLE, CpuCards, cores
from pytest_laguna.machine.errors import CardError
from tests.unit.machine.fakes import MEBIBYTE, sleeper

SLOTS = CpuCards(42)
CARDS = SLOTS.discover()[40:]  # slots belong to the whole host: other tests use others
TOKEN = "fedcba9876543210" * 2


def test_slots_go_round_the_allowed_cores_and_say_when_they_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3, 1})
    cards = CpuCards(5).discover()
    assert [card.identity for card in cards] == [f"cpu-slot-{slot}" for slot in range(5)]
    assert [card.name for card in cards] == [
        "core 1, shared with slot 2, 4",
        "core 3, shared with slot 3",
        "core 1, shared with slot 0, 4",
        "core 3, shared with slot 1",
        "core 1, shared with slot 0, 2",
    ]
    assert CpuCards(1000).discover()[999].name == "core 3, shared with slot 1, 3, 5 and 496 more"
    assert cores(cards[1:2]) == {3}
    assert cores(cards[:2]) == {1, 3}
    assert [card.name for card in CpuCards(2).discover()] == ["core 1", "core 3"]


@pytest.mark.parametrize("slots", [0, -1, 1025])
def test_no_slots_and_too_many_are_refused(slots: int) -> None:
    with pytest.raises(CardError, match=f"seen {slots} process slots; expected 1 to 1024"):
        CpuCards(slots)


def test_a_slots_memory_is_what_its_processes_hold() -> None:
    program = "import sys; block = bytearray(64 << 20); print(len(block), flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program], env={MASK_VARIABLE: "41"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        free, taken = SLOTS.observe(CARDS, None).states
        child.communicate()
    assert free.memory_used_bytes == 0
    assert 64 * MEBIBYTE <= (taken.memory_used_bytes or 0) < 256 * MEBIBYTE


def test_a_process_whose_environment_is_written_over_is_still_known_by_the_leases_mark() -> None:
    # What a supervised process inherits, and a title written over its environment does not change.
    program = (
        "import sys\n"
        "from pytest_laguna.machine import descent\n"
        "descent.set_mark(sys.argv[1])\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, TOKEN]
    with subprocess.Popen(command, env={}, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        (state,) = SLOTS.observe(CARDS[:1], TOKEN).states
        child.communicate()
    (holder,) = state.holders
    assert (holder.pid, holder.seen_by, holder.carries_token) == (child.pid, "lease token", True)


def test_a_process_of_several_slots_holds_each() -> None:
    slots = CpuCards(50)
    with sleeper(**{MASK_VARIABLE: "42,49,4"}) as child:
        states = slots.observe(slots.discover(), None).states
    assert [state.ordinal for state in states if child.pid in {holder.pid for holder in state.holders}] == [4, 42, 49]
