# SPDX-License-Identifier: Apache-2.0
"""Reads a rank's replay profile in the form that the B70 laboratory published, versions 1 and 2.

Field names, key sets and the relations between fields are those of the published profiles. Everything is checked here:
what is read is either that form, whole and without contradiction, or no evidence.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.replay_profile import (
    LARGEST,
    ReplayProfile,
    ReplaySample,
    SegmentKind,
    ViewPreparation,
    order_sha256,
)
from pytest_laguna.evidence.foreign_json import parse_foreign_json
from pytest_laguna.evidence.schemas import first_defect
from pytest_laguna.verdict import JSON, UnusableEvidenceError

V1: Final = "laguna-m8-breakable-replay-profile-v1"
V2: Final = "laguna-m8-breakable-replay-profile-v2"

KINDS: Final[Mapping[str, SegmentKind]] = {
    "graph": "graph",
    "collective": "collective",
    "attention": "attention",
    "eager": "other",
}

_TOP = {
    "schema", "status", "rank", "samples", "batch_descriptor", "graphs", "eager_breaks", "boundary_categories",
    "segment_kind_order_sha256", "records",
}  # fmt: skip
_TIMES = {
    "capture_replay_host_loop_ns", "debug_guard_ns", "offloader_sync_ns", "post_replay_synchronize_ns",
    "replay_host_total_ns", "static_signature_collect_ns", "static_signature_compare_ns",
    "whole_replay_completion_ns",
}  # fmt: skip
_MAY_BE_ZERO = {"debug_guard_ns"}
_RECORD = _TIMES | {
    "sample", "segment_host_call_ns", "segment_host_call_total_ns", "segment_ordered_host_call_ns",
}  # fmt: skip
_VIEWS = {
    "control_calls", "forward_calls", "forward_ns", "persistent_builds", "persistent_calls", "persistent_hits",
    "total_calls", "total_ns", "update_calls", "update_ns",
}  # fmt: skip

Fields = Mapping[str, JSON]


def read_lab_profile(path: Path, *, world_size: int) -> ReplayProfile:
    """Read one rank's file.

    Args:
        path: ``rank<rank>.json``.
        world_size: how many ranks there are, which the form does not say.

    Raises:
        UnusableEvidenceError: a key too many or too few, a number that is none or contradicts another, another schema.
    """
    content = files.read_bytes(path, limit=64 * 1024 * 1024)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        message = f"{path.name}: not text ({error.reason}); expected a replay profile"
        raise UnusableEvidenceError(message) from error
    return parse_lab_profile(parse_foreign_json(text, path.name), path.name, world_size=world_size)


def parse_lab_profile(value: JSON, name: str, *, world_size: int) -> ReplayProfile:
    """Turn a published profile into ours; ``name`` is what an error calls it. Raises as ``read_lab_profile``."""
    top = _object(value, _TOP, name)
    _same(name, "status", top["status"], "complete")
    if top["schema"] not in (V1, V2):
        _refuse(name, f"schema {top['schema']!r}", f"{V1} or {V2}")
    records = top["records"]
    if not isinstance(records, list) or not records:
        _refuse(name, "no records", "a list with one for each sample")
    _same(name, "samples", top["samples"], len(records))
    samples, orders = [], set()
    for index, record in enumerate(records):
        sample, kinds = _sample(record, index, f"{name}: record {index}", with_views=top["schema"] == V2)
        samples.append(sample)
        orders.add(kinds)
    if len(orders) != 1:
        _refuse(name, f"{len(orders)} orders of segments", "the same in every record")
    (kinds,) = orders
    _check_topology(top, kinds, name)
    try:
        return ReplayProfile.model_validate(
            {
                "rank": top["rank"],
                "world_size": world_size,
                "descriptor": top["batch_descriptor"],
                "kinds": list(kinds),
                "samples": samples,
            },
            strict=True,
        )
    except pydantic.ValidationError as error:
        _refuse(name, first_defect(error), "a published profile")


def _check_topology(top: Fields, kinds: tuple[SegmentKind, ...], name: str) -> None:
    """What the file says of its graph against the segments that it lists."""
    counts = Counter(kinds)
    _same(name, "graphs", top["graphs"], counts["graph"])
    _same(name, "eager_breaks", top["eager_breaks"], len(kinds) - counts["graph"])
    boundaries = {"attention": counts["attention"], "collective": counts["collective"]}
    _same(name, "boundary_categories", top["boundary_categories"], boundaries)
    theirs = {ours: word for word, ours in KINDS.items()}
    digest = order_sha256([theirs[kind] for kind in kinds])
    _same(name, "segment_kind_order_sha256", top["segment_kind_order_sha256"], digest)


def _sample(value: JSON, index: int, name: str, *, with_views: bool) -> tuple[ReplaySample, tuple[SegmentKind, ...]]:
    record = _object(value, _RECORD | ({"kv_view_prepare"} if with_views else set()), name)
    _same(name, "sample", record["sample"], index)
    times = {field: _whole_number(record[field], f"{name}: {field}") for field in sorted(_TIMES)}
    for field, nanoseconds in times.items():
        if nanoseconds == 0 and field not in _MAY_BE_ZERO:
            _refuse(name, f"{field} 0", "more than 0")
    segments = _segments(record, name)
    sample = ReplaySample(
        segment_ns=[nanoseconds for _, nanoseconds in segments],
        loop_ns=times["capture_replay_host_loop_ns"],
        debug_guard_ns=times["debug_guard_ns"],
        offloader_sync_ns=times["offloader_sync_ns"],
        signature_collect_ns=times["static_signature_collect_ns"],
        signature_compare_ns=times["static_signature_compare_ns"],
        host_ns=times["replay_host_total_ns"],
        synchronize_ns=times["post_replay_synchronize_ns"],
        whole_ns=times["whole_replay_completion_ns"],
        views=_views(record["kv_view_prepare"], f"{name}: kv_view_prepare") if with_views else None,
    )
    return sample, tuple(kind for kind, _ in segments)


def _segments(record: Fields, name: str) -> list[tuple[SegmentKind, int]]:
    """The segments in replay order; the lists by kind, and their sums, must say the same."""
    ordered = record["segment_ordered_host_call_ns"]
    if not isinstance(ordered, list):
        _refuse(name, "no ordered segments", "a list of kind and nanoseconds")
    by_kind: dict[str, list[int]] = {kind: [] for kind in KINDS}
    segments = []
    for pair in ordered:
        if not isinstance(pair, list) or len(pair) != 2:
            _refuse(name, f"segment {_short(pair)}", "a kind and its nanoseconds")
        kind = str(pair[0])
        if kind not in KINDS:
            _refuse(name, f"segment of kind {_short(kind)}", f"one of {', '.join(KINDS)}")
        nanoseconds = _whole_number(pair[1], f"{name}: segment of kind {kind}")
        if nanoseconds == 0 and kind != "eager":
            _refuse(name, f"a {kind} segment of 0 ns", "more than 0")
        by_kind[kind].append(nanoseconds)
        segments.append((KINDS[kind], nanoseconds))
    listed = _object(record["segment_host_call_ns"], set(KINDS), f"{name}: segment_host_call_ns")
    totals = _object(record["segment_host_call_total_ns"], set(KINDS), f"{name}: segment_host_call_total_ns")
    for kind in KINDS:
        _same(name, f"segment_host_call_ns {kind}", listed[kind], by_kind[kind])
        _same(name, f"segment_host_call_total_ns {kind}", totals[kind], sum(by_kind[kind]))
    return segments


def _views(value: JSON, name: str) -> ViewPreparation:
    fields = _object(value, _VIEWS, name)
    views = {field: _whole_number(fields[field], f"{name}: {field}") for field in sorted(_VIEWS)}
    _same(name, "total_calls", views["total_calls"], views["forward_calls"] + views["update_calls"])
    _same(name, "total_ns", views["total_ns"], views["forward_ns"] + views["update_ns"])
    return ViewPreparation(
        forward_calls=views["forward_calls"],
        forward_ns=views["forward_ns"],
        update_calls=views["update_calls"],
        update_ns=views["update_ns"],
        incumbent_calls=views["control_calls"],
        persistent_calls=views["persistent_calls"],
        persistent_hits=views["persistent_hits"],
        persistent_builds=views["persistent_builds"],
    )


def _object(value: JSON, keys: set[str], name: str) -> Fields:
    """An object with exactly these keys."""
    if not isinstance(value, dict):
        _refuse(name, f"a {type(value).__name__}", "an object")
    if value.keys() != keys:
        odd = sorted(value.keys() ^ keys)
        _refuse(name, f"{'without' if odd[0] in keys else 'with'} the key {odd[0]!r}", f"exactly {len(keys)} keys")
    return value


def _whole_number(value: JSON, name: str) -> int:
    if type(value) is not int or not 0 <= value < LARGEST:
        _refuse(name, _short(value), "a whole number from 0 that fits a double")
    return value


def _same(name: str, field: str, seen: JSON, expected: object) -> None:
    """Equal in value and in type: 1, 1.0 and true are three things."""
    if json.dumps(seen, sort_keys=True) != json.dumps(expected, sort_keys=True):
        _refuse(name, f"{field} {_short(seen)}", _short(expected))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _refuse(name: str, seen: str, expected: str) -> NoReturn:
    message = f"{name}: {seen}; expected {expected}"
    raise UnusableEvidenceError(message)
