# SPDX-License-Identifier: Apache-2.0
"""Where a rank's start-up begins in every vLLM version; test_compat_other_vllm.py runs this again."""

from __future__ import annotations

import types
import warnings
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's imports warn
    from vllm import envs
    from vllm.v1.worker.worker_base import WorkerWrapperBase

from pytest_laguna.engine.compat.start_up import before_start_up
from pytest_laguna.engine.last_stack import STEP_SECONDS


def test_a_worker_and_its_rank_are_known_before_it_takes_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkerWrapperBase, "init_device", WorkerWrapperBase.init_device)
    told: list[tuple[Any, object]] = []
    before_start_up(lambda worker, rank: told.append((worker, rank)))
    wrapper: Any = WorkerWrapperBase(rpc_rank=1, global_rank=3)
    wrapper.worker, wrapper.vllm_config = types.SimpleNamespace(), None
    with pytest.raises(AssertionError):  # vLLM's own, without a configuration
        wrapper.init_device()
    assert told == [(wrapper.worker, 3)]


def test_a_step_that_hangs_is_written_down_before_vllm_gives_it_up() -> None:
    assert STEP_SECONDS < envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS
