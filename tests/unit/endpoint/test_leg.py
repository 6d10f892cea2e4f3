# SPDX-License-Identifier: Apache-2.0
"""A leg under the real supervisor, with a small server in the place of vLLM's that can go wrong in every way."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.endpoint import leg, sockets
from pytest_laguna.endpoint.server import RunningServer, ServerFailedError, StartServer
from pytest_laguna.endpoint.suite import pin_suite
from pytest_laguna.evidence.arms.arm_record import Arm
from pytest_laguna.evidence.endpoint.leg import LegEnd, LegName, LegRecord, LegRequest
from pytest_laguna.evidence.machine.process import FoundProcess, ProcessRecord, Reason
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.machine import descent
from pytest_laguna.run.arm_runner import ArmRunner, RunningProgram
from pytest_laguna.verdict import UnusableEvidenceError
from tests.runner import runner

PROGRAM = Path(__file__).parents[2] / "endpoint_server.py"
PROMPTS = ("one", "two", "three")


class Case:
    """One leg, its server's mode, and what was left of it."""

    def __init__(self, directory: Path, mode: str, *, end_seconds: float = 60.0) -> None:
        self.suite = directory / "suite.json"
        prompts = [{"id": name, "kind": "code", "text": f"{name}?"} for name in PROMPTS]
        limits = {"version": 1, "max_tokens": 5, "rollover_prompt_tokens": 5}
        self.suite.write_text(
            json.dumps({"schema": "pytest-laguna-suite-v1", "suite_id": "s", **limits, "prompts": prompts})
        )
        self.directory = directory / "leg"
        self.port = sockets.free_port()
        self.runner: ArmRunner = runner(settle_seconds=end_seconds, interrupt_seconds=end_seconds)
        self.idle: bool | None = True
        self.looks_seconds = 0.0
        self.bounds = leg.LegBounds(deadline_seconds=2400.0, ready_seconds=600.0, row_seconds=300.0)
        self.start: StartServer = self._start
        self._mode = mode
        self.leg: LegName = "B1"
        self.sequence = 2

    @property
    def request(self) -> LegRequest:
        candidate = self.leg.startswith("B")
        return LegRequest(
            leg=self.leg,
            block=1,
            sequence=self.sequence,
            arm=Arm.GRAPH_CANDIDATE if candidate else Arm.GRAPH_CONTROL,
            lane="cpu",
            model="tiny",
            suite=pin_suite(self.suite),
            engine_arguments={"tensor_parallel_size": 1},
            variables={"FLAG": "1" if candidate else "0"},
        )

    @contextlib.contextmanager
    def _start(
        self, argv: Sequence[str], variables: Mapping[str, str], directory: Path, deadline_seconds: float
    ) -> Iterator[RunningProgram]:
        """Run the small server with the port and the names that were meant for vLLM."""
        [port] = [word.removeprefix("--port=") for word in argv if word.startswith("--port=")]
        place = argv.index("--served-model-name") + 1
        ours = [sys.executable, str(PROGRAM), self._mode, port, *argv[place : place + 2]]
        with self.runner.start(ours, variables, directory, deadline_seconds) as server:
            yield server

    def look_after(self) -> bool | None:
        time.sleep(self.looks_seconds)
        return self.idle

    def run(self) -> LegRecord:
        place = leg.LegPlace(
            interpreter=Path(sys.executable),
            suite=self.suite,
            port=self.port,
            bounds=self.bounds,
            start=self.start,
            idle_after=self.look_after,
        )
        try:
            return leg.run_leg(self.request, self.directory, place)
        finally:
            assert descent.bearers(self.runner.token) == []

    @property
    def end(self) -> LegEnd:
        return read_model(self.directory / "end.json", LegEnd)

    def statuses(self) -> tuple[int, int, int, int | None]:
        cleanup = self.end.cleanup
        return cleanup.original_status, cleanup.stop_status, cleanup.worker_status, cleanup.idle_status


