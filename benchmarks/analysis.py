# SPDX-License-Identifier: Apache-2.0
"""Cost of reading and judging an exact diagnostic, from the published size up to 64 ranks of 10,000 samples.

``python -m benchmarks.analysis --json`` prints:

``seconds_4x31``: reading and diagnosing a directory of four ranks with 31 samples of 291 segments in both graph arms.
``points``: for each size the seconds, the microseconds of processor time for one sample of one rank, which a busy host
disturbs little, and the peak memory of a process that does nothing else.
``linear``: microseconds a sample at the largest size over those at the smallest size of 10,000 samples in all or more.

Each size runs in a process of its own. The profiles of the largest are not all on the disk at once: each file is
written right before it is read, and that time does not count. As no arm may have more than 512 samples, larger records
do not fit the plan; finding that costs as much as finding nothing. Needs a checkout; the largest size takes minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_laguna.analysis.diagnostic.diagnosis import diagnose
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.arm_record import MOST_PROFILE_SAMPLES, Arm
from pytest_laguna.evidence.arms.profile_file import read_profile
from pytest_laguna.evidence.arms.replay_profile import RankProfile
from pytest_laguna.evidence.diagnostic.analysis import DiagnosticPlan
from pytest_laguna.evidence.diagnostic.reader import read_diagnostic
from pytest_laguna.evidence.reading import PLAN
from pytest_laguna.evidence.schemas import read_model
from tests import diagnostic_root as root

PUBLISHED = (4, 31)
POINTS = (PUBLISHED, (4, 310), (4, 3_100), (64, 310), (64, 10_000))
ON_DISK = 64 * 310
"""Samples of one arm up to which the whole directory is written before it is read."""
ENOUGH = 10_000
REPEATS = 5
GRAPH_ARMS = [arm for arm in Arm if arm.graphs]
LONGEST_REPLAY_SECONDS = 0.02
"""Upper bound of the profiles' samples; a generation lasts at least as long as its replays."""
DISTINCT = 31


class Directory:
    """A diagnostic of any size; profiles are written on demand."""

    def __init__(self, place: Path, ranks: int, samples: int) -> None:
        """Write everything but the profiles."""
        self.place = place
        self._ranks = ranks
        self.writing = (0.0, 0.0)
        cards = [f"cpu-slot-{number}" for number in range(ranks)]
        tree = root.build(cards, min(samples, MOST_PROFILE_SAMPLES))
        tree["plan.json"]["samples"] = samples
        for arm in GRAPH_ARMS:
            self._write_body(arm, samples)
            record = tree[f"arms/{arm}/record.json"]
            record["generation_seconds"] += samples * LONGEST_REPLAY_SECONDS
            tree[f"arms/{arm}/process.json"]["wall_seconds"] += samples * LONGEST_REPLAY_SECONDS
            for report in record["ranks"]:
                report["profile"]["sha256"] = self._digest(arm, report["rank"])
        for name, value in tree.items():
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files.canonical_json(value))

    def profile(self, arm: Arm, rank: int) -> Path:
        """Write one rank's profile, and forget the one before it in that place."""
        begin = clocks()
        path = self.place / "arms" / arm / "profile" / f"rank{rank}.json"
        path.parent.mkdir(exist_ok=True)
        head, tail = self._ends(arm, rank)
        with path.open("wb") as stream, self._body(arm).open("rb") as body:
            stream.write(head)
            shutil.copyfileobj(body, stream)
            stream.write(tail)
        wall, processor = (now - then for now, then in zip(clocks(), begin, strict=True))
        self.writing = self.writing[0] + wall, self.writing[1] + processor
        return path

    def read_on_demand(self, arm: Arm, rank: int) -> RankProfile:
        """Write and read one rank's profile; when its text is in memory it is taken from the disk."""
        path = self.profile(arm, rank)
        profile = read_profile(path)
        path.unlink()
        return profile

    def _body(self, arm: Arm) -> Path:
        return self.place / f"samples-{arm}.part"

    def _write_body(self, arm: Arm, samples: int) -> None:
        texts = [files.canonical_json(root.sample(arm, 0, number)) for number in range(DISTINCT)]
        with self._body(arm).open("wb") as stream:
            for number in range(samples):
                stream.write((b"," if number else b"") + texts[number % DISTINCT])

    def _ends(self, arm: Arm, rank: int) -> tuple[bytes, bytes]:
        """The parts of a profile before and behind its samples."""
        value: dict[str, Any] = root.profile(arm, rank, samples=0, ranks=self._ranks)
        head, _, tail = files.canonical_json(value).rpartition(b"[]")
        return head + b"[", b"]" + tail

    def _digest(self, arm: Arm, rank: int) -> str:
        head, tail = self._ends(arm, rank)
        digest = hashlib.sha256(head)
        with self._body(arm).open("rb") as body:
            while block := body.read(1 << 20):
                digest.update(block)
        digest.update(tail)
        return digest.hexdigest()


