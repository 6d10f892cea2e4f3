# SPDX-License-Identifier: Apache-2.0
"""What the event profiles cost the replay that they measure, and how true the sparse one's shares are, on the cpu lane.

``python -m benchmarks.event_profile --json`` runs the tiny pair in several processes. In each, replays of the target's
graph go round in three ways, in an order that turns: as they are, with events at the few drawn intervals, and with all
events. A ratio is the median over all rounds of one way over the first of the same round: ``slowdown_sparse`` and
``slowdown_full``.

``max_share_error_points`` is of replays whose segments take known times, which depend on kind and layer: by how many
points of a hundred the sparse profile's share of a kind misses the truth at most. Those times are processor time of the
thread, which a busy host does not stretch. Needs the ``cpu`` extra and a checkout.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_laguna.analysis.event_profile import category_sums, shares
from pytest_laguna.analysis.event_sparse import sparse_shares
from pytest_laguna.engine import arms, launch
from pytest_laguna.evidence.arm_record import Arm, ArmRequest, Planted
from pytest_laguna.evidence.event_profile import EventClock, StreamIdentity
from pytest_laguna.evidence.event_sparse import SparseProfile, chosen_intervals
from pytest_laguna.evidence.replay_profile import SegmentKind
from tests.runner import runner

if TYPE_CHECKING:
    from pytest_laguna.engine.timeline import Stream  # imports torch

WAYS = ("plain", "sparse", "full")
PROMPTS = ("digits", "letters", "assignments")
TOKENS = 272

KNOWN_NS: dict[SegmentKind, int] = {"graph": 60_000, "attention": 20_000, "collective": 120_000}
"""What the first segment of each kind takes in the replays whose shares are known; the last takes twice as long."""
KNOWN_KINDS: list[SegmentKind] = [
    "graph",
    "collective",
    *(("graph", "attention", "graph", "collective", "graph", "collective") * 48),
    "graph",
]
KNOWN_REPLAYS = 60

Replay = Callable[[], Any]


def main() -> int:
    """Measure in processes of their own and print, or be one of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.event_profile", description="Cost of the events.")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--measure", metavar="PAIR", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        print(json.dumps(measure(_request(Path(chosen.measure)))))
        return 0
    figures = run(chosen.processes) | known_shares()
    if chosen.json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:24} {value}" for name, value in figures.items()))
    return 0


def run(processes: int) -> dict[str, Any]:
    """All processes, one after the other."""
    rounds: list[dict[str, int]] = []
    with tempfile.TemporaryDirectory() as directory:
        built = launch.build_tiny_pair(
            Path(directory) / "pair", interpreter=Path(sys.executable), deadline_seconds=300, run=runner()
        )
        for _ in range(processes):
            rounds += _child(built.target.parent, Path(directory))
    return {
        "rounds": len(rounds),
        "median_ms": {way: statistics.median(taken[way] for taken in rounds) / 1e6 for way in WAYS},
        "slowdown_full": statistics.median(taken["full"] / taken["plain"] for taken in rounds),
        "slowdown_sparse": statistics.median(taken["sparse"] / taken["plain"] for taken in rounds),
    }


def _child(pair: Path, home: Path) -> list[dict[str, int]]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), "LC_ALL": "C.UTF-8"}
    argv = [sys.executable, "-m", "benchmarks.event_profile", "--measure", str(pair)]
    seen = subprocess.run(
        argv, env=environment | arms.environment(_request(pair)), capture_output=True, check=False, text=True
    )
    if seen.returncode:
        raise RuntimeError(f"exit code {seen.returncode}: {seen.stderr[-2000:]}")
    taken: list[dict[str, int]] = json.loads(seen.stdout.splitlines()[-1])
    return taken


def _request(pair: Path) -> ArmRequest:
    return ArmRequest(
        arm=Arm.GRAPH_CONTROL,
        lane="cpu",
        target=str(pair / "target"),
        draft=str(pair / "draft"),
        prompt=PROMPTS[0],
        tokens=TOKENS,
        tensor_parallel_size=1,
        collective_breaks=False,
        planted=Planted.NONE,
        profile_samples=0,
    )


def measure(request: ArmRequest) -> list[dict[str, int]]:
    """One process: whole replays in nanoseconds, by round and way."""
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - a process of its own

    arguments = arms.engine_arguments(request) | {"worker_extension_cls": "benchmarks.event_profile.Measuring"}
    engine = LLM(**arguments)
    engine.collective_rpc("begin_measuring")
    prompts = json.loads((Path(request.target).parent / "prompts.json").read_text())
    sampling = SamplingParams(temperature=0.0, seed=arms.SEED, max_tokens=TOKENS, ignore_eos=True)
    for name in PROMPTS:
        engine.generate([prompts[name]], sampling, use_tqdm=False)
    [taken] = engine.collective_rpc("measured")
    return taken  # type: ignore[no-any-return]


