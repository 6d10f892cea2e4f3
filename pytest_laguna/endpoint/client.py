# SPDX-License-Identifier: Apache-2.0
"""Asks each prompt of a suite once and records what came back.

The times are taken where the bytes come off the socket; nothing is parsed before the last of them is there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from pytest_laguna.endpoint.stream import StreamedAnswer, read_stream
from pytest_laguna.endpoint.suite import Prompt
from pytest_laguna.endpoint.transport import Answer, NoAnswerError, Read, Transport
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arm_record import token_digest
from pytest_laguna.evidence.leg import SuiteRow
from pytest_laguna.verdict import JSON, UnusableEvidenceError

PATH = "/v1/chat/completions"
EVENT_STREAM = "text/event-stream"
SEED = 1
_OK = 200


def stream_name(index: int) -> str:
    """The file in which a row's answer is kept, byte for byte."""
    return f"row-{index:02d}.sse"


def request_name(index: int) -> str:
    """The file in which a row's request is kept as it was sent."""
    return f"row-{index:02d}.request.json"


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """One row of a pass, as it is asked.

    Attributes:
        index: its place in the suite, from 0.
        prompt: of the suite.
        alias: the model name that it asks for: the leg's nonce, which no other server answers to.
        model: the model id that the answer must name.
        max_tokens: the most that it generates.
    """

    index: int
    prompt: Prompt
    alias: str
    model: str
    max_tokens: int

    @property
    def name(self) -> str:
        """What an error calls it."""
        return f"row {self.index} ({self.prompt.id})"

    @property
    def request_id(self) -> str:
        """Ours, sent along."""
        return f"{self.alias}-{self.index:02d}"

    @property
    def body(self) -> bytes:
        """The request as it is sent."""
        return files.canonical_json(request_body(self.alias, self.prompt.text, self.max_tokens))

    def row(self, reads: Sequence[Read], *, sent_ns: int, began_ns: int) -> SuiteRow:
        """The row that an answer makes.

        Args:
            reads: the answer, with times on the monotonic clock.
            sent_ns: when the request was sent, on that clock.
            began_ns: when the pass began, on that clock.

        Raises:
            UnusableEvidenceError: it is not exactly one whole answer of the model to this request.
        """
        streamed = read_stream(reads, self.name)
        self._require_ours(streamed)
        return SuiteRow(
            index=self.index,
            prompt_id=self.prompt.id,
            kind=self.prompt.kind,
            prompt_sha256=self.prompt.sha256,
            request_id=self.request_id,
            response_id=streamed.response_id,
            model=streamed.model,
            sent_ns=sent_ns - began_ns,
            arrival_ns=[at_ns - sent_ns for at_ns in streamed.arrival_ns],
            done_ns=streamed.done_ns - sent_ns,
            token_ids=list(streamed.token_ids),
            event_tokens=list(streamed.event_tokens),
            token_sha256=token_digest(streamed.token_ids),
            prompt_token_sha256=token_digest(streamed.prompt_token_ids),
            text_sha256=files.sha256_bytes(streamed.text.encode()),
            finish_reason=streamed.finish_reason,
            usage=streamed.usage,
            stream=stream_name(self.index),
            stream_sha256=files.sha256_bytes(b"".join(read.content for read in reads)),
        )

    def _require_ours(self, streamed: StreamedAnswer) -> None:
        if streamed.model != self.model:
            message = f"{self.name}: answered for model {streamed.model!r}; expected {self.model!r}"
            raise UnusableEvidenceError(message)
        # vLLM names an answer by the request's own id (seen in 0.26.0 to 0.33.0).
        if streamed.response_id != f"chatcmpl-{self.request_id}":
            message = (
                f"{self.name}: the answer is {streamed.response_id!r}; expected one to request {self.request_id!r}"
            )
            raise UnusableEvidenceError(message)


@dataclasses.dataclass(frozen=True, slots=True)
class Client:
    """Asks a server that is known to be ours.

    Attributes:
        transport: what it sends with.
        directory: where requests and answers are kept.
        began_ns: the start of the pass on the monotonic clock.
    """

    transport: Transport
    directory: Path
    began_ns: int

    def ask(self, question: Question) -> SuiteRow:
        """Ask one prompt, once.

        Raises:
            UnusableEvidenceError: what came back is not exactly one whole answer of the model to this request. What
                there is of it is kept.
        """
        try:
            answer = self.transport.post(PATH, question.body, {"X-Request-Id": question.request_id})
        except NoAnswerError as error:
            message = f"{question.name}: {error}"
            raise UnusableEvidenceError(message) from error
        files.write_new(self.directory / request_name(question.index), question.body)
        files.write_new(self.directory / stream_name(question.index), answer.body)
        _require_stream(answer, question.name)
        return question.row(answer.reads, sent_ns=answer.sent_ns, began_ns=self.began_ns)


def request_body(model: str, text: str, max_tokens: int) -> JSON:
    """A request: greedy, streamed, with token ids and usage. Source: the laboratory's suite protocol."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "top_p": 1,
        "seed": SEED,
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "chat_template_kwargs": {"enable_thinking": False},
    }


def _require_stream(answer: Answer, name: str) -> None:
    """Refuse what is no stream, before it is read as one."""
    if answer.status != _OK:
        message = f"{name}: HTTP status {answer.status}: {answer.body[:200]!r}; expected {_OK}"
        raise UnusableEvidenceError(message)
    if answer.content_type != EVENT_STREAM:
        message = f"{name}: status {_OK} with {answer.content_type!r}: {answer.body[:80]!r}; expected {EVENT_STREAM!r}"
        raise UnusableEvidenceError(message)
    if answer.failure:
        events = answer.body.count(b"\n\n")
        message = f"{name}: broken off after {events} events: {answer.failure}; expected a whole answer"
        raise UnusableEvidenceError(message)
