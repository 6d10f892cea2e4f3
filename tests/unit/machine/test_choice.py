# SPDX-License-Identifier: Apache-2.0
"""From ``--cards`` to cards, with real leases and real processes on the cpu lane's slots."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_laguna.machine import leases
from pytest_laguna.machine.cards_cpu import MASK_VARIABLE
from pytest_laguna.machine.choice import choose
from pytest_laguna.machine.errors import CardError
from pytest_laguna.machine.sweep import Sweep
from tests.unit.machine.fakes import sleeper

# Slots belong to the whole host: other tests use others.


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "leases"


def take(place: Path, *slots: str) -> leases.Lease:
    _, cards = choose("cpu", slots, {}, directory=place)
    return leases.acquire(
        cards, Path("/sealed/0001"), sweep=lambda _token: Sweep([], []), idle=lambda _card: None, directory=place
    )


def test_free_cards_are_had_in_the_order_of_the_request(place: Path) -> None:
    source, cards = choose("cpu", ["73", "cpu-slot-71"], {}, directory=place)
    assert (source.lane, [card.ordinal for card in cards]) == ("cpu", [73, 71])


def test_a_card_outside_the_inherited_mask_is_refused(place: Path) -> None:
    assert choose("cpu", ["71"], {MASK_VARIABLE: "70,71"}, directory=place)[1][0].ordinal == 71
    with pytest.raises(CardError, match=r"72 = cpu-slot-72 .* outside the inherited mask; expected one of 70 = "):
        choose("cpu", ["72"], {MASK_VARIABLE: "70,71"}, directory=place)


def test_a_refusal_names_the_slots_beyond_the_cores_which_can_be_had_too(place: Path) -> None:
    slots = str(len(os.sched_getaffinity(0)))
    with pytest.raises(CardError, match=r"seen none; .*; choose from 0 = .*, or a higher number, a slot that"):
        choose("cpu", ["none"], {}, directory=place)
    assert choose("cpu", [slots], {}, directory=place)[1][0].identity == f"cpu-slot-{slots}"


def test_a_mask_may_leave_slots_beyond_the_cores(place: Path) -> None:
    assert choose("cpu", ["70"], {MASK_VARIABLE: "70,900"}, directory=place)[1][0].ordinal == 70
    with pytest.raises(CardError, match=r"71 = cpu-slot-71 .* outside the inherited mask; expected one of 900 = "):
        choose("cpu", ["71"], {MASK_VARIABLE: "900"}, directory=place)


def test_a_leased_card_is_busy(place: Path) -> None:
    lease = take(place, "71", "72")
    with pytest.raises(CardError, match=rf"72 = .* busy .leased, held by process {os.getpid()} since .*0001"):
        choose("cpu", ["70", "72"], {}, directory=place)
    lease.release()
    choose("cpu", ["70", "72"], {}, directory=place)


def test_a_card_that_a_stranger_holds_is_busy(place: Path) -> None:
    with sleeper(**{MASK_VARIABLE: "74"}) as child:
        with pytest.raises(CardError, match=f"busy .held by process {child.pid}: /bin/sleep 300"):
            choose("cpu", ["74"], {}, directory=place)
        choose("cpu", ["75"], {}, directory=place)


def test_what_is_left_on_a_stale_card_is_for_the_sweep_to_end(place: Path) -> None:
    lease = take(place, "76")
    with sleeper(**{MASK_VARIABLE: "76"}, LAGUNA_LEASE=lease.token):
        lease.quarantine("its arm survives")
        assert choose("cpu", ["76"], {}, directory=place)[1][0].ordinal == 76