class Measuring:
    """Mixed into vLLM's worker; its names must not be among the worker's own."""

    def begin_measuring(self) -> None:
        """Time every replay from now on."""
        self.laguna_measurement = Measurement(self)

    def measured(self) -> list[dict[str, int]]:
        """The whole rounds."""
        rounds = zip(*[iter(self.laguna_measurement.taken)] * len(WAYS), strict=False)
        return [dict(taken) for taken in rounds]


class Measurement:
    """Runs each replay of the target in one of the ways, and times it with what it needs made for it."""

    def __init__(self, worker: Any) -> None:
        from pytest_laguna.engine.compat import introspection, replay  # noqa: PLC0415 - import vLLM
        from pytest_laguna.engine.timeline import timeline  # noqa: PLC0415

        self.batch = replay.verification_batch(worker, arms.VERIFIED_TOKENS)
        kinds = [introspection.segment_kind(segment) for segment in self.batch.segments]
        self.timeline = timeline()
        self.drawn = itertools.cycle([chosen_intervals(kinds, number) for number in range(100)])
        self.order = itertools.cycle([*WAYS, *WAYS[1:], *WAYS[:1], *WAYS[2:], *WAYS[:2]])
        self.taken: list[tuple[str, int]] = []
        self.hooks = contextlib.ExitStack()
        self.hooks.enter_context(self.batch.around(self.timed))

    def timed(self, replay: Replay) -> Any:
        """One replay, in the way that is due."""
        way = next(self.order)
        begin = time.perf_counter_ns()
        with self.way(way):
            returned = replay()
        self.taken.append((way, time.perf_counter_ns() - begin))
        return returned

    @contextlib.contextmanager
    def way(self, way: str) -> Iterator[None]:
        """What is in the loop's place for one replay."""
        from pytest_laguna.engine.event_loop import EventLoop, unchanged  # noqa: PLC0415 - imports torch
        from pytest_laguna.engine.event_sparse import SparseLoop  # noqa: PLC0415

        if way == "plain":
            yield
            return
        segments = self.batch.segments
        loop = (
            EventLoop(segments, self.timeline, "benchmark")
            if way == "full"
            else SparseLoop(segments, next(self.drawn), self.timeline)
        )
        with self.batch.inside(loop.run, unchanged):
            yield


class _ProcessorTime:
    """A timeline whose events take the thread's processor time."""

    clock: EventClock = "host-clock"

    def current(self) -> Stream:
        raise NotImplementedError("the sparse loop asks for no stream")

    def events(self, count: int) -> list[_ProcessorEvent]:
        return [_ProcessorEvent() for _ in range(count)]

    def synchronize(self) -> None:
        raise NotImplementedError("nothing runs beside the thread")


class _ProcessorEvent:
    def __init__(self) -> None:
        self.nanoseconds = 0

    def record(self) -> None:
        self.nanoseconds = time.thread_time_ns()

    def is_complete(self) -> bool:
        return self.nanoseconds > 0

    def milliseconds_until(self, later: Any) -> float:
        return float(later.nanoseconds - self.nanoseconds) / 1e6


def known_shares() -> dict[str, Any]:
    """The sparse profile of replays whose segments take known times."""
    from pytest_laguna.engine.event_sparse import SparseLoop  # noqa: PLC0415 - imports torch

    def segment(nanoseconds: int) -> Callable[[], None]:
        def spin() -> None:
            until = time.thread_time_ns() + nanoseconds
            while time.thread_time_ns() < until:
                pass

        return spin

    count = len(KNOWN_KINDS)
    known = [round(KNOWN_NS[kind] * (1 + index / (count - 1))) for index, kind in enumerate(KNOWN_KINDS)]
    segments = [segment(nanoseconds) for nanoseconds in known]
    timeline, replays = _ProcessorTime(), []
    for number in range(KNOWN_REPLAYS):
        loop = SparseLoop(segments, chosen_intervals(KNOWN_KINDS, number), timeline)
        loop.run()
        replays.append(loop.read(f"replay {number}"))
    profile = SparseProfile(
        rank=0,
        world_size=1,
        descriptor="known times",
        clock="host-clock",
        stream=StreamIdentity(device_type="cpu", device_index=0, stream_id=0),
        kinds=KNOWN_KINDS,
        replays=replays,
    )
    truth = shares(category_sums(KNOWN_KINDS, known))
    seen = sparse_shares(profile)
    return {
        "known_shares": {str(kind): share for kind, share in truth.items()},
        "sparse_shares": {str(kind): share.percent for kind, share in seen.items()},
        "max_share_error_points": max(abs(seen[kind].percent - share) for kind, share in truth.items()),
    }


if __name__ == "__main__":
    sys.exit(main())
