# SPDX-License-Identifier: Apache-2.0
"""Leases between real controllers: a race, an owner that is killed, and what it leaves behind."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_laguna.machine import descent, idle, leases
from pytest_laguna.machine.cards_cpu import MASK_VARIABLE, CpuCards
from pytest_laguna.machine.errors import LeaseError
from pytest_laguna.machine.sweep import Sweep, sweep
from tests.unit.machine.fakes import sleeper

SLOTS = CpuCards(54)
CARDS = SLOTS.discover()[50:]  # slots belong to the whole host: other tests use others

# Leases the slots of its arguments, says so, and holds them until its input ends.
CONTROLLER = """
import sys
from pathlib import Path
from pytest_laguna.machine import leases
from pytest_laguna.machine.cards_cpu import CpuCards
from pytest_laguna.machine.errors import LeaseError
from pytest_laguna.machine.sweep import Sweep
directory, *slots = sys.argv[1:]
cards = CpuCards(54).discover()[50:]
print("ready", flush=True)
sys.stdin.readline()
try:
    lease = leases.acquire(
        [cards[int(slot)] for slot in slots], Path("/attempt"), directory=Path(directory),
        sweep=lambda token: Sweep([], []), idle=lambda card: None,
    )
except LeaseError as error:
    print("refused", error, flush=True)
else:
    print("leased", lease.token, flush=True)
    sys.stdin.readline()
    lease.release()
"""


class Controller:
    def __init__(self, directory: Path, *slots: int) -> None:
        command = [sys.executable, "-c", CONTROLLER, str(directory), *map(str, slots)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def read(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split(maxsplit=1)

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextlib.contextmanager
def controllers(directory: Path, *wanted: tuple[int, ...]) -> Iterator[list[Controller]]:
    """Processes that stand right before their lease."""
    started = [Controller(directory, *slots) for slots in wanted]
    try:
        for each in started:
            assert each.read() == ["ready"]
        yield started
    finally:
        for each in started:
            each.process.kill()
            each.process.communicate()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "leases"


def test_of_controllers_that_race_for_the_same_cards_exactly_one_gets_them(place: Path) -> None:
    # Every pair of these wants a card in common, in different orders.
    wanted = [(0, 1), (1, 2), (2, 0), (2, 1, 0), (1, 0), (0, 2)]
    with controllers(place, *wanted) as racing:
        for each in racing:
            each.go_on()
        answers = [each.read() for each in racing]
        assert sorted(word for word, _ in answers) == ["leased", *["refused"] * 5], answers
        winner = racing[[word for word, _ in answers].index("leased")]
        named = (
            f"held by process {winner.process.pid} ",
            "by a session that is just taking it",
        )  # one that then failed
        assert all(any(owner in text for owner in named) for word, text in answers if word == "refused"), answers
        assert {state.record.owner_pid for state in leases.states(place) if state.held} == {winner.process.pid}
        winner.go_on()
        assert winner.process.wait() == 0
    with controllers(place, (0, 1, 2)) as (after,):
        after.go_on()
        assert after.read()[0] == "leased"


def test_controllers_with_different_cards_do_not_meet(place: Path) -> None:
    with controllers(place, (0, 2), (1,), (3,)) as apart:
        for each in apart:
            each.go_on()
        assert [each.read()[0] for each in apart] == ["leased"] * 3
        assert [state.held for state in leases.states(place)] == [True] * 4


def test_what_a_killed_controller_leaves_is_quarantined_until_it_is_swept_and_idle(place: Path) -> None:
    with controllers(place, (1, 2)) as (owner,):
        owner.go_on()
        _, token = owner.read()
        token = token.strip()
        owner.process.send_signal(signal.SIGKILL)
        owner.process.wait()
        assert [(state.held, state.stale) for state in leases.states(place)] == [(False, True)] * 2

        # What its arm left running, beyond its death.
        with sleeper(LAGUNA_LEASE=token, **{MASK_VARIABLE: "51,52"}) as orphan:
            look = idle.check(SLOTS, 0)
            blind = functools.partial(leases.acquire, CARDS[1:3], Path("/next"), idle=look, directory=place)
            with pytest.raises(LeaseError, match=f"a holder, process {orphan.pid}, started at tick .*: /bin/sleep 300"):
                blind(sweep=lambda _token: Sweep([], []))
            assert orphan.poll() is None
            assert [state.stale for state in leases.states(place)] == [True, True]

            lease = blind(sweep=functools.partial(sweep, seconds=10))
            assert orphan.wait() == -signal.SIGKILL
        assert [record.token for record in lease.cleared] == [token, token]
        assert {record.owner_pid for record in lease.cleared} == {owner.process.pid}
        assert lease.token != token
        assert [(state.held, state.record.owner_pid) for state in leases.states(place)] == [(True, os.getpid())] * 2
        lease.release()
    assert [state.stale for state in leases.states(place)] == [False, False]


def test_a_child_of_the_controller_does_not_inherit_the_lease(place: Path) -> None:
    take = functools.partial(
        leases.acquire, CARDS[:1], Path("/a"), sweep=lambda _token: Sweep([], []), idle=lambda _: None, directory=place
    )
    lease = take()
    with subprocess.Popen(["/bin/sleep", "300"], close_fds=False) as child:
        lease.release()
        take().release()  # the kernel may still be closing what the child's exec closes: that is not a lease
        assert descent.find(child.pid) is not None
        child.kill()
