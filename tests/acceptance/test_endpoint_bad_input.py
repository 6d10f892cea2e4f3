# SPDX-License-Identifier: Apache-2.0
"""What bad input gets in gate 3: real processes under the real supervisor, in the crossover's own legs.

The small server of ``tests.endpoint_server`` is B2's, and goes wrong in one way; the other three behave. What then
lies below the attempt is judged as a session and ``laguna verify`` judge it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_laguna.analysis.endpoint import analyse_endpoint
from pytest_laguna.campaign import parse_campaign
from pytest_laguna.endpoint import sockets
from pytest_laguna.endpoint.suite import read_suite
from pytest_laguna.evidence import files, reading, root
from pytest_laguna.evidence.arms.engine_identity import ModelFiles
from pytest_laguna.evidence.endpoint import reader
from pytest_laguna.evidence.endpoint.leg import LegEnd
from pytest_laguna.evidence.endpoint.plan import Teacher, TeacherRow
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.experiments.endpoint import EXPERIMENT, _ended
from pytest_laguna.experiments.experiment import derive_from_files, read_attempted
from pytest_laguna.experiments.protocol import parse_protocol, plan_endpoint
from pytest_laguna.identity import models
from pytest_laguna.machine import descent
from pytest_laguna.run import endpoint as crossover
from pytest_laguna.run.arm_runner import RunningProgram
from pytest_laguna.run.endpoint import _Legs
from pytest_laguna.run.engine_run import EngineRun, Models
from pytest_laguna.verdict import Verdict
from tests import diagnostic_root
from tests.mutants.test_endpoint_derivation import CAMPAIGN, CONFIG, commit, protocol_of, write_attempt
from tests.runner import runner
from tests.sealed import idle_record
from tests.unit.endpoint.test_leg import PROGRAM, PROMPTS, Case
from tests.unit.test_crossover import Held

pytestmark = pytest.mark.faults

CAMPAIGN_READ = parse_campaign(CAMPAIGN, "c")
LEGS = ["01-A1", "02-B1", "03-B2", "04-A2"]


class Gate:
    """An attempt whose four legs are run by the crossover, each against a small server of its own."""

    def __init__(
        self,
        directory: Path,
        modes: Mapping[str, str],
        monkeypatch: pytest.MonkeyPatch,
        *,
        row_seconds: float = 120.0,
        end_seconds: float = 60.0,
    ) -> None:
        self.attempt = directory / "0001"
        self.endpoint = self.attempt / root.EVIDENCE / reader.DIRECTORY
        (self.endpoint / reader.LEGS).mkdir(parents=True)
        self.modes, self.runner = modes, runner(settle_seconds=end_seconds, interrupt_seconds=end_seconds)
        self.started: list[str] = []
        case = Case(directory, "good")
        (self.endpoint / reader.SUITE).write_bytes(case.suite.read_bytes())
        suite = read_suite(case.suite, case.request.suite)
        rows = [
            TeacherRow(prompt_index=place, prompt_id=one.id, prompt_sha256=one.sha256, token_ids=[5, 6, 7, 8, 9])
            for place, one in enumerate(suite.prompts)
        ]
        self.teacher = Teacher(source_sha256="0" * 64, rows=rows)
        files.write_new(self.endpoint / reader.TEACHER, files.canonical_json(self.teacher.canonical()))
        content = protocol_of(case.suite, self.teacher)
        content = content.replace(b"row_seconds = 120.0", b"row_seconds = %r" % row_seconds)
        (self.endpoint / reader.PROTOCOL).write_bytes(content)
        commit(self.endpoint)
        files.write_new(self.endpoint / reading.TARGET_CONFIG, files.canonical_json(CONFIG))
        files.write_new(self.endpoint / "identity.json", files.canonical_json(diagnostic_root.identity()))
        write_attempt(self.attempt, [])
        self.protocol = parse_protocol(content, "p")
        self.plan = plan_endpoint(
            CAMPAIGN_READ, "cpu", self.protocol, ranks=1, target_config=CONFIG, authorised_by=None
        )
        files.write_new(self.endpoint / reading.PLAN, files.canonical_json(self.plan.canonical()))
        monkeypatch.setattr(models, "check_models", lambda _: {})
        monkeypatch.setattr(crossover, "ArmModels", lambda **looks: looks)
        monkeypatch.setattr(crossover, "judge_idle", lambda *_: (Verdict.PASS, ""))

    @contextlib.contextmanager
    def _start(
        self, argv: Sequence[str], variables: Mapping[str, str], directory: Path, deadline_seconds: float
    ) -> Iterator[RunningProgram]:
        self.started.append(directory.name)
        [port] = [word.removeprefix("--port=") for word in argv if word.startswith("--port=")]
        place = argv.index("--served-model-name") + 1
        mode = self.modes.get(directory.name, "good")
        ours = [sys.executable, str(PROGRAM), mode, port, *argv[place : place + 2]]
        told = {**variables, "FLAG": variables[self.plan.selector.flag]}
        with self.runner.start(ours, told, directory, deadline_seconds) as server:
            yield server

    def carry_out(self) -> None:
        held, directory = Held(), self.endpoint

        def write(path: Path, record: Any) -> None:
            files.write_new(directory / path, files.canonical_json(record.canonical()))

        run = SimpleNamespace(
            directory=directory,
            lane="cpu",
            campaign=CAMPAIGN_READ,
            held=held,
            start=SimpleNamespace(bounds=self.runner.bounds, start=self._start),
            look_at_cards=lambda phase, _, path: write(path, idle_record(phase)),
            write=write,
        )
        pair = Models(Path("/models/target"), Path("/models/draft"), "-")
        try:
            _Legs(
                cast("EngineRun", run), Path(sys.executable), self.plan, self.protocol, pair, cast("ModelFiles", None)
            ).carry_out()
        finally:
            assert descent.bearers(self.runner.token) == []

    def clause(self, name: str) -> tuple[Verdict, str]:
        finding = derive_from_files(EXPERIMENT, read_attempted(self.attempt)).clauses[name]
        assert finding is not None
        return finding

    def found(self, rule: str) -> list[tuple[Verdict, str, str]]:
        evidence = reader.read_legs(self.endpoint)
        judged = analyse_endpoint(
            self.plan, evidence.legs, teacher=self.teacher, campaign=CAMPAIGN_READ.digest, ended=evidence.ended
        )
        return [(one.verdict, one.where, one.reason) for one in judged.findings if one.rule == rule]

    def ended(self, leg: str) -> tuple[Verdict, str]:
        """What a leg without a record comes to by itself, among legs whose rows are too short for figures."""
        verdict, reason = _ended(reader.read_legs(self.endpoint).ended[leg])
        return verdict, self.plain(reason)

    def plain(self, reason: str) -> str:
        """A reason without names drawn at random, ports, durations and directories."""
        said = reason.replace(str(self.endpoint), "...")
        said = re.sub(r"'[0-9a-f]{32}'|(?<=port )\d+|(?<=processes \[)[\d, ]+", "...", said)
        return re.sub(r"after \d+\.\d s", "after a while", said)

    def end(self, leg: str) -> LegEnd:
        return read_model(self.endpoint / reader.LEGS / leg / "end.json", LegEnd)


METRICS = "metrics-before-suite.prom"
MISSING = "campaign: legs-complete: block 1 B2: seen no record; expected all of 4 legs"
CLOSED = "peer closed connection without sending complete message body (incomplete chunked read)"
ENDED: dict[str, tuple[str, str]] = {
    "another-model": (
        "/v1/models: seen ['another', ...] on the port; expected exactly ['tiny-laguna', ...], not another server",
        "exit code 0",
    ),
    "crash": (f"row 1 (two): seen 1 events, then broken off: {CLOSED}; expected a whole answer", "SIGKILL"),
    "hang": (
        "row 1 (two): seen 1 events, then broken off: not whole after 5 s, its deadline; expected a whole answer",
        "exit code 0",
    ),
    "html": (
        "row 1 (two): seen status 200, 'text/html': b'<html>come back later</html>'; expected 'text/event-stream'",
        "exit code 0",
    ),
    "html-metrics": (
        f"{METRICS}: seen status 200, 'text/html': b'<html>log in first</html>'; expected 200 and 'text/plain'",
        "exit code 0",
    ),
    "dies": ("server in .../legs/03-B2: ended before it was ready: ValueError: no such model", "exit code 1"),
}
"""What the leg meets, and how its server ended."""


@pytest.mark.faults(keep=2)
@pytest.mark.parametrize("mode", ENDED)
def test_a_b2_that_breaks_off_is_named_and_its_a2_runs(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(tmp_path, {"03-B2": mode}, monkeypatch, row_seconds=5.0 if mode == "hang" else 120.0)
    gate.carry_out()
    assert gate.started == LEGS
    assert list(reader.read_legs(gate.endpoint).ended) == ["03-B2"]
    verdict, reason = gate.ended("03-B2")
    met, by_itself = ENDED[mode][0], mode in {"crash", "dies"}
    # Of one that ends by itself the leg hears at the same moment as its supervisor, and then tells that to stop it.
    how = re.sub("stopped(?=, )", "exited", reason) if by_itself else reason
    reason_told = f"{met}; its server: {'exited' if by_itself else 'stopped'}, {ENDED[mode][1]} after a while"
    assert (verdict, how) == (Verdict.VOID, reason_told)
    of_gate, told = gate.clause("legs-in-order")
    assert (of_gate, gate.plain(told)) == (Verdict.NOT_PROVEN, f"{MISSING}; 03-B2: {reason}")
    assert gate.end("03-B2").cleanup.worker_status == 0
    assert (gate.endpoint / reader.LEGS / "04-A2" / "leg.json").exists()


def test_a_taken_port_is_named_and_no_server_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(tmp_path, {}, monkeypatch)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(sockets, "free_port", lambda: port)
        gate.carry_out()
    assert gate.started == []
    verdict, reason = gate.clause("legs-fresh")
    assert (verdict, reason.startswith(f"01-A1: legs-ended: port {port}: seen in use")) == (Verdict.VOID, True)


@pytest.mark.faults(keep=1)
def test_a_worker_that_outlives_its_server_is_a_broken_contract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(tmp_path, {"02-B1": "worker"}, monkeypatch, end_seconds=1.0)
    gate.carry_out()
    verdict, reason = gate.clause("legs-fresh")
    assert verdict is Verdict.FAIL
    assert "block 1 B1" in reason
    assert gate.end("02-B1").cleanup.worker_status == 1


def test_a_warm_prefix_cache_is_named_also_where_a_reset_would_have_said_yes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server answers a reset with 200 and refuses it; nobody asks, and both tiers' counters and the rows tell."""
    gate = Gate(tmp_path, {"02-B1": "warm-cache"}, monkeypatch)
    gate.carry_out()
    verdict, reason = gate.clause("cache-cold")
    assert verdict is Verdict.VOID
    assert reason == "block 1 B1: cached-zero: cached tokens of the rows are [2, 2, 2]; expected 3 zeros"
    assert [one[:2] for one in gate.found("prefix-cache-cold")] == [(Verdict.VOID, "block 1 B1")]
    kept = {path.name for path in (gate.endpoint / reader.LEGS / "02-B1").glob("row-*.request.json")}
    assert len(kept) == len(PROMPTS)


