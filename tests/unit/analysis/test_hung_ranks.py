# SPDX-License-Identifier: Apache-2.0
"""Which rank hung is said where it can be told, and nowhere else."""

from __future__ import annotations

import pytest

from pytest_laguna.analysis.arms.hung_ranks import hung_ranks
from pytest_laguna.evidence.arms.rank_stacks import Frame, Stack
from pytest_laguna.evidence.reading import Missing
from pytest_laguna.verdict import Verdict

SITE = "/engine/lib/python3.11/site-packages"
LOOP = Frame(f"{SITE}/vllm/v1/executor/multiproc_executor.py", "9", "worker_busy_loop")


def at(function: str, file: str, *inner: Frame) -> Stack:
    return (*inner, Frame(file, "7", function), LOOP, Frame("arm.py", "1", "<module>"))


WAIT = Frame("/usr/lib/python3.11/threading.py", "331", "wait")
COLLECTIVE = at("all_reduce", f"{SITE}/torch/distributed/distributed_c10d.py")
COMMUNICATOR = at("all_gather", f"{SITE}/vllm/distributed/device_communicators/cpu_communicator.py")
OPERATOR = Frame(f"{SITE}/torch/_ops.py", "3", "__call__")
ON_A_TAPE = at("and_wait", "/project/pytest_laguna/engine/tape_graph.py", OPERATOR)
COMPUTES_ON_A_TAPE = at("run", "/project/pytest_laguna/engine/tape_graph.py", OPERATOR)
DEVICE = at("synchronize", f"{SITE}/torch/cuda/streams.py")
EVENT = at("_to_list", f"{SITE}/vllm/v1/worker/gpu_model_runner.py")
QUEUE = f"{SITE}/vllm/distributed/device_communicators/shm_broadcast.py"
ENGINE = at("acquire_read", QUEUE)
IDLE = at("wait", QUEUE, Frame(f"{SITE}/zmq/sugar/poll.py", "106", "poll"))
SPINS = at("_sample", f"{SITE}/vllm/v1/worker/gpu_model_runner.py", WAIT)
TORN = Missing(Verdict.VOID, "rank-1-stack.txt: torn")

SPUN = "_sample (vllm/v1/worker/gpu_model_runner.py, line 7)"
REDUCED = "all_reduce (torch/distributed/distributed_c10d.py, line 7)"


@pytest.mark.parametrize("waiting", [COLLECTIVE, COMMUNICATOR, ON_A_TAPE, DEVICE, EVENT, ENGINE, IDLE])
def test_a_rank_that_does_not_wait_is_what_the_others_wait_for(waiting: Stack) -> None:
    said = hung_ranks({0: waiting, 1: SPINS}, 2)
    assert said is not None
    assert said.startswith(f"rank 1 was in {SPUN}; rank 0 waited in {waiting[-3].function} (")


def test_a_rank_that_wrote_nothing_is_named() -> None:
    silent = "rank 1 left no stack: it was stopped, had ended or had not begun"
    assert hung_ranks({0: COLLECTIVE}, 2) == f"{silent}; rank 0 waited in {REDUCED}"
    said = hung_ranks({0: SPINS}, 2)
    assert said == f"{silent}; rank 0 was in {SPUN}"


def test_a_rank_that_waits_for_the_engine_has_missed_the_collective() -> None:
    said = hung_ranks({0: COLLECTIVE, 1: ENGINE}, 2)
    assert said is not None
    assert said.startswith("rank 1 was in acquire_read (vllm/distributed/device_communicators/shm_broadcast.py")


def test_every_rank_that_hung_is_named_and_one_that_waited() -> None:
    said = hung_ranks({0: COLLECTIVE, 2: SPINS, 3: COMPUTES_ON_A_TAPE, 4: COLLECTIVE}, 5)
    assert said is not None
    [silent, spun, computed, waited] = said.split("; ")
    assert silent.startswith("rank 1 left no stack")
    assert spun == f"rank 2 was in {SPUN}"
    assert computed == "rank 3 was in run (/project/pytest_laguna/engine/tape_graph.py, line 7)"
    assert waited == f"rank 0 waited in {REDUCED}"


@pytest.mark.parametrize("alike", [COLLECTIVE, DEVICE, ENGINE, SPINS])
def test_where_all_are_alike_nothing_is_said(alike: Stack) -> None:
    assert hung_ranks({0: alike, 1: alike}, 2) is None


def test_what_cannot_be_read_is_neither_named_nor_missed() -> None:
    assert hung_ranks({}, 2) is None
    assert hung_ranks({1: TORN}, 2) is None
    assert hung_ranks({0: COLLECTIVE, 1: TORN}, 2) is None
    said = hung_ranks({0: COLLECTIVE, 1: TORN, 2: SPINS}, 3)
    assert said == f"rank 2 was in {SPUN}; rank 0 waited in {REDUCED}"


def test_the_only_rank_is_what_is_waited_for() -> None:
    assert hung_ranks({0: SPINS}, 1) == f"rank 0 was in {SPUN}"


def test_python_s_own_calls_do_not_say_what_they_are_for() -> None:
    only = (WAIT, Frame("<frozen runpy>", "198", "_run_module_as_main"))
    assert hung_ranks({0: only}, 1) == "rank 0 was in wait (/usr/lib/python3.11/threading.py, line 331)"
