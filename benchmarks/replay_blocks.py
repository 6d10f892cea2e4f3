# SPDX-License-Identifier: Apache-2.0
"""Time of the target's graph replay with and without the candidate, in balanced blocks of fresh processes.

``python -m benchmarks.replay_blocks --device cuda --blocks 6 --json`` starts four processes a block, control,
candidate, candidate, control, and the other way round in every second block. Each loads its engine and waits; then they
generate one after the other, each once, under the replay profile of gate 2. So every leg is a fresh process, nothing
runs beside a generation, and the starts, which take far longer, overlap. A process that has not generated yet waits.

A leg counts with the median of each quantity over its samples. A block's saving is its two controls' mean minus its two
candidates'. Of n savings the lowest and the highest enclose the median of all such blocks with probability
1 - 2^(1-n), whatever their distribution: 96.9 % for six.

A block's halves are also the pairs that the published rules know: how many pass all six timing gates stands there with
its exact 95 % interval. With ``--null`` the candidate's places run the control too, and every pass is false.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from pytest_laguna.analysis.diagnostic.timing import GATES, P90
from pytest_laguna.analysis.statistics import binomial_interval, linear_percentile
from pytest_laguna.evidence.arms import arm_settings
from pytest_laguna.evidence.arms.arm_record import Arm, ArmRequest, Planted
from pytest_laguna.evidence.arms.replay_profile import ReplayProfile, ReplaySample
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.evidence.values import Lane
from tests.runner import runner

TOKENS = 272
SAMPLES = 31
PROMPT = "letters"
SAID = "LAGUNA "
"""Start of a child's line for its parent; vLLM writes to standard output as well."""
CONTROL, CANDIDATE = Arm.GRAPH_CONTROL, Arm.GRAPH_CANDIDATE
BLOCK = (CONTROL, CANDIDATE, CANDIDATE, CONTROL)
VLLM = {"cpu": "0.32.0", "cuda": "0.26.0", "xpu": "0.32.0"}
OTHERS = {"gpu_memory_utilization": 0.2}
"""Share of the card's memory; every process must find this much free, even with a given cache size."""

QUANTITIES = ("views", "attention", "graphs", "host", "synchronize", "whole", "whole_p90", "wall")
GATED = {
    "view_preparation": "views",
    "attention_host": "attention",
    "whole_replay": "whole",
    "whole_replay_p90": "whole_p90",
    "post_replay_synchronise": "synchronize",
    "generation_wall": "wall",
}
"""Quantity of a leg for each of the six timing gates."""
CONFIDENCE = 0.95
"""Of the exact interval of a rate."""


