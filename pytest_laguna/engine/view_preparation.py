# SPDX-License-Identifier: Apache-2.0
"""The timing seam: times the view preparation in vLLM's attention, in the same way for both graph arms.

It wraps methods of ``FlashAttentionImpl``, below the candidate's class, and each layer's contract above it. A
preparation is timed inside vLLM's code: from the first request for a part of the view expression to the finished views,
in the forward after both were canonicalised. The request goes to the cache, a tensor in the control and the candidate's
seam in the candidate. Nothing is evaluated twice. The candidate's contract is timed at its call, and counted with it.
The clock is read in C: in Python the reading would cost more than the preparation.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple, Self, TypeAlias

import torch

from .profile_directory import ProfileError
from .replay_clock import CANONICAL, FORWARD, UPDATE, ReplayClock, Timed, TimedContract, has_counter

TICKS = struct.Struct("=q")
"""A reading of the seam's clock."""

Counted: TypeAlias = tuple[int, int]
"""The candidate's hits and builds so far."""

Clocked: TypeAlias = tuple[tuple[tuple[int, int], tuple[int, int]], tuple[int, int, int, int, int, int], bytes]
"""Result of ``ReplayClock.stop``."""


class Stopped(NamedTuple):
    """Raw values of a stopped seam; samples are made from them later.

    Attributes:
        clocked: ticks of the seam's clock and nanoseconds of the kernel's, at the start and at the stop; calls and
            ticks of the forward, of the update, incumbent and persistent calls; the segments' readings in ticks, as in
            ``TICKS``, empty if none ran.
        before: hits and builds at the start.
        after: and at the stop.
    """

    clocked: Clocked
    before: Counted
    after: Counted

    def nanoseconds(self, ticks: int) -> int:
        """Whole nanoseconds of a number of ticks; the rounding keeps their order."""
        (first_ticks, first), (last_ticks, last) = self.clocked[0]
        return ticks * (last - first) // (last_ticks - first_ticks)

    def readings(self) -> list[int]:
        """Readings of the segments, in nanoseconds since the start."""
        return [self.since_start(reading) for (reading,) in TICKS.iter_unpack(self.clocked[2])]

    def since_start(self, reading: int) -> int:
        """Nanoseconds from the start to a reading."""
        return self.nanoseconds(reading - self.clocked[0][0][0])


class ViewCounts(NamedTuple):
    """Calls and nanoseconds of one replay, as ``evidence.replay_profile.ViewPreparation``."""

    forward_calls: int
    forward_ns: int
    update_calls: int
    update_ns: int
    incumbent_calls: int
    persistent_calls: int
    persistent_hits: int
    persistent_builds: int

    @classmethod
    def of(cls, stopped: Stopped) -> Self:
        """Counts between ``start`` and ``stop``."""
        forward, forward_ticks, update, update_ticks, *calls = stopped.clocked[1]
        candidates = (after - before for before, after in zip(stopped.before, stopped.after, strict=True))
        times = stopped.nanoseconds(forward_ticks), stopped.nanoseconds(update_ticks)
        return cls(forward, times[0], update, times[1], *calls, *candidates)


class TimingSeam:
    """Times and counts from ``start`` to ``stop``; ``remove`` takes all of it away.

    Attributes:
        clock: of the seam; also times the segments.
    """

    def __init__(self, attention: type[Any], canonical: tuple[ModuleType, str], states: Sequence[Any]) -> None:
        """Store the arguments; change nothing yet.

        Args:
            attention: vLLM's ``FlashAttentionImpl``.
            canonical: module and name of the function that its forward applies to both views.
            states: the candidate's ``ViewState`` of each target layer; empty in the control.
        """
        self.clock = ReplayClock(torch.Tensor, has_counter())
        module, name = canonical
        # The last number is the position of the cache among the method's arguments, self included.
        self._places: tuple[tuple[Any, str, int, int], ...] = (
            (attention, "forward", FORWARD, 5),
            (attention, "do_kv_cache_update", UPDATE, 4),
            (module, name, CANONICAL, 0),
        )
        self._states = states
        self._found: list[tuple[Any, str, Any]] = []
        self._contract_kinds: set[type[Any]] = set()
        self._state_kinds = {type(state) for state in states}
        self._before = (0, 0)

    def install(self) -> None:
        """Wrap both methods of the class, the canonicalisation, and each layer's contract.

        Raises:
            ProfileError: a layer has no contract, although capturing a graph runs each of them.
        """
        for state in self._states:
            if state.contract is None:
                raise ProfileError(f"{state.owner}: seen no views; expected them since its graph was captured")
        self._found = [(place, name, vars(place)[name]) for place, name, *_ in self._places]
        for (place, name, found), (*_, kind, position) in zip(self._found, self._places, strict=True):
            setattr(place, name, Timed(self.clock, found, kind, position))
        self._contract_kinds = {type(state.contract) for state in self._states}
        for state in self._states:
            state.contract = TimedContract(self.clock, state.contract)

    def remove(self) -> None:
        """Restore everything as it was."""
        for place, name, found in self._found:
            setattr(place, name, found)
        self._found = []
        for state in self._states:
            if isinstance(state.contract, TimedContract):  # not if a cleared cache has discarded it
                state.contract = state.contract.contract
        self._contract_kinds = set()

    def start(self) -> None:
        """Start counting from zero."""
        self._before = self._counted()
        self.clock.start()

    def stop(self) -> tuple[Clocked, Counted, Counted]:
        """Counts since ``start``, as the parts of a ``Stopped``, because making one would cost the replay time."""
        return self.clock.stop(), self._before, self._counted()

    def _counted(self) -> tuple[int, int]:
        """All hits and builds of this process so far, from the candidate's own counters.

        Its totals, not each layer's: reading those of 48 layers takes as long as several of their preparations.
        """
        if not self._states:  # the control has no counters, and its replay is spared the sums
            return 0, 0
        hits = sum(kind.all_hits() for kind in self._contract_kinds)
        return hits, sum(kind.all_builds for kind in self._state_kinds)
