# SPDX-License-Identifier: Apache-2.0
"""Delay added by the endpoint's client to a token, against a local server that reports its sending times.

``python -m benchmarks.client --json`` streams rows of single-token events, ``--rate`` a second, from a process of its
own through the client of gate 3, and prints:

``arrival_error_p99_ms``: from just before the server's write to the client's time of the token, transport by the kernel
included; the bar is 0.5 ms.
``dropped_rows``: planned rows that did not come back whole; the bar is 0.
``reached_rate``: tokens a second really sent by the server.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from pytest_laguna.endpoint.client import Client, Question
from pytest_laguna.endpoint.suite import Prompt
from pytest_laguna.endpoint.transport import HttpTransport
from pytest_laguna.evidence.endpoint.leg import SuiteRow
from pytest_laguna.verdict import UnusableEvidenceError
from tests.endpoint_server import EndpointServer, chunk, chunked, data, events

ALIAS = "alias"
MODEL = "model"
NANOSECONDS_IN_A_SECOND = 1_000_000_000
NANOSECONDS_IN_A_MILLISECOND = 1_000_000
SPIN_NANOSECONDS = 200_000
"""The end of a wait is spent polling the clock: a sleep ends late by about this much."""


def serve(told: Connection, rows: int, tokens: int, rate: float) -> None:
    """The server's process: each token's event contains its sending time."""
    names = iter(range(rows))
    with EndpointServer(lambda *_: _row(next(names), tokens, rate)) as server:
        told.send(server.port)
        told.recv()


def _row(number: int, tokens: int, rate: float) -> Iterator[bytes]:
    values = events(f"{ALIAS}-{number:02d}", MODEL, [[1]] * tokens)
    whole = chunked(map(data, values[:1]))
    yield next(whole)  # the head
    yield next(whole)  # the prompt
    began = time.monotonic_ns()
    for place, value in enumerate(values[1:-1]):
        _wait_until(began + int(place * NANOSECONDS_IN_A_SECOND / rate))
        value["created"] = time.monotonic_ns()
        yield chunk(data(value))
    yield chunk(data(values[-1])) + chunk(data("[DONE]"))
    yield from whole


def _wait_until(moment_ns: int) -> None:
    while (left := moment_ns - time.monotonic_ns()) > 0:
        if left > SPIN_NANOSECONDS:
            time.sleep((left - SPIN_NANOSECONDS) / NANOSECONDS_IN_A_SECOND)


def measure(rows: int, tokens: int, rate: float) -> dict[str, float]:
    """Pass the rows and compare the two processes' times, which are of one clock."""
    ours, theirs = multiprocessing.Pipe()
    errors: list[float] = []
    rates: list[float] = []
    dropped = 0
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, rows, tokens, rate))
    server.start()
    with tempfile.TemporaryDirectory() as folder:
        began_ns = time.monotonic_ns()
        transport = HttpTransport(ours.recv(), deadline_seconds=60.0)
        client = Client(transport=transport, directory=Path(folder), began_ns=began_ns)
        for number in range(rows):
            try:
                prompt = Prompt(id=f"row-{number}", kind="code", text=f"{number}?")
                row = client.ask(Question(number, prompt, ALIAS, MODEL, max_tokens=tokens))
            except UnusableEvidenceError as error:
                print(error, file=sys.stderr)
                dropped += 1
                continue
            sent = _sent(Path(folder) / row.stream)
            errors += _errors(row, began_ns, sent)
            rates.append((len(sent) - 1) * NANOSECONDS_IN_A_SECOND / (sent[-1] - sent[0]))
    ours.send("end")
    server.join()
    hundredths = statistics.quantiles(errors, n=100)
    return {
        "arrival_error_p50_ms": statistics.median(errors),
        "arrival_error_p99_ms": hundredths[-1],
        "arrival_error_max_ms": max(errors),
        "dropped_rows": dropped,
        "reached_rate": statistics.median(rates),
    }


def _sent(stream: Path) -> list[int]:
    """Sending time of each token, from the kept answer."""
    lines = stream.read_bytes().removesuffix(data("[DONE]")).splitlines()[::2]
    values = [json.loads(line.removeprefix(b"data: ")) for line in lines]
    return [value["created"] for value in values[1:-1]]


def _errors(row: SuiteRow, began_ns: int, sent: list[int]) -> list[float]:
    arrivals = [began_ns + row.sent_ns + at_ns for at_ns in row.arrival_ns]
    return [(arrival - moment) / NANOSECONDS_IN_A_MILLISECOND for arrival, moment in zip(arrivals, sent, strict=True)]


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client", description="Delay of the endpoint's client.")
    parser.add_argument("--rows", type=int, default=13, help="rows (default: 13)")
    parser.add_argument("--tokens", type=int, default=2000, help="tokens of a row (default: 2000)")
    parser.add_argument("--rate", type=float, default=2000.0, help="tokens a second (default: 2000)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    asked = parser.parse_args()
    figures = measure(asked.rows, asked.tokens, asked.rate)
    result = {
        "schema": "laguna-client-v1",
        "python": platform.python_version(),
        "rows": asked.rows,
        "tokens": asked.tokens,
        "rate": asked.rate,
        **figures,
    }
    if asked.json:
        print(json.dumps(result))
    else:
        print("\n".join(f"{name:22} {value:10.3f}" for name, value in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
