# SPDX-License-Identifier: Apache-2.0
"""A real lease of process slots in a place of its own, for tests that drive a gate's code without a session."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from pytest_laguna.attempt.attempt import Attempt
from pytest_laguna.campaign import Idle
from pytest_laguna.machine import descent, idle, leases
from pytest_laguna.machine.cards_cpu import CpuCards
from pytest_laguna.machine.sweep import sweep
from pytest_laguna.run.leasing import LeasedCards
from pytest_laguna.verdict import Verdict

SLOT = 912 + os.getpid() % 44 * 2
"""The first of two slots of this test process's own: slots belong to the whole host, and ``demo.CARD`` is below."""


def lease(place: Path, attempt: Path, wanted: Idle) -> LeasedCards:
    """Two slots, leased for an attempt; the leases lie in ``place``."""
    source = CpuCards(SLOT + 2)
    held = leases.acquire(
        source.discover()[SLOT:],
        attempt,
        sweep=functools.partial(sweep, seconds=5.0),
        idle=idle.check(source, wanted.memory_bytes),
        directory=place,
    )
    return LeasedCards(source, held, wanted)


def require_nothing_left(held: LeasedCards, attempt: Attempt | None = None) -> None:
    """See that nothing bears the lease's token, and that its cards are given back as free ones; it is recorded."""
    place, token = held.lease._directory.path, held.lease.token
    assert descent.bearers(token) == []
    verdict, reason = held.give_back(attempt)
    assert verdict is Verdict.PASS, reason
    assert [(state.held, state.record.state) for state in leases.states(place)] == [(False, "released")] * 2
