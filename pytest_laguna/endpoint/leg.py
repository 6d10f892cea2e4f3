# SPDX-License-Identifier: Apache-2.0
"""One leg: start a fresh server, ask every prompt of the suite once and in order, end the server.

Before the suite only the list of models and the counters are requested; they generate no tokens. There are no retries:
the first incomplete answer ends the leg.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_laguna.endpoint import sockets
from pytest_laguna.endpoint.client import Client, Question, stream_name
from pytest_laguna.endpoint.facts import Observed, declare
from pytest_laguna.endpoint.metrics import read_counters
from pytest_laguna.endpoint.ranks import Ranks
from pytest_laguna.endpoint.server import RunningServer, StartServer, wait_until_ready
from pytest_laguna.endpoint.stream import read_stream
from pytest_laguna.endpoint.suite import Suite, read_suite
from pytest_laguna.endpoint.transport import ANSWER_LIMIT_BYTES, HttpTransport, NoAnswerError, Read
from pytest_laguna.evidence import files
from pytest_laguna.evidence.endpoint.leg import (
    CleanupStatus,
    Counters,
    FinalGate,
    Freshness,
    LegEnd,
    LegRecord,
    LegRequest,
    Listener,
    RankState,
    ServerProof,
    SocketLook,
    SuiteRow,
)
from pytest_laguna.evidence.endpoint.reader import END, LEG
from pytest_laguna.evidence.endpoint.server_command import server_argv
from pytest_laguna.evidence.machine.idle import utc_now
from pytest_laguna.evidence.machine.process import ProcessRecord, Reason
from pytest_laguna.evidence.reading import REQUEST
from pytest_laguna.verdict import UnusableEvidenceError

RANKS = "ranks"
METRICS_BEFORE = "metrics-before-suite.prom"
METRICS_AFTER = "metrics-after-suite.prom"

CONTROL_SECONDS = 10.0
"""Deadline of a request for the list of models or the counters, from its connection."""

_METRICS_TYPE = "text/plain"
_OK = 200


class ServerSurvivedError(AssertionError):
    """A failed leg left a process of its server running: a broken contract, whatever the server answered."""


@dataclasses.dataclass(frozen=True, slots=True)
class LegBounds:
    """Time limits of a leg, in seconds.

    Attributes:
        deadline_seconds: for the server, from its start to its end.
        ready_seconds: for the server's first answer, from its start.
        row_seconds: for one row, from its connection to its end marker.
    """

    deadline_seconds: float
    ready_seconds: float
    row_seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class LegPlace:
    """Surroundings of a leg.

    Attributes:
        interpreter: the Python with the lane's vLLM.
        suite: the suite's file.
        port: loopback port for the server.
        bounds: time limits.
        start: starts the server.
        idle_after: called after the server's end. True if the cards are idle over the campaign's interval again, None
            if that cannot be seen. Not called if this process is interrupted.
    """

    interpreter: Path
    suite: Path
    port: int
    bounds: LegBounds
    start: StartServer
    idle_after: Callable[[], bool | None]


@dataclasses.dataclass(frozen=True, slots=True)
class _Served:
    """Observations of the running server."""

    server: ServerProof
    ranks_captured: list[RankState]
    ranks_served: list[RankState]
    counters_before: Counters
    counters_after: Counters
    rows: list[SuiteRow]
    freshness: Freshness
    looks: list[SocketLook]
    posted: int


def run_leg(request: LegRequest, directory: Path, place: LegPlace) -> LegRecord:
    """Run one leg and write its record.

    Args:
        request: model, arm and engine arguments.
        directory: created here with mode 0700. It gets ``request.json``, the kept requests, answers and counters,
            ``ranks/``, the server's output, ``end.json`` in any case, and ``leg.json``.
        place: surroundings.

    Raises:
        FileExistsError: the directory exists; no two legs share one.
        UnusableEvidenceError: the suite is another, the port is taken, or the pass is incomplete.
        ServerFailedError: the server ended, or was not ready in time.
        ServerSurvivedError: the pass is incomplete, and a process of the server was left running.
    """
    suite = read_suite(place.suite, request.suite)
    sockets.refuse_taken(place.port)
    directory.mkdir(mode=files.PRIVATE_DIRECTORY)
    files.write_new(directory / REQUEST, files.canonical_json(request.canonical()))
    started, begun_ticks = utc_now(), _ticks_since_boot()
    served, end = _Leg(request, directory, place, suite).run()
    record = LegRecord(
        request=request,
        started=started,
        begun_ticks=begun_ticks,
        ended=utc_now(),
        posted=served.posted,
        server=served.server,
        ranks_captured=served.ranks_captured,
        ranks_served=served.ranks_served,
        counters_before=served.counters_before,
        counters_after=served.counters_after,
        rows=served.rows,
        freshness=served.freshness,
        final_gate=_final_gate(directory, len(served.rows)),
        facts=declare(
            Observed(
                directory=directory,
                engine_arguments=request.engine_arguments,
                begun_ticks=begun_ticks,
                start_ticks=served.server.start_ticks,
                posted=served.posted,
                rows=served.rows,
                ranks=served.ranks_captured,
                before=served.counters_before,
                after=served.counters_after,
                looks=served.looks,
            )
        ),
        sockets=served.looks,
        end=end,
    )
    files.write_new(directory / LEG, files.canonical_json(record.canonical()))
    return record


class _Leg:
    """The part of a leg with a running server."""

    def __init__(self, request: LegRequest, directory: Path, place: LegPlace, suite: Suite) -> None:
        self._request = request
        self._directory = directory
        self._place = place
        self._suite = suite
        self._nonce = secrets.token_hex(16)
        ranks = request.engine_arguments.get("tensor_parallel_size", 1)
        self._ranks = Ranks(directory / RANKS, ranks if isinstance(ranks, int) else 1)

    def run(self) -> tuple[_Served, LegEnd]:
        """Start the server, run the suite, stop the server and write ``end.json``."""
        place, request = self._place, self._request
        names = (request.model, self._nonce)
        argv = server_argv(str(place.interpreter), request.engine_arguments, names, place.port)
        process: ProcessRecord | None = None
        try:
            with (
                self._ranks.pipes() as told,
                place.start(argv, request.variables | told, self._directory, place.bounds.deadline_seconds) as server,
            ):
                try:
                    served = self._serve(server, argv)
                finally:
                    process = server.stop()
        except BaseException as error:
            idle = self._place.idle_after() if isinstance(error, Exception) else None
            end = self._end(process, idle, f"{type(error).__name__}: {' '.join(str(error).split())}")
            if process is not None and end.cleanup.worker_status:
                message = f"leg {request.leg} in {self._directory}: {process}; it had failed: {end.reason}"
                raise ServerSurvivedError(message) from error
            raise
        return served, self._end(process, self._place.idle_after(), "")

    def _end(self, process: ProcessRecord | None, idle: bool | None, reason: str) -> LegEnd:  # noqa: FBT001
        status = CleanupStatus(
            original_status=1 if reason else 0,
            stop_status=0 if process is not None and _stopped_by_itself(process) else 1,
            worker_status=0 if process is not None and _left_nothing(process) else 1,
            idle_status=None if idle is None else (0 if idle else 1),
        )
        end = LegEnd(reason=reason, cleanup=status, process=process)
        files.write_new(self._directory / END, files.canonical_json(end.canonical()))
        return end

    def _serve(self, server: RunningServer, argv: list[str]) -> _Served:
        """Observe the server from its start to its last answer."""
        place = self._place
        transport = HttpTransport(place.port, deadline_seconds=place.bounds.row_seconds)
        control = HttpTransport(place.port, deadline_seconds=CONTROL_SECONDS)
        names = (self._request.model, self._nonce)
        ready = wait_until_ready(control, server, names, self._directory, place.bounds.ready_seconds)
        listener = sockets.find_listener(place.port, server.processes())
        captured = self._ranks.captured()
        before = self._scrape(control, METRICS_BEFORE)
        rows, looks = self._pass(transport, server, listener)
        after = self._scrape(control, METRICS_AFTER)
        return _Served(
            server=ServerProof(
                argv=argv,
                pid=server.pid,
                start_ticks=server.start_ticks,
                nonce=self._nonce,
                models=list(names),
                ready_seconds=ready,
                listener_before=listener,
                listener_after=sockets.find_listener(place.port, server.processes()),
            ),
            ranks_captured=captured,
            ranks_served=self._ranks.served(),
            counters_before=before,
            counters_after=after,
            rows=rows,
            freshness=freshness_of(self._suite, rows),
            looks=looks,
            posted=transport.posted,
        )

    def _pass(
        self, transport: HttpTransport, server: RunningServer, listener: Listener
    ) -> tuple[list[SuiteRow], list[SocketLook]]:
        """Ask every prompt once, in the suite's order; record the sockets before the first and after each."""
        client = Client(transport=transport, directory=self._directory, began_ns=time.monotonic_ns())
        rows: list[SuiteRow] = []
        looks = [sockets.look("ready", server.processes(), listener)]
        for index, prompt in enumerate(self._suite.prompts):
            rows.append(client.ask(Question(index, prompt, self._nonce, self._request.model, self._suite.max_tokens)))
            looks.append(sockets.look(prompt.id, server.processes(), listener))
        return rows, looks

    def _scrape(self, transport: HttpTransport, name: str) -> Counters:
        """Read the counters and keep the answer as a file."""
        try:
            answer = transport.get("/metrics")
        except NoAnswerError as error:
            raise UnusableEvidenceError(f"{name}: {error}") from error
        files.write_new(self._directory / name, answer.body)
        if answer.status != _OK or answer.content_type != _METRICS_TYPE or answer.failure:
            seen = f"status {answer.status}, {answer.content_type!r} {answer.failure}".strip()
            message = f"{name}: seen {seen}: {answer.body[:80]!r}; expected {_OK} and {_METRICS_TYPE!r}"
            raise UnusableEvidenceError(message)
        return read_counters(answer.body, name, self._request.model)


