# SPDX-License-Identifier: Apache-2.0
"""Ranks meet over a file in every vLLM version; test_compat_other_vllm.py runs this again."""

from __future__ import annotations

import subprocess
import sys
import warnings
from types import ModuleType

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's imports warn
    from vllm.v1.executor import multiproc_executor, uniproc_executor

from pytest_laguna.engine.compat import rendezvous

EXECUTORS = (uniproc_executor, multiproc_executor)
SUM = """
import sys
import torch

rank, method = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method=method, rank=rank, world_size=2)
total = torch.ones(1)
torch.distributed.all_reduce(total)
print(total.item())
"""


@pytest.fixture(params=EXECUTORS, ids=["one rank", "several"])
def older(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An executor's module as 0.26.0 has it; the other one is left alone."""
    module: ModuleType = request.param
    monkeypatch.delattr(module, "get_file_store_init_method", raising=False)
    monkeypatch.setattr(module, "get_distributed_init_method", lambda address, port: f"tcp://{address}:{port}")
    return module


def test_an_older_executor_is_given_a_new_file_each_time(older: ModuleType) -> None:
    rendezvous.meet_over_a_file()
    methods = [older.get_distributed_init_method("10.0.0.1", 5) for _ in range(2)]
    assert len(set(methods)) == 2
    assert all(method.startswith("file:///") for method in methods)
    started = [
        subprocess.Popen([sys.executable, "-c", SUM, str(rank), methods[0]], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    assert [process.communicate(timeout=120)[0].split()[-1] for process in started] == ["2.0", "2.0"]


def test_a_newer_executor_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in EXECUTORS:
        monkeypatch.setattr(module, "get_file_store_init_method", lambda: "file://", raising=False)
        monkeypatch.setattr(module, "get_distributed_init_method", "vLLM's own")
    rendezvous.meet_over_a_file()
    assert [module.get_distributed_init_method for module in EXECUTORS] == ["vLLM's own"] * 2


def test_an_executor_that_has_neither_is_refused(older: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(older, "get_distributed_init_method")
    with pytest.raises(RuntimeError, match=f"{older.__name__}: seen no get_distributed_init_method"):
        rendezvous.meet_over_a_file()