def measure(ranks: int, samples: int) -> dict[str, float]:
    """Read and judge one directory in this process.

    Raises:
        AssertionError: what was measured is not what this measures.
    """
    with tempfile.TemporaryDirectory() as place:
        directory = Directory(Path(place), ranks, samples)
        if ranks * samples <= ON_DISK:
            for arm in GRAPH_ARMS:
                for rank in range(ranks):
                    directory.profile(arm, rank)
        repeats = REPEATS if (ranks, samples) == PUBLISHED else 1
        judged = [judge(directory, ranks, samples) for _ in range(repeats)]
    wall, processor = (statistics.median(times) for times in zip(*judged, strict=True))
    return {
        "ranks": ranks,
        "samples": samples,
        "seconds": wall,
        "microseconds_a_sample": 1e6 * processor / (len(GRAPH_ARMS) * ranks * samples),
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def judge(directory: Directory, ranks: int, samples: int) -> tuple[float, float]:
    """Wall and processor seconds of one judgement, without the writing of profiles."""
    directory.writing = (0.0, 0.0)
    begin = clocks()
    evidence = read_diagnostic(directory.place)
    if ranks * samples > ON_DISK:
        evidence = dataclasses.replace(evidence, profiles=dict(evidence.profiles) | on_demand(directory, ranks))
    diagnosis = diagnose(read_model(directory.place / PLAN, DiagnosticPlan), evidence)
    wall, processor = (
        now - then - writing for now, then, writing in zip(clocks(), begin, directory.writing, strict=True)
    )
    if diagnosis.timing is None or diagnosis.distributions["graph-control"]["whole_replay"].median <= 0:
        message = f"nothing was compared: {diagnosis.clauses['timing']}"
        raise AssertionError(message)
    return wall, processor


def clocks() -> tuple[float, float]:
    """Now, on the wall and on this process's processor."""
    return time.perf_counter(), time.process_time()


def on_demand(directory: Directory, ranks: int) -> dict[Arm, dict[str, Callable[[], RankProfile]]]:
    """Profiles that are written when they are read."""
    return {
        arm: {f"rank{rank}.json": functools.partial(directory.read_on_demand, arm, rank) for rank in range(ranks)}
        for arm in GRAPH_ARMS
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--point", nargs=2, type=int, metavar=("RANKS", "SAMPLES"), help="measure this size here")
    chosen = parser.parse_args()
    if chosen.point:
        print(json.dumps(measure(*chosen.point)))
        return
    points = [_in_a_process(ranks, samples) for ranks, samples in POINTS]
    many = [point for point in points if point["ranks"] * point["samples"] >= ENOUGH]
    figures = {
        "seconds_4x31": points[0]["seconds"],
        "peak_megabytes": max(point["peak_megabytes"] for point in points),
        "linear": many[-1]["microseconds_a_sample"] / many[0]["microseconds_a_sample"],
        "points": points,
    }
    if chosen.json:
        print(json.dumps(figures))
        return
    for point in points:
        print(
            "{ranks:>3} x {samples:>6}: {seconds:8.3f} s, {microseconds_a_sample:6.1f} us a sample, ".format(**point),
            end="",
        )
        print(f"{point['peak_megabytes']:6.1f} MB")


def _in_a_process(ranks: int, samples: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.analysis", "--point", str(ranks), str(samples)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    result: dict[str, float] = json.loads(output)
    return result


if __name__ == "__main__":
    main()
