# SPDX-License-Identifier: Apache-2.0
"""Two ranks of real vLLM on the CPU, of which one does not do what the other does: it is named."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from pytest_laguna.analysis.arms.rank_rules import judge_samples
from pytest_laguna.engine import launch
from pytest_laguna.evidence.arms.arm_record import Arm, ArmRecord, ArmRequest, Planted
from pytest_laguna.evidence.machine.process import ProcessRecord
from pytest_laguna.evidence.reading import Missing, read_stacks
from pytest_laguna.run.arm_runner import ArmRunner
from pytest_laguna.verdict import Verdict
from tests import altered_rank
from tests.runner import runner

pytestmark = pytest.mark.engines

INTERPRETER = Path(sys.executable)
RANKS, LAYERS, TOKENS = 2, 12, 12
MARGIN_SECONDS = 10.0
"""A rank's place is written some seconds before its arm is ended."""


@dataclasses.dataclass(frozen=True, slots=True)
class AlteredRunner(ArmRunner):
    """Runs an arm through ``tests/altered_rank.py``."""

    how: str = ""

    def __call__(
        self, argv: Sequence[str], variables: Mapping[str, str], directory: Path, deadline_seconds: float
    ) -> ProcessRecord:
        [interpreter, _, _, _, *files] = argv
        program = [interpreter, "-P", altered_rank.__file__, self.how, *files]
        return ArmRunner.__call__(self, program, variables, directory, deadline_seconds)


def altered(how: str, deadline_seconds: float) -> AlteredRunner:
    plain = runner(deadline_seconds=deadline_seconds)
    values = {field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)}
    return AlteredRunner(**values, how=how)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> launch.TinyPair:
    return runner().tiny_pair(
        tmp_path_factory.mktemp("tiny") / "pair", interpreter=INTERPRETER, layers=LAYERS, tensor_parallel_size=RANKS
    )


@pytest.fixture(scope="module")
def asked(pair: launch.TinyPair) -> ArmRequest:
    """The quickest arm."""
    return ArmRequest(
        arm=Arm.Q1,
        lane="cpu",
        target=str(pair.target),
        draft=None,
        prompt=pair.prompts["digits"],
        tokens=TOKENS,
        tensor_parallel_size=RANKS,
        collective_breaks=True,
        planted=Planted.NONE,
        profile_samples=0,
    )


class Ended(NamedTuple):
    """An arm that has ended by itself, and the seconds that it took."""

    record: ArmRecord
    directory: Path
    seconds: float


@pytest.fixture(scope="module")
def changed(asked: ArmRequest, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    directory, started = tmp_path_factory.mktemp("changes") / "arm", time.monotonic()
    record = altered("changes", 2400.0).arm(asked, directory, interpreter=INTERPRETER)
    return Ended(record, directory, time.monotonic() - started)


def test_a_rank_that_samples_another_token_is_named(changed: Ended) -> None:
    record, directory, _ = changed
    first, second = (report.sampled_token_ids for report in record.ranks)
    step = altered_rank.STEP - 1
    assert first[:TOKENS] == record.token_ids
    assert (second[:step], second[step]) == (first[:step], first[step] + 1)
    finding = judge_samples([("q1", record)])
    assert finding is not None
    told = f"q1 rank 1: seen {second[step]} sampled as token {step}; expected {first[step]}, as the arm gave"
    assert finding == (Verdict.FAIL, told)
    assert [path.name for path in directory.glob("rank-*")] == []


def test_a_rank_that_spins_is_named_with_its_place_and_with_one_that_waited(
    asked: ArmRequest, changed: Ended, tmp_path: Path
) -> None:
    """It has four times as long as the whole arm just took on this host."""
    directory = tmp_path / "arm"
    with pytest.raises(launch.ArmFailedError) as failed:
        altered("spins", 4 * changed.seconds + MARGIN_SECONDS).arm(asked, directory, interpreter=INTERPRETER)
    assert "deadline, " in str(failed.value)
    _, _, hung = str(failed.value).partition("; rank 1 was in spins (")
    assert hung.startswith(f"{altered_rank.__file__}, line "), failed.value
    assert "; rank 0 waited in all_reduce (torch/distributed/distributed_c10d.py, line " in hung
    stacks = read_stacks(directory)
    assert sorted(stacks) == [0, 1]
    assert not any(isinstance(stack, Missing) for stack in stacks.values())


def test_a_rank_that_is_killed_while_replays_are_profiled_is_named(
    asked: ArmRequest, pair: launch.TinyPair, tmp_path: Path
) -> None:
    """vLLM itself says whom another rank could not reach, and not who that was or what became of it."""
    changed = {"arm": Arm.GRAPH_CONTROL, "draft": str(pair.draft), "profile_samples": 2 * altered_rank.STEP}
    request, directory = asked.model_copy(update={**changed, "tokens": 100}), tmp_path / "arm"
    with pytest.raises(launch.ArmFailedError) as failed:
        altered("dies", 2400.0).arm(request, directory, interpreter=INTERPRETER)
    said = str(failed.value)
    assert said.startswith(f"arm graph-control in {directory}: exited, exit code 1 after "), said
    assert ": laguna-arm failed: RuntimeError: " in said
    assert said.endswith(f"; VllmWorker-{altered_rank.RANK} ended by SIGKILL"), said
    assert [path.name for path in (directory / "profile").iterdir()] == []
    assert not (directory / "record.json").exists()
