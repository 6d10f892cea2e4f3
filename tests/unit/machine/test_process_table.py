# SPDX-License-Identifier: Apache-2.0
"""Which processes are inference workers: by their words, and in the real process table."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_laguna.evidence.machine.idle import SeenProcess
from pytest_laguna.machine import process_table
from tests.unit.machine.fakes import sleeper, ticks

TOKEN = "0123" * 8
WAIT = "import sys, time\ntime.sleep(300)\n"


@pytest.mark.parametrize(
    ("comm", "words", "pattern"),
    [
        ("vllm", ["/opt/venv/bin/python", "/opt/venv/bin/vllm", "serve", "model"], "vllm serve"),
        ("vllm", ["vllm", "serve"], "vllm serve"),
        ("VLLM::EngineCor", ["VLLM::EngineCore"], "name VLLM::"),
        ("VLLM::Worker_TP", ["python", "x.py"], "name VLLM::"),
        ("python", ["VLLM::Worker_TP0"], "title VLLM::"),
        ("python", ["VLLM::EngineCore_DP1"], "title VLLM::"),
        ("torchrun", ["/usr/bin/python3", "/usr/bin/torchrun", "x.py"], "torchrun"),
        ("torchrun", ["torchrun", "--nproc-per-node=4", "x.py"], "torchrun"),
        ("python3", ["python3.12", "-u", "-m", "torch.distributed.run", "x.py"], "torch.distributed.run"),
        ("python3", ["/venv/bin/python", "-m", "torch.distributed.run"], "torch.distributed.run"),
        ("vllm", ["python3", "/usr/bin/vllm", "bench", "throughput"], "vllm bench"),
        ("vllm", ["vllm", "run-batch", "-i", "x"], "vllm run-batch"),
        ("torchrun", ["python", "-u", "/usr/bin/torchrun", "x.py"], "torchrun"),
        ("uv", ["uv", "run", "--quiet", "torchrun", "x.py"], "torchrun"),
        ("python3", ["python3", "-m", "torch.distributed.launch", "x.py"], "torch.distributed.launch"),
        ("python3", ["python3", "-mtorch.distributed.run", "x.py"], "torch.distributed.run"),
        ("uv", ["uv", "run", "python", "-m", "torch.distributed.run"], "torch.distributed.run"),
        ("python3", ["python3", "-Im", "torch.distributed.run", "x.py"], "torch.distributed.run"),
        ("python3", ["python3", "-umtorch.distributed.run", "x.py"], "torch.distributed.run"),
        ("torchrun", ["python", "-W", "ignore", "/usr/bin/torchrun", "x.py"], "torchrun"),
        ("torchrun", ["python", "-uX", "dev", "/usr/bin/torchrun", "x.py"], "torchrun"),
        ("ray::IDLE", ["ray::IDLE"], "name ray::"),
        ("python", ["ray::RayWorkerWrapper.execute_method"], "title ray::"),
        ("python3", ["python3", "x.py", "-W", "torchrun"], None),
        ("python3", ["python3", "-c", "m", "torch.distributed.run"], None),
        (
            "python3",
            ["python3", "-m", "vllm.entrypoints.openai.api_server", "--port", "1"],
            "vllm.entrypoints.openai.api_server",
        ),
        ("python3", ["python", "-m", "vllm.entrypoints.cli.main", "serve"], "vllm.entrypoints.cli.main"),
        ("python3", ["python3", "-m", "vllm.collect_env"], None),
        ("python3", ["python3", "train.py", "torchrun"], None),
        ("python3", ["python3", "-m"], None),
        ("vllm", ["vllm", "collect-env"], None),
        ("python3", ["python3", "serve", "vllm"], None),
        ("python3", ["python3", "vllm", "--port", "serve"], None),
        ("bash", ["bash", "-c", "vllm serve model"], None),
        ("grep", ["grep", "VLLM::Worker"], None),
        ("less", ["less", "notes", "torchrun"], None),
        ("less", ["less", "-m", "torch.distributed.run"], None),
        ("kthreadd", [], None),
    ],
)
def test_a_worker_is_known_by_its_name_its_title_or_its_launcher(
    comm: str, words: list[str], pattern: str | None
) -> None:
    assert process_table.worker_pattern(comm, words) == pattern


@contextmanager
def running(*command: str | Path, executable: str | None = None) -> Iterator[int]:
    with subprocess.Popen(list(map(str, command)), executable=executable, env={}) as child:
        try:
            yield child.pid
        finally:
            child.kill()


def found(pid: int, token: str | None = None) -> SeenProcess | None:
    """What the scan says of a process, once it has had time to become what it is."""
    end = time.monotonic() + 10
    while True:
        seen = [worker for worker in process_table.find_workers(token) if worker.pid == pid]
        if seen or time.monotonic() > end:
            return seen[0] if seen else None
        time.sleep(0.01)


def test_a_server_is_found(tmp_path: Path) -> None:
    (tmp_path / "vllm").write_text(WAIT)
    with running(sys.executable, tmp_path / "vllm", "serve", "a model") as pid:
        seen = found(pid)
        assert seen is not None
        assert (seen.seen_by, seen.start_ticks, seen.carries_token) == ("vllm serve", ticks(pid), False)
        assert seen.command == f"{sys.executable} {tmp_path}/vllm serve 'a model'"


def test_a_worker_is_found_by_its_title() -> None:
    with running("VLLM::Worker_TP1", "300", executable="/bin/sleep") as pid:
        seen = found(pid)
        assert seen is not None
        assert seen.seen_by == "title VLLM::"


def test_a_worker_is_found_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(f"open('/proc/self/comm', 'w').write('VLLM::EngineCore')\n{WAIT}")
    with running(sys.executable, tmp_path / "x.py") as pid:
        seen = found(pid)
        assert seen is not None
        assert seen.seen_by == "name VLLM::"


def test_whatever_bears_the_leases_token_is_found() -> None:
    with sleeper(LAGUNA_LEASE=TOKEN) as child:
        seen = found(child.pid, TOKEN)
        assert seen is not None
        assert (seen.seen_by, seen.carries_token) == ("lease token", True)
        others = (None, "f" * 32)
        assert [[w for w in process_table.find_workers(token) if w.pid == child.pid] for token in others] == [[], []]


def test_own_ancestors_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_table, "worker_pattern", lambda _comm, _words: "everything")
    seen = {worker.pid for worker in process_table.find_workers(None)}
    assert not seen & {os.getpid(), os.getppid()}
    assert seen  # and others are there


def test_a_process_that_is_gone_keeps_its_pid() -> None:
    with sleeper() as child:
        pass
    seen = process_table.see(child.pid, "nvml", frozenset({child.pid}))
    assert (seen.pid, seen.start_ticks, seen.carries_token) == (child.pid, None, None)
