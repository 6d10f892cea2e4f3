# SPDX-License-Identifier: Apache-2.0
"""Builds the directory of an event profile as JSON values by path, so that a test can change one fact.

The arms are real records of one rank, put on two ranks with the topology of collective breaks. Digests of profiles in
records, and the closure, follow from what is written, unless a test says otherwise.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_laguna.analysis.events.diagnosis import analyse_events
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms import arm_settings
from pytest_laguna.evidence.arms.arm_record import ArmRequest
from pytest_laguna.evidence.arms.replay_profile import SegmentKind, order_sha256
from pytest_laguna.evidence.events.analysis import (
    CONFIGURATION,
    EVENTS,
    FITNESS,
    SPARSE,
    TEACHER,
    EventAnalysis,
    EventPlan,
)
from pytest_laguna.evidence.events.profile import EventProfile, HostLead, StreamIdentity
from pytest_laguna.evidence.events.reader import file_digests, read_events
from pytest_laguna.evidence.events.sparse import chosen_intervals
from pytest_laguna.evidence.reading import PLAN
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.verdict import JSON
from tests import diagnostic_root as diagnostic
from tests.mutants import test_engine_identity_rules as identity_rules

Tree = dict[str, Any]

WRITTEN = "0" * 64
"""In a record in place of a digest: that of the profile as it is written."""

CLOSURE_EDIT = "(closure)"
"""A function that edits the closure before it is written."""

KINDS: list[SegmentKind] = list(diagnostic.TOPOLOGY.kinds)
DURATIONS = {"graph": 550_000, "collective": 360_000, "attention": 195_000}
ROUNDS = 3
REPLAYS = 20


def event_profile(rank: int, *, kinds: Sequence[SegmentKind] | None = None, **nanoseconds: int) -> EventProfile:
    """One with the same time in every interval of a kind."""
    kinds = KINDS if kinds is None else kinds
    intervals = [nanoseconds.get(kind, 1) for kind in kinds]
    return EventProfile(
        rank=rank,
        world_size=4,
        descriptor=diagnostic.DESCRIPTOR,
        clock="device-event",
        stream=StreamIdentity(device_type="xpu", device_index=rank, stream_id=499),
        kinds=list(kinds),
        interval_ns=intervals,
        span_ns=sum(intervals),
        lead=None,
    )


def spread(total: int, count: int) -> list[int]:
    """Whole numbers, as equal as can be, with a sum."""
    return [total // count + (number < total % count) for number in range(count)]


def lab_profile(lab: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """A rank's file in the published form, of which the sums are the published ones.

    The files themselves are not public; what was published of the slowest rank is the sum of each category, of each
    repeated graph class, and of the graph intervals by their index modulo six. The other ranks have their totals.
    """
    total, selected = lab["rank_total_duration_ns"][str(rank)], lab["selected_rank"]
    if rank == selected["rank"]:
        audit = lab["post_run_source_audit"]
        sums, by_index = selected["category_duration_ns"], audit["selected_rank_graph_interval_classes"]
        graphs = audit["source_verified_topology"]["selected_rank_repeated_graph_classes"]
        first, second, third = (graphs[name]["total_ns"] for name in graphs)
        prefix = by_index["index_mod_6_0"]["total_ns"] - third
        tail = by_index["index_mod_6_2"]["total_ns"] - first
        per_layer = zip(*(spread(value, 48) for value in (first, second, third)), strict=True)
        graph_times = [prefix, *(value for layer in per_layer for value in layer), tail]
        times = {
            "graph": graph_times,
            "collective": spread(sums["collective"], 97),
            "attention": spread(sums["attention"], 48),
        }
    else:
        times = {"graph": spread(total // 2, 146), "collective": spread(total - total // 2 - 48_000, 97)}
        times["attention"] = [1_000] * 48
    queues = {kind: iter(values) for kind, values in times.items()}
    intervals = [{"index": i, "kind": kind, "duration_ns": next(queues[kind])} for i, kind in enumerate(KINDS)]
    return {
        "schema": "laguna-m8-current-stream-event-profile-v1",
        "status": "complete",
        "rank": rank,
        "world_size": 4,
        "batch_descriptor": diagnostic.DESCRIPTOR,
        "graphs": 146,
        "eager_breaks": 145,
        "boundary_categories": {"attention": 48, "collective": 97},
        "event_count": 292,
        "interval_count": 291,
        "total_duration_ns": total,
        "segment_kind_order_sha256": order_sha256(KINDS),
        "stream_identity": {"device_type": "xpu", "device_index": rank, "stream_id": 499},
        "intervals": intervals,
        "rank_local_only": True,
        "global_critical_path_validated": False,
        "collective_cross_stream_completion_validated": False,
        "diagnostic_only": True,
        "not_benchmark_or_submission_evidence": True,
    }


# A whole directory


def good(*, fitness: bool = False) -> Tree:
    """One in which every rule holds, on the cpu lane."""
    return copy.deepcopy(_good(fitness=fitness))


@functools.cache
def _good(*, fitness: bool) -> Tree:
    cards = diagnostic.CARDS
    identity = identity_rules._good()["identity"] | {"schema": "pytest-laguna-diagnostic-identity-v1"}
    arms = [arm for arm in CONFIGURATION if fitness or arm not in {FITNESS, SPARSE}]
    for field in ("models_around", "arm_directories"):
        identity[field] = {arm: identity[field][CONFIGURATION[arm]] for arm in arms}
    tree: Tree = {
        "plan.json": plan(fitness=fitness),
        "target-config.json": diagnostic.TARGET_CONFIG,
        "draft-config.json": {"architectures": ["LagunaForCausalLM"], "num_hidden_layers": 2},
        "identity.json": identity,
        "idle-before.json": diagnostic.idle("before", cards),
        "idle-after.json": diagnostic.idle("after", cards, len(arms) + 1),
    }
    for number, arm in enumerate(arms):
        record = record_of(arm, number)
        tree |= {
            f"arms/{arm}/request.json": record["request"],
            f"arms/{arm}/record.json": record,
            f"arms/{arm}/process.json": diagnostic.process(),
            f"arms/{arm}/idle.json": diagnostic.idle("after", cards, number + 1),
            f"arms/{arm}/host.json": diagnostic.host(number + 1),
        }
        for rank in range(len(cards)) if arm != TEACHER else ():
            tree[f"arms/{arm}/profile/rank{rank}.json"] = {EVENTS: profile, FITNESS: trial, SPARSE: sparse}[arm](rank)
    value: Tree = json.loads(json.dumps(tree))
    return value


def plan(*, fitness: bool) -> dict[str, Any]:
    of_diagnostic = diagnostic.plan()
    shared = ("lane", "cards", "vllm", "models", "validator", "completion_tokens", "collective_breaks", "topology")
    return {
        "schema": "pytest-laguna-event-plan-v1",
        **{name: of_diagnostic[name] for name in (*shared, "interpreter", "target_layers", "idle", "host")},
        "material_percent": 60.0,
        "fitness": {"rounds": ROUNDS, "slowdown_limit": 1.1} if fitness else None,
        "sparse_replays": REPLAYS if fitness else 0,
    }


def record_of(arm: str, number: int) -> dict[str, Any]:
    """A real record in the form of the event profile's arm."""
    configuration = CONFIGURATION[arm]
    record = diagnostic.record_of(configuration, number, len(diagnostic.CARDS), 1)
    rounds, replays = ROUNDS if arm == FITNESS else 0, REPLAYS if arm == SPARSE else 0
    record["request"] |= {
        "profile_samples": 0,
        "event_profile": None if arm == TEACHER else order_sha256(KINDS),
        "event_fitness_rounds": rounds,
        "event_sparse_replays": replays,
        "isolated": True,
    }
    as_asked(record)
    record["network"] = {"namespace": 4_026_532_000 + number, "left": 4_026_531_000, "interfaces": ["lo"]}
    for report in record["ranks"]:
        report["profile"] = None
        report["event_profile"] = None if arm == TEACHER else {"rounds": rounds, "replays": replays, "sha256": WRITTEN}
    return record


