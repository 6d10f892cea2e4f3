# SPDX-License-Identifier: Apache-2.0
"""Builds the legs of an endpoint campaign as JSON values, so that a test can change one fact.

Prompts and tokens are the laboratory's published teacher. It published neither arrival times nor decode times; they are
made such that headlines, row wins, paired medians, cycle savings and acceptance come out as published, up to the whole
nanosecond in which an arrival is told.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_laguna.analysis.arms.arm_pair import CANDIDATE, STOCK
from pytest_laguna.evidence.arms.arm_record import token_digest
from pytest_laguna.evidence.endpoint.leg import LegRecord, SuitePin
from pytest_laguna.evidence.endpoint.plan import (
    ABBA,
    CaptureCounts,
    EndpointPlan,
    EndpointThresholds,
    Selector,
    Teacher,
    planned_legs,
)
from pytest_laguna.evidence.endpoint.server_command import server_argv

DATA = Path(__file__).parent / "data"
CAMPAIGNS = Path(__file__).parents[1] / "campaigns"
FLAG = "VLLM_XPU_LAGUNA_M8_PREBUILT_EXACT_ATTN_METADATA"
CAMPAIGN = "c" * 64
PROMPT_TOKENS = [90, 132, 110, 102, 112, 89, 149, 111, 125, 140, 229, 112, 863]
RANKS = 4
LAYER = "model.layers.0.self_attn.attn"
LOCAL = ["tcp 127.0.0.1:8000 -> listening", "tcp 127.0.0.1:8000 -> 127.0.0.1:40000"]

ENGINE_ARGUMENTS: dict[str, Any] = {
    "max_model_len": 8192,
    "enable_prefix_caching": False,
    "tensor_parallel_size": RANKS,
    "speculative_config": {"method": "dflash", "num_speculative_tokens": 7},
}

Leg = dict[str, Any]


def published(name: str) -> dict[str, Any]:
    """A published record of the laboratory, by the end of its file's name."""
    value: dict[str, Any] = json.loads((DATA / f"lab-endpoint-{name}.json").read_bytes())
    return value


def published_thresholds(name: str) -> EndpointThresholds:
    """A published set, by the name of its file."""
    content = (CAMPAIGNS / "thresholds" / f"{name}.toml").read_text()
    return EndpointThresholds.model_validate(tomllib.loads(content)["thresholds"])


METADATA_20260725 = published_thresholds("metadata-20260725")
BREAKABLE_GRAPH_20260724 = published_thresholds("breakable-graph-20260724")


def teacher() -> Teacher:
    """The published teacher, 13 rows and 6,354 tokens."""
    return Teacher.model_validate_json((DATA / "lab-endpoint-teacher-tokens.json").read_bytes(), strict=True)


TEACHER = teacher()
SUITE = SuitePin(
    suite_id="laguna-s-2.1-realistic-cold-v1",
    version=1,
    sha256="9fdaacfdc4de59407a73cbe0d8130fa0f6abe91fed782e399a58adbc035ea638",
    prompts=13,
    max_tokens=512,
    rollover_prompt_tokens=863,
)


def plan(**changed: Any) -> EndpointPlan:
    """The metadata crossover's plan."""
    values: dict[str, Any] = {
        "suite": SUITE,
        "teacher_sha256": TEACHER.digest,
        "selector": Selector(flag=FLAG, control="0", treatment="1"),
        "topology": CaptureCounts(ranks=RANKS, graphs=146, breaks=145, target_layers=1),
        "validator": "native",
        "decides": "exactness+timing",
        "null": False,
        "thresholds": METADATA_20260725,
        "repetition": None,
    }
    return EndpointPlan(**(values | changed))


@dataclasses.dataclass(frozen=True)
class Start:
    """What a leg shall come to.

    Attributes:
        rates: legacy rate of each row, tokens/s.
        drafts: cycles of seven proposed tokens.
        accepted: accepted tokens.
        cycle_ms: decode time of a cycle.
    """

    rates: Sequence[float]
    drafts: int
    accepted: int
    cycle_ms: float


def control_rates(headline: float) -> list[float]:
    """Rates of 13 rows with that median in row 6, so far apart that no treatment changes their order."""
    return [headline * (1 + (row - 6) * 0.1) for row in range(13)]


