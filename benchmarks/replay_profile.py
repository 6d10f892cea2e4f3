# SPDX-License-Identifier: Apache-2.0
"""Cost of the replay profile for the replays that it times.

``python -m benchmarks.replay_profile --device cpu --json`` runs the tiny pair in several processes, control and
candidate in turn. In each, the replays of the target's graph go round in three ways, in an order that turns as well, so
that a drift of the host and the growing context meet all of them alike. Of three replays in a row in one way the third
counts: what is put into vLLM's class for a way, which a profile does once, makes the interpreter forget what it knew of
that class. The ways:

* ``stock``: vLLM's own replay, nothing around it.
* ``seam``: with the timing seam of the view preparations, which both graph arms of the diagnostic share.
* ``profile``: with the whole profile: the seam, a clock reading after each segment, the synchronise.

All three are timed by the same clock around the whole replay and one wait for the device after it, which the profile
makes itself. A ratio is the median over rounds of one way over ``stock`` of the same round, with the interval that the
number of rounds leaves it; processes differ besides. ``ratio_on_off`` is the larger of both arms' for the profile, and
``ratio_seam_stock`` for the seam. ``clock_ns`` is what one reading of Python's clock takes. The profile has its own, in
C, and reads it once a segment and two to four times a view preparation; ``has_counter`` is whether that reads the
processor's counter. Needs the lane's extra and a checkout.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

from benchmarks import replays
from benchmarks.replays import Replay, Rounds
from pytest_laguna.evidence.arms import arm_settings
from pytest_laguna.evidence.arms.arm_record import Arm
from pytest_laguna.evidence.values import Lane

MODULE = "benchmarks.replay_profile"
WAYS = ("stock", "seam", "profile")
SETTLING = 2
"""Replays before one that counts."""
ARMS = (Arm.GRAPH_CONTROL, Arm.GRAPH_CANDIDATE)


def main() -> int:
    """Measure in processes of their own and print, or be one of them."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description="Cost of the profile.")
    parser.add_argument("--device", choices=sorted(replays.VLLM), default="cpu")
    parser.add_argument("--processes", type=int, default=2, help="for each arm")
    parser.add_argument("--width", type=int, default=1, help="of the pair: times the hidden size")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--measure", nargs=2, metavar=("WHAT", "REQUEST"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        print(json.dumps(replays.measure(Path(chosen.measure[1]), f"{MODULE}.Measuring")))
        return 0
    figures = run(chosen.processes, chosen.device, chosen.width)
    if chosen.json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:20} {value}" for name, value in figures.items()))
    return 0


def run(processes: int, lane: Lane, width: int) -> dict[str, Any]:
    """All processes, one after the other, the arms in turn."""
    rounds: dict[Arm, list[dict[str, int]]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        pair = replays.build_pair(home, lane, width)
        for arm in ARMS * processes:
            rounds[arm] += replays.child(MODULE, "cost", replays.request(lane, pair, arm), home)
    quotients = {way: {arm.value: sorted(r[way] / r["stock"] for r in rounds[arm]) for arm in ARMS} for way in WAYS[1:]}
    ratios = {way: {arm: statistics.median(taken) for arm, taken in arms.items()} for way, arms in quotients.items()}
    return {
        "width": width,
        "rounds": {arm.value: len(taken) for arm, taken in rounds.items()},
        "median_ms": {
            arm.value: {way: statistics.median(r[way] for r in taken) / 1e6 for way in WAYS}
            for arm, taken in rounds.items()
        },
        "ratios": ratios,
        "intervals": {way: {arm: _interval(taken) for arm, taken in arms.items()} for way, arms in quotients.items()},
        "ratio_on_off": max(ratios["profile"].values()),
        "ratio_seam_stock": max(ratios["seam"].values()),
        "clock_ns": _clock_ns(),
        "has_counter": _has_counter(),
    }


def _interval(ordered: Sequence[float]) -> tuple[float, float]:
    """95 % interval of a median among ordered values: the number of values below it is binomial."""
    outside = max(0, math.floor((len(ordered) - NormalDist().inv_cdf(0.975) * math.sqrt(len(ordered))) / 2))
    return ordered[outside], ordered[-1 - outside]


def _clock_ns() -> float:
    """Nanoseconds of one reading of the clock, from a hundred thousand readings."""
    now, readings = time.perf_counter_ns, 100_000
    begin = now()
    for _ in range(readings):
        now()
    return (now() - begin) / readings


def _has_counter() -> bool:
    from pytest_laguna.engine.replay_clock import has_counter  # noqa: PLC0415 - compiled, with the lane's extra

    return has_counter()


class Measuring:
    """Mixed into vLLM's worker; its names must not be among the worker's own."""

    def begin_measuring(self) -> None:
        """Time every replay from now on."""
        self.laguna_measurement = Measurement(self)

    def measured(self) -> list[dict[str, int]]:
        """The whole rounds."""
        return self.laguna_measurement.rounds.whole()


class Measurement:
    """Runs each replay of the target in one of the ways, and times it."""

    def __init__(self, worker: Any) -> None:
        from pytest_laguna.engine.compat import introspection, replay  # noqa: PLC0415 - import vLLM
        from pytest_laguna.engine.profile_directory import ProfileDirectory  # noqa: PLC0415
        from pytest_laguna.engine.replay_profile import ReplayProfiler, synchronizer  # noqa: PLC0415
        from pytest_laguna.engine.view_preparation import TimingSeam  # noqa: PLC0415

        batch = replay.verification_batch(worker, arm_settings.VERIFIED_TOKENS)
        states = introspection.candidate_states(worker)
        self.seam = TimingSeam(introspection.attention_class(), introspection.canonical_strides(), states)
        kinds = [introspection.segment_kind(segment) for segment in batch.segments]
        # sys.maxsize samples, so that it never ends.
        directory = ProfileDirectory(Path(tempfile.mkdtemp()), 0, 1)
        self.profiler = ReplayProfiler(batch, kinds, self.seam, directory, (0, 1), sys.maxsize)
        self.rounds = Rounds(WAYS, synchronizer(), SETTLING)
        self.way = ""
        self.run_replay: Callable[[Replay], Any] = _run
        self.put = contextlib.ExitStack()
        self.hooks = contextlib.ExitStack()
        self.hooks.enter_context(batch.around(self.timed))

    def timed(self, replay: Replay) -> Any:
        """One replay, in the way that is due."""
        way = self.rounds.due()
        if way != self.way:
            self.put.close()
            self.way, self.run_replay = way, self.put.enter_context(self.running(way))
        return self.rounds.timed(way, lambda: self.run_replay(replay), waits=way == "profile")

    @contextlib.contextmanager
    def running(self, way: str) -> Iterator[Callable[[Replay], Any]]:
        """The function that runs a replay in this way; its set-up is outside the time."""
        if way == "stock":
            yield _run
        elif way == "profile":
            with self.profiler.parts():
                yield self.profiler.replay
        else:
            self.seam.install()
            try:
                yield self._with_seam
            finally:
                self.seam.remove()

    def _with_seam(self, replay: Replay) -> Any:
        self.seam.start()
        returned = replay()
        self.seam.stop()
        return returned


def _run(replay: Replay) -> Any:
    return replay()


if __name__ == "__main__":
    sys.exit(main())
