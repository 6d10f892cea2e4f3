# SPDX-License-Identifier: Apache-2.0
"""Looks at the cpu lane's real cards, with real processes on them, judged by the real rules."""

from __future__ import annotations

import datetime
import itertools
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

import pytest

from pytest_laguna.analysis.machine.idle import IDLE_RULES, judge_idle
from pytest_laguna.evidence.machine.idle import IdleRequirement, seconds_between
from pytest_laguna.machine import idle
from pytest_laguna.machine.cards import Card, Observation
from pytest_laguna.machine.cards_cpu import MASK_VARIABLE, CpuCards
from pytest_laguna.machine.cards_xpu import XpuCards
from pytest_laguna.machine.errors import CardError
from pytest_laguna.verdict import NotProvenError, Verdict
from tests.unit.machine.fakes import ADDRESSES, MEBIBYTE, XpuHost, sleeper

TOKEN = "a5" * 16
SLOTS = CpuCards(22)
CARDS = SLOTS.discover()[20:]  # slots belong to the whole host: other tests use others
REQUIREMENT = IdleRequirement(snapshots=3, seconds=0.2, memory_bytes=0, foreign_workers=True)


def test_idle_slots_are_proven_idle() -> None:
    record = idle.take_record(SLOTS, CARDS, phase="before", token=TOKEN, requirement=REQUIREMENT, settle_seconds=5)
    assert judge_idle(record, REQUIREMENT) == (Verdict.PASS, "2 cards idle before the lease in 3 snapshots")
    assert len(record.settling) == 1
    assert seconds_between(record.snapshots[0].utc, record.snapshots[-1].utc) >= 0.2


def test_the_looks_cover_the_time_by_the_clock_that_is_recorded() -> None:
    requirement = REQUIREMENT.model_copy(update={"snapshots": 1})
    record = idle.take_record(SLOTS, CARDS, phase="after", token=TOKEN, requirement=requirement, settle_seconds=0)
    assert judge_idle(record, requirement)[0] is Verdict.PASS
    assert len(record.snapshots) == 2


@pytest.mark.timeout(30)
def test_a_clock_that_is_set_back_ends_the_looks_and_voids_them(monkeypatch: pytest.MonkeyPatch) -> None:
    times = itertools.count()

    def set_back() -> str:
        hours = min(next(times), 1)
        now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=hours)
        return now.isoformat(timespec="microseconds")

    monkeypatch.setattr(idle, "utc_now", set_back)
    start = time.monotonic()
    record = idle.take_record(SLOTS, CARDS, phase="before", token=TOKEN, requirement=REQUIREMENT, settle_seconds=5)
    assert time.monotonic() - start < 10
    verdict, reason = judge_idle(record, REQUIREMENT)
    assert verdict is Verdict.NOT_PROVEN  # the time is not covered either
    assert reason.startswith("interval-covered: ")
    assert IDLE_RULES["clock-rises"](record, REQUIREMENT) is not None


@pytest.mark.parametrize(
    ("phase", "variables", "verdict"),
    [
        ("before", {}, "NOT_PROVEN"),
        ("after", {}, "VOID"),
        ("after", {"LAGUNA_LEASE": TOKEN}, "FAIL"),
    ],
)
def test_a_process_on_a_slot_is_blamed_on_whom_it_belongs_to(
    phase: str, variables: Mapping[str, str], verdict: str
) -> None:
    requirement = REQUIREMENT.model_copy(update={"memory_bytes": 1 << 30})
    with sleeper(**{MASK_VARIABLE: "21"}, **variables) as child:
        record = idle.take_record(
            SLOTS,
            CARDS,
            phase="before" if phase == "before" else "after",
            token=TOKEN,
            requirement=requirement,
            settle_seconds=0,
        )
    found, reason = judge_idle(record, requirement)
    assert found == verdict
    assert reason.startswith(f"no-holder: process {child.pid} (/bin/sleep 300), started at tick ")


class Freed(CpuCards):
    """Slots whose holder goes away before the third look, however slow the host is."""

    def __init__(self, slots: int, holder: subprocess.Popen[bytes]) -> None:
        super().__init__(slots)
        self.holder = holder
        self.looks = 0

    def observe(self, cards: Sequence[Card], token: str | None) -> Observation:
        self.looks += 1
        if self.looks == 3:
            self.holder.communicate()
        return super().observe(cards, token)


