# SPDX-License-Identifier: Apache-2.0
"""Start of a leg's server, and the wait until it is ready and known to be ours."""

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
from pytest_laguna.evidence.machine.process import ProcessRecord
from pytest_laguna.evidence.schemas import first_defect
from pytest_laguna.verdict import UnusableEvidenceError

POLL_SECONDS = 0.25
"""Between two polls; each also walks the process table, so polling faster would slow the start."""
_OK = 200


class RunningServer(Protocol):
    """A server under supervision."""

    @property
    def pid(self) -> int:
        """Process id of the server."""

    @property
    def start_ticks(self) -> int:
        """Start of the server, in clock ticks since boot."""

    def processes(self) -> frozenset[int]:
        """Pids of the running server and its running descendants."""

    def stop(self) -> ProcessRecord:
        """End it by the ladder of signals, if it still runs, and return its record."""


class StartServer(Protocol):
    """Starts a program under supervision; the session has the real one."""

    def __call__(
        self, argv: Sequence[str], variables: Mapping[str, str], directory: Path, deadline_seconds: float
    ) -> AbstractContextManager[RunningServer]:
        """Start the program on entry; on exit, no process of it is left.

        Args:
            argv: absolute path of the program, and its arguments.
            variables: its environment. Private directories are added, and nothing is inherited.
            directory: gets ``stdout.log`` and ``stderr.log``.
            deadline_seconds: time until it is ended with all its descendants.
        """


class ServerFailedError(RuntimeError):
    """The server ended, or was not ready in time."""


class _Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, strict=True)

    id: Annotated[str, pydantic.Field(min_length=1)]


class _Models(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, strict=True)

    data: list[_Model]


def wait_until_ready(
    transport: Transport, server: RunningServer, names: Sequence[str], directory: Path, seconds: float
) -> float:
    """Wait until the server answers with exactly the expected model names; generates no tokens.

    Args:
        transport: to its port.
        server: the wait ends with it.
        names: of the model, in the order in which it is served.
        directory: holds its standard error.
        seconds: limit of the wait.

    Returns:
        Seconds until the answer.

    Raises:
        ServerFailedError: the server ended, or time ran out.
        UnusableEvidenceError: another server answers.
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
            raise ServerFailedError(f"server in {directory}: not ready after {seconds:g} s: {last_line(directory)}")
        time.sleep(POLL_SECONDS)


def last_line(directory: Path) -> str:
    """Last line of a server's standard error."""
    said = files.read_tail(directory / "stderr.log")
    return said[-1].strip() if said else "nothing on standard error"


def _require_alive(server: RunningServer, directory: Path) -> None:
    if server.pid not in server.processes():
        raise ServerFailedError(f"server in {directory}: ended before it was ready: {last_line(directory)}")


def _require_models(answer: Answer, names: Sequence[str]) -> None:
    if answer.status != _OK or answer.failure:
        message = f"/v1/models: seen status {answer.status} {answer.failure}: {answer.body[:80]!r}; expected {_OK}"
        raise UnusableEvidenceError(message)
    try:
        value: Any = parse_foreign_json(answer.body.decode("utf-8", "replace"), "/v1/models")
        served = [model.id for model in _Models.model_validate(value).data]
    except pydantic.ValidationError as error:
        message = f"/v1/models: seen {answer.body[:80]!r}: {first_defect(error)}; expected a list of models"
        raise UnusableEvidenceError(message) from error
    if served != list(names):
        message = f"/v1/models: seen {served} on the port; expected exactly {list(names)}, not another server"
        raise UnusableEvidenceError(message)
