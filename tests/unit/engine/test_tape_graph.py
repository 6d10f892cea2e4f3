# SPDX-License-Identifier: Apache-2.0
"""The tape graph: what it replays, what it refuses, and that nothing is left behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from pytest_laguna.engine import tape_graph
from pytest_laguna.engine.tape_graph import CaptureError, TapeGraph, recording

Body = Callable[[], torch.Tensor]


def capture(body: Body) -> tuple[TapeGraph, torch.Tensor]:
    graph = TapeGraph()
    with recording():
        graph.capture_begin()
        result = body()
        graph.capture_end()
    return graph, result


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    before = _get_current_dispatch_mode_stack()
    yield
    assert _get_current_dispatch_mode_stack() == before
    with recording():  # no recorder is still entered, and no tape still records
        graph = TapeGraph()
        graph.capture_begin()
        graph.capture_end()


def check(source: torch.Tensor, body: Body) -> TapeGraph:
    """Capture on one input, replay on others, and compare bitwise with the body run on the same input."""
    graph, result = capture(body)
    for seed in (1, 2):
        source.copy_(torch.randn(source.shape, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        replayed = result.clone()
        assert torch.equal(replayed, body())
    return graph


@pytest.mark.parametrize("inference", [False, True])
def test_replay_computes_anew_on_the_captured_tensors(inference: bool) -> None:
    with torch.inference_mode(inference):
        source = torch.randn(4, 8)
        weight = torch.randn(8, 8)
        graph = check(source, lambda: torch.softmax((source @ weight).relu() + 1.0, -1))
    assert len(graph) > 3


def test_a_tape_captured_in_inference_mode_replays_outside_of_it() -> None:
    with torch.inference_mode():
        source = torch.ones(3)
        total = torch.zeros(3)
        graph, _ = capture(lambda: total.add_(source))
    graph.replay()
    assert total.tolist() == [2.0, 2.0, 2.0]


def test_operations_in_place_change_the_captured_tensor_at_each_replay() -> None:
    state = torch.zeros(3)
    graph, _ = capture(lambda: state.add_(1.0))
    graph.replay()
    graph.replay()
    assert state.tolist() == [3.0, 3.0, 3.0]


def test_out_arguments_and_scatter_are_replayed() -> None:
    source = torch.randn(2, 6)
    buffer = torch.zeros(2, 6)

    def body() -> torch.Tensor:
        torch.mul(source, 2.0, out=buffer)
        routed = torch.zeros_like(source).scatter_(-1, buffer.topk(2, -1).indices, 1.0)
        return buffer * routed

    check(source, body)


def test_views_are_not_steps_and_what_is_written_through_them_is_seen() -> None:
    source = torch.randn(4, 6)

    def body() -> torch.Tensor:
        left, right = source.transpose(0, 1).split(3, dim=0)
        joined = torch.empty(2, 3, 4)
        joined[0].copy_(left)
        joined[1].copy_(right.contiguous())
        return joined.view(6, 4) + 0.0

    check(source, body)
    graph, _ = capture(lambda: source[1:].view(-1, 3).contiguous().t())
    assert len(graph) == 0


def test_what_only_sometimes_copies_is_decided_by_storage() -> None:
    source = torch.randn(3, 3)
    aliasing, _ = capture(lambda: source.contiguous().to(torch.float32).reshape(9))
    assert len(aliasing) == 0
    check(source, lambda: source.t().contiguous().to(torch.float64).reshape(9))


def test_indices_of_integers_are_replayed() -> None:
    cache = torch.zeros(5, 2)
    slots = torch.tensor([1, 3])
    values = torch.ones(2, 2)
    graph, gathered = capture(lambda: cache.index_put_((slots,), values)[slots] * 2)
    slots.copy_(torch.tensor([0, 4]))
    values.fill_(7.0)
    graph.replay()
    assert cache[[0, 1, 3, 4]].tolist() == [[7.0, 7.0], [1.0, 1.0], [1.0, 1.0], [7.0, 7.0]]
    assert gathered.tolist() == [[14.0, 14.0], [14.0, 14.0]]


def test_several_new_results_of_one_operation_are_all_replayed() -> None:
    source = torch.randn(3, 5)

    def body() -> torch.Tensor:
        values, indices = source.topk(2, -1)
        return values + indices

    graph, result = capture(body)
    source.copy_(torch.randn(3, 5))
    graph.replay()
    assert torch.equal(result, source.topk(2, -1).values + source.topk(2, -1).indices)


REFUSED: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda source: source.sum().item(),
    "truth of a tensor": lambda source: bool(source.sum() > 0),
    "nonzero": lambda source: source.nonzero(),
    "boolean mask read": lambda source: source[source > 0],
    "boolean mask written": lambda source: source.index_put_((source > 0,), torch.tensor(1.0)),
    "masked_select": lambda source: torch.masked_select(source, source > 0),
    "repeat_interleave by a tensor": lambda source: source.repeat_interleave(torch.tensor([1, 2, 3])),
    "unique": torch.unique,
    "equality of tensors": lambda source: torch.equal(source, source + 1),
    "allclose": lambda source: torch.allclose(source, source + 1),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_what_no_graph_can_hold_is_refused(name: str, inference: bool) -> None:
    with torch.inference_mode(inference):
        source = torch.tensor([1.0, -2.0, 3.0])
        with pytest.raises(CaptureError, match=r"in a capture; expected (no host value and no|a) shape"):
            capture(lambda: REFUSED[name](source))  # type: ignore[arg-type, return-value]


def test_metadata_of_a_tensor_is_no_host_value() -> None:
    source = torch.randn(2, 3)
    check(source, lambda: source * source.size(0) + source.stride(0) + source.numel() + int(source.storage_offset()))


class _Operation:
    """As a native kernel looks to a tape; its results are of forms that no ATen operation of ours returns."""

    namespace = "aten"
    tags: tuple[torch.Tag, ...] = ()

    class _schema:  # noqa: N801 - torch's name
        name = "aten::made_up"
        returns: tuple[object, ...] = ()
        is_mutable = False

    def __init__(self, body: Callable[[torch.Tensor], object]) -> None:
        self.body = body

    def __call__(self, source: torch.Tensor) -> object:
        return self.body(source)


def test_a_new_result_that_overlaps_itself_is_refused() -> None:
    with pytest.raises(CaptureError, match="expected a writable one"):
        TapeGraph().record(_Operation(lambda source: source.sum().expand(4)), (torch.ones(2),), {})


def test_new_results_that_a_replay_could_not_find_are_refused() -> None:
    with pytest.raises(CaptureError, match="expected them where a replay finds them"):
        TapeGraph().record(_Operation(lambda source: ([source + 1], source)), (torch.ones(2),), {})


def test_a_replay_of_another_shape_is_an_error_and_no_broadcast() -> None:
    source = torch.ones(2, 3)
    graph, _ = capture(lambda: source * 2)
    source.resize_(1, 3)
    with pytest.raises(CaptureError, match=r"seen shape \(1, 3\) in replay; expected \(2, 3\)"):
        graph.replay()


def test_tapes_begin_and_end_in_order_only() -> None:
    with pytest.raises(CaptureError, match="outside recording"):
        TapeGraph().capture_begin()
    with recording():
        first, second = TapeGraph(), TapeGraph()
        first.capture_begin()
        with pytest.raises(CaptureError, match="no nested captures"):
            second.capture_begin()
        with pytest.raises(CaptureError, match="seen an end without a begin"):
            second.capture_end()
        with pytest.raises(CaptureError, match="seen entered twice"), recording():
            pass
        first.capture_end()


@pytest.fixture
def breaking_operation() -> Iterator[dict[str, Callable[[], None]]]:
    """An operation with a Python kernel that ends the tape, does something eagerly, and begins the next."""
    hooks: dict[str, Callable[[], None]] = {}
    with torch.library._scoped_library("laguna_tape", "FRAGMENT") as library:
        library.define("attend(Tensor(a!) out, Tensor x) -> ()")

        def attend(out: torch.Tensor, x: torch.Tensor) -> None:
            scaled = x * 2
            hooks["end"]()
            hooks["eager"]()
            hooks["begin"]()
            out.add_(scaled)

        library.impl("attend", attend, "CPU")
        yield hooks


def test_a_break_inside_a_decomposed_operation_parts_two_tapes(
    breaking_operation: dict[str, Callable[[], None]],
) -> None:
    first, second = TapeGraph(), TapeGraph()
    source, out = torch.ones(3), torch.zeros(3)
    eager_calls = []

    def eager() -> None:
        # Data-dependent things are allowed here: nothing of it is on a tape.
        eager_calls.append(out.sum().item())
        out.mul_(10.0)

    breaking_operation.update(end=first.capture_end, eager=eager, begin=second.capture_begin)
    with recording():
        first.capture_begin()
        base = source + 1
        torch.ops.laguna_tape.attend(out, base)
        result = out - 1
        second.capture_end()
    assert (len(first), len(second)) == (2, 2)
    assert result.tolist() == [3.0] * 3
    source.fill_(4.0)
    first.replay()
    eager()
    second.replay()
    assert out.tolist() == [4.0 * 10 + 10.0] * 3
    assert result.tolist() == [49.0] * 3
    assert eager_calls == [0.0, 12.0]


def test_an_exception_inside_a_break_leaves_no_mode_behind(
    breaking_operation: dict[str, Callable[[], None]],
) -> None:
    graph = TapeGraph()

    def eager() -> None:
        raise ValueError("the break failed")

    breaking_operation.update(end=graph.capture_end, eager=eager)

    def captured() -> None:
        with recording():
            graph.capture_begin()
            torch.ops.laguna_tape.attend(torch.zeros(3), torch.ones(3))

    with pytest.raises(ValueError, match="the break failed"):
        captured()
    assert (torch.ones(2) > 0)[0].item() is True  # refused if a tape still recorded


COLLECTIVE = """
import os, sys, torch, torch.distributed as dist
from tests.unit.engine.test_tape_graph import capture

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
source, reduced = torch.ones(4), torch.zeros(4)

def body():
    reduced.copy_(source)
    dist.all_reduce(reduced)
    return reduced * 3

graph, result = capture(body)
source.fill_(5.0)
graph.replay()
print(result.tolist(), len(graph), flush=True)
os._exit(0)
"""


def test_a_collective_is_captured_and_replayed(tmp_path: Path) -> None:
    """In a process that never destroys its group: gloo's thread may wait for the interpreter that waits for it."""
    done = subprocess.run(
        [sys.executable, "-c", COLLECTIVE, str(tmp_path)], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout.strip()) == (0, f"{[15.0] * 4} 3"), done.stderr


def test_a_replayed_collective_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []

    class Work:
        def wait(self) -> None:
            waited.append(self)

    class AllReduce:
        namespace = "c10d"

        def __call__(self, tensor: torch.Tensor) -> tuple[list[torch.Tensor], Work]:
            return [tensor], Work()

    monkeypatch.setattr(torch, "ScriptObject", Work)
    tape_graph._replayed(AllReduce())(torch.ones(1))
    assert len(waited) == 1