def test_a_leg_passes_the_suite_once_and_records_it(tmp_path: Path) -> None:
    case = Case(tmp_path, "good")
    record = case.run()
    assert read_model(case.directory / "leg.json", LegRecord) == record
    assert record.request == case.request
    assert record.started < record.ended
    assert [row.prompt_id for row in record.rows] == list(PROMPTS) == record.freshness.prompt_ids
    assert len({row.request_id for row in record.rows}) == 3
    assert [row.usage.cached_tokens for row in record.rows] == [0, 0, 0]
    assert record.freshness.cached_tokens == record.final_gate.cached_tokens == [0, 0, 0]
    assert record.final_gate.completion_tokens == [5, 5, 5]
    sent = [row.sent_ns for row in record.rows]
    assert sent == sorted(sent)
    assert (record.counters_before.generated_tokens, record.counters_after.generated_tokens) == (0, 15)
    assert (record.counters_after.file, record.counters_after.drafts) == ("metrics-after-suite.prom", 3)
    assert [rank.moment for rank in record.ranks_captured + record.ranks_served] == ["captured", "served"]
    assert [look.moment for look in record.sockets] == ["ready", *PROMPTS]
    server = record.server
    assert server.listener_before == server.listener_after
    assert server.listener_before.holders == [server.pid] == [record.ranks_captured[0].pid]
    assert server.models == ["tiny", server.nonce]
    for name in ("no_retry", "no_warm_up", "fresh_service", "no_network", "no_history", "no_response_reuse"):
        assert getattr(record.facts, name).holds, name
    assert record.end == case.end
    assert (record.end.reason, case.statuses()) == ("", (0, 0, 0, 0))
    assert record.end.process is not None
    assert (record.end.process.reason, record.end.process.exit_code) == (Reason.STOPPED, 0)


def test_everything_of_a_leg_is_private_and_regular(tmp_path: Path) -> None:
    case = Case(tmp_path, "good")
    case.run()
    for path in case.directory.rglob("*"):
        mode = path.lstat().st_mode
        assert stat.S_IMODE(mode) == (0o700 if stat.S_ISDIR(mode) else 0o600), path
        assert stat.S_ISDIR(mode) or stat.S_ISREG(mode), path
    names = {path.relative_to(case.directory).as_posix() for path in case.directory.rglob("*") if path.is_file()}
    rows = {f"row-{row:02d}.{end}" for row in range(3) for end in ("sse", "request.json")}
    assert names == rows | {
        "request.json",
        "leg.json",
        "end.json",
        "process.json",
        "metrics-before-suite.prom",
        "metrics-after-suite.prom",
        "ranks/rank-0-captured.json",
        "ranks/rank-0-served.json",
        "stdout.log",
        "stderr.log",
    }


def test_evidence_is_regular_files_also_while_the_server_runs(tmp_path: Path) -> None:
    """Whoever is killed in a leg leaves what a manifest can be taken of, so that the next attempt binds it."""
    case = Case(tmp_path, "good")
    started = case.start
    odd: list[Path] = []

    @contextlib.contextmanager
    def looked_at(*arguments: Any, **keywords: Any) -> Iterator[RunningServer]:
        with started(*arguments, **keywords) as server:
            while not (case.directory / "ranks" / "rank-0-captured.json").exists():
                time.sleep(0.01)
            odd.extend(path for path in case.directory.rglob("*") if not path.is_file() and not path.is_dir())
            yield server

    case.start = looked_at
    case.run()
    assert odd == []


def test_who_holds_the_port_is_asked_again_after_the_suite(tmp_path: Path) -> None:
    """The server forks when the last row has ended: the socket is the same, and there is one holder more."""
    server = Case(tmp_path, "forks-after").run().server
    assert server.listener_before.holders == [server.pid]
    assert len(server.listener_after.holders) == 2
    assert server.listener_after.inode == server.listener_before.inode