def as_asked(record: dict[str, Any]) -> None:
    """Give an arm the variables that its request asks for."""
    request, before = ArmRequest.model_validate(record["request"]), record["environment"]
    kept = {name: before[name] for name in before.keys() & (arm_settings.PLACES | arm_settings.LEASE)}
    own = arm_settings.profile(request, Path(kept["HOME"]).parent)
    record["environment"] = kept | arm_settings.environment(request) | own


def profile(rank: int) -> dict[str, JSON]:
    """Of the cpu lane; higher ranks are slower."""
    intervals: list[JSON] = [DURATIONS[kind] + 10 * rank for kind in KINDS]
    return {
        "schema": "pytest-laguna-event-profile-v1",
        "rank": rank,
        "world_size": len(diagnostic.CARDS),
        "descriptor": diagnostic.DESCRIPTOR,
        "clock": "host-clock",
        "stream": {"device_type": "cpu", "device_index": 0, "stream_id": 4711 + rank},
        "kinds": [*KINDS],
        "interval_ns": intervals,
        "span_ns": sum(DURATIONS[kind] + 10 * rank for kind in KINDS),
        "lead": None,
    }


def trial(rank: int) -> dict[str, JSON]:
    """An instrument that costs a twentieth."""
    plain: dict[str, JSON] = {"graph": 100_000, "collective": 60_000, "attention": 40_000}
    events: dict[str, JSON] = {"graph": 104_000, "collective": 63_000, "attention": 43_000}
    each: JSON = {
        "plain_ns": 200_000,
        "stamped_ns": 201_000,
        "events_ns": 210_000 + rank,
        "stamped_kind_ns": plain,
        "events_kind_ns": events,
    }
    return {
        "schema": "pytest-laguna-event-fitness-v1",
        "rank": rank,
        "world_size": len(diagnostic.CARDS),
        "descriptor": diagnostic.DESCRIPTOR,
        "clock": "host-clock",
        "kinds": [*KINDS],
        "rounds": [each] * ROUNDS,
    }