def test_a_counter_that_lies_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(tmp_path, {"02-B1": "lying-counter"}, monkeypatch)
    gate.carry_out()
    expected = (Verdict.VOID, "block 1 B1", "decoded requests: seen 7; expected exactly 3")
    assert gate.found("decode-count") == [expected]


def test_another_suite_under_its_name_starts_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed after the protocol was taken: each leg pins it again."""
    gate = Gate(tmp_path, {}, monkeypatch)
    path = gate.endpoint / reader.SUITE
    path.write_bytes(path.read_bytes().replace(b"three?", b"other?"))
    gate.carry_out()
    assert gate.started == []
    assert "suite.json: seen sha256" in reader.read_legs(gate.endpoint).ended["01-A1"].reason


@pytest.mark.faults(keep=1)
def test_a_supervisor_that_is_killed_in_the_middle_of_a_row_leaves_nothing_and_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(tmp_path, {"03-B2": "hang"}, monkeypatch)
    started = gate._start

    @contextlib.contextmanager
    def start(*arguments: Any) -> Iterator[RunningProgram]:
        with started(*arguments) as server:
            if arguments[2].name == "03-B2":
                hangs = Path(arguments[1]["LAGUNA_RANK_PIPES"]) / "hanging"
                threading.Thread(target=kill_when_it_hangs, args=(hangs, server), daemon=True).start()
            yield server

    def kill_when_it_hangs(hangs: Path, server: RunningProgram) -> None:
        while not hangs.exists():
            time.sleep(0.01)
        os.kill(server.supervised.supervisor_pid, signal.SIGKILL)

    monkeypatch.setattr(gate, "_start", start)
    gate.carry_out()
    assert gate.started == LEGS
    lost = "proven-empty: supervisor-lost: not proven that all its processes have ended; expected proof"
    assert gate.clause("legs-fresh") == (Verdict.NOT_PROVEN, f"03-B2: legs-ended: {lost}")
    assert gate.end("03-B2").cleanup.stop_status == 1
