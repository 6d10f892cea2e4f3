# SPDX-License-Identifier: Apache-2.0
"""What every lane must be for the engine: the same tests on vLLM's CPU, on a real card, and on the scripted XPU.

``test_lanes.py`` runs this file in a process of the lane's own, named by ``LANE_UNDER_TEST``: vLLM decides on its
platform once a process. ``LANE_TRACE`` names a file for what was called on a real device.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.lanes.lane_process import LANE

# isort: split
# After the module that makes this process the lane's: vLLM decides on its platform when it is imported.
from laguna_kv.errors import EligibilityError
from pytest_laguna.analysis.diagnostic.parity import KERNELS, RULES, judge_packet
from pytest_laguna.engine import card_identity, packets, parity_packet, plugin
from pytest_laguna.engine.event_loop import EventLoop
from pytest_laguna.engine.profile_directory import ProfileError
from pytest_laguna.engine.timeline import timeline
from pytest_laguna.evidence.arms.arm_record import Planted
from pytest_laguna.evidence.arms.parity import PacketRequest
from pytest_laguna.evidence.machine.card_masks import MASK
from tests.lanes import recording, scripted_xpu

CARD = {"cpu": "cpu-slot-0", "xpu": "0000:03:00.0"}
QUERIES = [2, 8]


@pytest.fixture(autouse=True, scope="module")
def lane() -> Iterator[None]:
    """The lane's plugin has readied this process, and on a real card what is called is recorded."""
    with contextlib.ExitStack() as held:
        trace = held.enter_context(recording.recorded()) if LANE == "cuda" else recording.Trace()
        plugin.register()
        yield
        if os.environ.get("LANE_TRACE"):
            recording.write(trace, Path(os.environ["LANE_TRACE"]))


@pytest.fixture
def swapped() -> None:
    """The classes of this lane's graphs where vLLM's captures look for them: by vLLM's own swap on an XPU."""
    if LANE == "xpu":
        from vllm.v1.worker.xpu_model_runner import _torch_cuda_wrapper

        with _torch_cuda_wrapper():
            used: Any = torch.cuda.CUDAGraph
            assert used is torch.xpu.XPUGraph


@contextlib.contextmanager
def on_a_stream() -> Iterator[None]:
    """A device captures on a stream that is not its default one; a CPU has none."""
    if LANE == "cpu":
        yield
        return
    stream: Any = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        yield


def device() -> torch.device:
    from pytest_laguna.engine.compat import attention_layers

    return torch.device(attention_layers.platform().device_type)


class Captured:
    """``result = operand * 2``, a break that counts, and ``result + 1``, by vLLM's breakable capture."""

    def __init__(self) -> None:
        from vllm.compilation import breakable_cudagraph

        self.operand = torch.ones(4, device=device())
        self.doubled, self.result = torch.zeros_like(self.operand), torch.zeros_like(self.operand)
        self.breaks = 0
        with on_a_stream(), torch.inference_mode():
            self.capture = breakable_cudagraph.BreakableCUDAGraphCapture()
            with self.capture:
                torch.mul(self.operand, 2, out=self.doubled)
                self.capture.add_eager(self.collective_break)
                torch.add(self.doubled, 1, out=self.result)

    def collective_break(self) -> None:
        self.breaks += 1


@pytest.fixture
def captured(swapped: None) -> Captured:
    del swapped
    return Captured()


def test_the_platform_is_the_lanes() -> None:
    from pytest_laguna.engine.compat import attention_layers

    seen = attention_layers.platform()
    assert (seen.device_type, seen.is_cpu, seen.is_cuda, seen.is_xpu) == (LANE, *(of == LANE for of in CARD_LANES))


CARD_LANES = ("cpu", "cuda", "xpu")


def test_the_plugin_may_be_called_again() -> None:
    plugin.register()


def test_one_card_is_seen_and_any_other_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    if LANE == "cpu":
        monkeypatch.setenv(MASK["cpu"], "0")
    assert card_identity.visible_cards(LANE) == 1
    card_identity.require_one_card(LANE)
    if LANE == "cuda":
        return  # a real host has the cards that it has
    monkeypatch.setenv(MASK["cpu"], "0,1")
    monkeypatch.setattr(scripted_xpu.SCRIPT, "count", 2)
    with pytest.raises(RuntimeError, match=f"{LANE}: seen 2 cards in this process; expected one"):
        card_identity.require_one_card(LANE)


