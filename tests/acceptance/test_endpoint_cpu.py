# SPDX-License-Identifier: Apache-2.0
"""Real vLLM servers on the cpu lane: one whole leg, and one whose engine dies."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.endpoint import leg, sockets, suite
from pytest_laguna.endpoint.kept import require_kept
from pytest_laguna.endpoint.metrics import read_counters
from pytest_laguna.endpoint.server import RunningServer
from pytest_laguna.endpoint.transport import HttpTransport
from pytest_laguna.engine import launch, serving
from pytest_laguna.evidence.arms import arm_settings
from pytest_laguna.evidence.arms.arm_record import DRAFT_TOKENS, Arm
from pytest_laguna.evidence.endpoint.leg import LegEnd, LegFacts, LegRecord, LegRequest, RankState
from pytest_laguna.evidence.machine.process import Reason
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.run.arm_runner import ArmRunner
from pytest_laguna.verdict import UnusableEvidenceError
from tests.runner import runner

pytestmark = [pytest.mark.engines(keep=1), pytest.mark.timeout(3600)]

MODEL = "tiny-laguna"
MODEL_TOKENS = 1024
LAYERS = 8
TOKENS = 24
INTERPRETER = Path(sys.executable)
TEXTS = {"words": "nova\n", "digits": "1, 2, 3, 4, 5, ", "letters": "a b c d e f "}
BOUNDS = leg.LegBounds(deadline_seconds=2400.0, ready_seconds=1800.0, row_seconds=600.0)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> launch.TinyPair:
    directory = tmp_path_factory.mktemp("tiny") / "pair"
    return runner().tiny_pair(directory, interpreter=INTERPRETER, layers=LAYERS)


def write_suite(path: Path, tokens: int) -> Path:
    prompts = [{"id": name, "kind": name, "text": text} for name, text in TEXTS.items()]
    limits = {"version": 1, "max_tokens": tokens, "rollover_prompt_tokens": 500}
    content = {"schema": "pytest-laguna-suite-v1", "suite_id": "short", **limits, "prompts": prompts}
    path.write_text(json.dumps(content))
    return path


def request(pair: launch.TinyPair, suite_file: Path, arm: Arm = Arm.GRAPH_CANDIDATE) -> LegRequest:
    served = serving.ServedArm(
        arm=arm,
        lane="cpu",
        target=str(pair.target),
        draft=str(pair.draft),
        tensor_parallel_size=1,
        collective_breaks=False,
        max_model_tokens=MODEL_TOKENS,
    )
    return LegRequest(
        leg="B1",
        block=1,
        sequence=2,
        arm=arm,
        lane="cpu",
        model=MODEL,
        suite=suite.pin_suite(suite_file),
        engine_arguments=served.engine_arguments(),
        variables=served.variables(),
    )


def patient() -> ArmRunner:
    """With the order of the published protocol's signals: a busy host lets a server take its time to end."""
    ours = runner()
    ladder = {"interrupt_seconds": 300.0, "terminate_seconds": 15.0, "kill_seconds": 10.0}
    return dataclasses.replace(ours, bounds=ours.bounds.model_copy(update=ladder))


def place(suite_file: Path, **changes: Any) -> leg.LegPlace:
    values: dict[str, Any] = {
        "interpreter": INTERPRETER,
        "suite": suite_file,
        "port": sockets.free_port(),
        "bounds": BOUNDS,
        "start": patient().start,
        "idle_after": lambda: True,
    }
    return leg.LegPlace(**(values | changes))


def test_a_leg_passes_the_suite_once_on_a_fresh_server_of_ours(pair: launch.TinyPair, tmp_path: Path) -> None:
    suite_file = write_suite(tmp_path / "suite.json", TOKENS)
    asked, directory = request(pair, suite_file), tmp_path / "leg"
    record = leg.run_leg(asked, directory, place(suite_file))
    assert read_model(directory / "leg.json", LegRecord) == record
    require_kept(directory, record, suite.read_suite(suite_file, asked.suite))
    assert record.request == asked
    check_rows(record)
    check_ranks(record)
    check_counters(record)
    for name in LegFacts.model_fields:
        fact = getattr(record.facts, name)
        assert fact is not None, name
        assert fact.holds, fact.observation
    status = record.end.cleanup
    assert (status.original_status, status.stop_status, status.worker_status, status.idle_status) == (0, 0, 0, 0)
    assert record.end.process is not None
    assert (record.end.process.reason, record.end.process.exit_code) == (Reason.STOPPED, 0)
    assert record.server.models == [MODEL, record.server.nonce]
    assert record.server.listener_before == record.server.listener_after


