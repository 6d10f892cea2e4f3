# SPDX-License-Identifier: Apache-2.0
"""An XPU by script: torch's surface for one, which records each call and enforces the rules of streams and graphs.

Tensors lie on the CPU: ``OnHost`` turns a device into it, so that what runs computes. What torch has and the script
lacks raises; ``test_surface.py`` compares what the script has with the signatures of the installed torch.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from pytest_laguna.engine import tape_graph

DEVICE = torch.device("xpu", 0)
TICK_MILLISECONDS = 0.25
"""What each piece of submitted work takes on the scripted device."""


class ScriptError(RuntimeError):
    """A call that a device would refuse, or that the script does not know."""


@dataclasses.dataclass
class Script:
    """A scripted device.

    Attributes:
        name: what the card is called.
        count: cards that the process sees.
        calls: every call so far, as owner and name.
    """

    name: str = "Intel(R) Arc(TM) Pro B70 Graphics"
    count: int = 1
    calls: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    submitted: int = 0
    finished: int = 0
    capturing: Any = None
    streams: Iterator[int] = dataclasses.field(default_factory=lambda: iter(range(1, 10**6)))
    current: Any = None

    def call(self, owner: str, name: str) -> None:
        """Record a call."""
        self.calls.append((owner, name))

    def submit(self) -> None:
        """Put one piece of work on the device."""
        self.submitted += 1

    def refuse_in_capture(self, what: str) -> None:
        """Refuse what waits for the device while a graph is captured on it."""
        if self.capturing is not None:
            raise ScriptError(f"{what} while a stream is capturing: operation not permitted")


class _Named(type):
    """A class whose unknown attributes say so: an ``AttributeError`` would pass for a feature that is missing."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ScriptError(f"the script has no {cls.__name__}.{name}; add it with its rules, or do not call it")


SCRIPT = Script()
"""This process's device."""


class Stream:
    def __init__(self, device: Any = None, priority: int = 0, **keywords: Any) -> None:
        SCRIPT.call("Stream", "__new__")
        del priority
        self.device = torch.device("xpu", 0) if device is None else torch.device(device)
        self.stream_id = keywords.get("stream_id", next(SCRIPT.streams))
        self.device_index = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def wait_event(self, event: Any) -> None:
        SCRIPT.call("Stream", "wait_event")
        if event.at is None:
            raise ScriptError("wait_event on an event that nobody recorded")

    def wait_stream(self, stream: Any) -> None:
        SCRIPT.call("Stream", "wait_stream")
        if not isinstance(stream, Stream):
            raise ScriptError(f"wait_stream on {type(stream).__name__}")

    def record_event(self, event: Any = None) -> Any:
        SCRIPT.call("Stream", "record_event")
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        SCRIPT.call("Stream", "query")
        SCRIPT.refuse_in_capture("Stream.query")
        return SCRIPT.finished >= SCRIPT.submitted

    def synchronize(self) -> None:
        SCRIPT.call("Stream", "synchronize")
        SCRIPT.refuse_in_capture("Stream.synchronize")
        SCRIPT.finished = SCRIPT.submitted