def test_attention_in_plain_torch_is_an_error() -> None:
    from pytest_laguna.engine.compat import attention_layers

    serving = attention_layers.serving_module(LANE)
    assert serving.__name__ == KERNELS[LANE].served_by
    assert tuple(attention_layers.forbid_fallbacks(LANE)) == KERNELS[LANE].forbidden
    for name in KERNELS[LANE].forbidden:
        with pytest.raises(RuntimeError, match="attention fell back to plain torch; expected the compiled kernel"):
            getattr(serving, name.rpartition(".")[2])()


def test_a_capture_breaks_where_it_is_told_and_replays_what_it_holds(captured: Captured) -> None:
    from pytest_laguna.engine.compat import introspection

    kinds = [introspection.segment_kind(segment) for segment in captured.capture.segments]
    assert kinds == ["graph", "collective", "graph"]
    captured.operand.fill_(3)
    with torch.inference_mode():
        captured.capture.replay()
    synchronize()
    assert captured.result.tolist() == [7.0] * 4
    assert captured.breaks == 2  # at capture, and at the one replay


def synchronize() -> None:
    if LANE != "cpu":
        torch.accelerator.synchronize()


def test_events_surround_each_segment_of_a_replay(captured: Captured) -> None:
    segments: list[Callable[[], Any]] = captured.capture.segments
    with torch.inference_mode():
        loop = EventLoop(segments, timeline(), "contract")
        loop.run()
    times = loop.read()
    assert len(times.interval_ns) == len(segments) == 3
    assert all(nanoseconds >= 0 for nanoseconds in times.interval_ns)
    assert times.span_ns >= max(times.interval_ns)
    assert loop.stream.device_type == LANE


@pytest.mark.skipif(LANE == "cpu", reason="a CPU has no streams")
def test_a_segment_that_leaves_its_stream_is_found(captured: Captured) -> None:
    def leave() -> None:
        torch.cuda.set_stream(torch.cuda.Stream())

    before = torch.cuda.current_stream()
    loop = EventLoop([*captured.capture.segments, leave], timeline(), "contract")
    try:
        with pytest.raises(ProfileError, match="after segment 3; expected"), torch.inference_mode():
            loop.run()
    finally:
        torch.cuda.set_stream(before)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny pair's folder; written by the CPU, whose torch has not been changed."""
    folder = tmp_path_factory.mktemp("pair") / "pair"
    argv = [sys.executable, "-P", "-m", "pytest_laguna.engine.tiny_pair", str(folder), "--layers", "8"]
    subprocess.run(argv, check=True, env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"})
    return folder


@pytest.mark.skipif(LANE == "cuda", reason="gate 2 runs packets on a card, each in a process of its own")
def test_a_parity_packet_is_bitwise_equal(pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = PacketRequest(
        lane=LANE,
        rank=0,
        target=str(pair / "target"),
        draft=str(pair / "draft"),
        queries=QUERIES,
        planted=Planted.NONE,
    )
    for name, value in packets.environment(request).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(MASK["cpu"], "0")
    if LANE == "xpu":
        (tmp_path / "7").write_text(f"drm-driver:\txe\ndrm-pdev:\t{CARD[LANE]}\ndrm-total-vram0:\t16 MiB\n")
        found = {**card_identity._IDENTITIES, "xpu": lambda: card_identity.drm_addresses(tmp_path)}
        monkeypatch.setattr(card_identity, "_IDENTITIES", found)
    if LANE == "xpu":
        # Stock attention has run by then, through vLLM's XPU backend, the kernels' Python and the operator's schema;
        # the candidate refuses a cache that is on no XPU, as the scripted device's is.
        with pytest.raises(EligibilityError, match=r"cache device \(seen cpu; expected xpu\)"):
            parity_packet.run_packet(request, dict(os.environ))
        return
    record = parity_packet.run_packet(request, dict(os.environ))
    assert judge_packet(record, LANE, CARD[LANE], QUERIES) == dict.fromkeys(RULES)
