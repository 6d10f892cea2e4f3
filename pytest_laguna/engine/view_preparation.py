# SPDX-License-Identifier: Apache-2.0
"""The timing seam: times how vLLM's attention comes by its views of the KV cache, the same way for both graph arms.

It stands in ``FlashAttentionImpl``, below the candidate's class. There it evaluates vLLM's expression on whatever the
method was handed, the cache tensor in the control and the candidate's seam in the candidate, and hands the result on.
So vLLM's method evaluates the expression a second time, on a stand-in that already has the answer: both arms pay for
that alike, and it is not in the time. The candidate's contract, which is asked above that class, is timed where it is
asked and counted with it. What canonicalises the views is what vLLM's own method would call there, in each arm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pytest_laguna.evidence.replay_profile import ViewPreparation

from .profile_directory import ProfileError

Views = tuple[torch.Tensor, torch.Tensor]


class TimingSeam:
    """Times and counts from ``start`` to ``stop``; nothing of it is left after ``remove``."""

    def __init__(
        self, attention: type[Any], canonical: Callable[[torch.Tensor], torch.Tensor], states: Sequence[Any]
    ) -> None:
        """Change nothing yet.

        Args:
            attention: vLLM's ``FlashAttentionImpl``.
            canonical: what vLLM's forward applies to both views: its ``canonicalize_singleton_dim_strides``, or what
                the candidate has put before it.
            states: the candidate's ``ViewState`` of each target layer; empty in the control.
        """
        self._attention = attention
        self._canonical = canonical
        self._states = states
        self._methods = {name: attention.__dict__[name] for name in ("forward", "do_kv_cache_update")}
        self._prepared = _Prepared()
        self._reset()

    def _reset(self) -> None:
        self._recording = False
        self._before = (0, 0)
        self.forward_calls = self.forward_ns = self.update_calls = self.update_ns = 0
        self.incumbent_calls = self.persistent_calls = 0

    def install(self) -> None:
        """Stand in both methods of the class, and in each layer's contract.

        Raises:
            ProfileError: a layer has no contract yet: a captured graph has run each of them.
        """
        for state in self._states:
            if state.contract is None:
                raise ProfileError(f"{state.owner}: expected its views built when its graph was captured, seen none")
        self._attention.forward = self._timed_forward(self._methods["forward"])
        self._attention.do_kv_cache_update = self._timed_update(self._methods["do_kv_cache_update"])
        for state in self._states:
            state.contract = _TimedContract(state.contract, self)

    def remove(self) -> None:
        """Leave everything as it was found."""
        for name, method in self._methods.items():
            setattr(self._attention, name, method)
        for state in self._states:
            if isinstance(state.contract, _TimedContract):  # a cleared cache has discarded it
                state.contract = state.contract.contract
        self._prepared.views = None

    def start(self) -> None:
        """Begin with nothing counted."""
        self._reset()
        self._before = self._counted()
        self._recording = True

    def stop(self) -> ViewPreparation:
        """What there was since ``start``."""
        self._recording = False
        hits, builds = (now - before for now, before in zip(self._counted(), self._before, strict=True))
        return ViewPreparation(
            forward_calls=self.forward_calls,
            forward_ns=self.forward_ns,
            update_calls=self.update_calls,
            update_ns=self.update_ns,
            incumbent_calls=self.incumbent_calls,
            persistent_calls=self.persistent_calls,
            persistent_hits=hits,
            persistent_builds=builds,
        )

    def _counted(self) -> tuple[int, int]:
        """The candidate's own hits and builds up to now."""
        hits = sum(state.forward_hits + state.update_hits for state in self._states)
        return hits, sum(state.builds for state in self._states)

    def _timed_forward(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        now, canonical, prepared = time.perf_counter_ns, self._canonical, self._prepared

        def timed(  # noqa: PLR0913, PLR0917 - vLLM's signature
            implementation: Any, layer: Any, query: Any, key: Any, value: Any, kv_cache: Any, *rest: Any, **named: Any
        ) -> Any:
            if not self._recording:
                return forward(implementation, layer, query, key, value, kv_cache, *rest, **named)
            begin = now()
            key_cache, value_cache = kv_cache.transpose(1, 2).split(implementation.head_size, dim=-1)
            prepared.views = canonical(key_cache), canonical(value_cache)
            end = now()
            self.forward_ns += end - begin
            self.forward_calls += 1
            self.incumbent_calls += isinstance(kv_cache, torch.Tensor)
            return forward(implementation, layer, query, key, value, prepared, *rest, **named)

        return timed

    def _timed_update(self, update: Callable[..., Any]) -> Callable[..., Any]:
        now, prepared = time.perf_counter_ns, self._prepared

        def timed(  # noqa: PLR0913, PLR0917 - vLLM's signature
            implementation: Any, layer: Any, key: Any, value: Any, kv_cache: Any, slot_mapping: Any
        ) -> Any:
            if not self._recording:
                return update(implementation, layer, key, value, kv_cache, slot_mapping)
            begin = now()
            prepared.views = kv_cache.transpose(1, 2).split(implementation.head_size, dim=-1)
            end = now()
            self.update_ns += end - begin
            self.update_calls += 1
            self.incumbent_calls += isinstance(kv_cache, torch.Tensor)
            return update(implementation, layer, key, value, prepared, slot_mapping)

        return timed


class _Prepared:
    """Answers vLLM's view expression with the views that were timed."""

    __slots__ = ("views",)

    def __init__(self) -> None:
        self.views: Views | None = None

    def transpose(self, _first: int, _second: int) -> _Prepared:
        return self

    def split(self, _size: int, dim: int) -> Views | None:
        del dim
        return self.views


class _TimedContract:
    """A layer's contract, timed when it is asked for its seam; everything else is the contract's own."""

    __slots__ = ("_seam", "contract")

    def __init__(self, contract: Any, seam: TimingSeam) -> None:
        self.contract = contract
        self._seam = seam

    def __getattr__(self, name: str) -> Any:
        return getattr(self.contract, name)

    def forward(self, source: torch.Tensor, /, now: Callable[[], int] = time.perf_counter_ns) -> Any:
        contract = self.contract
        begin = now()
        handed = contract.forward(source)
        end = now()
        self._seam.forward_ns += end - begin
        self._seam.persistent_calls += 1
        return handed

    def update(self, source: torch.Tensor, /, now: Callable[[], int] = time.perf_counter_ns) -> Any:
        contract = self.contract
        begin = now()
        handed = contract.update(source)
        end = now()
        self._seam.update_ns += end - begin
        self._seam.persistent_calls += 1
        return handed
