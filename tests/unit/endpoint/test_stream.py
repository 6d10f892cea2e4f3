# SPDX-License-Identifier: Apache-2.0
"""A streamed answer is whole, or it is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.endpoint.stream import read_stream
from pytest_laguna.endpoint.transport import Read
from pytest_laguna.evidence.endpoint.leg import Usage
from pytest_laguna.verdict import UnusableEvidenceError
from tests.endpoint_server import data, events, stream

SAMPLE = Path(__file__).parents[2] / "data" / "endpoint" / "chat.sse"
DONE = data("[DONE]")


def reads(*pieces: bytes) -> list[Read]:
    return [Read(number * 10, piece) for number, piece in enumerate(pieces, 1)]


def test_an_answer_of_vllm_is_read_whole() -> None:
    answer = read_stream([Read(0, SAMPLE.read_bytes())], "sample")
    assert answer.model == "tiny-laguna"
    assert answer.response_id.startswith("chatcmpl-")
    assert answer.text == "6, 7, 8, 9, 0, 1, 3, 4, "
    assert len(answer.token_ids) == len(answer.arrival_ns) == answer.usage.completion_tokens == 24
    assert answer.event_tokens == (1, 6, 6, 8, 1, 2)
    assert len(answer.prompt_token_ids) == answer.usage.prompt_tokens == 15
    assert answer.usage.cached_tokens == 0
    assert answer.finish_reason == "length"


def test_each_token_arrives_with_the_read_that_completes_its_event() -> None:
    pieces = stream(events())
    half = len(pieces[2]) // 2
    answer = read_stream(
        # The first event alone; the second; half of the third; its rest with the fourth; all else.
        reads(pieces[0], pieces[1], pieces[2][:half], pieces[2][half:] + pieces[3], b"".join(pieces[4:])),
        "row",
    )
    assert answer.token_ids == (5, 6, 7, 8, 9)
    assert answer.arrival_ns == (20, 40, 40, 40, 40)
    assert answer.event_tokens == (1, 2, 2)
    assert answer.done_ns == 50
    assert answer.usage == Usage(prompt_tokens=2, completion_tokens=5, cached_tokens=0)


def changed(change: Callable[[list[dict[str, Any]]], None]) -> bytes:
    values = events()
    change(values)
    return b"".join(stream(values))


def without_usage(values: list[dict[str, Any]]) -> None:
    values.pop()


def without_finish(values: list[dict[str, Any]]) -> None:
    values[-2]["choices"][0]["finish_reason"] = None


def without_cached(values: list[dict[str, Any]]) -> None:
    del values[-1]["usage"]["prompt_tokens_details"]


def with_two_choices(values: list[dict[str, Any]]) -> None:
    values[1]["choices"] *= 2


def of_another_answer(values: list[dict[str, Any]]) -> None:
    values[2]["id"] = "chatcmpl-other"


def of_another_model(values: list[dict[str, Any]]) -> None:
    values[2]["model"] = "other"


def with_a_lost_token(values: list[dict[str, Any]]) -> None:
    values[2]["choices"][0]["token_ids"].pop()


def with_a_lost_prompt_token(values: list[dict[str, Any]]) -> None:
    values[0]["prompt_token_ids"].pop()


def with_text_for_a_token(values: list[dict[str, Any]]) -> None:
    values[1]["choices"][0]["token_ids"] = ["5"]


def finished_twice(values: list[dict[str, Any]]) -> None:
    values.insert(-1, values[-2])


WHOLE = b"".join(stream(events()))
REFUSED = {
    "error-event": (
        data(events()[0]) + data({"error": {"message": "engine died", "code": 500}}) + DONE,
        r"row: seen an error event after 0 tokens: \{'message': 'engine died'",
    ),
    "no-usage": (changed(without_usage), "row: seen no usage"),
    "no-end-marker": (WHOLE.removesuffix(DONE), r"row: seen no end marker after 5 tokens; expected \[DONE\]"),
    "no-finish": (changed(without_finish), "row: seen no finish reason after 5 tokens"),
    "no-cached": (changed(without_cached), r"usage\.prompt_tokens_details: Field required"),
    "empty": (b"", "row: seen an empty stream"),
    "only-the-end": (DONE, "row: seen an empty stream"),
    "cut": (WHOLE[:-3], "row: seen an end inside an event, after b'.*DON"),
    "two-choices": (changed(with_two_choices), "choices: List should have at most 1 item"),
    "other-answer": (changed(of_another_answer), r"an event of \('chatcmpl-other', 'm'\) in the answer"),
    "other-model": (changed(of_another_model), r"an event of \('chatcmpl-r', 'other'\) in the answer"),
    "lost-token": (changed(with_a_lost_token), "seen 4 tokens of the answer in the stream; expected the usage's 5"),
    "lost-prompt": (changed(with_a_lost_prompt_token), "row: seen 1 tokens of the prompt in the stream; expected .* 2"),
    "text-token": (changed(with_text_for_a_token), r"token_ids\.0: Input should be a valid integer"),
    "finished-twice": (changed(finished_twice), "row: seen more of the answer after it had finished with 'length'"),
    "after-the-end": (WHOLE + data(events()[1]), "row: .* after the end marker; expected nothing"),
    "after-the-usage": (b"".join(map(data, [*events(), events()[0]])) + DONE, "row: .* after the usage"),
    "comment": (b": ping\n\n" + WHOLE, "row: seen b': ping'; expected an event of one data line"),
    "two-lines": (b"event: x\n" + WHOLE, "row: seen .*; expected an event of one data line"),
    "no-json": (b"data: {\n\n", "row: event: not strict JSON"),
    "doubled-key": (b'data: {"id": "a", "id": "b"}\n\n', "key 'id' twice in one object"),
    "no-utf8": (b"data: \xff\n\n", "row: seen .*; expected UTF-8"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_a_whole_answer_is_refused_by_name(name: str) -> None:
    content, reason = REFUSED[name]
    with pytest.raises(UnusableEvidenceError, match=reason):
        read_stream([Read(0, content)], "row")
