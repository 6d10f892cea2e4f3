# SPDX-License-Identifier: Apache-2.0
"""States of a server's rank, written as files: vLLM's own RPC over HTTP would also allow resets.

The first state is written at the end of start-up, with every graph captured and no request served. The second is
written on the opening of the rank's pipe: a thread blocks there in the kernel and costs nothing.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, Literal

from laguna_kv.proof import describe_worker
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.arm_settings import LEASE, PLACES
from pytest_laguna.evidence.arms.rank_files import pipe_name, state_name
from pytest_laguna.evidence.endpoint.leg import RankState

from . import process_facts
from .captures import captured_graphs


def report_from_now_on(worker: Any, directory: Path, pipes: Path) -> None:
    """Write a rank's first state, and start the thread for the second.

    Args:
        worker: vLLM's, after its start-up.
        directory: destination of the states.
        pipes: directory of the rank's pipe, created by the leg.

    Raises:
        FileExistsError: the rank has written its state already.
    """
    _write(worker, directory, "captured")
    arguments = (worker, directory, pipes)
    threading.Thread(target=_answer_once, args=arguments, name=f"rank {worker.rank} state", daemon=True).start()


def _answer_once(worker: Any, directory: Path, pipes: Path) -> None:
    with (pipes / pipe_name(worker.rank)).open("rb"):  # returns when the leg opens the other end
        _write(worker, directory, "served")


def _write(worker: Any, directory: Path, moment: Literal["captured", "served"]) -> None:
    """Write a state under a temporary name first: the leg reads a file as soon as it exists."""
    content = files.canonical_json(_state(worker, moment).canonical())
    whole, part = directory / state_name(worker.rank, moment), directory / f"rank-{worker.rank}-{moment}.part"
    files.write_new(part, content)
    os.link(part, whole)
    part.unlink()


def _state(worker: Any, moment: Literal["captured", "served"]) -> RankState:
    runner = type(worker.model_runner)
    process = process_facts.this_process()
    return RankState(
        moment=moment,
        rank=worker.rank,
        pid=process.pid,
        start_ticks=process.start_ticks,
        model_runner=f"{runner.__module__}.{runner.__qualname__}",
        versions=process_facts.versions(),
        variables={name: value for name, value in sorted(os.environ.items()) if name not in PLACES | LEASE},
        graphs=captured_graphs(worker),
        candidate=describe_worker(worker),
    )
