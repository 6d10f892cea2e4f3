# SPDX-License-Identifier: Apache-2.0
"""A row is one question and one whole answer of the model, or it is refused by name."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_laguna.endpoint.client import Client, Question
from pytest_laguna.endpoint.suite import Prompt
from pytest_laguna.endpoint.transport import HttpTransport, Read
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.arm_record import token_digest
from pytest_laguna.evidence.endpoint.leg import SuiteRow
from pytest_laguna.verdict import UnusableEvidenceError
from tests.endpoint_server import EndpointServer, chunked, events, response, stream

PROMPT = Prompt(id="question", kind="code", text="What? Ω")
NONCE = "0" * 32
MODEL = "m"


def ask(answer: Iterable[bytes], directory: Path) -> tuple[SuiteRow, EndpointServer]:
    with EndpointServer(lambda *_: answer) as server:
        client = Client(
            transport=HttpTransport(server.port, deadline_seconds=5.0),
            directory=directory,
            began_ns=time.monotonic_ns(),
        )
        return client.ask(Question(3, PROMPT, NONCE, MODEL, max_tokens=5)), server


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


def ended_by(reason: str) -> list[dict[str, Any]]:
    values = events(f"{NONCE}-03", MODEL)
    values[-2]["choices"][0]["finish_reason"] = reason
    return values


REFUSED = {
    "html": ([response("<html>", "text/html")], r"row 3 \(question\): seen status 200, 'text/html': b'<html>'"),
    "json": ([response("{}")], "seen status 200, 'application/json': b'{}'; expected 'text/event-stream'"),
    "status": ([response('{"error":"no"}', status=503)], r"HTTP status 503: b'\{\"error\":\"no\"\}'; expected 200"),
    "broken": (list(chunked(stream(events(f"{NONCE}-03"))))[:4], "seen 3 events, then broken off: .*incomplete"),
    "model": (chunked(stream(events(f"{NONCE}-03", "other"))), "seen model 'other'; expected 'm'"),
    "request": (
        chunked(stream(events(f"{NONCE}-02"))),
        f"seen answer 'chatcmpl-{NONCE}-02'; expected one to request",
    ),
    "short": (chunked(stream(events(f"{NONCE}-03", completion_tokens=6))), "5 tokens of the answer .* usage's 6"),
    "no-reason": (chunked(stream(ended_by(""))), "finish_reason: String should have at least 1 character"),
    "half": (chunked(stream(ended_by("\ud800"))), "seen half of a surrogate pair in event .*; expected UTF-8 text"),
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


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(alphabet=st.characters(exclude_categories=())),
    st.just([]),
)


@given(
    event=st.integers(0, 4), field=st.sampled_from(["id", "model", "choices", "usage", "prompt_token_ids"]), to=VALUES
)
def test_whatever_a_server_answers_is_a_row_or_refused(event: int, field: str, to: object) -> None:
    values = events(f"{NONCE}-03", MODEL)
    values[event][field] = to
    _read_or_refuse(values)


@given(
    field=st.sampled_from(["index", "delta", "finish_reason", "token_ids"]), to=VALUES | st.lists(VALUES, max_size=2)
)
def test_whatever_a_choice_holds_is_a_row_or_refused(field: str, to: object) -> None:
    values = events(f"{NONCE}-03", MODEL)
    values[-2]["choices"][0][field] = to
    _read_or_refuse(values)


def _read_or_refuse(values: list[dict[str, Any]]) -> None:
    reads = [Read(number, piece) for number, piece in enumerate(stream(values))]
    with contextlib.suppress(UnusableEvidenceError):
        Question(3, PROMPT, NONCE, MODEL, max_tokens=5).row(reads, sent_ns=0, began_ns=0)
