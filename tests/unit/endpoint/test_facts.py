# SPDX-License-Identifier: Apache-2.0
"""Each declared fact comes from something that was looked at; it can be false, and it can be absent."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic
import pytest

from pytest_laguna.endpoint.client import request_body
from pytest_laguna.endpoint.facts import Observed, declare
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.arm_record import token_digest
from pytest_laguna.evidence.endpoint.leg import Counters, LegFacts, RankState, SocketLook, SuiteRow, Usage
from pytest_laguna.verdict import UnusableEvidenceError

DIGEST = "0" * 64
TEXTS = ("One", "Two")
ALL = frozenset(LegFacts.model_fields)


def counters(rows: int, **changes: Any) -> Counters:
    values: dict[str, Any] = dict.fromkeys(Counters.model_fields, 0) | {
        "file": f"metrics-{rows}.prom",
        "sha256": DIGEST,
        "accepted_per_position": {},
        "decode_count": rows,
        "decode_seconds": 0.5 * rows,
        "generated_tokens": 3 * rows,
        "finished": {"length": rows, "abort": 0},
    }
    return Counters(**(values | changes))


def row(index: int, **changes: Any) -> SuiteRow:
    tokens = [5, 6, 7]
    values: dict[str, Any] = {
        "index": index,
        "prompt_id": f"p{index}",
        "kind": "code",
        "prompt_sha256": files.sha256_bytes(TEXTS[index].encode()),
        "request_id": f"r{index}",
        "response_id": f"chatcmpl-r{index}",
        "model": "m",
        "sent_ns": 0,
        "arrival_ns": [1, 2, 3],
        "done_ns": 4,
        "token_ids": tokens,
        "event_tokens": [1, 2],
        "token_sha256": token_digest(tokens),
        "prompt_token_sha256": DIGEST,
        "text_sha256": DIGEST,
        "finish_reason": "length",
        "usage": Usage(prompt_tokens=2, completion_tokens=3, cached_tokens=0),
        "stream": "row.sse",
        "stream_sha256": DIGEST,
    }
    return SuiteRow(**(values | changes))


def rank(*, start_ticks: int = 102, **candidate: pydantic.JsonValue) -> RankState:
    return RankState(
        moment="captured",
        rank=0,
        pid=1,
        start_ticks=start_ticks,
        model_runner="r",
        versions={},
        variables={},
        graphs=[],
        candidate=candidate,
    )


@pytest.fixture
def seen(tmp_path: Path) -> Observed:
    for index, text in enumerate(TEXTS):
        body = files.canonical_json(request_body("alias", text, 3))
        (tmp_path / f"row-{index:02d}.request.json").write_bytes(body)
    return Observed(
        directory=tmp_path,
        engine_arguments={"speculative_config": {"method": "dflash"}},
        begun_ticks=100,
        start_ticks=101,
        posted=2,
        rows=[row(0), row(1)],
        ranks=[rank(draft_layers=["model.layers.48.self_attn.attn"])],
        before=counters(0),
        after=counters(2),
        looks=[SocketLook(moment="ready", processes=4, local=["tcp 127.0.0.1:1 -> listening"], foreign=[])],
    )


def test_a_clean_leg_declares_every_fact_and_what_showed_it(seen: Observed) -> None:
    facts = declare(seen)
    for name in ALL:
        fact = getattr(facts, name)
        assert fact is not None, name
        assert fact.holds, name
    assert facts.no_retry is not None
    assert facts.no_retry.observation == (
        "2 rows, 2 POST requests begun by the transport, 2 requests finished by the server "
        "(metrics-0.prom, metrics-2.prom)"
    )


NGRAM: Mapping[str, pydantic.JsonValue] = {"speculative_config": {"method": "ngram"}}
FALSE: dict[str, tuple[str, dict[str, Any]]] = {
    "a-retry-of-the-client": ("no_retry", {"posted": 3}),
    "a-request-that-the-client-did-not-make": ("no_retry", {"after": counters(2, finished={"length": 3, "abort": 0})}),
    "an-aborted-request": ("no_retry", {"after": counters(2, finished={"length": 2, "abort": 1})}),
    "tokens-before-the-first-row": (
        "no_warm_up",
        {"before": counters(0, generated_tokens=1), "after": counters(2, generated_tokens=7)},
    ),
    "a-request-before-the-first-row": (
        "no_warm_up",
        {"before": counters(0, finished={"abort": 1}), "after": counters(2, finished={"length": 2, "abort": 1})},
    ),
    "a-decode-before-the-first-row": ("no_warm_up", {"before": counters(0, decode_count=1)}),
    "a-server-older-than-the-leg": ("fresh_service", {"start_ticks": 99}),
    "a-rank-older-than-the-leg": ("fresh_service", {"ranks": [rank(start_ticks=99, draft_layers=["48"])]}),
    "a-socket-to-another-host": (
        "no_network",
        {"looks": [SocketLook(moment="p0", processes=4, local=[], foreign=["tcp 10.0.0.5:1 -> 10.0.0.6:443"])]},
    ),
    "proposals-from-the-text": ("no_ngram", {"engine_arguments": NGRAM}),
    "a-rank-without-a-draft": ("no_ngram", {"ranks": [rank(draft_layers=[])]}),
    "one-answer-given-twice": ("no_response_reuse", {"rows": [row(0), row(1, response_id="chatcmpl-r0")]}),
    "tokens-that-were-not-generated": ("no_response_reuse", {"after": counters(2, generated_tokens=3)}),
    "a-hit-of-the-prefix-cache": ("no_prefix_reuse", {"after": counters(2, prefix_cache_hits=64)}),
    "a-hit-of-the-other-tier": ("no_prefix_reuse", {"after": counters(2, external_cache_hits=64)}),
    "cached-tokens-in-the-counters": ("no_prefix_reuse", {"after": counters(2, cached_prompt_tokens=64)}),
    "cached-tokens-in-an-answer": (
        "no_prefix_reuse",
        {"rows": [row(0), row(1, usage=Usage(prompt_tokens=2, completion_tokens=3, cached_tokens=1))]},
    ),
}


@pytest.mark.parametrize("name", FALSE)
def test_what_was_seen_otherwise_makes_that_fact_false_and_no_other(name: str, seen: Observed) -> None:
    expected, changes = FALSE[name]
    facts = declare(dataclasses.replace(seen, **changes))
    assert {field for field in ALL if not getattr(facts, field).holds} == {expected}


@pytest.mark.parametrize("messages", [2, 0])
def test_a_request_that_asked_for_more_or_less_than_its_prompt_makes_no_history_false(
    messages: int, seen: Observed
) -> None:
    body = request_body("alias", TEXTS[1], 3)
    assert isinstance(body, dict)
    body["messages"] = [{"role": "user", "content": TEXTS[1]}] * messages
    (seen.directory / "row-01.request.json").write_bytes(files.canonical_json(body))
    fact = declare(seen).no_history
    assert fact is not None
    assert not fact.holds
    assert fact.observation.startswith("1 of 2 kept requests")


def test_a_request_with_another_prompt_makes_no_history_false(seen: Observed) -> None:
    other = files.canonical_json(request_body("alias", "Three", 3))
    (seen.directory / "row-01.request.json").write_bytes(other)
    fact = declare(seen).no_history
    assert fact is not None
    assert not fact.holds


ABSENT: dict[str, tuple[str, dict[str, Any]]] = {
    "no-finished-counter": ("no_retry", {"after": counters(2, finished={})}),
    "no-generated-counter-before": ("no_warm_up", {"before": counters(0, generated_tokens=None)}),
    "no-look": ("no_network", {"looks": []}),
    "no-rank": ("no_ngram", {"ranks": []}),
    "no-rank-to-ask-its-age": ("fresh_service", {"ranks": []}),
    "no-external-counter": ("no_prefix_reuse", {"after": counters(2, external_cache_hits=None)}),
    "no-generated-counter-after": ("no_response_reuse", {"after": counters(2, generated_tokens=None)}),
}


@pytest.mark.parametrize("name", ABSENT)
def test_what_was_not_looked_at_is_not_declared(name: str, seen: Observed) -> None:
    field, changes = ABSENT[name]
    assert getattr(declare(dataclasses.replace(seen, **changes)), field) is None


def test_a_server_without_speculation_proposes_nothing(seen: Observed) -> None:
    fact = declare(dataclasses.replace(seen, engine_arguments={}, ranks=[])).no_ngram
    assert fact is not None
    assert fact.holds


def test_a_kept_request_without_messages_is_refused_by_name(seen: Observed) -> None:
    (seen.directory / "row-01.request.json").write_bytes(b"{}")
    with pytest.raises(UnusableEvidenceError, match=r"row-01\.request\.json: seen no messages"):
        declare(seen)
