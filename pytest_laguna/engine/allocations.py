# SPDX-License-Identifier: Apache-2.0
"""How many allocations a replay makes, which the candidate must not change."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

COUNTED_REPLAYS = 4
"""Of the first watched replays; counting costs time, and a fifth would say nothing new."""


class ReplayAllocations:
    """Counts for the first replays that go through it.

    Attributes:
        counts: one for each of them, in their order.
    """

    def __init__(self) -> None:
        self.counts: list[int] = []

    def replay(self, replay: Callable[[], Any]) -> Any:
        """Run a replay and count, or only run it when there are enough counts."""
        if len(self.counts) == COUNTED_REPLAYS:
            return replay()
        with _counting(self.counts):
            return replay()


@contextlib.contextmanager
def _counting(counts: list[int]) -> Iterator[None]:
    """Add the number of allocations made inside."""
    if torch.accelerator.is_available():
        before = _allocated_on_device()
        yield
        counts.append(_allocated_on_device() - before)
        return
    with NewMemory() as seen:
        yield
    counts.append(seen.count)


def _allocated_on_device() -> int:
    """Allocations that the caching allocator has served since the process began, on the current device."""
    return int(torch.accelerator.memory_stats()["allocation.all.allocated"])


class NewMemory(TorchDispatchMode):
    """Counts the dispatched operations that return new memory: a CPU has no allocator that tells.

    Attributes:
        count: storages that were in a result and in no argument.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        keywords = kwargs or {}
        known = _storages((args, keywords))
        returned = func(*args, **keywords)
        self.count += len(_storages(returned) - known)
        return returned


def _storages(values: Any) -> set[int]:
    """The storages that hold anything."""
    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor) and leaf.numel()]
    return {tensor.untyped_storage()._cdata for tensor in tensors}  # noqa: SLF001 - torch 2.13: the storage's identity
