# SPDX-License-Identifier: Apache-2.0
"""The tiny pair in real vLLM: what measured.json says of its prompts, seen again, and two KV heads on every rank."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.engine import launch
from pytest_laguna.engine.tiny_pair import prompts
from pytest_laguna.evidence.arms import arm_settings
from pytest_laguna.evidence.arms.arm_record import Arm
from tests.runner import runner
from tools.tiny_pair import measure, suite

INTERPRETER = Path(sys.executable)
REPOSITORY = Path(__file__).parents[2]
MEASURED = Path(measure.__file__).with_name("measured.json")
GATE_2, STOPPED = "letters", "bullet-list"


def measured(size: str, arm: str) -> dict[str, dict[str, Any]]:
    [entry] = [entry for entry in json.loads(MEASURED.read_text()) if (entry["size"], entry["arm"]) == (size, arm)]
    return {row["prompt"]: row for row in entry["prompts"]}


def remeasured(pair: launch.TinyPair, arm: Arm, ranks: int, directory: Path, *names: str) -> dict[str, dict[str, Any]]:
    directory.mkdir(mode=0o700)
    out = directory / "measured.json"
    argv = [str(INTERPRETER), "-P", "-m", "tools.tiny_pair.measure", str(pair.target.parent)]
    argv += [str(out), "--arm", arm, "--tensor-parallel-size", str(ranks)]
    argv += [word for name in names for word in ("--prompt", name)]
    request = measure.request(pair.target.parent, arm, ranks)
    variables = arm_settings.environment(request) | {"PYTHONPATH": str(REPOSITORY)}
    process = runner()(argv, variables, directory, 4000.0)
    assert process.is_clean, (directory / "stderr.log").read_text()[-2000:]
    return {row["prompt"]: row for row in json.loads(out.read_text())}


@pytest.mark.engines
@pytest.mark.parametrize(("layers", "ranks"), [(48, 1), (12, 2)])
def test_what_was_measured_is_seen_again(layers: int, ranks: int, tmp_path: Path) -> None:
    pair = runner().tiny_pair(tmp_path / "pair", interpreter=INTERPRETER, layers=layers, tensor_parallel_size=ranks)
    before = measured(f"layers={layers} tensor_parallel_size={ranks}", "graph-control")
    seen = remeasured(pair, Arm.GRAPH_CONTROL, ranks, tmp_path / "run", GATE_2, STOPPED)
    assert seen.keys() == {GATE_2, STOPPED}
    for name, row in seen.items():
        assert row["as_learnt"]
        assert row["minimum_margin"] >= 1
        # A processor that rounds otherwise may move these, but not far.
        assert row["minimum_margin"] == pytest.approx(before[name]["minimum_margin"], abs=1.0)
        assert row["drafts"] == pytest.approx(before[name]["drafts"], abs=3)
        assert (row["tokens"], row["finish_reason"]) == (before[name]["tokens"], before[name]["finish_reason"])
    assert 2 < seen[GATE_2]["accepted"] / seen[GATE_2]["drafts"] < 6
    assert seen[GATE_2]["drafts"] >= 40
    assert seen[STOPPED]["finish_reason"] == "stop"


def test_everything_that_was_measured_is_as_the_campaigns_need_it() -> None:
    """Each prompt in each configuration: the learnt tokens, by at least a logit, and drafts between 2 and 6 of 7."""
    entries = json.loads(MEASURED.read_text())
    assert {(entry["size"], entry["arm"]) for entry in entries} >= {
        *(("layers=48 tensor_parallel_size=1", arm) for arm in ("q1", "eager", "graph-control")),
        *((f"layers=48 tensor_parallel_size={ranks}", "graph-control") for ranks in (2, 4)),
        *((f"layers=12 tensor_parallel_size={ranks}", "graph-control") for ranks in (1, 2)),
    }
    for entry in entries:
        for row in entry["prompts"]:
            where = (entry["size"], entry["arm"], row["prompt"])
            gate_2 = row["prompt"] in prompts.GATE_2
            assert row["as_learnt"], where
            assert row["minimum_margin"] >= 1, where
            assert row["tokens"] == suite.GATE_2_TOKENS if gate_2 else row["tokens"] >= 100, where
            if entry["arm"] == "q1":
                assert row["drafts"] == row["accepted"] == 0, where
            else:
                assert 2 < row["accepted"] / row["drafts"] < 6, where
                assert row["drafts"] >= 40 or not gate_2, where


def test_the_documentation_shows_what_was_measured() -> None:
    text = (REPOSITORY / "docs" / "tiny-pair.md").read_text()
    for entry in json.loads(MEASURED.read_text()):
        for row in entry["prompts"]:
            accepted = f"{row['accepted'] / row['drafts']:.2f}" if row["drafts"] else "-"
            line = f"| {row['prompt']} | {row['tokens']} | {row['minimum_margin']:.2f} | {row['drafts']} | {accepted} |"
            assert line in text, (entry["size"], entry["arm"])
