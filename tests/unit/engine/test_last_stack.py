# SPDX-License-Identifier: Apache-2.0
"""A rank that does not answer is written down before its arm is ended."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from pytest_laguna.engine import last_stack
from pytest_laguna.engine.last_stack import MARGIN_SECONDS, RENEWED_SECONDS, STEP_SECONDS, LastStack
from pytest_laguna.evidence.arms.rank_files import stack_name
from pytest_laguna.evidence.reading import Missing, read_stacks
from tests.short_lived import SHORT_LIVED

START_UP = """\
import os, time
from pytest_laguna.engine import plugin

plugin._write_last_stacks()
from vllm.config import VllmConfig
from vllm.v1.worker.worker_base import WorkerWrapperBase

class Worker:
    def init_device(self):
        assert self.laguna_last_stack
        while True:
            pass

wrapper = WorkerWrapperBase(rpc_rank=0, global_rank=1)
wrapper.worker, wrapper.vllm_config = Worker(), VllmConfig()
os.environ["LAGUNA_RANK_STACKS_BEFORE"] = repr(time.monotonic() + {seconds})
wrapper.init_device()
"""


class Clock:
    """The monotonic clock, and what the fault handler is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.told: list[float] = []
        monkeypatch.setattr(last_stack, "time", types.SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(last_stack, "faulthandler", types.SimpleNamespace(dump_traceback_later=self._tell))

    def _tell(self, seconds: float, file: int) -> None:
        os.fstat(file)
        self.told.append(seconds)


def test_start_up_has_until_the_arm_s_end_and_a_step_less_than_vllm_s_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = Clock(monkeypatch)
    stack = LastStack(tmp_path, 3400.0, 1)
    assert clock.told == [2400.0 - MARGIN_SECONDS]
    stack.step()
    assert clock.told[1:] == [STEP_SECONDS]
    assert stat.S_IMODE((tmp_path / stack_name(1)).stat().st_mode) == 0o600


def test_a_step_is_renewed_now_and_then_and_never_beyond_the_arm_s_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = Clock(monkeypatch)
    stack = LastStack(tmp_path, clock.now + 300.0, 0)
    for _ in range(4):
        stack.step()
        clock.now += RENEWED_SECONDS / 2
    assert clock.told[1:] == [STEP_SECONDS, STEP_SECONDS]
    clock.now += 100.0
    stack.step()
    assert clock.told[-1] == 300.0 - 160.0 - MARGIN_SECONDS
    clock.now += 1000.0
    stack.step()
    assert 0 < clock.told[-1] < 1


def test_a_rank_has_one_file(tmp_path: Path) -> None:
    (tmp_path / stack_name(0)).touch()
    with pytest.raises(FileExistsError):
        LastStack(tmp_path, time.monotonic() + 100, 0)


def test_a_rank_that_hangs_in_its_start_up_says_where(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "LAGUNA_RANK_STACKS": str(tmp_path),
        "LAGUNA_RANK_STACKS_BEFORE": "0",
    }
    program = SHORT_LIVED + START_UP.format(seconds=MARGIN_SECONDS + 1)
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stderr=subprocess.PIPE, text=True) as rank:
        deadline = time.monotonic() + 60
        while 1 not in read_stacks(tmp_path) or isinstance(read_stacks(tmp_path)[1], Missing):
            assert rank.poll() is None, rank.stderr.read() if rank.stderr else ""
            assert time.monotonic() < deadline
            time.sleep(0.1)
        rank.kill()
    stack = read_stacks(tmp_path)[1]
    assert not isinstance(stack, Missing)
    assert (stack[0].function, stack[-1].function) == ("init_device", "<module>")