def candidate_rates(control: Sequence[float], headline: float, paired: float, *, won: int = 13) -> list[float]:
    """Rates of the same rows: that median in row 6, that median of the changes in per cent, and so many rows won."""
    middle = (headline / control[6] - 1) * 100
    below = 6 - (middle < paired)
    lost = 13 - won
    others = [-1.0] * lost + [paired * 0.9] * (below - lost) + [paired] + [paired * 1.1] * (11 - below)
    changes = [*others[:6], middle, *others[6:]]
    return [rate * (1 + change / 100) for rate, change in zip(control, changes, strict=True)]


def metadata_starts() -> dict[str, Start]:
    """The four starts of the metadata crossover of 2026-07-25."""
    record = published("metadata-20260725")
    return _starts(record, ("graph_metadata_off", "graph_metadata_on"), [(1719, 1718), (1721, 1720)], 49.4)


def graph_starts() -> dict[str, Start]:
    """The four starts of the breakable-graph crossover of 2026-07-24."""
    return _starts(published("breakable-graph-20260724"), ("eager", "graph"), [(1721, 1720), (1722, 1721)], 100.0)


def _starts(
    record: dict[str, Any], names: tuple[str, str], drafts: Sequence[tuple[int, int]], cycle_ms: float
) -> dict[str, Start]:
    """Drafts are the only whole numbers that give the published acceptance: a draft more is a token less accepted.

    A control's cycle is not public; it is one that goes with the rates.
    """
    starts = {}
    for number, (control_drafts, candidate_drafts) in enumerate(drafts, start=1):
        pair = record["pairs"][f"B{number}_vs_A{number}"]
        control = control_rates(record["starts"][f"A{number}_{names[0]}"])
        headline, won = record["starts"][f"B{number}_{names[1]}"], int(pair["row_wins"].partition("/")[0])
        candidate = candidate_rates(control, headline, pair["median_paired_delta_pct"], won=won)
        saved = cycle_ms - pair["aggregate_cycle_saving_ms"]
        starts[f"A{number}"] = Start(control, control_drafts, 6362 - control_drafts, cycle_ms)
        starts[f"B{number}"] = Start(candidate, candidate_drafts, 6362 - candidate_drafts, saved)
    return starts


def legs(starts: dict[str, Start], *, null: bool = False) -> list[Leg]:
    """The four legs of a campaign of one block."""
    return blocks([starts], null=null)


def blocks(starts: Sequence[dict[str, Start]], *, null: bool = False) -> list[Leg]:
    """Every leg of a campaign in its frozen order, from the starts of each block."""
    return [
        leg(name, block, sequence, starts[block - 1][name], candidate=name.startswith("B") and not null)
        for sequence, (block, name) in enumerate(planned_legs(CAMPAIGN, len(starts)), start=1)
    ]


def null_starts() -> dict[str, Start]:
    """Four starts of the metadata crossover's first control."""
    return dict.fromkeys(ABBA, metadata_starts()["A1"])


def scaled(starts: dict[str, Start], **factors: float) -> dict[str, Start]:
    """The starts with some legs' rates and cycles made faster by a factor."""
    return {
        name: dataclasses.replace(
            start,
            rates=[rate * factors.get(name, 1.0) for rate in start.rates],
            cycle_ms=start.cycle_ms / factors.get(name, 1.0),
        )
        for name, start in starts.items()
    }


def records(values: Sequence[Leg]) -> list[LegRecord]:
    """The legs in their form."""
    return [LegRecord.model_validate_json(json.dumps(value), strict=True) for value in values]