def test_memory_that_comes_back_late_is_waited_for_and_the_curve_is_kept() -> None:
    program = "import sys; block = bytearray(96 << 20); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program], env={MASK_VARIABLE: "20"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        curve = idle.settle(Freed(22, child), CARDS, TOKEN, 0, deadline_seconds=300)
    held = [(point.used_bytes[0] or 0) > 64 * MEBIBYTE for point in curve]
    assert held == [True, True, False]
    assert [point.used_bytes[1] for point in curve] == [0, 0, 0]
    assert curve[2].used_bytes == [0, 0]
    assert 2 * idle.POLL_SECONDS <= curve[2].seconds < 300


def test_memory_that_does_not_come_back_ends_the_wait_and_fails_the_lease() -> None:
    requirement = REQUIREMENT.model_copy(update={"snapshots": 1, "seconds": 0})
    with sleeper(**{MASK_VARIABLE: "20"}, LAGUNA_LEASE=TOKEN):
        start = time.monotonic()
        record = idle.take_record(SLOTS, CARDS, phase="after", token=TOKEN, requirement=requirement, settle_seconds=0.4)
        assert time.monotonic() - start < 120
    assert record.settling[-1].seconds >= 0.4
    assert judge_idle(record, requirement)[0] is Verdict.FAIL


class Silent(CpuCards):
    """Cards that cannot be looked at."""

    def observe(self, cards: Sequence[Card], token: str | None) -> Observation:
        raise CardError(f"no driver for {len(cards)} cards of {token}", "load it")


def test_without_telemetry_nothing_is_proven() -> None:
    with pytest.raises(NotProvenError, match=r"no driver for 2 cards .*; load it"):
        idle.take_record(Silent(2), CARDS, phase="before", token=TOKEN, requirement=REQUIREMENT, settle_seconds=5)


# On an Intel host


LAB = IdleRequirement(snapshots=2, seconds=0.1, memory_bytes=32 * MEBIBYTE, foreign_workers=True)


def _verdict(xpu: XpuCards) -> tuple[Verdict, str]:
    record = idle.take_record(xpu, xpu.discover(), phase="after", token=TOKEN, requirement=LAB, settle_seconds=0)
    return judge_idle(record, LAB)


def test_both_idle_forms_of_the_tool_are_idle(xpu: XpuCards, xpu_host: XpuHost) -> None:
    assert _verdict(xpu) == (Verdict.PASS, "4 cards idle after the lease in 2 snapshots")
    xpu_host.say(shows_itself=False)
    assert _verdict(xpu) == (Verdict.PASS, "4 cards idle after the lease in 2 snapshots")


def test_a_device_that_only_the_kernel_shows_as_open_is_held(xpu: XpuCards, xpu_host: XpuHost) -> None:
    with sleeper(LAGUNA_LEASE=TOKEN) as child:
        xpu_host.open_device(child.pid, ADDRESSES[3])
        verdict, reason = _verdict(xpu)
    assert (verdict, reason.partition(",")[0]) == (Verdict.FAIL, f"no-holder: process {child.pid} (/bin/sleep 300)")


def test_a_card_without_memory_telemetry_is_not_proven_and_not_waited_for(xpu: XpuCards, xpu_host: XpuHost) -> None:
    xpu_host.say(statistics={"device_level": []})
    start = time.monotonic()
    record = idle.take_record(xpu, xpu.discover()[:1], phase="after", token=TOKEN, requirement=LAB, settle_seconds=300)
    assert time.monotonic() - start < 250
    verdict, reason = judge_idle(record, LAB)
    assert verdict is Verdict.NOT_PROVEN
    assert reason.startswith(f"telemetry-present: snapshot 0: seen no memory of card {ADDRESSES[0]}")


# The quick look at a quarantined card


def test_the_quick_look_says_why_a_card_is_not_idle(xpu: XpuCards, xpu_host: XpuHost) -> None:
    card = xpu.discover()[0]
    assert idle.check(xpu, 32 * MEBIBYTE)(card) is None
    assert idle.check(xpu, 5)(card) == "seen 27787264 bytes in use; expected at most 5"
    with sleeper() as child:
        xpu_host.open_device(child.pid, ADDRESSES[0])
        assert (idle.check(xpu, 32 * MEBIBYTE)(card) or "").startswith(
            f"seen a holder, process {child.pid}, started at tick "
        )
        xpu_host.say(statistics={"device_level": []})
    xpu_host.proc = xpu_host.proc / "empty"
    xpu_host.proc.mkdir()
    quiet = XpuCards(xpu_host.program, xpu_host.sys, xpu_host.proc)
    assert idle.check(quiet, 32 * MEBIBYTE)(card) == "seen no memory figure; expected one"
    assert idle.check(Silent(1), 0)(CARDS[0]) == "no driver for 1 cards of None; load it"
