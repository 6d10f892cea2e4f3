# SPDX-License-Identifier: Apache-2.0
"""What the xpu lane refuses in a process; ``test_lanes.py`` runs this in one of its own, on the scripted XPU."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.lanes import lane_process

assert lane_process.LANE == "xpu"


def worker(**changed: Any) -> Any:
    values: dict[str, Any] = {"device": "xpu", "mode": "PIECEWISE", "ranks": 1} | changed
    config = types.SimpleNamespace(
        compilation_config=types.SimpleNamespace(cudagraph_mode=types.SimpleNamespace(name=values["mode"])),
        parallel_config=types.SimpleNamespace(world_size=values["ranks"]),
    )
    return types.SimpleNamespace(device=torch.device(values["device"]), vllm_config=config)


@pytest.fixture
def swapped() -> Iterator[None]:
    from vllm.v1.worker.xpu_model_runner import _torch_cuda_wrapper

    before = torch.cuda.CUDAGraph
    with _torch_cuda_wrapper():
        yield
    torch.cuda.CUDAGraph = before  # type: ignore[misc]


def group(communicator: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that sum through another class or library."""
    import vllm.distributed

    made = types.SimpleNamespace(device_communicator=type(communicator, (), {})(), device_group=None)
    monkeypatch.setattr(vllm.distributed, "get_tp_group", lambda: made)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda _group: backend)


@pytest.mark.usefixtures("swapped")
def test_a_worker_that_is_as_it_should_be_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_laguna.engine.compat import xpu_lane

    monkeypatch.setenv("VLLM_USE_BREAKABLE_CUDAGRAPH", "1")
    xpu_lane.require_xpu_worker(worker())
    group("XpuCommunicator", "xccl", monkeypatch)
    xpu_lane.require_xpu_worker(worker(ranks=4))
    monkeypatch.setenv("VLLM_USE_BREAKABLE_CUDAGRAPH", "0")
    xpu_lane.require_xpu_worker(worker(mode="NONE"))


def _plain(_patch: pytest.MonkeyPatch) -> None:
    return


def _gloo(patch: pytest.MonkeyPatch) -> None:
    group("XpuCommunicator", "gloo", patch)


def _base(patch: pytest.MonkeyPatch) -> None:
    group("DeviceCommunicatorBase", "xccl", patch)


def _no_accelerator(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.accelerator, "current_accelerator", lambda: None)


@pytest.mark.usefixtures("swapped")
@pytest.mark.parametrize(
    ("change", "changed", "reason"),
    [
        (_plain, {"device": "cpu"}, r"seen worker and accelerator on \('cpu', 'xpu'\); expected the XPU for both"),
        (_no_accelerator, {}, r"are on \('xpu', None\)"),
        (_plain, {"mode": "NONE"}, "seen graph mode NONE; expected PIECEWISE"),
        (_gloo, {"ranks": 4}, "seen XpuCommunicator over gloo between ranks; expected XpuCommunicator over xccl"),
        (_base, {"ranks": 4}, "ranks sum through DeviceCommunicatorBase over xccl"),
    ],
)
def test_any_other_worker_is_refused(
    change: Callable[[pytest.MonkeyPatch], None],
    changed: dict[str, Any],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pytest_laguna.engine.compat import xpu_lane

    monkeypatch.setenv("VLLM_USE_BREAKABLE_CUDAGRAPH", "1")
    change(monkeypatch)
    with pytest.raises(RuntimeError, match=f"^xpu: {'.*'}{reason}"):
        xpu_lane.require_xpu_worker(worker(**changed))


def test_captures_on_the_graphs_of_another_device_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_laguna.engine.compat import xpu_lane

    monkeypatch.setenv("VLLM_USE_BREAKABLE_CUDAGRAPH", "1")
    with pytest.raises(RuntimeError, match=r"seen captures by torch.cuda\S*; expected torch.xpu.XPUGraph"):
        xpu_lane.require_xpu_worker(worker())


def attend() -> torch.Tensor:
    """The kernels' own entry, for a paged cache of one page."""
    interface = importlib.import_module("vllm_xpu_kernels.flash_attn_interface")
    pages = torch.zeros(1, 64, 2, 128, dtype=torch.bfloat16)
    returned: torch.Tensor = interface.flash_attn_varlen_func(
        torch.zeros(1, 12, 128, dtype=torch.bfloat16),
        pages,
        pages,
        1,
        torch.tensor([0, 1], dtype=torch.int32),
        8,
        seqused_k=torch.tensor([8], dtype=torch.int32),
        block_table=torch.zeros(1, 1, dtype=torch.int32),
        causal=False,
    )
    return returned


def test_attention_that_was_not_compiled_goes_on_in_plain_torch_unless_it_is_forbidden(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert attend().shape == (1, 12, 128)
    told = " ".join(f"{capsys.readouterr().err} {caplog.text}".split())  # 0.1.12.3 says it in its log alone
    assert "falling back to PyTorch reference attention" in told
    from pytest_laguna.engine.compat.xpu_lane import install_xpu_lane

    install_xpu_lane()
    with pytest.raises(RuntimeError, match="attention fell back to plain torch; expected the compiled kernel"):
        attend()


def test_kernels_that_cannot_be_loaded_are_an_error_with_their_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_laguna.engine.compat import xpu_lane

    interface = sys.modules[xpu_lane.INTERFACE]
    monkeypatch.setattr(interface, "FA2_AVAILABLE", False)
    reason = "libattn_kernels_xe_2.so: cannot open shared object file"
    monkeypatch.setattr(interface, "FA2_UNAVAILABLE_REASON", reason, raising=False)
    with pytest.raises(RuntimeError, match=f"seen no compiled attention .{reason}"):
        xpu_lane.install_xpu_lane.__wrapped__()
    monkeypatch.setitem(sys.modules, xpu_lane.INTERFACE, None)
    with pytest.raises(RuntimeError, match=r"seen no .*expected vllm-xpu-kernels; run laguna doctor"):
        xpu_lane.install_xpu_lane.__wrapped__()
