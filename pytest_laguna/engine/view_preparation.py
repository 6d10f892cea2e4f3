# SPDX-License-Identifier: Apache-2.0
"""The timing seam: times how vLLM's attention comes by its views of the KV cache, the same way for both graph arms.

It stands in ``FlashAttentionImpl``, below the candidate's class, and in each layer's contract above it. A preparation
is timed where vLLM makes it: from the moment that its method asks the cache it was handed (the tensor in the control,
the candidate's seam in the candidate) for the first part of its view expression, until it has the views, in the forward
after both were canonicalised. Nothing is evaluated twice. The candidate's contract is timed where it is asked, and
counted with it. The clock is read in C: in Python that costs more than what it times.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple, Self, TypeAlias

import torch

from .profile_directory import ProfileError
from .replay_clock import CANONICAL, FORWARD, UPDATE, ReplayClock, Timed, TimedContract, has_counter

Stopped: TypeAlias = tuple[tuple[int, int, int, int, int, int], bytes, tuple[int, int], tuple[int, int]]
"""What is known when the seam is stopped: what the clock counted, its readings of the segments (int64 nanoseconds since
the start), and the candidate's hits and builds before and after. It becomes a sample when there is time for it."""


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
        timed, _readings, (hits_before, builds_before), (hits, builds) = stopped
        return cls(*timed, hits - hits_before, builds - builds_before)


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

    def stop(self) -> Stopped:
        """What there was since ``start``."""
        timed, readings = self.clock.stop()
        return timed, readings, self._before, self._counted()

    def _counted(self) -> tuple[int, int]:
        """All hits and builds of this process up to now: the candidate's own counters.

        Its totals and not each layer's: those of 48 layers take as long to read as several of their preparations.
        """
        if not self._states:
            return 0, 0
        hits = sum(kind.all_hits() for kind in self._contract_kinds)
        return hits, sum(kind.all_builds for kind in self._state_kinds)