def main() -> int:
    """Measure and print, or be one of the processes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay_blocks", description="Replays in blocks.")
    parser.add_argument("--device", choices=sorted(VLLM), default="cpu")
    parser.add_argument("--width", type=int, default=1, help="of the pair: times the hidden size")
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--null", action="store_true", help="A/A: the control in the candidate's places too")
    parser.add_argument("--flash-attention", type=int, choices=(2, 3), help="its version; without it vLLM's choice")
    parser.add_argument("--at-once", type=int, default=2, help="processes that start at the same time")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--leg", nargs=3, metavar=("ARM", "PAIR", "PLACE"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.leg:
        arm, pair, place = chosen.leg
        leg(_request(Arm(arm), chosen.device, Path(pair)), Path(place), _others(chosen.flash_attention))
        return 0
    figures = run(chosen)
    print(json.dumps(figures) if chosen.json else "\n".join(f"{name:14} {value}" for name, value in figures.items()))
    return 0


def run(chosen: argparse.Namespace) -> dict[str, Any]:
    """Build the pair, run all legs, and compare them."""
    order = [arm for block in range(chosen.blocks) for arm in (BLOCK if block % 2 == 0 else _reversed())]
    with tempfile.TemporaryDirectory(prefix="laguna-blocks-") as directory:
        place = Path(directory)
        pair = runner().tiny_pair(
            place / "pair",
            interpreter=Path(sys.executable),
            layers=chosen.layers,
            width=chosen.width,
            vllm=VLLM[chosen.device],
        )
        began = time.monotonic()
        with contextlib.ExitStack() as running:
            legs = _start(order, chosen, pair.target.parent, place, running)
            ready = time.monotonic()
            taken = [one.generate() for one in legs]
        done = time.monotonic()
    return {
        "layers": chosen.layers,
        "width": chosen.width,
        "null": chosen.null,
        "flash_attention": chosen.flash_attention,
        "legs": taken,
        "tokens_equal": len({leg["tokens"] for leg in taken}) == 1,
        "savings_us": {name: _savings(taken, name) for name in QUANTITIES},
        "confidence": 1 - 2.0 ** (1 - chosen.blocks),
        "passes": _passes(taken),
        "seconds": {"starts": ready - began, "generations": done - ready},
    }


def _reversed() -> Sequence[Arm]:
    return [CANDIDATE if arm is CONTROL else CONTROL for arm in BLOCK]


def _passes(taken: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Number of pairs, of those that pass all six gates, and the exact interval of their rate."""
    halves = [sorted(taken[first : first + 2], key=_place) for first in range(0, len(taken), 2)]
    passed = sum(
        all(gate.holds(control[GATED[name]] - candidate[GATED[name]]) for name, gate in GATES.items())
        for control, candidate in halves
    )
    return {"pairs": len(halves), "passed": passed, "interval": binomial_interval(passed, len(halves), CONFIDENCE)}


def _place(leg: dict[str, Any]) -> bool:
    """Sort key: controls before candidates."""
    return bool(leg["place"] == CANDIDATE)


def _savings(taken: Sequence[dict[str, Any]], quantity: str) -> dict[str, Any]:
    """Savings of the blocks in microseconds, with median and range."""
    blocks = [taken[first : first + len(BLOCK)] for first in range(0, len(taken), len(BLOCK))]
    savings = [
        statistics.mean(leg[quantity] for leg in block if leg["place"] == CONTROL)
        - statistics.mean(leg[quantity] for leg in block if leg["place"] == CANDIDATE)
        for block in blocks
    ]
    control = statistics.median(leg[quantity] for leg in taken if leg["place"] == CONTROL)
    candidate = statistics.median(leg[quantity] for leg in taken if leg["place"] == CANDIDATE)
    return {
        "control": control,
        "candidate": candidate,
        "blocks": savings,
        "median": statistics.median(savings),
        "interval": [min(savings), max(savings)],
    }


@dataclasses.dataclass(frozen=True, slots=True)
class Leg:
    """A waiting process with a loaded engine; in an A/A run a control's process takes the candidate's place."""

    place: Arm
    process: subprocess.Popen[str]
    tell: IO[str]
    told: IO[str]
    log: Path

    def generate(self) -> dict[str, Any]:
        """Start the generation, and wait for its end."""
        self.tell.write("go\n")
        self.tell.flush()
        said: dict[str, Any] = json.loads(self.wait_for_line())
        self.process.wait()
        return {"place": self.place.value} | said

    def wait_for_line(self) -> str:
        """The next line for the parent; raises RuntimeError if the child ends without one."""
        for line in self.told:
            if line.startswith(SAID):
                return line.removeprefix(SAID)
        message = f"{self.place}: exit code {self.process.wait()}: {self.log.read_text()[-2000:]}"
        raise RuntimeError(message)


def _start(
    order: Sequence[Arm], chosen: argparse.Namespace, pair: Path, place: Path, running: contextlib.ExitStack
) -> list[Leg]:
    """Start all processes, some at once, and return when each has loaded its engine."""
    legs: list[Leg] = []
    for first in range(0, len(order), chosen.at_once):
        batch = [
            running.enter_context(_process(arm, chosen, pair, place / f"leg-{first + number}"))
            for number, arm in enumerate(order[first : first + chosen.at_once])
        ]
        for one in batch:
            one.wait_for_line()
        legs += batch
    return legs