class Event:
    """``torch.xpu.Event``, and ``torch.Event`` of this device, which takes the device first."""

    def __init__(self, device: Any = None, *, enable_timing: bool = False, **keywords: Any) -> None:
        SCRIPT.call("Event", "__new__")
        if keywords:
            raise ScriptError(f"Event takes no {', '.join(keywords)} on this device")
        self.device = torch.device("xpu", 0) if device is None else torch.device(device)
        self.timed = enable_timing
        self.at: int | None = None

    def record(self, stream: Any = None) -> None:
        SCRIPT.call("Event", "record")
        stream = SCRIPT.current if stream is None else stream
        if stream.device.type != self.device.type:
            raise ScriptError(f"event of {self.device} recorded on a stream of {stream.device}")
        SCRIPT.submit()
        self.at = SCRIPT.submitted

    def wait(self, stream: Any = None) -> None:
        SCRIPT.call("Event", "wait")
        (SCRIPT.current if stream is None else stream).wait_event(self)

    def query(self) -> bool:
        SCRIPT.call("Event", "query")
        SCRIPT.refuse_in_capture("Event.query")
        return self.at is None or SCRIPT.finished >= self.at

    def elapsed_time(self, end_event: Any) -> float:
        SCRIPT.call("Event", "elapsed_time")
        SCRIPT.refuse_in_capture("Event.elapsed_time")
        if not (self.timed and end_event.timed):
            raise ScriptError("elapsed_time of events that were made without enable_timing")
        if self.at is None or end_event.at is None:
            raise ScriptError("elapsed_time of an event that nobody recorded")
        if SCRIPT.finished < max(self.at, end_event.at):
            raise ScriptError("elapsed_time of an event that is not complete: synchronise first")
        return float((end_event.at - self.at) * TICK_MILLISECONDS)

    def synchronize(self) -> None:
        SCRIPT.call("Event", "synchronize")
        SCRIPT.refuse_in_capture("Event.synchronize")
        SCRIPT.finished = max(SCRIPT.finished, self.at or 0)


class XPUGraph(metaclass=_Named):
    """A graph that replays what was dispatched, as the cpu lane's tape does, under a graph's rules."""

    def __init__(self, keep_graph: bool = False) -> None:
        SCRIPT.call("XPUGraph", "__new__")
        if keep_graph:
            raise ScriptError("XPUGraph(keep_graph=True) is not in the script")
        self._tape: tape_graph.TapeGraph | None = None
        self._state = "new"

    def __getattr__(self, name: str) -> Any:
        raise ScriptError(f"the script has no XPUGraph.{name}; add it with its rules, or do not call it")

    def capture_begin(self, pool: Any = None) -> None:
        SCRIPT.call("XPUGraph", "capture_begin")
        if self._state != "new":
            raise ScriptError(f"capture_begin of a graph that is {self._state}")
        if SCRIPT.capturing is not None:
            raise ScriptError("capture_begin while another graph is captured on this device")
        self._tape = tape_graph.TapeGraph()
        self._recording = contextlib.ExitStack()
        self._recording.enter_context(tape_graph.recording())
        self._tape.capture_begin(pool)
        SCRIPT.capturing, self._state = self, "capturing"

    def capture_end(self) -> None:
        SCRIPT.call("XPUGraph", "capture_end")
        if SCRIPT.capturing is not self or self._tape is None:
            raise ScriptError(f"capture_end of a graph that is {self._state}")
        self._tape.capture_end()
        self._recording.close()
        SCRIPT.capturing, self._state = None, "captured"

    def replay(self) -> None:
        SCRIPT.call("XPUGraph", "replay")
        if self._state != "captured" or self._tape is None:
            raise ScriptError(f"replay of a graph that is {self._state}")
        SCRIPT.refuse_in_capture("XPUGraph.replay")
        SCRIPT.submit()
        self._tape.replay()

    def reset(self) -> None:
        SCRIPT.call("XPUGraph", "reset")
        self._tape, self._state = None, "reset"

    def pool(self) -> tuple[int, int]:
        SCRIPT.call("XPUGraph", "pool")
        return (0, 1)


def called(name: str) -> None:
    SCRIPT.call("torch", name)


def current_stream(device: Any = None) -> Any:
    del device
    called("current_stream")
    return SCRIPT.current


def synchronize(device: Any = None) -> None:
    del device
    called("synchronize")
    SCRIPT.refuse_in_capture("synchronize")
    SCRIPT.finished = SCRIPT.submitted


def set_stream(stream: Any) -> None:
    called("set_stream")
    SCRIPT.current = stream


@contextlib.contextmanager
def stream(stream: Any) -> Iterator[None]:
    called("stream")
    before, SCRIPT.current = SCRIPT.current, stream
    try:
        yield
    finally:
        SCRIPT.current = before