def leg(name: str, block: int, sequence: int, start: Start, *, candidate: bool) -> Leg:
    """A leg that keeps every rule."""
    nonce = f"{sequence:032x}"
    rows = _rows(start, sequence)
    variables = {FLAG: "1" if candidate else "0", "OMP_NUM_THREADS": "1"}
    zeros = [0] * len(rows)
    return {
        "schema": "pytest-laguna-leg-v1",
        "request": {
            "schema": "pytest-laguna-leg-request-v1",
            "leg": name,
            "block": block,
            "sequence": sequence,
            "arm": "graph-candidate" if candidate else "graph-control",
            "lane": "xpu",
            "model": "laguna",
            "suite": SUITE.model_dump(),
            "engine_arguments": copy.deepcopy(ENGINE_ARGUMENTS),
            "variables": variables,
        },
        "started": _utc(sequence, 0),
        "begun_ticks": 4000 + sequence,
        "ended": _utc(sequence, 30),
        "posted": len(rows),
        "server": _server(sequence, nonce),
        "ranks_captured": [_rank(rank, sequence, variables, 0) for rank in range(RANKS)],
        "ranks_served": [_rank(rank, sequence, variables, start.drafts) for rank in range(RANKS)],
        "counters_before": _counters("metrics-before-suite.prom", None, rows),
        "counters_after": _counters("metrics-after-suite.prom", start, rows),
        "rows": rows,
        "freshness": {
            "prompt_ids": [row["prompt_id"] for row in rows],
            "prompt_sha256": [row["prompt_sha256"] for row in rows],
            "request_ids": [row["request_id"] for row in rows],
            "cached_tokens": zeros,
        },
        "final_gate": {
            "rows": len(rows),
            "completion_tokens": [row["usage"]["completion_tokens"] for row in rows],
            "cached_tokens": zeros,
        },
        "facts": {name: {"holds": True, "observation": f"what showed {name}"} for name in FACTS},
        "sockets": [
            {"moment": moment, "processes": 6, "local": LOCAL, "foreign": []}
            for moment in ["ready", *(row["prompt_id"] for row in rows)]
        ],
        "end": {
            "schema": "pytest-laguna-leg-end-v1",
            "reason": "",
            "cleanup": {"original_status": 0, "stop_status": 0, "worker_status": 0, "idle_status": 0},
            "process": {
                "schema_name": "laguna-process-v1",
                "reason": "stopped",
                "wait_status": 0,
                "last_signal": 2,
                "wall_seconds": 200.0,
                "peak_memory_bytes": None,
                "leftovers": [],
                "survivors": [],
                "proven_empty": True,
                "last_journal_line": None,
            },
        },
    }


FACTS = (
    "no_retry",
    "no_warm_up",
    "fresh_service",
    "no_network",
    "no_history",
    "no_ngram",
    "no_response_reuse",
    "no_prefix_reuse",
)


def _utc(sequence: int, minute: int) -> str:
    return f"2026-07-{1 + sequence // 24:02d}T{sequence % 24:02d}:{minute:02d}:00.000000+00:00"


def _rows(start: Start, sequence: int) -> list[dict[str, Any]]:
    rows, sent, pace = [], 0, _later_pace(start)
    for row, rate in zip(TEACHER.rows, start.rates, strict=True):
        count = len(row.token_ids)
        interval = 100_000_000_000 / rate / 99
        steps = [min(token, 99) + max(token - 99, 0) * pace for token in range(count)]
        arrival = [200_000_000 + round(step * interval) for step in steps]
        rows.append({
            "index": row.prompt_index,
            "prompt_id": row.prompt_id,
            "kind": "code",
            "prompt_sha256": row.prompt_sha256,
            "request_id": f"leg-{sequence}-row-{row.prompt_index}",
            "response_id": f"chatcmpl-{sequence}-{row.prompt_index}",
            "model": "laguna",
            "sent_ns": sent,
            "arrival_ns": arrival,
            "done_ns": arrival[-1] + 1000,
            "token_ids": list(row.token_ids),
            "event_tokens": [1] * count,
            "token_sha256": token_digest(row.token_ids),
            "prompt_token_sha256": row.prompt_sha256,
            "text_sha256": token_digest(row.token_ids),
            "finish_reason": "length" if count == SUITE.max_tokens else "stop",
            "usage": {
                "prompt_tokens": PROMPT_TOKENS[row.prompt_index],
                "completion_tokens": count,
                "cached_tokens": 0,
            },
            "stream": f"row-{row.prompt_index:02d}.sse",
            "stream_sha256": "d" * 64,
        })
        sent += arrival[-1] + 2000
    return rows


def _later_pace(start: Start) -> float:
    """How long an interval after a row's first 99 is, against those: so that all rows take the decode time together.

    Where the first ones alone take longer the leg says what cannot be, and all its intervals are alike.
    """
    seconds = [100 / rate / 99 for rate in start.rates]
    first = sum(99 * one for one in seconds)
    later = sum((len(row.token_ids) - 100) * one for row, one in zip(TEACHER.rows, seconds, strict=True))
    pace = (start.cycle_ms * start.drafts / 1000 - first) / later
    return pace if pace > 0 else 1.0


