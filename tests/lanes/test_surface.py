# SPDX-License-Identifier: Apache-2.0
"""The scripted XPU has nothing that torch's does not have, by the same signatures, and keeps a device's rules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.lanes import recording, scripted_xpu
from tests.lanes.scripted_xpu import ACCELERATOR, SCRIPT, XPU, Event, Script, ScriptError, Stream, XPUGraph

DATA = Path(__file__).parents[1] / "data" / "lanes"
TRACES = sorted(DATA.glob("*.jsonl")) if DATA.is_dir() else []


def parameters(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in {"self", "cls"}]


@pytest.mark.parametrize(("module", "names"), [(torch.xpu, XPU), (torch.accelerator, ACCELERATOR)])
def test_every_scripted_name_is_torchs_and_takes_what_torch_takes(module: Any, names: dict[str, Any]) -> None:
    for name, scripted in names.items():
        real = getattr(module, name)
        assert inspect.isclass(real) == inspect.isclass(scripted), name
        if not inspect.isclass(real):
            most = len(parameters(real))
            facts = inspect.signature(scripted).parameters.values()
            assert len([fact for fact in facts if fact.default is fact.empty]) <= most, name
            required = [kind for kind in inspect.signature(real).parameters.values() if kind.default is kind.empty]
            inspect.signature(scripted).bind(*([None] * len(required)))


@pytest.mark.parametrize("scripted", [XPUGraph, Stream, Event])
def test_every_method_of_a_scripted_class_is_torchs(scripted: type) -> None:
    real = getattr(torch.xpu, scripted.__name__)
    methods = {name: method for name, method in vars(scripted).items() if inspect.isfunction(method) and name[0] != "_"}
    assert methods
    for name, method in methods.items():
        assert parameters(method) == parameters(getattr(real, name)), name


def test_every_call_of_an_event_of_any_device_is_torchs() -> None:
    assert {
        name for name in ("record", "query", "elapsed_time", "wait", "synchronize") if hasattr(torch.Event, name)
    } == {name for name, method in vars(Event).items() if inspect.isfunction(method) and name[0] != "_"}


@pytest.fixture
def device() -> Iterator[Script]:
    with scripted_xpu.installed() as script:
        calls = list(script.calls)
        yield script
        script.capturing = None
        script.calls[:] = calls


def _while_capturing(call: Callable[[], Any]) -> None:
    graph = XPUGraph()
    graph.capture_begin()
    try:
        call()
    finally:
        graph.capture_end()


def _twice() -> None:
    graph = XPUGraph()
    _captured(graph)
    _captured(graph)


def _captured(graph: Any) -> Any:
    graph.capture_begin()
    graph.capture_end()
    return graph


def _two_at_once() -> None:
    _while_capturing(lambda: XPUGraph().capture_begin())


def _untimed() -> float:
    first, second = Event(), Event()
    first.record()
    second.record()
    torch.accelerator.synchronize()
    return second.elapsed_time(first)


def _too_early() -> float:
    first, second = Event(enable_timing=True), Event(enable_timing=True)
    first.record()
    second.record()
    return first.elapsed_time(second)


def _never() -> float:
    return Event(enable_timing=True).elapsed_time(Event(enable_timing=True))


def _after_reset() -> None:
    graph = _captured(XPUGraph())
    graph.reset()
    graph.replay()


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda: XPUGraph().replay(), "replay of a graph that is new"),
        (lambda: XPUGraph().capture_end(), "capture_end of a graph that is new"),
        (_twice, "capture_begin of a graph that is captured"),
        (_two_at_once, "while another graph is captured"),
        (_after_reset, "replay of a graph that is reset"),
        (lambda: XPUGraph(keep_graph=True), "not in the script"),
        (lambda: XPUGraph().instantiate(), "the script has no XPUGraph.instantiate"),
        (lambda: XPUGraph.from_file, "the script has no XPUGraph.from_file"),
        (lambda: _while_capturing(torch.accelerator.synchronize), "synchronize while a stream is capturing"),
        (lambda: _while_capturing(SCRIPT.current.synchronize), "Stream.synchronize while"),
        (lambda: _while_capturing(SCRIPT.current.query), "Stream.query while"),
        (lambda: _while_capturing(lambda: Event().query()), "Event.query while"),
        (lambda: _while_capturing(lambda: Event().synchronize()), "Event.synchronize while"),
        (_untimed, "made without enable_timing"),
        (_too_early, "not complete: synchronise first"),
        (_never, "that nobody recorded"),
        (lambda: Event(torch.device("cpu")).record(), "event of cpu recorded on a stream of xpu"),
        (lambda: Event(blocking=True), "Event takes no blocking on this device"),
        (lambda: Stream().wait_event(Event()), "wait_event on an event that nobody recorded"),
        (lambda: Stream().wait_stream(None), "wait_stream on NoneType"),
        (lambda: torch.xpu.manual_seed(1), "torch.xpu.manual_seed was called, and is not in the script"),
        (lambda: torch.accelerator.max_memory_reserved(0), "max_memory_reserved was called, and is not in the script"),
    ],
)
def test_what_a_device_would_refuse_is_refused(act: Callable[[], Any], reason: str, device: Script) -> None:
    del device
    with pytest.raises(ScriptError, match=reason):
        act()


def test_time_passes_with_work_and_is_known_once_it_is_done(device: Script) -> None:
    first, second = Event(enable_timing=True), Event(enable_timing=True)
    graph = _captured(XPUGraph())
    first.record()
    graph.replay()
    graph.replay()
    second.record()
    assert not second.query()
    torch.accelerator.synchronize()
    assert second.query()
    assert first.elapsed_time(second) == 3 * scripted_xpu.TICK_MILLISECONDS
    assert ("XPUGraph", "replay") in device.calls


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_what_was_called_on_a_real_card_keeps_the_scripts_rules(path: Path, device: Script) -> None:
    entries = recording.read(path)
    assert recording.replay(entries) is device
    called = {(owner, call) for owner, _, call, _ in entries}
    assert {("XPUGraph", "capture_begin"), ("XPUGraph", "replay"), ("Event", "elapsed_time")} <= called
    assert called <= {*device.calls}


def test_a_trace_out_of_order_breaks_them(device: Script) -> None:
    del device
    good: list[recording.Entry] = [
        ("Event", 1, "__new__", []),
        ("Event", 2, "__new__", []),
        ("Event", 1, "record", []),
        ("Event", 2, "record", []),
        ("torch", 0, "synchronize", []),
        ("Event", 1, "elapsed_time", [2]),
    ]
    recording.replay(good)
    with pytest.raises(ScriptError, match="not complete"):
        recording.replay([entry for entry in good if entry[2] != "synchronize"])
