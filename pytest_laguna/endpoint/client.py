# SPDX-License-Identifier: Apache-2.0
"""Asks each prompt of a suite once and records what came back.

The times are taken where the bytes come off the socket; nothing is parsed before the last of them is there.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pytest_laguna.endpoint.stream import StreamedAnswer, read_stream
from pytest_laguna.endpoint.suite import Prompt
from pytest_laguna.endpoint.transport import Answer, NoAnswerError, Transport
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
class Client:
    """Asks a server that is known to be ours.

    Attributes:
        transport: what it sends with.
        alias: the model name that it asks for: the leg's nonce, which no other server answers to.
        model: the model id that every answer must name.
        max_tokens: the most that a row generates.
        directory: where requests and answers are kept.
        began_ns: the start of the pass on the monotonic clock.
    """

    transport: Transport
    alias: str
    model: str
    max_tokens: int
    directory: Path
    began_ns: int

    def ask(self, index: int, prompt: Prompt) -> SuiteRow:
        """Ask one prompt, once.

        Raises:
            UnusableEvidenceError: what came back is not exactly one whole answer of the model to this request. What
                there is of it is kept.
        """
        name = f"row {index} ({prompt.id})"
        request_id = f"{self.alias}-{index:02d}"
        body = files.canonical_json(request_body(self.alias, prompt.text, self.max_tokens))
        try:
            answer = self.transport.post(PATH, body, {"X-Request-Id": request_id})
        except NoAnswerError as error:
            message = f"{name}: {error}"
            raise UnusableEvidenceError(message) from error
        stream = answer.body
        files.write_new(self.directory / request_name(index), body)
        files.write_new(self.directory / stream_name(index), stream)
        _require_stream(answer, name)
        streamed = read_stream(answer.reads, name)
        self._require_ours(streamed, request_id, name)
        return SuiteRow(
            index=index,
            prompt_id=prompt.id,
            kind=prompt.kind,
            prompt_sha256=prompt.sha256,
            request_id=request_id,
            response_id=streamed.response_id,
            model=streamed.model,
            sent_ns=answer.sent_ns - self.began_ns,
            arrival_ns=[at_ns - answer.sent_ns for at_ns in streamed.arrival_ns],
            done_ns=streamed.done_ns - answer.sent_ns,
            token_ids=list(streamed.token_ids),
            event_tokens=list(streamed.event_tokens),
            token_sha256=token_digest(streamed.token_ids),
            prompt_token_sha256=token_digest(streamed.prompt_token_ids),
            text_sha256=files.sha256_bytes(streamed.text.encode()),
            finish_reason=streamed.finish_reason,
            usage=streamed.usage,
            stream=stream_name(index),
            stream_sha256=files.sha256_bytes(stream),
        )

    def _require_ours(self, streamed: StreamedAnswer, request_id: str, name: str) -> None:
        if streamed.model != self.model:
            message = f"{name}: answered for model {streamed.model!r}; expected {self.model!r}"
            raise UnusableEvidenceError(message)
        # vLLM names an answer by the request's own id (seen in 0.26.0 to 0.33.0).
        if streamed.response_id != f"chatcmpl-{request_id}":
            message = f"{name}: the answer is {streamed.response_id!r}; expected one to request {request_id!r}"
            raise UnusableEvidenceError(message)


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
