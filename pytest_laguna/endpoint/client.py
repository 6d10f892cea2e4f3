# SPDX-License-Identifier: Apache-2.0
"""Asks each prompt of a suite once and records the answer.

Times are taken as bytes leave the socket; parsing starts after the last of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from pytest_laguna.endpoint.stream import StreamedAnswer, read_stream
from pytest_laguna.endpoint.suite import Prompt
from pytest_laguna.endpoint.transport import Answer, NoAnswerError, Read, Transport
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.arm_record import token_digest
from pytest_laguna.evidence.endpoint.leg import SuiteRow
from pytest_laguna.verdict import JSON, UnusableEvidenceError

PATH = "/v1/chat/completions"
EVENT_STREAM = "text/event-stream"
SEED = 1
_OK = 200


def stream_name(index: int) -> str:
    """File name of a row's kept answer, byte for byte."""
    return f"row-{index:02d}.sse"


def request_name(index: int) -> str:
    """File name of a row's request as it was sent."""
    return f"row-{index:02d}.request.json"


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """One prompt of a pass.

    Attributes:
        index: place in the suite, from 0.
        prompt: of the suite.
        alias: model name in the request: the leg's nonce, so that no other server accepts it.
        model: model id expected in the answer.
        max_tokens: limit of the answer.
    """

    index: int
    prompt: Prompt
    alias: str
    model: str
    max_tokens: int

    @property
    def name(self) -> str:
        """Subject of error messages."""
        return f"row {self.index} ({self.prompt.id})"

    @property
    def request_id(self) -> str:
        """Our id, sent in ``X-Request-Id``."""
        return f"{self.alias}-{self.index:02d}"

    @property
    def body(self) -> bytes:
        """Body of the request."""
        return files.canonical_json(request_body(self.alias, self.prompt.text, self.max_tokens))

    def row(self, reads: Sequence[Read], *, sent_ns: int, began_ns: int) -> SuiteRow:
        """Parse an answer into a row.

        Args:
            reads: the answer; times on the monotonic clock.
            sent_ns: start of the request on that clock.
            began_ns: start of the pass on that clock.

        Raises:
            UnusableEvidenceError: not exactly one whole answer of the model to this request.
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
            raise UnusableEvidenceError(f"{self.name}: seen model {streamed.model!r}; expected {self.model!r}")
        # vLLM names an answer by the request's own id (seen in 0.26.0 to 0.33.0).
        if streamed.response_id != f"chatcmpl-{self.request_id}":
            message = f"{self.name}: seen answer {streamed.response_id!r}; expected one to request {self.request_id!r}"
            raise UnusableEvidenceError(message)


@dataclasses.dataclass(frozen=True, slots=True)
class Client:
    """Asks one server.

    Attributes:
        transport: sends the requests.
        directory: keeps requests and answers.
        began_ns: start of the pass on the monotonic clock.
    """

    transport: Transport
    directory: Path
    began_ns: int

    def ask(self, question: Question) -> SuiteRow:
        """Ask one prompt, once, and keep request and answer.

        Raises:
            UnusableEvidenceError: not exactly one whole answer of the model to this request. Received bytes are kept.
        """
        try:
            answer = self.transport.post(PATH, question.body, {"X-Request-Id": question.request_id})
        except NoAnswerError as error:
            raise UnusableEvidenceError(f"{question.name}: {error}") from error
        files.write_new(self.directory / request_name(question.index), question.body)
        files.write_new(self.directory / stream_name(question.index), answer.body)
        _require_stream(answer, question.name)
        return question.row(answer.reads, sent_ns=answer.sent_ns, began_ns=self.began_ns)


def request_body(model: str, text: str, max_tokens: int) -> JSON:
    """Body of a chat request: greedy, streamed, with token ids and usage. Source: the laboratory's suite protocol."""
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
    """Refuse an answer that is not a complete event stream."""
    if answer.status != _OK:
        raise UnusableEvidenceError(f"{name}: seen HTTP status {answer.status}: {answer.body[:200]!r}; expected {_OK}")
    if answer.content_type != EVENT_STREAM:
        message = f"{name}: seen status {_OK}, {answer.content_type!r}: {answer.body[:80]!r}; expected {EVENT_STREAM!r}"
        raise UnusableEvidenceError(message)
    if answer.failure:
        events = answer.body.count(b"\n\n")
        message = f"{name}: seen {events} events, then broken off: {answer.failure}; expected a whole answer"
        raise UnusableEvidenceError(message)
