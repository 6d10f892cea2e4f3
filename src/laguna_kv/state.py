# SPDX-License-Identifier: Apache-2.0
"""The life of one layer's views: none, those of the profiling cache, none, those of the final cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from laguna_kv import views
from laguna_kv.compat import live_breakable_captures
from laguna_kv.errors import ContractError, LifecycleError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from laguna_kv.contract import Contract
    from laguna_kv.views import Views

MOST_BUILDS = 2
"""The profiling cache's views and the final cache's.

Rule: preregistration, lifecycle addendum: exactly one initialisation may follow the invalidation.
"""


_COUNTERS = frozenset({"builds", "invalidations"})
"""They tell a lost state from a discarded one; set by ``_count`` only."""


class ViewState:
    """Holds one complete contract or none, and counts the states built and discarded.

    A contract is made whole before it is stored, so there is no partial state. Only ``invalidate`` discards one, and
    only vLLM's own clearing of a layer's cache calls that (see ``backend``). The counters raise if set from outside, so
    a lost contract stays missed. ``owner`` is the layer's name once it is known; ``all_builds`` counts all layers of
    this process.
    """

    all_builds: ClassVar = 0
    builds: int
    invalidations: int

    __slots__ = (
        "_graphs_at_clear",
        "_make_contract",
        "_past_forward_hits",
        "_past_update_hits",
        "builds",
        "contract",
        "invalidations",
        "owner",
    )

    def __init__(self, make_contract: Callable[[torch.Tensor, Views, int, str], Contract]) -> None:
        self._make_contract = make_contract
        self._past_forward_hits = 0
        self._past_update_hits = 0
        self._graphs_at_clear: str | None = None
        self.owner = "layer not used yet"
        self.contract: Contract | None = None
        self._count(builds=0, invalidations=0)

    @property
    def forward_hits(self) -> int:
        """Successful uses by the attention forward, in all states."""
        return self._past_forward_hits + (self.contract.forward_hits if self.contract else 0)

    @property
    def update_hits(self) -> int:
        """Successful uses by the cache update, in all states."""
        return self._past_update_hits + (self.contract.update_hits if self.contract else 0)

    def build(self, kv_cache: torch.Tensor, head_size: int) -> Contract:
        """Build the one state allowed now, from the layer's present cache (see ``views.build_views``).

        Raises:
            LifecycleError: a state exists, or was lost without an invalidation; or the final cache already had its
                state; or breakable graphs could still be replayed when the last cache was cleared, or can now: they
                hold its address, and one discarded later may have been replayed in between.
            ContractError: the new aliases do not match the cache's geometry.
        """
        if self.contract is not None:
            raise LifecycleError(self.owner, "no state", "a complete one, which only a cleared cache discards")
        seen = f"{self.builds} states built, {self.invalidations} invalidated"
        if self.builds != self.invalidations:
            raise LifecycleError(self.owner, "every state built to be invalidated or held", f"{seen}, none held")
        if self.builds >= MOST_BUILDS:
            raise LifecycleError(self.owner, "one profiling and one final cache in a process", seen)
        if self.builds and (graphs := self._graphs_at_clear or _live_graphs()):
            seen = f"the cache cleared under {graphs} that hold its address"
            raise LifecycleError(self.owner, "no captured graph to outlive the cache it was captured on", seen)
        contract = self._make_contract(kv_cache, views.build_views(kv_cache, head_size), head_size, self.owner)
        self.contract = contract
        self._count(builds=self.builds + 1, invalidations=self.invalidations)
        ViewState.all_builds += 1
        return contract

    def invalidate(self) -> None:
        """Discard the whole state, if any, and with it every reference to the cache's memory.

        Never raises: vLLM's shutdown calls it too, with its graphs still alive.
        """
        if self.contract is None:
            return
        self._graphs_at_clear = _live_graphs()
        self._past_forward_hits += self.contract.forward_hits
        self._past_update_hits += self.contract.update_hits
        self.contract = None
        self._count(builds=self.builds, invalidations=self.invalidations + 1)

    def _count(self, *, builds: int, invalidations: int) -> None:
        object.__setattr__(self, "builds", builds)
        object.__setattr__(self, "invalidations", invalidations)

    def __setattr__(self, name: str, value: object) -> None:
        if name in _COUNTERS:
            raise ContractError(self.owner, f"views.{name}", "only a build or a clear to change it", value)
        super().__setattr__(name, value)


def _live_graphs() -> str | None:
    """Captured graphs that could be replayed now, in words, or None."""
    try:
        captures = live_breakable_captures()
    except Exception as error:  # noqa: BLE001 - from a changed vLLM: unknown is not none
        return f"captured graphs that cannot be counted ({type(error).__name__}: {error})"
    return f"{captures} captured graph(s)" if captures else None
