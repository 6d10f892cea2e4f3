# SPDX-License-Identifier: Apache-2.0
"""Shared by the profiles' benchmarks: processes of the real engine over the tiny pair, with several ways of replay.

Builds the pair, starts the process, generates to make replays, and collects the rounds.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms import arm_settings
from pytest_laguna.evidence.arms.arm_record import Arm, ArmRequest, Planted
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.evidence.values import Lane
from tests.runner import runner

PROMPTS = ("digits", "letters", "assignments")
TOKENS = 272
GENERATIONS = 8
"""From each prompt: a replay takes milliseconds, but starting a process most of a minute."""
VLLM: dict[Lane, str] = {"cpu": "0.32.0", "cuda": "0.26.0", "xpu": "0.32.0"}
OTHERS = {"gpu_memory_utilization": 0.2}
"""Share of a card's memory, required even with a given cache size; low, so others may use the card too."""

Replay = Callable[[], Any]


def build_pair(directory: Path, lane: Lane, width: int = 1) -> Path:
    """Write the tiny pair below ``directory``, ``width`` times as wide; return the directory of its two models."""
    pair = runner().tiny_pair(directory / "pair", interpreter=Path(sys.executable), width=width, vllm=VLLM[lane])
    return pair.target.parent


def request(lane: Lane, pair: Path, arm: Arm = Arm.GRAPH_CONTROL) -> ArmRequest:
    """Request of such a process."""
    return ArmRequest(
        arm=arm,
        lane=lane,
        target=str(pair / "target"),
        draft=str(pair / "draft"),
        prompt=PROMPTS[0],
        tokens=TOKENS,
        tensor_parallel_size=1,
        collective_breaks=False,
        planted=Planted.NONE,
        profile_samples=0,
    )


def child(module: str, what: str, asked: ArmRequest, home: Path) -> Any:
    """Run ``python -m MODULE --measure WHAT REQUEST`` in an arm's environment; return its last line, as JSON.

    Raises:
        RuntimeError: it failed; with the end of its output.
    """
    path = home / "request.json"
    path.write_bytes(files.canonical_json(asked.canonical()))
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), "LC_ALL": "C.UTF-8"}
    cards = {name: os.environ[name] for name in arm_settings.LEASE & os.environ.keys()}
    argv = [sys.executable, "-m", module, "--measure", what, str(path)]
    seen = subprocess.run(
        argv, env=environment | cards | arm_settings.environment(asked), capture_output=True, check=False, text=True
    )
    if seen.returncode:
        raise RuntimeError(f"{asked.arm}: exit code {seen.returncode}: {seen.stderr[-2000:]}")
    return json.loads(seen.stdout.splitlines()[-1])


def measure(path: Path, extension: str) -> Any:
    """In such a process: make replays, and return the worker extension's measurements.

    Args:
        path: of the request.
        extension: class to mix into vLLM's worker, with ``begin_measuring`` and ``measured``.
    """
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - a process of its own

    asked = read_model(path, ArmRequest)
    engine = LLM(**(arm_settings.engine_arguments(asked) | OTHERS | {"worker_extension_cls": extension}))
    engine.collective_rpc("begin_measuring")
    prompts = json.loads((Path(asked.target).parent / "prompts.json").read_text())
    sampling = SamplingParams(temperature=0.0, seed=arm_settings.SEED, max_tokens=TOKENS, ignore_eos=True)
    for name in PROMPTS * GENERATIONS:
        engine.generate([prompts[name]], sampling, use_tqdm=False)
    [taken] = engine.collective_rpc("measured")
    return taken


class Rounds:
    """Replays in all ways in turn; the order rotates, so that no drift favours one.

    Attributes:
        taken: way and nanoseconds of each replay.
    """

    def __init__(self, ways: Sequence[str], synchronize: Callable[[], None], settling: int = 0) -> None:
        """Begin with the first way.

        Args:
            ways: of running a replay.
            synchronize: waits for the device.
            settling: number of uncounted replays before each counted one, in its way.
        """
        turned = [[*ways[first:], *ways[:first]] for first in range(len(ways))]
        self._order = itertools.cycle(
            (way, number == settling) for way in itertools.chain.from_iterable(turned) for number in range(settling + 1)
        )
        self._ways = len(ways)
        self._synchronize = synchronize
        self.taken: list[tuple[str, int]] = []

    def due(self) -> str:
        """Way of the next replay."""
        way, self._counts = next(self._order)
        return way

    def timed(self, way: str, replay: Replay, *, waits: bool = False) -> Any:
        """Run and time one replay, with the wait for the device after it.

        Args:
            way: the due one.
            replay: runs it.
            waits: True if it waits for the device itself.
        """
        self._synchronize()
        begin = time.perf_counter_ns()
        returned = replay()
        if not waits:
            self._synchronize()
        elapsed = time.perf_counter_ns() - begin
        if self._counts:
            self.taken.append((way, elapsed))
        return returned

    def whole(self) -> list[dict[str, int]]:
        """The whole rounds: nanoseconds by way."""
        return [dict(taken) for taken in zip(*[iter(self.taken)] * self._ways, strict=False)]
