# SPDX-License-Identifier: Apache-2.0
"""The target's captured verification batch, with hooks around its replay.

Hooks are set on the objects of one capture and removed again; vLLM's classes stay unchanged. Names read in vLLM 0.26.0,
0.32.0 and 0.33.0: the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from vllm.compilation import breakable_cudagraph
from vllm.compilation.breakable_cudagraph import BreakableCUDAGraphWrapper

Replay = Callable[[], Any]


class CapturedBatch:
    """One captured batch descriptor of the target's wrapper.

    Attributes:
        descriptor: vLLM's description of the batch.
        tokens: of the batch.
        segments: of a replay, in order; vLLM's own list.
    """

    def __init__(self, wrapper: Any, entry: Any) -> None:
        self._wrapper = wrapper
        self._entry = entry
        self.descriptor = str(entry.batch_descriptor)
        self.tokens: int = entry.batch_descriptor.num_tokens
        self.segments: list[Replay] = entry.capture.segments

    @contextlib.contextmanager
    def around(self, whole: Callable[[Replay], Any]) -> Iterator[None]:
        """Run each replay of this batch, and of no other, by ``whole``, which calls vLLM's own.

        The wrapper looks ``_replay`` up on itself, and passes the entry of the due batch.
        """
        replay = self._wrapper._replay  # noqa: SLF001

        def replayed(entry: Any, arguments: Any, keywords: Any) -> Any:
            if entry is not self._entry:
                return replay(entry, arguments, keywords)
            return whole(lambda: replay(entry, arguments, keywords))

        with _set_on(self._wrapper, "_replay", replayed):
            yield

    @contextlib.contextmanager
    def inside(self, loop: Callable[[], None], offloader: Callable[[Replay], None]) -> Iterator[None]:
        """Run ``loop`` in place of the loop over the segments, and ``offloader`` around the wait for offloaded weights.

        A replay first waits for the offloader, found by a module global, and then calls the capture's ``replay``.
        """
        module: Any = breakable_cudagraph
        original = module.get_offloader

        class Waiting:
            def sync_prev_onload(self) -> None:
                offloader(original().sync_prev_onload)

            def __getattr__(self, name: str) -> Any:
                return getattr(original(), name)

        waiting = Waiting()
        module.get_offloader = lambda: waiting
        try:
            with _set_on(self._entry.capture, "replay", loop):
                yield
        finally:
            module.get_offloader = original


@contextlib.contextmanager
def _set_on(owner: Any, name: str, value: object) -> Iterator[None]:
    """Shadow a class's attribute on one object inside the block; afterwards, restore the object."""
    before = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def verification_batch(worker: Any, tokens: int) -> CapturedBatch:
    """The target's capture for batches of ``tokens``.

    Raises:
        RuntimeError: there is not exactly one, or vLLM checks its inputs at every replay, which would be timed.
    """
    target = worker.model_runner.get_model()
    # A weak set of all wrappers; each has entries of its own by batch descriptor (0.33.0: any hashable).
    found = [
        (wrapper, entry)
        for wrapper in list(BreakableCUDAGraphWrapper._all_instances)  # noqa: SLF001
        if wrapper.unwrap() is target
        for entry in wrapper.entries.values()
        if entry.capture is not None and entry.batch_descriptor.num_tokens == tokens
    ]
    if len(found) != 1:
        message = f"rank {worker.rank}: seen {len(found)} captures of the target for {tokens} tokens; expected one"
        raise RuntimeError(message)
    [(wrapper, entry)] = found
    if wrapper.is_debugging_mode:
        message = f"rank {worker.rank}: seen vLLM at DEBUG, where replays check inputs; expected another log level"
        raise RuntimeError(message)
    return CapturedBatch(wrapper, entry)