def freshness_of(suite: Suite, rows: Sequence[SuiteRow]) -> Freshness:
    """Prompts, request ids and cached tokens, as evidence of one cold request for each prompt."""
    return Freshness(
        prompt_ids=[prompt.id for prompt in suite.prompts],
        prompt_sha256=[prompt.sha256 for prompt in suite.prompts],
        request_ids=[row.request_id for row in rows],
        cached_tokens=[row.usage.cached_tokens for row in rows],
    )


def _final_gate(directory: Path, rows: int) -> FinalGate:
    """Counts from the kept answers, parsed again; files hold no times."""
    answers = [
        read_stream([Read(0, files.read_bytes(directory / name, limit=ANSWER_LIMIT_BYTES))], name)
        for name in map(stream_name, range(rows))
    ]
    return FinalGate(
        rows=len(answers),
        completion_tokens=[answer.usage.completion_tokens for answer in answers],
        cached_tokens=[answer.usage.cached_tokens for answer in answers],
    )


def _stopped_by_itself(process: ProcessRecord) -> bool:
    """True if the server ran until it was told to stop and ended without SIGKILL."""
    return process.reason is Reason.STOPPED and process.exit_code is not None and process.exit_code != -signal.SIGKILL


def _left_nothing(process: ProcessRecord) -> bool:
    """True if no process outlived the server; one that needed SIGKILL after the server's own end did."""
    outlived = process.last_signal == signal.SIGKILL and process.exit_code != -signal.SIGKILL
    return process.proven_empty and not process.leftovers and not process.survivors and not outlived


def _ticks_since_boot() -> int:
    """Clock ticks since boot, the unit of a process's start time in ``/proc``."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK") // 1_000_000_000
