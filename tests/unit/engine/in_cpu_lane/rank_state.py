# SPDX-License-Identifier: Apache-2.0
"""A rank writes what it holds once its start-up is over, and again when its pipe is opened."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.endpoint.ranks import Ranks
from pytest_laguna.engine import rank_state
from pytest_laguna.engine.compat import start_up
from pytest_laguna.evidence.arms.arm_record import CapturedGraph

GRAPH = CapturedGraph(
    model="target",
    descriptor="8 tokens",
    graphs=2,
    breaks=1,
    kinds={"graph": 2, "attention": 1},
    order_sha256="0" * 64,
)
VARIABLE = "VLLM_XPU_LAGUNA_M8_PERSISTENT_KV_CACHE_VIEWS"


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """What a worker holds is told by functions that have tests of their own; here they say what this one counts."""
    found = types.SimpleNamespace(rank=0, model_runner=object(), hits=0)
    monkeypatch.setattr(rank_state, "captured_graphs", lambda _worker: [GRAPH])
    monkeypatch.setattr(rank_state, "describe_worker", lambda told: {"forward_hits": told.hits})
    monkeypatch.setenv(VARIABLE, "1")
    monkeypatch.setenv("LAGUNA_LEASE", "0" * 32)
    return found


def test_a_rank_says_what_it_holds_before_and_after(worker: types.SimpleNamespace, tmp_path: Path) -> None:
    ranks = Ranks(tmp_path / "ranks", 1)
    with ranks.pipes() as told:
        rank_state.report_from_now_on(worker, tmp_path / "ranks", Path(told["LAGUNA_RANK_PIPES"]))
        [captured] = ranks.captured()
        worker.hits = 7
        [served] = ranks.served()
    assert captured.graphs == served.graphs == [GRAPH]
    assert (captured.candidate, served.candidate) == ({"forward_hits": 0}, {"forward_hits": 7})
    assert (captured.pid, captured.model_runner) == (os.getpid(), "builtins.object")
    assert captured.versions.keys() == {"python", "torch", "transformers", "vllm"}
    assert captured.variables[VARIABLE] == "1"
    # Neither where things are nor the lease's token, which is a secret of the lease.
    assert not captured.variables.keys() & {"PATH", "HOME", "LAGUNA_LEASE"}
    assert sorted(path.name for path in (tmp_path / "ranks").iterdir()) == [
        "rank-0-captured.json",
        "rank-0-served.json",
    ]


def test_a_start_time_is_the_kernels(worker: types.SimpleNamespace, tmp_path: Path) -> None:
    ranks = Ranks(tmp_path / "ranks", 1)
    with ranks.pipes() as told:
        rank_state.report_from_now_on(worker, tmp_path / "ranks", Path(told["LAGUNA_RANK_PIPES"]))
        [captured] = ranks.captured()
        ranks.served()
    # The name of this process stands before the fields and may hold spaces and parentheses.
    fields = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()
    assert captured.start_ticks == int(fields[19])


def test_a_state_is_never_written_over(worker: types.SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "rank-0-captured.json").touch()
    with pytest.raises(FileExistsError):
        rank_state.report_from_now_on(worker, tmp_path, tmp_path)


@pytest.mark.parametrize("lane", ["cpu", "cuda", "xpu"])
def test_start_up_comes_before_the_report(lane: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worker_class: Any = start_up._worker_class(lane)
    order: list[object] = []

    def original(worker: object) -> str:
        order.append(worker)
        return "times"

    monkeypatch.setattr(worker_class, "compile_or_warm_up_model", original)
    start_up.after_start_up(lane, lambda worker: order.append(("reported", worker)))
    assert worker_class.compile_or_warm_up_model("worker") == "times"
    assert order == ["worker", ("reported", "worker")]


def test_a_failing_report_ends_the_start_up(monkeypatch: pytest.MonkeyPatch) -> None:
    worker_class: Any = start_up._worker_class("cpu")
    monkeypatch.setattr(worker_class, "compile_or_warm_up_model", lambda _worker: None)

    def fail(_worker: object) -> None:
        raise OSError("disk full")

    start_up.after_start_up("cpu", fail)
    with pytest.raises(OSError, match="disk full"):
        worker_class.compile_or_warm_up_model("worker")


@pytest.mark.parametrize(("told", "watched"), [(True, True), (False, False)])
def test_only_a_leg_has_the_ranks_report(told: bool, watched: bool, tmp_path: Path) -> None:
    program = (
        "from pytest_laguna.engine import plugin; plugin.register()\n"
        "from vllm.v1.worker.cpu_worker import CPUWorker\n"
        "print(hasattr(CPUWorker.compile_or_warm_up_model, '__wrapped__'))"
    )
    places = dict.fromkeys(("LAGUNA_RANK_STATES", "LAGUNA_RANK_PIPES"), str(tmp_path))
    environment = {**os.environ, "LAGUNA_LANE": "cpu"} | (places if told else {})
    seen = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True, text=True)
    assert seen.stdout.split()[-1] == str(watched)
