# SPDX-License-Identifier: Apache-2.0
"""A leg's record follows from the files beside it, or it is refused by name: one change a time to a leg that ran."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rfc8785

from pytest_laguna.endpoint.kept import require_kept
from pytest_laguna.endpoint.suite import Suite, read_suite
from pytest_laguna.evidence.endpoint.leg import LegRecord
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.verdict import UnusableEvidenceError
from tests.endpoint_server import data, events, stream
from tests.unit.endpoint.test_leg import Case

Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Suite]:
    case = Case(tmp_path_factory.mktemp("kept"), "good")
    record = case.run()
    return case.directory, read_suite(case.suite, record.request.suite)


def check(ran: tuple[Path, Suite], place: Path, change: Change) -> None:
    directory, suite = ran
    shutil.copytree(directory, place / "02-B1")
    change(place / "02-B1")
    require_kept(place / "02-B1", read_model(place / "02-B1" / "leg.json", LegRecord), suite)


def put(file: str, path: str, value: object) -> Change:
    """Set one field of a JSON file; the path is joined by dots."""

    def change(directory: Path) -> None:
        content: Any = json.loads((directory / file).read_bytes())
        target, (*parents, last) = content, [int(part) if part.isdigit() else part for part in path.split(".")]
        for part in parents:
            target = target[part]
        target[last] = value
        (directory / file).write_bytes(rfc8785.dumps(content))

    return change


def replace(file: str, old: bytes, new: bytes) -> Change:
    def change(directory: Path) -> None:
        content = (directory / file).read_bytes()
        assert old in content
        (directory / file).write_bytes(content.replace(old, new))

    return change


def write(file: str, content: bytes) -> Change:
    return lambda directory: (directory / file).write_bytes(content)


def remove(file: str) -> Change:
    return lambda directory: (directory / file).unlink()


def another_rank(directory: Path) -> None:
    shutil.copy(directory / "ranks" / "rank-0-served.json", directory / "ranks" / "rank-1-served.json")


def one_row_less(directory: Path) -> None:
    content = json.loads((directory / "leg.json").read_bytes())
    content["rows"].pop()
    (directory / "leg.json").write_bytes(rfc8785.dumps(content))


def test_the_record_of_a_leg_follows_from_its_files(ran: tuple[Path, Suite], tmp_path: Path) -> None:
    check(ran, tmp_path, lambda _: None)


ERROR = b"data: " + json.dumps({"error": {"message": "no"}}).encode() + b"\n\n" + data("[DONE]")
HITS = b'vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 0'
MUTANTS: dict[str, tuple[Change, str]] = {
    "an error event in a stream": (write("row-00.sse", ERROR), r"row 0 \(one\): seen an error event after 0 tokens"),
    "another whole stream": (
        write("row-00.sse", b"".join(stream(events("another", "tiny")))),
        r"row 0 \(one\): seen answer 'chatcmpl-another'; expected one to request",
    ),
    "other tokens in a stream": (replace("row-01.sse", b"[5]", b"[4]"), r"rows\.1\.token_ids\.0: seen another"),
    "no stream": (remove("row-02.sse"), r"row-02\.sse: cannot be read"),
    "a stream's digest": (put("leg.json", "rows.0.stream_sha256", "0" * 64), r"rows\.0\.stream_sha256: seen another"),
    "a stream's name": (put("leg.json", "rows.0.stream", "row-01.sse"), r"rows\.0\.stream: seen another"),
    "a text's digest": (put("leg.json", "rows.0.text_sha256", "0" * 64), r"rows\.0\.text_sha256: seen another"),
    "what a row was asked": (replace("row-00.request.json", b"one?", b"two?"), r"request; expected that for one"),
    "hits of the cache": (
        replace("metrics-after-suite.prom", HITS, HITS[:-1] + b"4711"),
        r"counters_after\.sha256: seen another",
    ),
    "hits in the record": (
        put("leg.json", "counters_after.prefix_cache_hits", 4711),
        r"counters_after\.prefix_cache_hits: seen another",
    ),
    "counters before": (write("metrics-before-suite.prom", b"<html>"), r"before-suite\.prom: seen no Prometheus"),
    "an end that is no record": (write("end.json", b"{"), r"end\.json: not JSON"),
    "another end": (put("end.json", "cleanup.stop_status", 1), r"leg\.json: end\.cleanup\.stop_status: seen another"),
    "another process in the end": (put("leg.json", "end.process", None), r"leg\.json: end\.process: seen another"),
    "another request": (put("request.json", "block", 2), r"leg\.json: request\.block: seen another"),
    "a rank's state": (
        put("ranks/rank-0-served.json", "candidate", {}), r"leg\.json: ranks_served\.0\.candidate: seen another",
    ),
    "another end by the supervisor": (
        replace("process.json", b'"reason":"stopped"', b'"reason":"deadline"'),
        r"process\.json in 02-B1: another end of the server than in the leg's record",
    ),
    "no end by the supervisor": (remove("process.json"), r"process\.json: cannot be read"),
    "an answer too many": (write("row-03.sse", b"x"), r"row-03\.sse: seen in the leg's directory"),
    "a file beside the states": (write("ranks/x", b""), r"ranks/x: seen in the leg's directory"),
    "a rank too many": (another_rank, r"ranks/rank-1-served\.json: seen in the leg's directory"),
    "no rank": (remove("ranks/rank-0-captured.json"), r"rank-0-captured\.json: cannot be read"),
    "a row less": (one_row_less, r"row-02\.request\.json: seen in the leg's directory"),
    "freshness": (put("leg.json", "freshness.prompt_ids.0", "other"), r"freshness\.prompt_ids\.0: seen another"),
    "the streams read again": (put("leg.json", "final_gate.cached_tokens.0", 1), r"cached_tokens\.0: seen another"),
    "a fact": (
        put("leg.json", "facts.no_ngram", {"holds": True, "observation": "we know"}), r"facts\.no_ngram\.observation",
    ),
    "the begin of the leg": (put("leg.json", "begun_ticks", 1), r"facts\.fresh_service\.observation: seen another"),
    "how often was asked": (put("leg.json", "posted", 4), r"facts\.no_retry\.holds: seen another"),
    "sockets": (put("leg.json", "sockets", []), r"facts\.no_network: seen another"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_record_that_its_files_do_not_give_is_refused(name: str, ran: tuple[Path, Suite], tmp_path: Path) -> None:
    change, reason = MUTANTS[name]
    with pytest.raises(UnusableEvidenceError, match=r"^02-B1: .*(" + reason + ")"):
        check(ran, tmp_path, change)