def check_rows(record: LegRecord) -> None:
    assert [row.prompt_id for row in record.rows] == list(TEXTS)
    for row, text in zip(record.rows, TEXTS.values(), strict=True):
        assert (row.finish_reason, row.model) == ("length", MODEL)
        assert len(row.token_ids) == row.usage.completion_tokens == TOKENS
        assert row.usage.prompt_tokens == len(text)
        assert row.arrival_ns == sorted(row.arrival_ns)
        assert len(set(row.arrival_ns)) <= len(row.event_tokens)
    # A verification gives its tokens at once; a busy host puts several of them into one event.
    assert sum(len(row.event_tokens) for row in record.rows) < TOKENS * len(TEXTS)
    assert record.final_gate.cached_tokens == record.freshness.cached_tokens == [0] * len(TEXTS)
    assert record.final_gate.completion_tokens == [TOKENS] * len(TEXTS)


def check_ranks(record: LegRecord) -> None:
    """The one rank had captured before the first request, runs the candidate, and used its views for the suite."""
    [captured], [served] = record.ranks_captured, record.ranks_served
    target, draft = captured.graphs
    assert (target.model, target.graphs, target.breaks) == ("target", LAYERS + 1, LAYERS)
    assert (draft.model, draft.graphs, draft.breaks) == ("draft", 3, 2)
    assert served.graphs == captured.graphs
    assert (served.pid, served.start_ticks) == (captured.pid, captured.start_ticks)
    assert captured.variables[arm_settings.FLAG] == served.variables[arm_settings.FLAG] == "1"
    assert record.request.variables.items() <= captured.variables.items()
    assert captured.versions["vllm"] == "0.32.0"
    assert captured.candidate["implementations"] == ["laguna_kv.backend.LagunaFlashAttentionImpl"]
    assert (captured.candidate["builds"], served.candidate["builds"]) == (LAYERS, LAYERS)
    assert captured.candidate["forward_hits"] == 0
    # A prefill and then a verification for each draft, each through every layer.
    passes = served.candidate["forward_hits"]
    assert isinstance(passes, int)
    assert passes >= LAYERS * (len(TEXTS) + (record.counters_after.drafts or 0))


def check_counters(record: LegRecord) -> None:
    before, after = record.counters_before, record.counters_after
    assert before.drafts == before.draft_tokens == before.accepted == before.decode_count == 0
    assert (after.decode_count, after.generated_tokens) == (len(TEXTS), TOKENS * len(TEXTS))
    assert after.drafts
    assert after.accepted
    assert after.draft_tokens == DRAFT_TOKENS * after.drafts
    assert sum(after.accepted_per_position.values()) == after.accepted
    assert list(after.accepted_per_position) == [str(position) for position in range(DRAFT_TOKENS)]
    assert sum(after.finished.values()) == after.finished["length"] == len(TEXTS)


SOME = 16
"""Tokens of a row that has begun: several events, and far from its end."""


def generated(port: int) -> int:
    """How many tokens the server has generated, as it counts them."""
    answer = HttpTransport(port, deadline_seconds=10.0).get("/metrics")
    return read_counters(answer.body, "/metrics", MODEL).generated_tokens or 0


@pytest.mark.engines
def test_an_engine_that_dies_in_the_middle_of_a_row_ends_the_leg(pair: launch.TinyPair, tmp_path: Path) -> None:
    tokens, port = 400, sockets.free_port()
    suite_file, directory = write_suite(tmp_path / "suite.json", tokens), tmp_path / "leg"

    def kill_the_rank() -> None:
        while not (directory / "row-00.sse").exists() or generated(port) < tokens + SOME:
            time.sleep(0.05)
        os.kill(read_model(directory / "ranks" / "rank-0-captured.json", RankState).pid, signal.SIGKILL)

    started = patient().start

    @contextlib.contextmanager
    def start(*arguments: Any, **keywords: Any) -> Iterator[RunningServer]:
        with started(*arguments, **keywords) as server:
            threading.Thread(target=kill_the_rank, daemon=True).start()
            yield server

    with pytest.raises(UnusableEvidenceError, match=r"row 1 \(digits\): (an error event|broken off) after"):
        leg.run_leg(request(pair, suite_file), directory, place(suite_file, port=port, start=start))
    end = read_model(directory / "end.json", LegEnd)
    assert end.cleanup.original_status == 1
    assert end.cleanup.worker_status == 0
    assert not (directory / "leg.json").exists()
    assert (directory / "row-01.sse").read_bytes().count(b"token_ids") > 1
