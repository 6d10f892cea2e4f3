# SPDX-License-Identifier: Apache-2.0
"""The cuda source on a real card, where there is one: what other tests ask a module of our own is asked of NVML."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_laguna.evidence.machine.card_masks import showing
from pytest_laguna.machine.cards_cuda import CudaCards
from tests.unit.machine.fakes import MEBIBYTE, Nvml, ticks

pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")

pytestmark = pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA card")

# A process with a context and memory, without any library but the driver's.
HOLD = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
for result in (
    cuda.cuInit(0),
    cuda.cuDeviceGet(ctypes.byref(device), 0),
    cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device),
    cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 30)),
):
    assert result == 0, result
print(flush=True)
sys.stdin.read()
"""


def test_a_real_holder_is_found_and_gone_again() -> None:
    source = CudaCards()
    card = source.discover()[0]
    (before,) = source.observe([card], None).states
    assert before.memory_used_bytes is not None
    environment = showing("cuda", [card]) | {"LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"\n"
        (during,) = source.observe([card], None).states
        started = ticks(child.pid)
        child.communicate()
    (after,) = source.observe([card], None).states
    assert (during.memory_used_bytes or 0) - before.memory_used_bytes >= 1024 * MEBIBYTE
    new = [holder for holder in during.holders if holder.pid not in {old.pid for old in before.holders}]
    assert len(new) == 1
    # In a container NVML may count pids as the host does; the process is a holder all the same.
    assert new[0].pid != child.pid or new[0].start_ticks == started
    assert after.holders == before.holders
    assert after.memory_used_bytes is not None
    assert after.memory_used_bytes - before.memory_used_bytes < 64 * MEBIBYTE


def test_the_real_library_has_what_the_fake_has() -> None:
    used = [name for name in vars(Nvml) if name.startswith(("nvml", "NVML"))]
    assert len(used) > 10
    assert [name for name in used if not hasattr(pynvml, name)] == []
    with pytest.raises(pynvml.NVMLError):
        pynvml.nvmlDeviceGetCount()  # outside init and shutdown


def test_looking_makes_this_process_no_holder() -> None:
    (before,) = CudaCards().observe(CudaCards().discover()[:1], None).states
    pynvml.nvmlInit()  # and stays open
    (during,) = CudaCards().observe(CudaCards().discover()[:1], None).states
    pynvml.nvmlShutdown()
    assert during.holders == before.holders
    assert os.getpid() not in {holder.pid for holder in during.holders}
