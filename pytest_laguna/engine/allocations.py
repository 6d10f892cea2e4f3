# SPDX-License-Identifier: Apache-2.0
"""Counts the memory allocations of a replay; the candidate must not change them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

COUNTED_REPLAYS = 4
"""Number of counted replays, the first watched ones: counting costs time, and a fifth count adds nothing."""


class ReplayAllocations:
    """Counts the allocations of the first replays.

    Attributes:
        counts: allocations of each counted replay, in order.
    """

    def __init__(self) -> None:
        self.counts: list[int] = []

    def replay(self, replay: Callable[[], Any]) -> Any:
        """Run a replay; count its allocations unless there are enough counts."""
        if len(self.counts) == COUNTED_REPLAYS:
            return replay()
        with _counting(self.counts):
            return replay()


@contextlib.contextmanager
def _counting(counts: list[int]) -> Iterator[None]:
    """Append the number of allocations made inside the block."""
    if torch.accelerator.is_available():
        before = _allocated_on_device()
        yield
        counts.append(_allocated_on_device() - before)
        return
    with NewMemory() as seen:
        yield
    counts.append(seen.count)


def _allocated_on_device() -> int:
    """Allocations served by the caching allocator on the current device since the process began."""
    return int(torch.accelerator.memory_stats()["allocation.all.allocated"])


class NewMemory(TorchDispatchMode):
    """Counts storages returned by dispatched operations: a CPU has no allocator to ask.

    Attributes:
        count: storages found in a result and in no argument.
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
    """Ids of the non-empty storages."""
    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor) and leaf.numel()]
    return {tensor.untyped_storage()._cdata for tensor in tensors}  # noqa: SLF001 - torch 2.13: the storage's identity
