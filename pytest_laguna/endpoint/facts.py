# SPDX-License-Identifier: Apache-2.0
"""Facts about a leg, each with its observation; without one a fact is left undeclared.

Source of the facts: the laboratory's identity and freshness blocks, which declared them without an observation.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pydantic

from pytest_laguna.endpoint.client import request_name
from pytest_laguna.evidence import files
from pytest_laguna.evidence.endpoint.leg import Counters, Fact, LegFacts, RankState, SocketLook, SuiteRow
from pytest_laguna.evidence.endpoint.server_command import TEXT_DRAFTERS
from pytest_laguna.verdict import UnusableEvidenceError

_REQUEST_LIMIT_BYTES = 16 * 1024 * 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Observed:
    """Observations of a leg.

    Attributes:
        directory: holds the kept requests.
        engine_arguments: of the server.
        begun_ticks: start of the leg, in clock ticks since boot.
        start_ticks: start of the server, likewise.
        posted: POST requests begun by the transport.
        rows: of the pass.
        ranks: states after start-up.
        before: counters before the first request.
        after: counters after the last.
        looks: snapshots of the server's sockets.
    """

    directory: Path
    engine_arguments: Mapping[str, pydantic.JsonValue]
    begun_ticks: int
    start_ticks: int
    posted: int
    rows: Sequence[SuiteRow]
    ranks: Sequence[RankState]
    before: Counters
    after: Counters
    looks: Sequence[SocketLook]


def declare(seen: Observed) -> LegFacts:
    """Declare every fact with an observation; raises UnusableEvidenceError if a kept request cannot be read."""
    return LegFacts(
        no_retry=_no_retry(seen),
        no_warm_up=_no_warm_up(seen),
        fresh_service=_fresh_service(seen),
        no_network=_no_network(seen),
        no_history=_no_history(seen),
        no_ngram=_no_ngram(seen),
        no_response_reuse=_no_response_reuse(seen),
        no_prefix_reuse=_no_prefix_reuse(seen),
    )


def _no_retry(seen: Observed) -> Fact | None:
    if not seen.after.finished:
        return None
    served = sum(seen.after.finished.values()) - sum(seen.before.finished.values())
    return Fact(
        holds=seen.posted == served == len(seen.rows),
        observation=f"{len(seen.rows)} rows, {seen.posted} POST requests begun by the transport, {served} requests "
        f"finished by the server ({seen.before.file}, {seen.after.file})",
    )


def _no_warm_up(seen: Observed) -> Fact | None:
    generated, decoded = seen.before.generated_tokens, seen.before.decode_count
    if generated is None or decoded is None or not seen.before.finished:
        return None
    finished = sum(seen.before.finished.values())
    return Fact(
        holds=generated == decoded == finished == 0,
        observation=f"{generated} tokens generated, {decoded} requests decoded and {finished} finished before the "
        f"first row ({seen.before.file})",
    )


def _fresh_service(seen: Observed) -> Fact | None:
    """Every serving process is younger than the leg, so its memory holds nothing of an earlier one."""
    if not seen.ranks:
        return None
    ranks = [rank.start_ticks for rank in seen.ranks]
    return Fact(
        holds=min(seen.start_ticks, *ranks) >= seen.begun_ticks,
        observation=f"in clock ticks since boot, the leg began at {seen.begun_ticks}, the server started at "
        f"{seen.start_ticks} and its ranks at {', '.join(map(str, ranks))}",
    )


def _no_network(seen: Observed) -> Fact | None:
    if not seen.looks:
        return None
    foreign = [name for look in seen.looks for name in look.foreign]
    processes = max(look.processes for look in seen.looks)
    return Fact(
        holds=not foreign,
        observation=f"{len(seen.looks)} looks at the sockets of up to {processes} processes: "
        + (f"{foreign[0]} and {len(foreign) - 1} more" if foreign else "none reaches beyond this host"),
    )


def _no_history(seen: Observed) -> Fact:
    lone = [_asks_only(seen.directory / request_name(row.index), row) for row in seen.rows]
    return Fact(
        holds=all(lone),
        observation=f"{sum(lone)} of {len(lone)} kept requests have one message, whose text is the row's prompt",
    )


def _asks_only(path: Path, row: SuiteRow) -> bool:
    """True if a kept request has the row's prompt as its only message."""
    request = files.parse_json(files.read_bytes(path, limit=_REQUEST_LIMIT_BYTES), path.name)
    messages = request.get("messages") if isinstance(request, dict) else None
    if not isinstance(messages, list):
        raise UnusableEvidenceError(f"{path.name}: seen no messages; expected the request as it was sent")
    texts = [item.get("content") for item in messages if isinstance(item, dict)]
    return len(messages) == 1 and files.sha256_bytes(str(texts[0]).encode()) == row.prompt_sha256


def _no_ngram(seen: Observed) -> Fact | None:
    config = seen.engine_arguments.get("speculative_config")
    if config is None:
        return Fact(holds=True, observation="the server was given no speculative configuration")
    method = config.get("method") if isinstance(config, dict) else None
    layers = [rank.candidate.get("draft_layers") for rank in seen.ranks]
    if not isinstance(method, str) or not layers:
        return None
    return Fact(
        holds=method not in TEXT_DRAFTERS and all(layers),
        observation=f"speculative method {method}; draft layers on the ranks: {json.dumps(layers)}",
    )


def _no_response_reuse(seen: Observed) -> Fact | None:
    before, after = seen.before.generated_tokens, seen.after.generated_tokens
    if before is None or after is None:
        return None
    answered = sum(row.usage.completion_tokens for row in seen.rows)
    names = {row.response_id for row in seen.rows}
    return Fact(
        holds=len(names) == len(seen.rows) and after - before == answered,
        observation=f"{len(names)} distinct answers to {len(seen.rows)} rows; {after - before} tokens generated by the "
        f"server, {answered} in the answers",
    )


def _no_prefix_reuse(seen: Observed) -> Fact | None:
    """No hits in either tier: the device's blocks or the external cache."""
    hits = {
        "prefix_cache_hits": seen.after.prefix_cache_hits,
        "external_cache_hits": seen.after.external_cache_hits,
        "cached_prompt_tokens": seen.after.cached_prompt_tokens,
    }
    if any(value is None for value in hits.values()):
        return None
    shown = ", ".join(f"{name} {value}" for name, value in hits.items())
    cached = sum(row.usage.cached_tokens for row in seen.rows)
    return Fact(
        holds=cached == 0 and not any(hits.values()),
        observation=f"{shown} ({seen.after.file}); {cached} cached tokens in the answers",
    )
