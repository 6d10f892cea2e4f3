# SPDX-License-Identifier: Apache-2.0
"""The laboratory's replay profile is read in both its versions, and refused when a key or a number is off."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.analysis.diagnostic.replay_checks import CONTAINMENT, preparation_checks
from pytest_laguna.analysis.diagnostic.replay_profile import reduce_profiles
from pytest_laguna.evidence.arms.arm_record import Arm
from pytest_laguna.evidence.arms.replay_profile import RankProfile, order_sha256
from pytest_laguna.verdict import UnusableEvidenceError
from tests.lab_profile import V1, V2, read_lab_profile

BASE = ["graph", "collective"]
KINDS = [*BASE, "graph", "attention", *47 * [*BASE, *BASE, "graph", "attention"], *BASE, *BASE, "graph"]
PUBLISHED_ORDER = "e5b64443ef499d8bb8b138a94ad504effeaa6434a8884ae9f885aecf12d34e1b"
TIME = {"graph": 20_000, "collective": 30_000, "attention": 90_000, "eager": 0}

Values = dict[str, Any]


def record(index: int, kinds: list[str], *, views: bool) -> Values:
    ordered: list[tuple[str, int]] = [(kind, TIME[kind] + index) if kind != "eager" else (kind, 0) for kind in kinds]
    by_kind = {kind: [time for name, time in ordered if name == kind] for kind in TIME}
    loop = sum(time for _, time in ordered) + 1_000
    fields: Values = {
        "sample": index,
        "capture_replay_host_loop_ns": loop,
        "debug_guard_ns": 0,
        "offloader_sync_ns": 400,
        "post_replay_synchronize_ns": 9_000_000,
        "replay_host_total_ns": loop + 2_000,
        "static_signature_collect_ns": 300,
        "static_signature_compare_ns": 200,
        "whole_replay_completion_ns": loop + 9_003_000,
        "segment_host_call_ns": by_kind,
        "segment_host_call_total_ns": {kind: sum(times) for kind, times in by_kind.items()},
        "segment_ordered_host_call_ns": ordered,
    }
    if views:
        fields["kv_view_prepare"] = {
            "control_calls": 48,
            "forward_calls": 48,
            "forward_ns": 897_617,
            "persistent_builds": 0,
            "persistent_calls": 0,
            "persistent_hits": 0,
            "total_calls": 48,
            "total_ns": 897_617,
            "update_calls": 0,
            "update_ns": 0,
        }
    return fields


def lab(schema: str = V2, kinds: list[str] | None = None) -> Values:
    kinds = KINDS if kinds is None else kinds
    return {
        "schema": schema,
        "status": "complete",
        "rank": 2,
        "samples": 3,
        "batch_descriptor": "BatchDescriptor(num_tokens=8)",
        "graphs": kinds.count("graph"),
        "eager_breaks": len(kinds) - kinds.count("graph"),
        "boundary_categories": {"collective": kinds.count("collective"), "attention": kinds.count("attention")},
        "segment_kind_order_sha256": order_sha256(kinds),
        "records": [record(index, kinds, views=schema == V2) for index in range(3)],
    }


def written(values: Values | bytes, tmp_path: Path) -> Path:
    path = tmp_path / "rank2.json"
    path.write_bytes(values if isinstance(values, bytes) else json.dumps(values, indent=1).encode())
    return path


@pytest.mark.parametrize("schema", [V1, V2])
def test_both_versions_are_read(schema: str, tmp_path: Path) -> None:
    profile = read_lab_profile(written(lab(schema), tmp_path), world_size=4)
    assert (profile.rank, profile.world_size, len(profile.samples)) == (2, 4, 3)
    assert order_sha256(profile.kinds) == PUBLISHED_ORDER
    last = profile.samples[2]
    assert last.segment_ns[:4] == [20_002, 30_002, 20_002, 90_002]
    assert (last.debug_guard_ns, last.offloader_sync_ns) == (0, 400)
    assert (last.signature_collect_ns, last.signature_compare_ns) == (300, 200)
    assert (last.synchronize_ns, last.whole_ns - last.host_ns) == (9_000_000, 9_001_000)
    assert last.views is None if schema == V1 else last.views.total_ns == 897_617  # type: ignore[union-attr]


def test_what_it_reads_satisfies_our_checks_and_reduces(tmp_path: Path) -> None:
    profile = read_lab_profile(written(lab(), tmp_path), world_size=4)
    checks = {**CONTAINMENT, **preparation_checks(Arm.GRAPH_CONTROL, 48)}
    reduced = reduce_profiles({"rank2.json": lambda: RankProfile("0" * 64, profile, iter(profile.samples))}, checks)
    assert (reduced.complaints, reduced.unusable) == ({}, None)
    assert list(reduced.maxima["view_preparation"]) == [897_617] * 3
    assert list(reduced.maxima["debug_guard"]) == [0] * 3


def test_an_eager_segment_is_another_and_may_take_no_time(tmp_path: Path) -> None:
    kinds = ["graph", "eager", "graph", "attention", "graph"]
    profile = read_lab_profile(written(lab(kinds=kinds), tmp_path), world_size=4)
    assert profile.kinds == ["graph", "other", "graph", "attention", "graph"]
    assert profile.samples[0].segment_ns[1] == 0


def _at(path: str, value: Any) -> Callable[[Values], None]:
    def change(values: Values) -> None:
        *parents, last = path.split("|")
        node: Any = values
        for part in parents:
            node = node[int(part) if isinstance(node, list) else part]
        node[int(last) if isinstance(node, list) else last] = value

    return change


def _without(path: str) -> Callable[[Values], None]:
    def change(values: Values) -> None:
        *parents, last = path.split("|")
        node: Any = values
        for part in parents:
            node = node[int(part) if isinstance(node, list) else part]
        del node[last]

    return change


RECORD, VIEWS = "records|1|", "records|1|kv_view_prepare|"
TIMES = [
    "debug_guard_ns",
    "capture_replay_host_loop_ns",
    "offloader_sync_ns",
    "post_replay_synchronize_ns",
    "replay_host_total_ns",
    "static_signature_collect_ns",
    "static_signature_compare_ns",
    "whole_replay_completion_ns",
]
"""Of these only the first may be 0."""

WORDS = "graph, collective, attention, eager"
NOT_LISTED = "record 1: no ordered segments; expected a list of kind and nanoseconds"

REFUSED: list[tuple[str, Callable[[Values], None], str]] = [
    ("schema", _at("schema", f"{V1[:-1]}3"), f"schema '{V1[:-1]}3'; expected {V1} or {V2}"),
    ("version", _at("schema", V1), "record 0: with the key 'kv_view_prepare'; expected exactly 12 keys"),
    ("status", _at("status", "partial"), "status 'partial'; expected 'complete'"),
    ("long", _at("status", 78 * "x"), f"status '{78 * 'x'}'; expected"),
    ("too long", _at("status", 79 * "x"), f"status '{76 * 'x'}...; expected"),
    ("samples", _at("samples", 31), "samples 31; expected 3"),
    ("samples type", _at("samples", 3.0), "samples 3.0; expected 3"),
    ("rank type", _at("rank", True), "rank: Input should be a valid integer"),
    ("rank beyond", _at("rank", 4), "rank 4 of 4; expected less than the world size"),
    ("descriptor", _at("batch_descriptor", ""), "descriptor: String should have at least 1"),
    ("graphs", _at("graphs", 145), "graphs 145; expected 146"),
    ("breaks", _at("eager_breaks", 146), "eager_breaks 146; expected 145"),
    ("boundaries", _at("boundary_categories|attention", 47), ": boundary_categories {'"),
    ("order", _at("segment_kind_order_sha256", "0" * 64), ": segment_kind_order_sha256 '00"),
    ("no records", _at("records", []), "no records; expected a list"),
    ("extra key", _at("extra", 1), "with the key 'extra'; expected exactly 10 keys"),
    ("missing key", _without("graphs"), "without the key 'graphs'"),
    ("record", _at("records|1", 7), "record 1: a int; expected an object"),
    ("record number", _at(f"{RECORD}sample", 2), "record 1: sample 2; expected 1"),
    ("record key", _at(f"{RECORD}extra", 2), "record 1: with the key 'extra'"),
    ("record without", _without(f"{RECORD}offloader_sync_ns"), "record 1: without the key 'offloader_sync_ns'"),
    *[(f"{name} type", _at(f"{RECORD}{name}", 1.5), f"{name}: 1.5; expected a whole number") for name in TIMES],
    *[(f"{name} negative", _at(f"{RECORD}{name}", -1), f"{name}: -1; expected a whole number") for name in TIMES],
    *[(f"{name} zero", _at(f"{RECORD}{name}", 0), f"{name} 0; expected more than 0") for name in TIMES[1:]],
    ("too large", _at(f"{RECORD}debug_guard_ns", 2**53), "debug_guard_ns: 9007199254740992; expected a whole number"),
    ("order differs", _at(f"{RECORD}segment_ordered_host_call_ns|0|0", "attention"), "segment_host_call_ns graph"),
    ("kind", _at(f"{RECORD}segment_ordered_host_call_ns|0|0", "other"), f"'other'; expected one of {WORDS}"),
    ("kind type", _at(f"{RECORD}segment_ordered_host_call_ns|0|0", [1]), "segment of kind '[1]'"),
    ("pair", _at(f"{RECORD}segment_ordered_host_call_ns|0", ["graph"]), "segment ['graph']; expected a kind and"),
    ("no time", _at(f"{RECORD}segment_ordered_host_call_ns|0|1", 0), "a graph segment of 0 ns; expected more than 0"),
    ("time type", _at(f"{RECORD}segment_ordered_host_call_ns|0|1", "5"), "1: segment of kind graph: '5'; expected a"),
    ("segment time", _at(f"{RECORD}segment_ordered_host_call_ns|0|1", 5), "segment_host_call_ns graph"),
    ("listed", _at(f"{RECORD}segment_host_call_ns|attention|0", 5), "segment_host_call_ns attention"),
    ("listed kind", _without(f"{RECORD}segment_host_call_ns|eager"), "segment_host_call_ns: without the key 'eager'"),
    ("total kind", _without(f"{RECORD}segment_host_call_total_ns|eager"), "total_ns: without the key 'eager'"),
    ("total", _at(f"{RECORD}segment_host_call_total_ns|collective", 5), "segment_host_call_total_ns collective 5"),
    ("not listed", _at(f"{RECORD}segment_ordered_host_call_ns", None), NOT_LISTED),
    ("views key", _at(f"{VIEWS}extra", 0), "kv_view_prepare: with the key 'extra'; expected exactly 10 keys"),
    ("views sum", _at(f"{VIEWS}total_calls", 96), "kv_view_prepare: total_calls 96; expected 48"),
    ("views time", _at(f"{VIEWS}total_ns", 1), "kv_view_prepare: total_ns 1; expected 897617"),
    ("views type", _at(f"{VIEWS}control_calls", "48"), "control_calls: '48'; expected a whole number"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "reason"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_what_is_not_that_form_is_refused_in_one_line(
    change: Callable[[Values], None], reason: str, tmp_path: Path
) -> None:
    values = json.loads(json.dumps(lab()))
    change(values)
    with pytest.raises(UnusableEvidenceError) as caught:
        read_lab_profile(written(values, tmp_path), world_size=4)
    assert str(caught.value).startswith("rank2.json: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff", r"not text \(.*\); expected a replay profile"),
        (b'{"rank":1,"rank":2}', ".*key 'rank' twice"),
        (b'{"rank":NaN}', ".*NaN is not a number"),
        (b'{"a":1,"b":1,"b":2}', ".*key 'b' twice in one object"),
        (b'{"rank":1e999}', ".*1e999 is beyond every finite number"),
        (b"[]", "a list; expected an object"),
        (b"{", "not strict JSON"),
    ],
)
def test_what_is_no_strict_json_is_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UnusableEvidenceError, match=rf"^rank2\.json: {reason}"):
        read_lab_profile(written(content, tmp_path), world_size=4)


def test_a_file_of_more_than_64_mib_is_refused(tmp_path: Path) -> None:
    path = written(b"", tmp_path)
    os.truncate(path, 2**26 + 1)
    with pytest.raises(UnusableEvidenceError, match=r"^rank2\.json: larger than 67108864 bytes"):
        read_lab_profile(path, world_size=4)


def test_preparations_for_the_write_are_counted_with_the_others(tmp_path: Path) -> None:
    values = lab()
    for each in values["records"]:
        each["kv_view_prepare"] |= {"update_calls": 2, "update_ns": 5, "total_calls": 50, "total_ns": 897_622}
    views = read_lab_profile(written(values, tmp_path), world_size=4).samples[0].views
    assert views is not None
    assert (views.forward_calls, views.update_calls, views.total_ns) == (48, 2, 897_622)


def test_records_whose_orders_differ_are_refused(tmp_path: Path) -> None:
    values = lab()
    values["records"][2] = record(2, [*KINDS[4:], *KINDS[:4]], views=True)
    with pytest.raises(
        UnusableEvidenceError, match=r"^rank2\.json: 2 orders of segments; expected the same in every record"
    ):
        read_lab_profile(written(values, tmp_path), world_size=4)