def test_a_warm_server_is_recorded_as_it_is(tmp_path: Path) -> None:
    record = Case(tmp_path, "warm").run()
    assert record.counters_before.generated_tokens == 5
    assert record.facts.no_warm_up is not None
    assert not record.facts.no_warm_up.holds


@pytest.mark.parametrize(("idle", "status"), [(False, 1), (None, None)])
def test_cards_that_are_not_idle_again_are_recorded(idle: bool | None, status: int | None, tmp_path: Path) -> None:
    case = Case(tmp_path, "good")
    case.idle = idle
    case.run()
    assert case.statuses() == (0, 0, 0, status)


REFUSED: dict[str, tuple[type[Exception], str]] = {
    "another-model": (UnusableEvidenceError, r"/v1/models: seen \['another', '[0-9a-f]{32}'\] on the port"),
    "html-metrics": (UnusableEvidenceError, r"metrics-before-suite\.prom: seen status 200, 'text/html': b'<html>log"),
    "html": (UnusableEvidenceError, r"row 1 \(two\): seen status 200, 'text/html': b'<html>come back later"),
    "crash": (UnusableEvidenceError, r"row 1 \(two\): seen 1 events, then broken off: peer closed connection"),
    "hang": (UnusableEvidenceError, r"row 1 \(two\): seen 1 events, then broken off: not whole after 5 s, its"),
    "silent-ranks": (UnusableEvidenceError, r"rank-0-captured\.json: cannot be read"),
    "dies": (ServerFailedError, r"ended before it was ready: ValueError: no such model"),
    "never-ready": (ServerFailedError, r"not ready after 1 s: nothing on standard error"),
}


SHORT = {"hang": {"row_seconds": 5.0}, "never-ready": {"ready_seconds": 1.0}}
"""The bounds that are to be met, by mode."""


@pytest.mark.parametrize("mode", REFUSED)
def test_a_leg_that_does_not_come_to_its_end_says_why_and_leaves_nothing(mode: str, tmp_path: Path) -> None:
    kind, reason = REFUSED[mode]
    case = Case(tmp_path, mode)
    if mode in SHORT:
        case.bounds = dataclasses.replace(case.bounds, **SHORT[mode])
    with pytest.raises(kind, match=reason) as caught:
        case.run()
    assert not (case.directory / "leg.json").exists()
    assert case.end.reason == f"{kind.__name__}: {caught.value}"
    stopped = 1 if mode in {"crash", "dies"} else 0  # it had ended before it was told to
    assert case.statuses() == (1, stopped, 0, 0)
    # Rows that were whole are kept, and what came of the one that was not.
    kept = {path.name for path in case.directory.glob("*.sse")}
    assert kept == ({"row-00.sse", "row-01.sse"} if mode in {"html", "crash", "hang"} else set())
    assert all(path.is_file() or path.is_dir() for path in case.directory.rglob("*"))


def test_a_worker_that_outlives_its_server_is_ended_and_recorded(tmp_path: Path) -> None:
    case = Case(tmp_path, "worker", end_seconds=1.0)
    record = case.run()
    assert case.statuses() == (0, 0, 1, 0)
    assert record.end.process is not None
    assert record.end.process.last_signal == signal.SIGKILL


def test_a_server_that_is_killed_and_leaves_a_worker_has_broken_the_contract(tmp_path: Path) -> None:
    case = Case(tmp_path, "worker", end_seconds=1.0)
    started = case.start

    @contextlib.contextmanager
    def killed(*arguments: Any, **keywords: Any) -> Iterator[RunningServer]:
        with started(*arguments, **keywords) as server:
            while len(server.processes()) == 1:  # until it has its worker
                time.sleep(0.01)
            os.kill(server.pid, signal.SIGKILL)
            yield server

    case.start = killed
    with pytest.raises(
        leg.ServerSurvivedError, match=r"leg B1 .*left behind: pid \d+.*it had failed: ServerFailedError"
    ):
        case.run()
    assert case.statuses() == (1, 1, 1, 0)