def _server(sequence: int, nonce: str) -> dict[str, Any]:
    listener = {"address": "127.0.0.1:8000", "inode": 900 + sequence, "holders": [1000 + sequence]}
    return {
        "argv": server_argv("/python", ENGINE_ARGUMENTS, ["laguna", nonce], 8000),
        "pid": 1000 + sequence,
        "start_ticks": 5000 + sequence,
        "nonce": nonce,
        "models": ["laguna", nonce],
        "ready_seconds": 40.0,
        "listener_before": listener,
        "listener_after": copy.deepcopy(listener),
    }


def _rank(rank: int, sequence: int, variables: dict[str, str], drafts: int) -> dict[str, Any]:
    """Before the suite, when nothing was drafted yet, or after it."""
    moment, candidate = "served" if drafts else "captured", variables[FLAG] == "1"
    hits = 13 if drafts else 0
    counters = {"builds": 1, "invalidations": 0, "forward_hits": drafts + hits, "update_hits": 2 + hits}
    backend, implementation = CANDIDATE if candidate else STOCK
    return {
        "schema": "pytest-laguna-rank-state-v1",
        "moment": moment,
        "rank": rank,
        "pid": 2000 + 10 * sequence + rank,
        "start_ticks": 6000 + 10 * sequence + rank,
        "model_runner": "vllm.v1.worker.gpu_model_runner.GPUModelRunner",
        "versions": {"vllm": "0.32.0"},
        "variables": {
            **variables,
            "LAGUNA_RANK_STATES": f"/legs/{sequence}",
            "LAGUNA_RANK_PIPES": f"/pipes/{sequence}",
            "PYTHONHASHSEED": "0",
        },
        "graphs": [
            {
                "model": "target",
                "descriptor": "tokens 8",
                "graphs": 146,
                "breaks": 145,
                "kinds": {"graph": 146, "attention": 48, "collective": 97},
                "order_sha256": "e5b64443ef499d8bb8b138a94ad504effeaa6434a8884ae9f885aecf12d34e1b",
            },
            {
                "model": "draft",
                "descriptor": "tokens 8",
                "graphs": 3,
                "breaks": 2,
                "kinds": {"graph": 3, "attention": 2},
                "order_sha256": "63822d3ae9bb8a9dc6fd4d0524a9833b0a39b981e269b6996e2d8500802a629d",
            },
        ],
        "candidate": {
            **(counters if candidate else dict.fromkeys(counters, 0)),
            "flag": candidate,
            "model_runner": "GPUModelRunner",
            "lane": "xpu" if candidate else None,
            "validator": "native" if candidate else None,
            "backends": [backend],
            "implementations": [implementation],
            "target_layers": [LAYER],
            "draft_layers": ["model.layers.48.self_attn.attn"],
            "target_layers_with_state": 1 if candidate else 0,
            "draft_layers_with_state": 0,
            "layers": {LAYER: counters} if candidate else {},
        },
    }


def _counters(file: str, start: Start | None, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    drafts, accepted = (start.drafts, start.accepted) if start else (0, 0)
    usage = [row["usage"] for row in rows] if start else []
    each, more = divmod(accepted, 7)
    return {
        "file": file,
        "sha256": "e" * 64,
        "drafts": drafts,
        "draft_tokens": 7 * drafts,
        "accepted": accepted,
        "accepted_per_position": {str(position): each + (position < more) for position in range(7)},
        "decode_count": len(usage),
        "decode_seconds": start.cycle_ms * drafts / 1000 if start else 0.0,
        "prompt_tokens": sum(one["prompt_tokens"] for one in usage),
        "generated_tokens": sum(one["completion_tokens"] for one in usage),
        "finished": {"stop": 2 if start else 0, "length": 11 if start else 0},
        "prefix_cache_queries": 0,
        "prefix_cache_hits": 0,
        "external_cache_queries": 0,
        "external_cache_hits": 0,
        "cached_prompt_tokens": 0,
        "preemptions": 0,
    }
