# SPDX-License-Identifier: Apache-2.0
"""Records what the engine calls on a real device, and replays such a trace on the scripted one.

An entry is ``[owner, number, call, arguments]``: which class or ``torch``, which of its objects (0 for functions), what
was called, and which objects it was given. A trace of CUDA names its graphs as an XPU does.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tests.lanes.scripted_xpu import SCRIPT, XPU, Event, Script

Entry = tuple[str, int, str, list[int]]
FUNCTIONS = ("current_stream", "synchronize", "device_count", "memory_stats", "current_accelerator", "is_available")
"""Of ``torch.accelerator``: what the engine calls."""
GRAPH_CALLS = ("capture_begin", "capture_end", "replay", "reset")
EVENT_CALLS = ("record", "query", "elapsed_time")


class Trace:
    """Calls in their order."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[object] = []

    def number(self, thing: object) -> int:
        """Which object it is, from 1."""
        if id(thing) not in self._numbers:
            self._kept.append(thing)  # so that no later object gets its identity
            self._numbers[id(thing)] = len(self._kept)
        return self._numbers[id(thing)]

    def add(self, owner: str, thing: object, call: str, *given: object) -> None:
        """Take one call; ``thing`` is None for a function."""
        self.entries.append((owner, self.number(thing) if thing is not None else 0, call, [*map(self.number, given)]))


@contextlib.contextmanager
def recorded() -> Iterator[Trace]:
    """Record what this process calls on its real device from now on."""
    trace = Trace()
    real_graph, real_event = torch.cuda.CUDAGraph, torch.Event

    class RecordedGraph(real_graph):  # type: ignore[misc,valid-type]
        pass

    for call in GRAPH_CALLS:
        setattr(RecordedGraph, call, _recording(trace, "XPUGraph", call, getattr(real_graph, call)))

    class RecordedEvent:
        def __init__(self, device: Any = None, **keywords: Any) -> None:
            trace.add("Event", self, "__new__")
            self.event = real_event(device, **keywords)

        def record(self, stream: Any = None) -> None:
            trace.add("Event", self, "record")
            self.event.record(stream)

        def query(self) -> bool:
            trace.add("Event", self, "query")
            return bool(self.event.query())

        def elapsed_time(self, end_event: RecordedEvent) -> float:
            trace.add("Event", self, "elapsed_time", end_event)
            return float(self.event.elapsed_time(end_event.event))

    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(torch.cuda, "CUDAGraph", RecordedGraph))
        patches.enter_context(mock.patch.object(torch, "Event", RecordedEvent))
        for name in FUNCTIONS:
            real = getattr(torch.accelerator, name)
            patches.enter_context(mock.patch.object(torch.accelerator, name, _recording(trace, "torch", name, real)))
        yield trace


def _recording(trace: Trace, owner: str, name: str, real: Any) -> Any:
    def call(*arguments: Any, **keywords: Any) -> Any:
        trace.add(owner, arguments[0] if owner == "XPUGraph" else None, name)
        return real(*arguments, **keywords)

    return call


def write(trace: Trace, path: Path) -> None:
    """Keep a trace, one entry a line."""
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in trace.entries))


def read(path: Path) -> list[Entry]:
    """A kept trace."""
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()]


def replay(entries: list[Entry]) -> Script:
    """Make each call of a trace on the scripted device, whose rules hold; what a device would refuse raises."""
    things: dict[int, Any] = {}
    for owner, number, call, given in entries:
        if owner == "torch":
            getattr(torch.accelerator, call)()
        elif call == "__new__":
            things[number] = Event(enable_timing=True)
        else:
            if number not in things:
                things[number] = XPU[owner]()
            getattr(things[number], call)(*(things[argument] for argument in given))
    return SCRIPT