def sparse(rank: int) -> dict[str, JSON]:
    """A few intervals of many replays, of the same times as the profile's."""
    values: dict[str, JSON] = {
        name: value for name, value in profile(rank).items() if name not in {"interval_ns", "span_ns", "lead"}
    }
    drawn: list[JSON] = [
        [DURATIONS[KINDS[index]] + 10 * rank for index in chosen_intervals(KINDS, replay)] for replay in range(REPLAYS)
    ]
    return values | {"schema": "pytest-laguna-event-sparse-v1", "replays": drawn}


def lead(profile: dict[str, Any], host_ns: int) -> dict[str, Any]:
    """A device's profile, whose host took so long to submit each segment."""
    boundary = [host_ns * number for number in range(len(KINDS) + 1)]
    end = max(boundary[-1], sum(profile["interval_ns"]))
    return HostLead(boundary_ns=boundary, synchronised_ns=end).model_dump()


def write(tree: Tree, directory: Path) -> None:
    """Write every value where its path says, then the closure."""
    edit: Callable[[dict[str, Any]], None] = tree.get(CLOSURE_EDIT, lambda _: None)
    contents = {
        path: value if isinstance(value, bytes) else files.canonical_json(value)
        for path, value in tree.items()
        if path != CLOSURE_EDIT
    }
    for path in [path for path in contents if path.endswith("/record.json")]:
        contents[path] = files.canonical_json(_with_digests(tree[path], path, contents))
    for path, content in contents.items():
        place = directory / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    if "closure.json" not in tree:
        arms = sum(path.endswith("/record.json") for path in tree)
        closure: dict[str, Any] = {
            "schema": "pytest-laguna-event-closure-v1",
            "model_generations": arms,
            "files": file_digests(directory),
        }
        edit(closure)
        (directory / "closure.json").write_bytes(files.canonical_json(closure))


def _with_digests(record: Any, path: str, contents: Mapping[str, bytes]) -> Any:
    record = copy.deepcopy(record)
    for report in record["ranks"] if isinstance(record, dict) else ():
        file = f"{path.removesuffix('record.json')}profile/rank{report['rank']}.json"
        if report["event_profile"] and report["event_profile"]["sha256"] == WRITTEN and file in contents:
            report["event_profile"]["sha256"] = files.sha256_bytes(contents[file])
    return record


def judged(tree: Tree, directory: Path) -> EventAnalysis:
    """By way of the files."""
    write(tree, directory)
    plan = read_model(directory / PLAN, EventPlan)
    return analyse_events(plan, read_events(directory, plan.arms))


def findings(analysis: EventAnalysis) -> dict[str, tuple[str, str]]:
    """Verdict and reason of each rule that is neither satisfied nor only listed, in the order of judgement."""
    return {
        f"{clause}/{rule}": (str(result.verdict), result.reason)
        for clause, rules in analysis.clauses.items()
        for rule, result in rules.items()
        if result.verdict not in {None, "PASS"}
    }
