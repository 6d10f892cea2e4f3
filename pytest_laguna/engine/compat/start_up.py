# SPDX-License-Identifier: Apache-2.0
"""Both ends of a worker's start-up, on any lane; names seen in vLLM 0.26.0, 0.32.0 and 0.33.0."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def before_start_up(act: Callable[[Any, int], None]) -> None:
    """Call a function with each worker of this process, and its rank, before the worker takes its device.

    Args:
        act: called function; its exception ends the start-up.
    """
    from vllm.v1.worker.worker_base import WorkerWrapperBase  # noqa: PLC0415 - vLLM's plugins are loaded before it

    wrapper_class: Any = WorkerWrapperBase
    original = wrapper_class.init_device

    @functools.wraps(original)
    def watched(wrapper: Any) -> Any:
        act(wrapper.worker, wrapper.global_rank)
        return original(wrapper)

    wrapper_class.init_device = watched


def after_start_up(lane: str, act: Callable[[Any], None]) -> None:
    """Call a function with each worker of this process once its models are warm and its graphs captured.

    vLLM's engine runs every worker's ``compile_or_warm_up_model`` as the last step of its start-up, before requests. A
    ``worker_extension_cls`` may add methods to a worker, but not replace this one.

    Args:
        lane: decides the worker class.
        act: called function; its exception ends the start-up.
    """
    worker_class = _worker_class(lane)
    original = worker_class.compile_or_warm_up_model

    @functools.wraps(original)
    def watched(worker: Any) -> Any:
        returned = original(worker)
        act(worker)
        return returned

    worker_class.compile_or_warm_up_model = watched


def _worker_class(lane: str) -> Any:
    if lane == "cpu":
        from vllm.v1.worker.cpu_worker import CPUWorker  # noqa: PLC0415 - of no use on the other lanes

        return CPUWorker
    from vllm.v1.worker.gpu_worker import Worker  # noqa: PLC0415 - the XPU's worker inherits the method

    return Worker
