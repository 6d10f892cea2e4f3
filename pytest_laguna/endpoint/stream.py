# SPDX-License-Identifier: Apache-2.0
"""Strict parser of a streamed chat answer: anything but exactly one whole answer is refused.

Source of the form: vLLM's chat completions with ``return_token_ids`` and ``include_usage``, seen in 0.32.0. Source of
the refusals: public reports of streams that ended in an error event and counted as a success.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

import pydantic

from pytest_laguna.endpoint.transport import Read
from pytest_laguna.evidence.endpoint.leg import Usage
from pytest_laguna.evidence.foreign_json import parse_foreign_json
from pytest_laguna.evidence.schemas import first_defect
from pytest_laguna.verdict import UnusableEvidenceError

_END_MARKER = "[DONE]"
_FIELD = b"data: "
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""JSON can spell it, but UTF-8, and so a file, cannot."""


class _Foreign(pydantic.BaseModel):
    """Fields read from another program's object: types are strict, further fields are allowed."""

    model_config = pydantic.ConfigDict(frozen=True, strict=True)


class _Delta(_Foreign):
    content: str | None = None


class _Choice(_Foreign):
    index: Literal[0]
    delta: _Delta
    finish_reason: Annotated[str, pydantic.Field(min_length=1)] | None
    token_ids: list[Annotated[int, pydantic.Field(ge=0)]] | None = None


class _PromptDetails(_Foreign):
    cached_tokens: Annotated[int, pydantic.Field(ge=0)]


class _Usage(_Foreign):
    prompt_tokens: Annotated[int, pydantic.Field(ge=1)]
    completion_tokens: Annotated[int, pydantic.Field(ge=1)]
    prompt_tokens_details: _PromptDetails


class _Event(_Foreign):
    id: Annotated[str, pydantic.Field(min_length=1)]
    object: Literal["chat.completion.chunk"]
    model: Annotated[str, pydantic.Field(min_length=1)]
    choices: Annotated[list[_Choice], pydantic.Field(max_length=1)]
    prompt_token_ids: list[Annotated[int, pydantic.Field(ge=0)]] | None = None
    usage: _Usage | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class StreamedAnswer:
    """One whole answer.

    Attributes:
        response_id: the server's id of it.
        model: model id in every event.
        prompt_token_ids: the prompt as the server tokenised it.
        token_ids: of the answer.
        arrival_ns: completion of each token's event, on the clock of the reads.
        event_tokens: number of tokens in each event with any.
        text: of the answer.
        finish_reason: the server's.
        usage: the server's counts.
        done_ns: completion of the end marker.
    """

    response_id: str
    model: str
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    arrival_ns: tuple[int, ...]
    event_tokens: tuple[int, ...]
    text: str
    finish_reason: str
    usage: Usage
    done_ns: int


def read_stream(reads: Iterable[Read], name: str) -> StreamedAnswer:
    """Parse one answer.

    Args:
        reads: the body, in order of arrival.
        name: subject of error messages.

    Raises:
        UnusableEvidenceError: an error event, a missing end marker, missing usage, token counts other than the
            usage's, or anything else but one whole answer; it is named.
    """
    reader = _Reader(name)
    for at_ns, data in _events(reads, name):
        reader.take(at_ns, data)
    return reader.answer()


def _events(reads: Iterable[Read], name: str) -> Iterator[tuple[int, str]]:
    """Data of each event, with the time of its completion."""
    rest = b""
    for at_ns, content in reads:
        *events, rest = (rest + content).split(b"\n\n")
        for event in events:
            if not event.startswith(_FIELD) or b"\n" in event:
                message = f"{name}: seen {event[:80]!r}; expected an event of one data line, 'data: ...'"
                raise UnusableEvidenceError(message)
            try:
                yield at_ns, event.removeprefix(_FIELD).decode("utf-8")
            except UnicodeDecodeError as error:
                raise UnusableEvidenceError(f"{name}: seen {event[:80]!r}; expected UTF-8 ({error.reason})") from error
    if rest:
        message = f"{name}: seen an end inside an event, after {rest[-40:]!r}; expected the end marker"
        raise UnusableEvidenceError(message)