def properties(device: Any = None) -> types.SimpleNamespace:
    del device
    called("get_device_properties")
    return types.SimpleNamespace(name=SCRIPT.name, total_memory=32 * 2**30, max_compute_units=256)


def stats(device: Any = None) -> collections.OrderedDict[str, Any]:
    del device
    called("memory_stats")
    return collections.OrderedDict({"allocation.all.allocated": 0})


def answers(name: str, value: Any) -> Callable[..., Any]:
    def answer(device: Any = None) -> Any:
        del device
        called(name)
        return value() if callable(value) else value

    answer.__name__ = name
    return answer


SCRIPT.current = Stream(stream_id=0)
_COMMON = {
    "current_stream": current_stream,
    "synchronize": synchronize,
    "memory_stats": stats,
    "empty_cache": answers("empty_cache", None),
    "device_count": answers("device_count", lambda: SCRIPT.count),
    "is_available": answers("is_available", value=True),
}
XPU: dict[str, Any] = _COMMON | {
    "Stream": Stream,
    "Event": Event,
    "XPUGraph": XPUGraph,
    "stream": stream,
    "set_stream": set_stream,
    "get_device_properties": properties,
    "get_device_name": answers("get_device_name", lambda: SCRIPT.name),
    "graph_pool_handle": answers("graph_pool_handle", (0, 1)),
    "is_current_stream_capturing": answers("is_current_stream_capturing", lambda: SCRIPT.capturing is not None),
    "current_device": answers("current_device", 0),
}
"""What the script has of ``torch.xpu``."""
ACCELERATOR: dict[str, Any] = _COMMON | {
    "current_accelerator": answers("current_accelerator", lambda: torch.device("xpu")),
    "set_device_index": answers("set_device_index", None),
    "current_device_index": answers("current_device_index", 0),
}
"""And of ``torch.accelerator``."""


class OnHost(TorchFunctionMode):
    """Puts whatever is asked for on the scripted device on the CPU."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        del types
        if func is torch.device:  # naming the device is no use of it
            return func(*args, **(kwargs or {}))
        args, kwargs = tree_map_only(torch.device, _on_host, (tuple(args), kwargs or {}))
        if isinstance(kwargs.get("device"), str):
            kwargs["device"] = _on_host(torch.device(kwargs["device"]))
        return func(*args, **kwargs)


def _on_host(device: torch.device) -> torch.device:
    return torch.device("cpu") if device.type == "xpu" else device


class _Closed:
    """What a module has and the script does not: using it is an error, and looking whether it is there is not."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_arguments: Any, **_keywords: Any) -> Any:
        raise ScriptError(
            f"{self._name} was called, and is not in the script; add it with its rules, or do not call it"
        )


@contextlib.contextmanager
def installed() -> Iterator[Script]:
    """Have this process's torch see the scripted device."""
    with contextlib.ExitStack() as patches:
        for module, names in ((torch.xpu, XPU), (torch.accelerator, ACCELERATOR)):
            public = [name for name, value in vars(module).items() if isinstance(value, types.FunctionType)]
            closed = {name: _Closed(f"{module.__name__}.{name}") for name in public if name[0] != "_"}
            for name, value in (closed | names).items():
                patches.enter_context(mock.patch.object(module, name, value))
        patches.enter_context(mock.patch.object(torch, "Event", Event))
        patches.enter_context(mock.patch.object(torch, "Stream", Stream))  # what torch.xpu's streams are, too
        for name in ("Stream", "Event", "CUDAGraph", "graph", "graph_pool_handle", "default_stream", "current_stream",
                     "stream", "set_stream", "is_current_stream_capturing"):  # fmt: skip
            patches.enter_context(mock.patch.object(torch.cuda, name, getattr(torch.cuda, name)))  # put back at the end
        patches.enter_context(mock.patch.object(torch.distributed, "is_xccl_available", functools.partial(bool, 1)))
        patches.enter_context(OnHost())
        yield SCRIPT
