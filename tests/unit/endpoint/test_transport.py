# SPDX-License-Identifier: Apache-2.0
"""The transport sends what it is given once, hides nothing, and takes the time at the socket."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import pytest

from pytest_laguna.endpoint import sockets, transport
from pytest_laguna.endpoint.transport import HttpTransport, NoAnswerError
from tests.endpoint_server import EndpointServer, chunk, chunked, response

MILLISECOND = 1_000_000


def test_a_request_goes_out_once_on_a_connection_of_its_own_and_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with EndpointServer(lambda *_: [response('{"a":1}')]) as server:
        client = HttpTransport(server.port, deadline_seconds=5.0)
        posted = client.post("/path", b'{"b":2}', {"X-Request-Id": "r-1"})
        listed = client.get("/list")
    assert (posted.status, posted.content_type, posted.body, posted.failure) == (
        200,
        "application/json",
        b'{"a":1}',
        "",
    )
    assert listed.body == b'{"a":1}'
    assert client.posted == 1
    [(method, path, headers, body), (other_method, other_path, _, _)] = server.requests
    assert (method, path, body) == ("POST", "/path", b'{"b":2}')
    assert (other_method, other_path) == ("GET", "/list")
    assert headers == {
        "host": f"127.0.0.1:{server.port}",
        "connection": "close",
        "content-length": "7",
        "content-type": "application/json",
        "x-request-id": "r-1",
    }


@pytest.mark.parametrize("status", [302, 429, 503])
def test_nothing_is_followed_or_tried_again(status: int) -> None:
    with EndpointServer(lambda *_: [response("no", "text/plain", status)]) as server:
        assert HttpTransport(server.port, deadline_seconds=5.0).post("/", b"", {}).status == status
        assert len(server.requests) == 1


def test_the_time_of_a_read_is_when_its_bytes_came_off_the_socket() -> None:
    sent: list[int] = []

    def slowly() -> Iterator[bytes]:
        for piece in (b"first", b"second", b"third"):
            time.sleep(0.05)
            sent.append(time.monotonic_ns())
            yield piece

    with EndpointServer(lambda *_: chunked(slowly())) as server:
        answer = HttpTransport(server.port, deadline_seconds=5.0).post("/", b"", {})
    assert [read.content for read in answer.reads] == [b"first", b"second", b"third"]
    late = [read.at_ns - at_ns for read, at_ns in zip(answer.reads, sent, strict=True)]
    # A clock that ran after the body's end would be some 50 ms late for the first pieces.
    assert all(0 < nanoseconds < 25 * MILLISECOND for nanoseconds in late)
    assert answer.sent_ns < sent[0] - 40 * MILLISECOND


def test_what_is_read_at_once_has_one_time() -> None:
    together = b"".join(chunked([b"a", b"b", b"c"]))
    with EndpointServer(lambda *_: [together]) as server:
        answer = HttpTransport(server.port, deadline_seconds=5.0).post("/", b"", {})
    assert [read.content for read in answer.reads] == [b"a", b"b", b"c"]
    assert len({read.at_ns for read in answer.reads}) == 1


def broken_off() -> Iterable[bytes]:
    yield from list(chunked([b"data: 1\n\n"]))[:2]


def test_a_body_that_breaks_off_keeps_what_came_and_says_so() -> None:
    with EndpointServer(lambda *_: broken_off()) as server:
        answer = HttpTransport(server.port, deadline_seconds=5.0).post("/", b"", {})
    assert answer.body == b"data: 1\n\n"
    assert "incomplete" in answer.failure


def test_a_server_that_hangs_meets_the_deadline_of_the_whole_request() -> None:
    def drip() -> Iterator[bytes]:
        # Each wait alone is shorter than the deadline.
        yield from list(chunked([b"a"]))[:2]
        for _ in range(20):
            time.sleep(0.1)
            yield chunk(b"a")

    with EndpointServer(lambda *_: drip()) as server:
        began = time.monotonic()
        answer = HttpTransport(server.port, deadline_seconds=0.4).post("/", b"", {})
        assert 0.35 < time.monotonic() - began < 1.5
    assert answer.failure == "not whole after 0.4 s, its deadline"
    assert 1 <= len(answer.body) <= 5  # one at once, and one each 0.1 s


def test_a_server_that_never_answers_gave_no_answer() -> None:
    def never(*_: object) -> Iterator[bytes]:
        time.sleep(1.0)
        yield b""

    with EndpointServer(never) as server:
        port = server.port
        with pytest.raises(NoAnswerError, match=rf"POST / on port {port}: no answer: not whole after 0\.2 s"):
            HttpTransport(port, deadline_seconds=0.2).post("/", b"", {})


def test_a_port_where_nobody_listens_gave_no_answer() -> None:
    port = sockets.free_port()
    with pytest.raises(NoAnswerError, match=rf"GET / on port {port}: no answer: .*refused"):
        HttpTransport(port, deadline_seconds=1.0).get("/")


def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "ANSWER_LIMIT_BYTES", 1000)
    with EndpointServer(lambda *_: chunked([b"x" * 400] * 10)) as server:
        answer = HttpTransport(server.port, deadline_seconds=5.0).get("/")
    assert answer.failure == "it is longer than 1000 bytes"


def test_two_content_types_are_none() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Type: text/html\r\nContent-Length: 0\r\n\r\n"
    with EndpointServer(lambda *_: [head]) as server:
        assert HttpTransport(server.port, deadline_seconds=5.0).get("/").content_type == ""
