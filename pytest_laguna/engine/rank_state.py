# SPDX-License-Identifier: Apache-2.0
"""What a rank of a server says of itself, without being asked over HTTP: vLLM's own way would open a door to resets.

The first state is written when start-up is over; every graph is captured then and no request has come. The second is
written when the rank's pipe is opened: a thread waits there in the kernel and costs nothing meanwhile.
"""

from __future__ import annotations

import os
import platform
import threading
from pathlib import Path
from typing import Any, Literal

from laguna_kv.proof import describe_worker
from pytest_laguna.evidence import files
from pytest_laguna.evidence.leg import RankState
from pytest_laguna.evidence.rank_files import pipe_name, state_name

from . import arms
from .captures import captured_graphs


def report_from_now_on(worker: Any, directory: Path, pipes: Path) -> None:
    """Write a rank's first state, and have a thread write the second when it is asked.

    Args:
        worker: vLLM's, after its start-up.
        directory: where the states go.
        pipes: where the leg has made the rank's pipe.

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
    """Write a state under another name first: the leg takes a file that is there for whole."""
    content = files.canonical_json(_state(worker, moment).canonical())
    whole, part = directory / state_name(worker.rank, moment), directory / f"rank-{worker.rank}-{moment}.part"
    files.write_new(part, content)
    os.link(part, whole)
    part.unlink()


def _state(worker: Any, moment: Literal["captured", "served"]) -> RankState:
    runner = type(worker.model_runner)
    # The start time is the 20th word after the name, which stands in parentheses and may hold spaces. Source: proc(5).
    start_ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return RankState(
        moment=moment,
        rank=worker.rank,
        pid=os.getpid(),
        start_ticks=start_ticks,
        model_runner=f"{runner.__module__}.{runner.__qualname__}",
        versions=_versions(),
        variables={name: value for name, value in sorted(os.environ.items()) if name not in arms.PLACES | arms.LEASE},
        graphs=captured_graphs(worker),
        candidate=describe_worker(worker),
    )


def _versions() -> dict[str, str]:
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415
    import vllm  # noqa: PLC0415

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "vllm": vllm.__version__,
    }