FOUND = FoundProcess(pid=7, command="worker", start_ticks=9)
ENDED = ProcessRecord(
    reason=Reason.STOPPED,
    wait_status=0,
    last_signal=signal.SIGINT,
    wall_seconds=1.0,
    peak_memory_bytes=None,
    leftovers=[],
    survivors=[],
    proven_empty=True,
    last_journal_line=None,
)


@pytest.mark.parametrize(
    ("changes", "stopped", "nothing_left"),
    [
        ({}, True, True),
        ({"last_signal": signal.SIGTERM, "wait_status": signal.SIGTERM}, True, True),
        ({"wait_status": signal.SIGKILL, "last_signal": signal.SIGKILL}, False, True),
        ({"reason": Reason.EXITED}, False, True),
        ({"reason": Reason.DEADLINE}, False, True),
        ({"reason": Reason.SUPERVISOR_LOST, "wait_status": None, "proven_empty": False}, False, False),
        ({"wait_status": None, "survivors": [FOUND]}, False, False),
        ({"leftovers": [FOUND]}, True, False),
        ({"proven_empty": False}, True, False),
        ({"last_signal": signal.SIGKILL}, True, False),
    ],
)
def test_how_a_server_ended_is_told_by_its_process(changes: dict[str, Any], stopped: bool, nothing_left: bool) -> None:
    process = ENDED.model_copy(update=changes)
    assert (leg._stopped_by_itself(process), leg._left_nothing(process)) == (stopped, nothing_left)


def test_a_port_that_is_taken_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    case = Case(tmp_path, "good")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", case.port))
        taken.listen()
        with pytest.raises(UnusableEvidenceError, match=rf"port {case.port}: seen in use"):
            case.run()
    assert not case.directory.exists()


def test_a_port_that_is_taken_in_the_meantime_is_refused(tmp_path: Path) -> None:
    case = Case(tmp_path, "good")
    started = case.start

    @contextlib.contextmanager
    def beaten(*arguments: Any, **keywords: Any) -> Iterator[RunningServer]:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", case.port))
            with started(*arguments, **keywords) as server:
                yield server

    case.start = beaten
    with pytest.raises(ServerFailedError, match=r"ended before it was ready: OSError: .*Address already in use"):
        case.run()


def test_another_suite_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    case = Case(tmp_path, "good")
    pinned = case.request
    case.suite.write_text(case.suite.read_text().replace("three?", "other?"))
    place = leg.LegPlace(
        interpreter=Path(sys.executable),
        suite=case.suite,
        port=case.port,
        bounds=case.bounds,
        start=case.start,
        idle_after=lambda: True,
    )
    with pytest.raises(UnusableEvidenceError, match=r"suite\.json: seen sha256"):
        leg.run_leg(pinned, case.directory, place)
    assert not case.directory.exists()


def test_a_directory_is_never_used_twice(tmp_path: Path) -> None:
    case = Case(tmp_path, "good")
    case.directory.mkdir()
    with pytest.raises(FileExistsError):
        case.run()


def test_an_interrupt_ends_the_server_and_asks_for_no_idle_proof(tmp_path: Path) -> None:
    case = Case(tmp_path, "hang")
    started = case.start

    @contextlib.contextmanager
    def interrupted(
        argv: Sequence[str], variables: Mapping[str, str], directory: Path, deadline_seconds: float
    ) -> Iterator[RunningServer]:
        hangs = Path(variables["LAGUNA_RANK_PIPES"]) / "hanging"
        with started(argv, variables, directory, deadline_seconds) as server:
            threading.Thread(target=interrupt_when_it_hangs, args=(hangs,), daemon=True).start()
            yield server

    def interrupt_when_it_hangs(hangs: Path) -> None:
        while not hangs.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGALRM)

    case.start = interrupted
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        case.run()
    assert case.end.reason.startswith("KeyboardInterrupt")
    assert case.end.cleanup.idle_status is None