class _Reader:
    """Takes the events of one answer in order."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._first: _Event | None = None
        self._arrivals: list[int] = []
        self._tokens: list[int] = []
        self._event_tokens: list[int] = []
        self._text: list[str] = []
        self._finish_reason: str | None = None
        self._usage: _Usage | None = None
        self._done_ns: int | None = None

    def take(self, at_ns: int, data: str) -> None:
        """Take one event."""
        if self._done_ns is not None:
            raise self._unusable(f"seen {data[:80]!r} after the end marker; expected nothing")
        if data == _END_MARKER:
            self._done_ns = at_ns
            return
        event = self._parse(data)
        if self._usage is not None:
            raise self._unusable(f"seen {data[:80]!r} after the usage; expected the end marker")
        self._same_answer(event)
        if event.choices:
            self._take_choice(at_ns, event.choices[0])
        if event.usage is not None:
            self._usage = event.usage

    def answer(self) -> StreamedAnswer:
        """Return the whole answer; raises UnusableEvidenceError if a part is missing."""
        if self._first is None:
            raise self._unusable("seen an empty stream; expected an answer")
        if self._finish_reason is None:
            raise self._unusable(f"seen no finish reason after {len(self._tokens)} tokens; expected a whole answer")
        if self._usage is None:
            raise self._unusable("seen no usage; expected it before the end marker; ask for include_usage")
        if self._done_ns is None:
            raise self._unusable(f"seen no end marker after {len(self._tokens)} tokens; expected {_END_MARKER}")
        prompt = self._first.prompt_token_ids or []
        counted = ("prompt", len(prompt), self._usage.prompt_tokens), (
            "answer", len(self._tokens), self._usage.completion_tokens,
        )  # fmt: skip
        for what, seen, said in counted:
            if seen != said:
                raise self._unusable(f"seen {seen} tokens of the {what} in the stream; expected the usage's {said}")
        return StreamedAnswer(
            response_id=self._first.id,
            model=self._first.model,
            prompt_token_ids=tuple(prompt),
            token_ids=tuple(self._tokens),
            arrival_ns=tuple(self._arrivals),
            event_tokens=tuple(self._event_tokens),
            text="".join(self._text),
            finish_reason=self._finish_reason,
            usage=Usage(
                prompt_tokens=self._usage.prompt_tokens,
                completion_tokens=self._usage.completion_tokens,
                cached_tokens=self._usage.prompt_tokens_details.cached_tokens,
            ),
            done_ns=self._done_ns,
        )

    def _parse(self, data: str) -> _Event:
        value: Any = parse_foreign_json(data, f"{self._name}: event")
        if _LONE_SURROGATE.search(json.dumps(value, ensure_ascii=False)):
            raise self._unusable(f"seen half of a surrogate pair in event {data[:80]!r}; expected UTF-8 text")
        if isinstance(value, dict) and "error" in value:
            raise self._unusable(f"seen an error event after {len(self._tokens)} tokens: {str(value['error'])[:200]}")
        try:
            return _Event.model_validate(value)
        except pydantic.ValidationError as error:
            raise self._unusable(f"seen event {data[:80]!r}: {first_defect(error)}") from error

    def _same_answer(self, event: _Event) -> None:
        if self._first is None:
            self._first = event
        seen, expected = (event.id, event.model), (self._first.id, self._first.model)
        if seen != expected:
            raise self._unusable(f"seen an event of {seen} in the answer {expected}; expected one answer")

    def _take_choice(self, at_ns: int, choice: _Choice) -> None:
        if self._finish_reason is not None:
            raise self._unusable(f"seen more of the answer after it had finished with {self._finish_reason!r}")
        self._text.append(choice.delta.content or "")
        self._finish_reason = choice.finish_reason
        tokens = choice.token_ids or []
        if tokens:
            self._tokens += tokens
            self._arrivals += [at_ns] * len(tokens)
            self._event_tokens.append(len(tokens))

    def _unusable(self, what: str) -> UnusableEvidenceError:
        return UnusableEvidenceError(f"{self._name}: {what}")
