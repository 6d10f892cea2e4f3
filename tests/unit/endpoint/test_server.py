# SPDX-License-Identifier: Apache-2.0
"""A server is started with what was asked for, and is ready when it, and no other, answers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from pytest_laguna.endpoint import server, sockets
from pytest_laguna.endpoint.transport import HttpTransport
from pytest_laguna.evidence.machine.process import ProcessRecord
from pytest_laguna.verdict import UnusableEvidenceError
from tests.endpoint_server import EndpointServer, chunked, models, response

NAMES = ("tiny", "0" * 32)


class Running:
    """This process in the place of a server."""

    pid = os.getpid()
    start_ticks = 0

    def __init__(self, *, alive: bool = True) -> None:
        self._alive = alive

    def processes(self) -> frozenset[int]:
        return frozenset({self.pid} if self._alive else ())

    def stop(self) -> ProcessRecord:
        raise NotImplementedError


def wait(port: int, directory: Path, *, alive: bool = True, seconds: float = 5.0) -> float:
    (directory / "stderr.log").write_text("first line\nValueError: no such model\n\n")
    transport = HttpTransport(port, deadline_seconds=1.0)
    return server.wait_until_ready(transport, Running(alive=alive), NAMES, directory, seconds)


def test_a_server_is_ready_when_it_names_exactly_its_models(tmp_path: Path) -> None:
    with EndpointServer(lambda *_: [response(models(*NAMES))]) as ours:
        assert 0 <= wait(ours.port, tmp_path) < 5
        assert [request[:2] for request in ours.requests] == [("GET", "/v1/models")]


OTHERS = {
    "model": ([response(models("other", NAMES[1]))], r"seen \['other', '0{32}'\] on the port; expected exactly"),
    "alias": ([response(models("tiny"))], r"seen \['tiny'\] on the port"),
    "more": ([response(models(*NAMES, "lora"))], r"'lora'\] on the port"),
    "order": ([response(models(*reversed(NAMES)))], "on the port; expected exactly"),
    "html": ([response("<html>", "text/html")], "/v1/models: not strict JSON"),
    "form": ([response('{"data": 1}')], "expected a list of models"),
    "status": ([response("{}", status=401)], "/v1/models: seen status 401"),
    "broken": (list(chunked([b"{}"]))[:2], "/v1/models: seen status 200 .*incomplete"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_server_is_refused_by_what_it_says(name: str, tmp_path: Path) -> None:
    answer: Iterable[bytes]
    answer, reason = OTHERS[name]
    with EndpointServer(lambda *_: answer) as other, pytest.raises(UnusableEvidenceError, match=reason):
        wait(other.port, tmp_path)


def test_a_server_that_ends_before_it_is_ready_says_why(tmp_path: Path) -> None:
    with pytest.raises(server.ServerFailedError, match=r"ended before it was ready: ValueError: no such model$"):
        wait(sockets.free_port(), tmp_path, alive=False)


def test_a_server_that_is_not_ready_in_its_time_is_given_up(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(server.ServerFailedError, match=r"not ready after 0\.3 s: ValueError: no such model$"):
        wait(sockets.free_port(), tmp_path, seconds=0.3)
    assert time.monotonic() - began < 2


def test_a_server_without_a_word_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "stderr.log").touch()
    assert server.last_line(tmp_path) == "nothing on standard error"
