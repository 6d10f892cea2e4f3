# SPDX-License-Identifier: Apache-2.0
"""Makes a canonical teacher: the answers of a campaign's q1 arm to a suite, on one rank.

    python tools/make_teacher.py CAMPAIGN SUITE.json TEACHER.json [--device cpu]

A server without speculation passes the suite once, as a leg does. The teacher is frozen by its digest in the endpoint
protocol; it must be made before the campaign, by the same models.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from pytest_laguna.campaign import GeneratedPair, read_campaign
from pytest_laguna.endpoint import sockets
from pytest_laguna.endpoint.leg import LegBounds, LegPlace, run_leg
from pytest_laguna.endpoint.suite import pin_suite
from pytest_laguna.engine.launch import TinyPair
from pytest_laguna.engine.serving import ServedArm
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.arm_record import Arm
from pytest_laguna.evidence.endpoint.leg import LegRecord, LegRequest
from pytest_laguna.evidence.endpoint.plan import Teacher
from pytest_laguna.evidence.values import Lane
from pytest_laguna.machine.command import new_token
from pytest_laguna.run.arm_runner import ArmRunner

LANES = ("cpu", "cuda", "xpu")
MODEL_TOKENS = 1024
SECONDS = 600.0


def main(arguments: list[str] | None = None) -> int:
    """Run the server and write the teacher; prints its digest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("campaign", type=Path)
    parser.add_argument("suite", type=Path)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("--device", choices=LANES, default="cpu", help="lane whose engine answers")
    chosen = parser.parse_args(arguments)
    campaign = read_campaign(chosen.campaign)
    settings = campaign.lane_settings(chosen.device)
    if settings.engine is None or not isinstance(settings.engine.model, GeneratedPair):
        parser.error(f"expected a campaign with a generated pair on the lane {chosen.device}")
    with tempfile.TemporaryDirectory(prefix="laguna-teacher-") as place:
        (Path(place) / "bytecode").mkdir(mode=0o700)
        runner = ArmRunner(new_token(), {}, frozenset(), settings.bounds, Path(place) / "bytecode")
        pair = runner.tiny_pair(
            Path(place) / "models",
            interpreter=Path(sys.executable),
            layers=settings.engine.model.layers,
            width=settings.engine.model.width,
            vllm=settings.vllm,
        )
        record = _ask(runner, chosen.device, pair, chosen.suite.resolve(), Path(place))
        source = files.sha256_file(Path(place) / "leg" / "leg.json")
    teacher = Teacher.of(record.rows, source)
    files.write_new(chosen.teacher, files.canonical_json(teacher.canonical()) + b"\n")
    for row in record.rows:
        print(f"{row.prompt_id}: {row.usage.prompt_tokens} + {row.usage.completion_tokens}, {row.finish_reason}")
    print(teacher.digest)
    return 0


def _ask(runner: ArmRunner, lane: Lane, pair: TinyPair, suite: Path, place: Path) -> LegRecord:
    served = ServedArm(
        arm=Arm.Q1,
        lane=lane,
        target=str(pair.target),
        draft=None,
        tensor_parallel_size=1,
        collective_breaks=False,
        max_model_tokens=MODEL_TOKENS,
    )
    request = LegRequest(
        leg="A1",
        block=1,
        sequence=1,
        arm=Arm.Q1,
        lane=lane,
        model="tiny-laguna",
        suite=pin_suite(suite),
        engine_arguments=served.engine_arguments(),
        variables=served.variables(),
    )
    bounds = LegBounds(deadline_seconds=SECONDS, ready_seconds=SECONDS, row_seconds=SECONDS)
    where = LegPlace(
        interpreter=Path(sys.executable),
        suite=suite,
        port=sockets.free_port(),
        bounds=bounds,
        start=runner.start,
        idle_after=lambda: None,
    )
    return run_leg(request, place / "leg", where)


if __name__ == "__main__":
    sys.exit(main())
