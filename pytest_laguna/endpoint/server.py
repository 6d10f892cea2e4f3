# SPDX-License-Identifier: Apache-2.0
"""A server of a leg: how it is started, and when it is ready and known to be ours."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, Protocol

import pydantic

from pytest_laguna.endpoint.transport import Answer, NoAnswerError, Transport
from pytest_laguna.evidence import files
from pytest_laguna.evidence.foreign_json import parse_foreign_json
from pytest_laguna.evidence.process_record import ProcessRecord
from pytest_laguna.evidence.schemas import first_defect
from pytest_laguna.verdict import UnusableEvidenceError

POLL_SECONDS = 0.25
"""Between two looks; each also walks the table of processes, which a starting server has better use for."""
_OK = 200


class RunningServer(Protocol):
    """A server under supervision."""

    @property
    def pid(self) -> int:
        """Its number."""

    @property
    def start_ticks(self) -> int:
        """When it started, in clock ticks since boot."""

    def processes(self) -> frozenset[int]:
        """The pids of the server and of everything below it that have not ended."""

    def stop(self) -> ProcessRecord:
        """End it by the ladder of signals, if it still runs; what became of it."""


class StartServer(Protocol):
    """Starts a program under supervision; the session has the real one."""

    def __call__(
        self, argv: Sequence[str], variables: Mapping[str, str], directory: Path, deadline_seconds: float
    ) -> AbstractContextManager[RunningServer]:
        """Start it on entry; on exit nothing of it is left.

        Args:
            argv: the program, as an absolute path, and its arguments.
            variables: what decides its result; where things are is added, private and new, and nothing is inherited.
            directory: its own, where ``stdout.log`` and ``stderr.log`` are made.
            deadline_seconds: after which it is ended with everything below it.
        """


class ServerFailedError(RuntimeError):
    """A server that ended, or did not get ready in its time."""


class _Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, strict=True)

    id: Annotated[str, pydantic.Field(min_length=1)]


class _Models(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, strict=True)

    data: list[_Model]


def wait_until_ready(
    transport: Transport, server: RunningServer, names: Sequence[str], directory: Path, seconds: float
) -> float:
    """Wait until the server answers with exactly the expected model names; no token is generated for that.

    Args:
        transport: to its port.
        server: whose end ends the wait.
        names: under which the model must be served, in that order.
        directory: where its standard error is.
        seconds: how long it may take.

    Returns:
        How many seconds it took.

    Raises:
        ServerFailedError: it ended, or its time was over.
        UnusableEvidenceError: somebody answers, and it is not this server.
    """
    began = time.monotonic()
    while True:
        try:
            answer = transport.get("/v1/models")
        except NoAnswerError:
            _require_alive(server, directory)
        else:
            _require_models(answer, names)
            return time.monotonic() - began
        if time.monotonic() - began > seconds:
            message = f"server in {directory}: not ready after {seconds:g} s: {last_line(directory)}"
            raise ServerFailedError(message)
        time.sleep(POLL_SECONDS)


def last_line(directory: Path) -> str:
    """The last line of a server's standard error."""
    said = files.read_tail(directory / "stderr.log")
    return said[-1].strip() if said else "nothing on standard error"


def _require_alive(server: RunningServer, directory: Path) -> None:
    if server.pid not in server.processes():
        message = f"server in {directory}: ended before it was ready: {last_line(directory)}"
        raise ServerFailedError(message)


def _require_models(answer: Answer, names: Sequence[str]) -> None:
    if answer.status != _OK or answer.failure:
        message = f"/v1/models: status {answer.status} {answer.failure}: {answer.body[:80]!r}; expected {_OK}"
        raise UnusableEvidenceError(message)
    try:
        value: Any = parse_foreign_json(answer.body.decode("utf-8", "replace"), "/v1/models")
        served = [model.id for model in _Models.model_validate(value).data]
    except pydantic.ValidationError as error:
        message = f"/v1/models: {answer.body[:80]!r}: {first_defect(error)}; expected a list of models"
        raise UnusableEvidenceError(message) from error
    if served != list(names):
        message = f"/v1/models: {served} answer on the port; expected exactly {list(names)}: another server has it"
        raise UnusableEvidenceError(message)
