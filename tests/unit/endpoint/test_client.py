# SPDX-License-Identifier: Apache-2.0
"""A row is one question and one whole answer of the model, or it is refused by name."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from pytest_laguna.endpoint.client import Client
from pytest_laguna.endpoint.suite import Prompt
from pytest_laguna.endpoint.transport import HttpTransport
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arm_record import token_digest
from pytest_laguna.evidence.leg import SuiteRow
from pytest_laguna.verdict import UnusableEvidenceError
from tests.endpoint_server import EndpointServer, chunked, events, response, stream

PROMPT = Prompt(id="question", kind="code", text="What? Ω")
NONCE = "0" * 32
MODEL = "m"


def ask(answer: Iterable[bytes], directory: Path) -> tuple[SuiteRow, EndpointServer]:
    with EndpointServer(lambda *_: answer) as server:
        client = Client(
            transport=HttpTransport(server.port, deadline_seconds=5.0),
            alias=NONCE,
            model=MODEL,
            max_tokens=5,
            directory=directory,
            began_ns=time.monotonic_ns(),
        )
        return client.ask(3, PROMPT), server


def test_a_row_holds_what_was_asked_and_what_came(tmp_path: Path) -> None:
    pieces = stream(events(f"{NONCE}-03", MODEL))
    row, server = ask(chunked(pieces), tmp_path)
    [(_, path, headers, body)] = server.requests
    assert (path, headers["x-request-id"]) == ("/v1/chat/completions", f"{NONCE}-03")
    assert json.loads(body) == {
        "model": NONCE,
        "messages": [{"role": "user", "content": PROMPT.text}],
        "temperature": 0,
        "top_p": 1,
        "seed": 1,
        "max_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert (tmp_path / "row-03.request.json").read_bytes() == body
    assert (tmp_path / row.stream).read_bytes() == b"".join(pieces)
    assert row.stream_sha256 == files.sha256_file(tmp_path / row.stream)
    assert (row.index, row.prompt_id, row.kind) == (3, "question", "code")
    assert row.prompt_sha256 == files.sha256_bytes("What? Ω".encode())
    assert (row.request_id, row.response_id, row.model) == (f"{NONCE}-03", f"chatcmpl-{NONCE}-03", MODEL)
    assert row.token_ids == [5, 6, 7, 8, 9]
    assert row.token_sha256 == token_digest([5, 6, 7, 8, 9])
    assert row.prompt_token_sha256 == token_digest([1, 2])
    assert row.text_sha256 == files.sha256_bytes(b"xxxxx")
    assert row.event_tokens == [1, 2, 2]
    assert 0 < row.arrival_ns[0] <= row.arrival_ns[-1] <= row.done_ns
    assert row.sent_ns > 0


REFUSED = {
    "html": ([response("<html>", "text/html")], r"row 3 \(question\): status 200 with 'text/html': b'<html>'"),
    "json": ([response("{}")], "status 200 with 'application/json': b'{}'; expected 'text/event-stream'"),
    "status": ([response('{"error":"no"}', status=503)], r"HTTP status 503: b'\{\"error\":\"no\"\}'; expected 200"),
    "broken": (list(chunked(stream(events(f"{NONCE}-03"))))[:4], "broken off after 3 events: .*incomplete"),
    "model": (chunked(stream(events(f"{NONCE}-03", "other"))), "answered for model 'other'; expected 'm'"),
    "request": (
        chunked(stream(events(f"{NONCE}-02"))),
        f"the answer is 'chatcmpl-{NONCE}-02'; expected one to request",
    ),
    "short": (chunked(stream(events(f"{NONCE}-03", completion_tokens=6))), "5 tokens of the answer .* usage's 6"),
    "nothing": ([b""], r"row 3 \(question\): POST /v1/chat/completions on port \d+: no answer"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_any_other_answer_is_refused_by_name(name: str, tmp_path: Path) -> None:
    answer, reason = REFUSED[name]
    with pytest.raises(UnusableEvidenceError, match=reason):
        ask(answer, tmp_path)
    # What came of it is kept, where anything came.
    assert (tmp_path / "row-03.sse").exists() == (name != "nothing")


def test_a_row_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "row-03.sse").touch()
    with pytest.raises(FileExistsError):
        ask(chunked(stream(events(f"{NONCE}-03"))), tmp_path)
