# SPDX-License-Identifier: Apache-2.0
"""HTTP for measurements: a new connection for each request, and a timestamp for each read.

The client is httpcore2, the transport below httpx2. It never retries, redirects, keeps cookies or asks the environment
for a proxy. Each request asks the server to close its connection: a kept one could be lost and silently reopened
between two rows.
"""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import httpcore2

from pytest_laguna.evidence.endpoint.server_command import HOST

ANSWER_LIMIT_BYTES = 64 * 1024 * 1024


class Read(NamedTuple):
    """Bytes of a body, and the time of the read from the socket.

    Attributes:
        at_ns: return of the read, on the monotonic clock.
        content: without the transfer encoding.
    """

    at_ns: int
    content: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """Answer to one request.

    Attributes:
        status: of HTTP.
        content_type: media type without parameters; empty if the server named none.
        sent_ns: just before the request's first byte is written, on the monotonic clock.
        reads: the body, in order of arrival.
        failure: reason for an incomplete body; empty if it is whole.
    """

    status: int
    content_type: str
    sent_ns: int
    reads: tuple[Read, ...]
    failure: str

    @property
    def body(self) -> bytes:
        """The joined reads."""
        return b"".join(read.content for read in self.reads)


class NoAnswerError(Exception):
    """A request without so much as a status in return."""


class Transport(Protocol):
    """Sends requests, and counts the begun POST requests in ``posted``."""

    posted: int

    def get(self, path: str) -> Answer:
        """Send one GET request; raises NoAnswerError if no status comes back."""

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send one POST request with a JSON body and read its answer to the end; raises NoAnswerError like ``get``."""


class HttpTransport:
    """Sends requests to a loopback port."""

    def __init__(self, port: int, *, deadline_seconds: float) -> None:
        """Store the address; nothing is opened yet.

        Args:
            port: on the loopback address.
            deadline_seconds: of one request, from its connection to the last byte of its answer.
        """
        self.posted = 0
        self._port = port
        self._deadline_seconds = deadline_seconds

    def get(self, path: str) -> Answer:
        """Send one GET request; see ``Transport``."""
        return self._exchange("GET", path, b"", {})

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send one POST request; see ``Transport``."""
        self.posted += 1
        return self._exchange("POST", path, body, {"Content-Type": "application/json", **headers})

    def _exchange(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        clock = _TimedBackend(self._deadline_seconds)
        reads: list[Read] = []
        with httpcore2.HTTPConnection(_origin(self._port), network_backend=clock) as connection:
            try:
                response = connection.handle_request(self._request(method, path, body, headers))
            except (OSError, httpcore2.NetworkError, httpcore2.ProtocolError) as error:
                raise NoAnswerError(f"{method} {path} on port {self._port}: no answer: {_reason(error)}") from error
            failure = _read_into(reads, response, clock)
        return Answer(
            status=response.status,
            content_type=_content_type(response.headers),
            sent_ns=clock.sent_ns,
            reads=tuple(reads),
            failure=failure,
        )

    def _request(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> httpcore2.Request:
        own = {"Host": f"{HOST}:{self._port}", "Connection": "close", "Content-Length": str(len(body))}
        url = httpcore2.URL(scheme="http", host=HOST, port=self._port, target=path)
        return httpcore2.Request(method, url, headers=list({**own, **headers}.items()), content=body)


def _read_into(reads: list[Read], response: httpcore2.Response, clock: _TimedBackend) -> str:
    """Read a body to its end; return the reason if it has none."""
    size = 0
    try:
        for content in response.iter_stream():
            # One read from the socket may come in several parts; each gets the time of that read.
            reads.append(Read(clock.read_ns, content))
            size += len(content)
            if size > ANSWER_LIMIT_BYTES:
                return f"it is longer than {ANSWER_LIMIT_BYTES} bytes"
    except (OSError, httpcore2.NetworkError, httpcore2.ProtocolError) as error:
        return _reason(error)
    return ""


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _origin(port: int) -> httpcore2.Origin:
    return httpcore2.Origin(b"http", HOST.encode(), port)


def _content_type(headers: Iterable[tuple[bytes, bytes]]) -> str:
    values = [value for name, value in headers if name.lower() == b"content-type"]
    return values[0].decode("latin-1").partition(";")[0].strip().lower() if len(values) == 1 else ""


class _TimedBackend(httpcore2.NetworkBackend):
    """Opens the one connection of a request and keeps its times.

    Attributes:
        sent_ns: just before the first byte is written.
        read_ns: return of the last read.
    """

    def __init__(self, deadline_seconds: float) -> None:
        self.sent_ns = 0
        self.read_ns = 0
        self._seconds = deadline_seconds
        self._end = time.monotonic() + deadline_seconds

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002 - the deadline is the request's
        local_address: str | None = None,  # noqa: ARG002 - of the library's interface
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002 - of the library's interface
    ) -> httpcore2.NetworkStream:
        """Connect before the deadline."""
        connection = socket.create_connection((host, port), timeout=self.remaining())
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return _TimedStream(connection, self)

    def remaining(self) -> float:
        """Seconds to the deadline; raises TimeoutError after it."""
        seconds = self._end - time.monotonic()
        if seconds <= 0:
            raise self.late()
        return seconds

    def late(self) -> TimeoutError:
        """Error for a missed deadline."""
        return TimeoutError(f"not whole after {self._seconds:g} s, its deadline")


class _TimedStream(httpcore2.NetworkStream):
    """One connection."""

    def __init__(self, connection: socket.socket, clock: _TimedBackend) -> None:
        self._connection = connection
        self._clock = clock

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 - the deadline is the request's
        """Read available bytes and store the time."""
        self._connection.settimeout(self._clock.remaining())
        try:
            content = self._connection.recv(max_bytes)
        except TimeoutError as error:
            raise self._clock.late() from error
        self._clock.read_ns = time.monotonic_ns()
        return content

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 - the deadline is the request's
        """Write the whole buffer."""
        self._connection.settimeout(self._clock.remaining())
        self._clock.sent_ns = self._clock.sent_ns or time.monotonic_ns()
        self._connection.sendall(buffer)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def get_extra_info(self, info: str) -> Any:
        """The socket, for the library's check of a kept connection; None for other questions."""
        return self._connection if info == "socket" else None
