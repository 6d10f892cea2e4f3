# SPDX-License-Identifier: Apache-2.0
"""The timing seam: times how vLLM's attention comes by its views of the KV cache, the same way for both graph arms.

It stands in ``FlashAttentionImpl``, below the candidate's class, and in each layer's contract above it. A preparation
is timed where vLLM makes it: from the moment that its method asks the cache it was handed (the tensor in the control,
the candidate's seam in the candidate) for the first part of its view expression, until it has the views, in the forward
after both were canonicalised. Nothing is evaluated twice. The candidate's contract is timed where it is asked, and
counted with it. The clock is read in C: in Python that costs more than what it times.
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
"""The candidate's hits and builds up to some moment."""

Clocked: TypeAlias = tuple[tuple[tuple[int, int], tuple[int, int]], tuple[int, int, int, int, int, int], bytes]
"""What ``ReplayClock.stop`` gives."""


class Stopped(NamedTuple):
    """What is known when the seam is stopped: of which a sample is made when there is time for it.

    Attributes:
        clocked: ticks of the seam's clock and nanoseconds of the kernel's, at the start and at the stop; calls and
            ticks of the forward, of the update, incumbent and persistent calls; the segments' readings in ticks, as in
            ``TICKS``, empty where none were run.
        before: hits and builds at the start.
        after: and at the stop.
    """

    clocked: Clocked
    before: Counted
    after: Counted

    def nanoseconds(self, ticks: int) -> int:
        """So many ticks in whole nanoseconds; what is longer does not become shorter by it."""
        (first_ticks, first), (last_ticks, last) = self.clocked[0]
        return ticks * (last - first) // (last_ticks - first_ticks)

    def readings(self) -> list[int]:
        """Of the segments, in nanoseconds since the start."""
        return [self.since_start(reading) for (reading,) in TICKS.iter_unpack(self.clocked[2])]

    def since_start(self, reading: int) -> int:
        """From the start to a reading, in nanoseconds."""
        return self.nanoseconds(reading - self.clocked[0][0][0])


class ViewCounts(NamedTuple):
    """Calls and nanoseconds of one replay; ``evidence.replay_profile.ViewPreparation`` before it is written."""

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
        """What there was between ``start`` and ``stop``."""
        forward, forward_ticks, update, update_ticks, *calls = stopped.clocked[1]
        candidates = (after - before for before, after in zip(stopped.before, stopped.after, strict=True))
        times = stopped.nanoseconds(forward_ticks), stopped.nanoseconds(update_ticks)
        return cls(forward, times[0], update, times[1], *calls, *candidates)


class TimingSeam:
    """Times and counts from ``start`` to ``stop``; nothing of it is left after ``remove``.

    Attributes:
        clock: what it times with, which times the segments as well.
    """

    def __init__(self, attention: type[Any], canonical: tuple[ModuleType, str], states: Sequence[Any]) -> None:
        """Change nothing yet.

        Args:
            attention: vLLM's ``FlashAttentionImpl``.
            canonical: the module and the name by which its forward finds what it applies to both views.
            states: the candidate's ``ViewState`` of each target layer; empty in the control.
        """
        self.clock = ReplayClock(torch.Tensor, has_counter())
        module, name = canonical
        # The last is where the method has its cache, counted with self.
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
        """Stand in both methods of the class, before the canonicalisation, and in each layer's contract.

        Raises:
            ProfileError: a layer has no contract yet: a captured graph has run each of them.
        """
        for state in self._states:
            if state.contract is None:
                raise ProfileError(f"{state.owner}: expected its views built when its graph was captured, seen none")
        self._found = [(place, name, vars(place)[name]) for place, name, *_ in self._places]
        for (place, name, found), (*_, kind, position) in zip(self._found, self._places, strict=True):
            setattr(place, name, Timed(self.clock, found, kind, position))
        self._contract_kinds = {type(state.contract) for state in self._states}
        for state in self._states:
            state.contract = TimedContract(self.clock, state.contract)

    def remove(self) -> None:
        """Leave everything as it was found."""
        for place, name, found in self._found:
            setattr(place, name, found)
        self._found = []
        for state in self._states:
            if isinstance(state.contract, TimedContract):  # a cleared cache has discarded it
                state.contract = state.contract.contract
        self._contract_kinds = set()

    def start(self) -> None:
        """Begin with nothing counted."""
        self._before = self._counted()
        self.clock.start()

    def stop(self) -> tuple[Clocked, Counted, Counted]:
        """What there was since ``start``, as the parts of a ``Stopped``: the replay is spared the making of one."""
        return self.clock.stop(), self._before, self._counted()

    def _counted(self) -> tuple[int, int]:
        """All hits and builds of this process up to now: the candidate's own counters.

        Its totals and not each layer's: those of 48 layers take as long to read as several of their preparations.
        """
        if not self._states:  # the control has none to ask, and its replay is spared the sums
            return 0, 0
        hits = sum(kind.all_hits() for kind in self._contract_kinds)
        return hits, sum(kind.all_builds for kind in self._state_kinds)
