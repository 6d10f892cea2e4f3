# SPDX-License-Identifier: Apache-2.0
"""What the event profile costs the replay that it measures, on the cpu lane.

``python -m benchmarks.event_profile --json`` runs the tiny pair in several processes. In each, replays of the target's
graph go round in three ways, in an order that turns: as they are, with a host clock reading at each boundary, and with
the events; it is the trial that a fitness campaign makes. A ratio is the median over all rounds of one way over the
first of the same round. ``slowdown_full`` is that of the events. Needs the ``cpu`` extra and a checkout.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from pytest_laguna.engine import arms, launch
from pytest_laguna.evidence.arm_record import Arm, ArmRequest, Planted
from pytest_laguna.evidence.event_profile import EventFitness, FitnessRound
from pytest_laguna.evidence.replay_profile import SegmentKind, order_sha256
from pytest_laguna.evidence.schemas import read_model
from tests.runner import runner

PROMPT = "letters"
TOKENS = 272
ROUNDS = 9
"""As many as the replays of one generation are enough for."""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.event_profile", description="Cost of the events.")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--layers", type=int, default=launch.TINY_PAIR_LAYERS)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    chosen = parser.parse_args()
    figures = run(chosen.processes, chosen.layers)
    if chosen.json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:20} {value}" for name, value in figures.items()))
    return 0


def run(processes: int, layers: int) -> dict[str, Any]:
    """All processes, one after the other."""
    rounds: list[FitnessRound] = []
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        pair = launch.build_tiny_pair(
            home / "pair", layers=layers, interpreter=Path(sys.executable), deadline_seconds=300, run=runner()
        )
        for number in range(processes):
            rounds += _trial(pair, layers, home / str(number))
    kinds = {
        kind: statistics.median(each.events_kind_ns[kind] / each.stamped_kind_ns[kind] for each in rounds)
        for kind in rounds[0].events_kind_ns
    }
    return {
        "layers": layers,
        "rounds": len(rounds),
        "median_ms": {
            way: statistics.median(getattr(each, f"{way}_ns") for each in rounds) / 1e6
            for way in ("plain", "stamped", "events")
        },
        "slowdown_full": statistics.median(each.events_ns / each.plain_ns for each in rounds),
        "slowdown_stamped": statistics.median(each.stamped_ns / each.plain_ns for each in rounds),
        "slowdown_by_kind": {str(kind): ratio for kind, ratio in kinds.items()},
        "spread": max(kinds.values()) / min(kinds.values()),
    }


def _trial(pair: launch.TinyPair, layers: int, directory: Path) -> list[FitnessRound]:
    kinds: list[SegmentKind] = ["graph"]
    for _ in range(layers):
        kinds += ["attention", "graph"]
    request = ArmRequest(
        arm=Arm.GRAPH_CONTROL,
        lane="cpu",
        target=str(pair.target),
        draft=str(pair.draft),
        prompt=pair.prompts[PROMPT],
        tokens=TOKENS,
        tensor_parallel_size=1,
        collective_breaks=False,
        planted=Planted.NONE,
        profile_samples=0,
        event_profile=order_sha256(kinds),
        event_fitness_rounds=ROUNDS,
    )
    launch.run_arm(request, directory, interpreter=Path(sys.executable), deadline_seconds=300, run=runner())
    return read_model(arms.profile_root(directory) / "rank0.json", EventFitness).rounds


if __name__ == "__main__":
    sys.exit(main())