@contextlib.contextmanager
def _process(due: Arm, chosen: argparse.Namespace, pair: Path, place: Path) -> Iterator[Leg]:
    place.mkdir(mode=0o700)
    home = place.parent / "home"  # shared: what the kernels' compiler caches is the same for all
    home.mkdir(exist_ok=True)
    arm = CONTROL if chosen.null else due
    request = _request(arm, chosen.device, pair)
    argv = [sys.executable, "-m", "benchmarks.replay_blocks", f"--device={chosen.device}"]
    if chosen.flash_attention is not None:
        argv.append(f"--flash-attention={chosen.flash_attention}")
    argv += ["--leg", arm.value, str(pair), str(place)]
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(place), "LC_ALL": "C.UTF-8"}
    environment |= {name: os.environ[name] for name in arm_settings.LEASE & os.environ.keys()}  # its cards
    log = place / "stderr.log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            argv,
            env=environment | arm_settings.environment(request),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        tell, told = process.stdin, process.stdout
        try:
            if tell is not None and told is not None:  # both are pipes
                yield Leg(due, process, tell, told, log)
        finally:
            process.kill()
            process.wait()


def _request(arm: Arm, device: Lane, pair: Path) -> ArmRequest:
    return ArmRequest(
        arm=arm,
        lane=device,
        target=str(pair / "target"),
        draft=str(pair / "draft"),
        prompt=json.loads((pair / "prompts.json").read_text())[PROMPT],
        tokens=TOKENS,
        tensor_parallel_size=1,
        collective_breaks=False,
        planted=Planted.NONE,
        profile_samples=SAMPLES,
    )


def _others(flash_attention: int | None) -> dict[str, Any]:
    """Engine arguments in addition to the arm's; ``attention_config`` is vLLM's in 0.26.0 to 0.33.0."""
    chosen = {} if flash_attention is None else {"attention_config": {"flash_attn_version": flash_attention}}
    return OTHERS | chosen


def leg(request: ArmRequest, place: Path, others: dict[str, Any]) -> None:
    """One process: load, wait for the signal, generate, and report the replays' times."""
    began = time.monotonic()
    profiles = arm_settings.profile_root(place)
    profiles.mkdir(mode=0o700)
    os.environ.update(arm_settings.profile(request, place))
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - a process of its own

    engine = LLM(**(arm_settings.engine_arguments(request) | others))
    engine.collective_rpc("laguna_begin")
    start = time.monotonic() - began
    print(f"{SAID}ready", flush=True)
    sys.stdin.readline()
    sampling = SamplingParams(temperature=0.0, seed=arm_settings.SEED, max_tokens=request.tokens, ignore_eos=True)
    asked = time.monotonic()
    [output] = engine.generate([request.prompt], sampling, use_tqdm=False)
    wall = time.monotonic() - asked
    [profile] = [read_model(path, ReplayProfile) for path in profiles.iterdir()]
    said = {"start_seconds": start, "tokens": str(output.outputs[0].token_ids), "wall": wall * 1e6}
    said |= _medians(profile)
    print(f"{SAID}{json.dumps(said)}", flush=True)


def _medians(profile: ReplayProfile) -> dict[str, float]:
    """Medians in microseconds."""

    def segments(sample: ReplaySample, kind: str) -> int:
        return sum(time for time, seen in zip(sample.segment_ns, profile.kinds, strict=True) if seen == kind)

    taken = {
        "views": [sample.views.total_ns for sample in profile.samples if sample.views is not None],
        "attention": [segments(sample, "attention") for sample in profile.samples],
        "graphs": [segments(sample, "graph") for sample in profile.samples],
        "host": [sample.host_ns for sample in profile.samples],
        "synchronize": [sample.synchronize_ns for sample in profile.samples],
        "whole": [sample.whole_ns for sample in profile.samples],
    }
    medians = {name: statistics.median(values) / 1000 for name, values in taken.items()}
    return medians | {"whole_p90": linear_percentile(taken["whole"], P90) / 1000}


if __name__ == "__main__":
    sys.exit(main())
