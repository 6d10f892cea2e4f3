# SPDX-License-Identifier: Apache-2.0
"""Builds the directory of an exact diagnostic as JSON values by path, so that a test can change one fact.

The arms are the real records of the graph arms on one rank, put on two ranks: with the topology of collective breaks,
the other two arms, profiles, and what surrounds the runs. Everything is written and read as the diagnostic does it.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_laguna.analysis.arms.topology import expected_topology
from pytest_laguna.analysis.diagnostic.diagnosis import diagnose
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms import arm_settings
from pytest_laguna.evidence.arms.arm_record import Arm, ArmRequest
from pytest_laguna.evidence.arms.parity import AttentionKind, query_seed
from pytest_laguna.evidence.diagnostic.analysis import Diagnosis, DiagnosticPlan
from pytest_laguna.evidence.diagnostic.reader import read_diagnostic
from pytest_laguna.evidence.machine.host import HostState, difference
from pytest_laguna.evidence.reading import PLAN
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.verdict import JSON
from tests.mutants import test_engine_identity_rules as identity_rules

DATA = Path(__file__).parent / "data"
CARDS = ["cpu-slot-0", "cpu-slot-1"]
FLAG = "VLLM_XPU_LAGUNA_M8_PERSISTENT_KV_CACHE_VIEWS"
LAYERS = 48
TARGET_CONFIG: dict[str, JSON] = {
    "architectures": ["LagunaForCausalLM"],
    "num_hidden_layers": LAYERS,
    "hidden_size": 64,
}
DRAFT_CONFIG: dict[str, JSON] = {"architectures": ["LagunaForCausalLM"], "num_hidden_layers": 2}
TOPOLOGY = expected_topology(TARGET_CONFIG, len(CARDS), collective_breaks=True)
SAMPLES, PUBLISHED_SAMPLES = 5, 31
PUBLISHED_CARDS = [f"cpu-slot-{number}" for number in range(4)]
PROMPT = "nova\noscar\npapa\nquiz\nromeo\nsierra\n"
LEASE = "0" * 32
DESCRIPTOR = "BatchDescriptor(num_tokens=8, num_reqs=None, uniform=False, has_lora=False, num_active_loras=0)"

Tree = dict[str, Any]


def good() -> Tree:
    """A diagnostic in which every rule holds, on which timing decides too."""
    return copy.deepcopy(_good())


def build(cards: list[str], samples: int) -> Tree:
    """A good diagnostic of any size, without its profiles."""
    tree: Tree = {
        "plan.json": plan(cards, samples),
        "target-config.json": TARGET_CONFIG,
        "draft-config.json": DRAFT_CONFIG,
        "identity.json": identity(),
        "idle-before.json": idle("before", cards, 0),
        "idle-after.json": idle("after", cards, len(cards) + len(Arm) + 2),
    }
    for position, card in enumerate(cards):
        tree |= _run(f"packets/{position}", packet(position, card), [card], position + 1)
    for number, arm in enumerate(Arm):
        record = record_of(arm, number, len(cards), samples)
        tree |= _run(f"arms/{arm}", record, cards, len(cards) + number + 2)
    value: Tree = json.loads(json.dumps(tree))
    return value


def write(tree: Tree, directory: Path) -> None:
    """Write every value where its path says; the record of a rank whose profile is another learns its digest."""
    contents = {path: _content(path, value) for path, value in tree.items()}
    for path, digest in _digests().items():
        if path in contents and files.sha256_bytes(contents[path]) != digest:
            record = f"{path.partition('/profile/')[0]}/record.json"
            contents[record] = contents[record].replace(digest.encode(), files.sha256_bytes(contents[path]).encode())
    for path, content in contents.items():
        place = directory / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)


def _content(path: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return _good_contents()[path] if value == _good().get(path) else files.canonical_json(value)


def judged(tree: Tree, directory: Path) -> Diagnosis:
    """By way of the files."""
    write(tree, directory)
    return diagnose(read_model(directory / PLAN, DiagnosticPlan), read_diagnostic(directory))


def findings(diagnosis: Diagnosis) -> dict[str, tuple[str, str]]:
    """Verdict and reason of each rule that is neither satisfied nor only listed, in the order of judgement."""
    return {
        f"{clause}/{rule}": (str(result.verdict), result.reason)
        for clause, rules in diagnosis.clauses.items()
        for rule, result in rules.items()
        if result.verdict not in {None, "PASS"}
    }


@functools.cache
def _good_contents() -> dict[str, bytes]:
    return {path: files.canonical_json(value) for path, value in _good().items()}


@functools.cache
def _digests() -> dict[str, str]:
    """Of the good profiles, by path."""
    paths = [path for path in _good() if "/profile/" in path]
    return {path: files.digest_of(_good()[path]) for path in paths}


def published() -> Tree:
    """A good diagnostic with the number of samples and of ranks that was published."""
    return _whole(PUBLISHED_SAMPLES, PUBLISHED_CARDS)


@functools.cache
def _good() -> Tree:
    return _whole(SAMPLES, CARDS)


def _whole(samples: int, cards: list[str]) -> Tree:
    tree = build(cards, samples)
    for arm in Arm:
        for rank in range(len(cards)) if arm.graphs else []:
            tree[f"arms/{arm}/profile/rank{rank}.json"] = profile(arm, rank, samples, len(cards))
    as_reported(tree)
    return tree


def as_reported(tree: Tree) -> None:
    """Each rank says that it wrote the profile that is there."""
    for arm in Arm:
        for report in tree[f"arms/{arm}/record.json"]["ranks"] if arm.graphs else []:
            value = tree[f"arms/{arm}/profile/rank{report['rank']}.json"]
            report["profile"]["sha256"] = files.digest_of(value)


def plan(cards: list[str] = CARDS, samples: int = SAMPLES) -> dict[str, Any]:
    return {
        "schema": "pytest-laguna-diagnostic-plan-v1",
        "lane": "cpu",
        "cards": cards,
        "vllm": "0.32.0",
        "interpreter": "engine/bin/python",
        "models": {
            "generated": "tiny-laguna",
            "layers": LAYERS,
            "width": 1,
            "hidden_size": 64,
            "prompt": "word-chain",
            "prompt_sha256": files.sha256_bytes(PROMPT.encode()),
        },
        "flag": FLAG,
        "control": "0",
        "treatment": "1",
        "validator": "native",
        "completion_tokens": 272,
        "collective_breaks": True,
        "draft_tokens": 7,
        "samples": samples,
        "decides": "exactness+timing",
        "identical": [["q1", "graph-control"], ["eager", "graph-control"], ["graph-control", "graph-candidate"]],
        "acceptance_rate_difference": 0.001,
        "accepted_per_cycle": 1.0,
        "topology": {"kinds": TOPOLOGY.kinds},
        "target_layers": LAYERS,
        "queries": [2, 3, 4, 5, 6, 7, 8],
        "null": False,
        "idle": {"snapshots": 2, "seconds": 0.5, "memory_bytes": 0, "foreign_workers": True},
        "host": {
            "temperature_celsius": 90.0,
            "throttle_events": 0,
            "kernel_patterns": ["GPU HANG"],
            "memory_available_bytes": 1 << 30,
            "load": 2.0,
            "foreign_holders": False,
        },
    }


def identity() -> dict[str, Any]:
    """The good one, of models with these configuration files."""
    value: dict[str, Any] = identity_rules._good()["identity"] | {"schema": "pytest-laguna-diagnostic-identity-v1"}
    target, draft = value["models"]["folders"]
    target["files"][0]["sha256"] = files.digest_of(TARGET_CONFIG)
    config = target["files"][0] | {"sha256": files.digest_of(DRAFT_CONFIG)}
    draft["files"].insert(0, config)
    for around in value["models_around"].values():
        around["before"]["looked_at"] = around["after"]["looked_at"] = 3
    return value


def _run(place: str, record: dict[str, Any], cards: list[str], minute: int) -> Tree:
    """The five files of a run, which took place in one minute."""
    return {
        f"{place}/request.json": record["request"],
        f"{place}/record.json": record,
        f"{place}/process.json": process(),
        f"{place}/idle.json": idle("after", cards, minute),
        f"{place}/host.json": host(minute),
    }


def process() -> dict[str, Any]:
    return {
        "schema_name": "laguna-process-v1",
        "reason": "exited",
        "wait_status": 0,
        "last_signal": None,
        "wall_seconds": 90.0,
        "peak_memory_bytes": 1 << 30,
        "leftovers": [],
        "survivors": [],
        "proven_empty": True,
        "last_journal_line": None,
    }


def idle(phase: str, cards: list[str], minute: int = 0) -> dict[str, Any]:
    states = [
        {"identity": card, "ordinal": cards.index(card), "memory_used_bytes": 0, "utilisation_percent": None}
        | {"holders": []}
        for card in cards
    ]
    return {
        "schema": "pytest-laguna-idle-v1",
        "phase": phase,
        "lane": "cpu",
        "token": LEASE,
        "cards": cards,
        "settling": [{"seconds": 0.0, "used_bytes": [0] * len(cards)}],
        "snapshots": [
            {
                "utc": f"2026-07-26T{21 + minute // 60}:{minute % 60:02}:{second}.000000+00:00",
                "cards": states,
                "observer": None,
                "workers": [],
            }
            for second in (45, 46)
        ],
    }


def host(minute: int) -> dict[str, Any]:
    states = [
        {
            "utc": f"2026-07-26T{21 + minute // 60}:{minute % 60:02}:{second}.000000+00:00",
            "boot_id": "b0",
            "temperatures_celsius": {"zone": 60.0},
            "throttle_counts": {"cpu0": 4},
            "kernel_log": {"state": "read", "reason": "", "last": 100, "complete": True, "lines": []},
            "memory_available_bytes": 8 << 30,
            "load": [0.5, 0.4, 0.3],
            "cards": [],
        }
        for second in (10, 40)
    ]
    return audit(*states)


def audit(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Two states with what changed between them."""
    change = difference(HostState.model_validate(before), HostState.model_validate(after))
    return {
        "schema": "pytest-laguna-host-audit-v1",
        "before": before,
        "after": after,
        "difference": change.canonical(),
    }


def packet(position: int, card: str) -> dict[str, Any]:
    """The real packet of one card, on another."""
    record: dict[str, Any] = json.loads((DATA / "parity-packets" / "cpu.json").read_bytes())
    record["request"]["rank"] = position
    record["platform"]["card"] = card
    record["environment"]["LAGUNA_LEASE"] = LEASE
    record["process"] = {"pid": 3000 + position, "start_ticks": 50_000 + position}
    record["mapped"] = identity_rules._good()["packets"]["0"]
    for case in record["cases"]:
        case["seed"] = query_seed(position, AttentionKind(case["kind"]), case["query"])
    return record


def record_of(arm: Arm, number: int, ranks: int, samples: int) -> dict[str, Any]:
    """A real record of one rank, on several: both graph arms as they are, the others made from the control."""
    source = arm if arm.graphs else Arm.GRAPH_CONTROL
    record: dict[str, Any] = json.loads((DATA / "arm-records" / f"{source}.json").read_bytes())
    record["request"] |= {
        "arm": arm,
        "tensor_parallel_size": ranks,
        "collective_breaks": True,
        "profile_samples": samples if arm.graphs else 0,
        "null": False,
        "target": "/models/target",
        "draft": "/models/draft" if arm.speculates else None,
    }
    record["acceptance"] = record["acceptance"] if arm.speculates else None
    request = ArmRequest.model_validate(record["request"])
    record["configuration"] = _configuration(request, record["configuration"])
    record["generation_seconds"] = 21.0 - number
    local = {name: value.replace(str(source), str(arm)) for name, value in record["environment"].items()}
    own = arm_settings.profile(request, Path(local["HOME"]).parent)
    record["environment"] = local | {"LAGUNA_LEASE": LEASE} | arm_settings.environment(request) | own
    (only,) = record["ranks"]
    if not arm.speculates:
        only["candidate"]["draft_layers"] = []
    record["ranks"] = [
        only
        | {
            "rank": rank,
            "world_size": ranks,
            "tensor_parallel_rank": rank,
            "process": {"pid": 4000 + rank, "start_ticks": 100_000 * (number + 1) + rank},
            "graphs": graphs(only["graphs"]) if arm.graphs else [],
            "profile": {"samples": samples, "taken": samples, "sha256": "0" * 64} if arm.graphs else None,
            "mapped": identity_rules._good()["ranks"][arm][0],
        }
        for rank in range(ranks)
    ]
    return copy.deepcopy(record)


def _configuration(request: ArmRequest, configuration: dict[str, Any]) -> dict[str, Any]:
    """The arm's arguments, and what vLLM makes of one with no graphs, and of one with no draft; as measured."""
    resolved = configuration["resolved"] | {"tensor_parallel_size": request.tensor_parallel_size}
    if not request.arm.graphs:
        resolved |= {"cudagraph_mode": "NONE", "cudagraph_capture_sizes": []}
    if not request.arm.speculates:
        resolved |= {"speculative_method": None, "speculative_tokens": 0, "num_gpu_blocks": 170}
    return {"arguments": arm_settings.engine_arguments(request), "resolved": resolved}


def graphs(captured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The captures with the target's as the plan has it."""
    planned = {
        "graphs": TOPOLOGY.graphs,
        "breaks": TOPOLOGY.breaks,
        "kinds": TOPOLOGY.counts,
        "order_sha256": TOPOLOGY.order_sha256,
    }
    return [graph | planned if graph["model"] == "target" else graph for graph in captured]


def profile(arm: Arm, rank: int, samples: int = SAMPLES, ranks: int = len(CARDS)) -> dict[str, Any]:
    return {
        "schema": "pytest-laguna-replay-profile-v1",
        "rank": rank,
        "world_size": ranks,
        "descriptor": DESCRIPTOR,
        "kinds": TOPOLOGY.kinds,
        "samples": [sample(arm, rank, number) for number in range(samples)],
    }


def sample(arm: Arm, rank: int, number: int) -> dict[str, Any]:
    """A replay that takes longer on higher ranks and from sample to sample, and less with the candidate."""
    faster = 1000 if arm is Arm.GRAPH_CANDIDATE else 0
    times = {"graph": 20_000, "collective": 30_000, "attention": 90_000 - faster}
    segments = [times[kind] + 10 * rank + number for kind in TOPOLOGY.kinds]
    loop = sum(segments) + 5_000
    persistent = LAYERS if arm is Arm.GRAPH_CANDIDATE else 0
    return {
        "segment_ns": segments,
        "loop_ns": loop,
        "debug_guard_ns": None,
        "offloader_sync_ns": 400,
        "signature_collect_ns": None,
        "signature_compare_ns": None,
        "host_ns": loop + 9_000,
        "synchronize_ns": 600,
        "whole_ns": loop + 9_700,
        "views": {
            "forward_calls": LAYERS,
            "forward_ns": 900_000 - 48 * faster,
            "update_calls": 0,
            "update_ns": 0,
            "incumbent_calls": LAYERS - persistent,
            "persistent_calls": persistent,
            "persistent_hits": persistent,
            "persistent_builds": 0,
        },
    }


Change = Callable[[Tree], None]


def at(file: str, path: str, value: Any) -> Change:
    """Set one field of one file; parts of the path are joined by |, numbers index lists."""

    def change(tree: Tree) -> None:
        *parents, last = path.split("|")
        node: Any = tree[file]
        for part in parents:
            node = node[int(part) if isinstance(node, list) else part]
        node[int(last) if isinstance(node, list) else last] = value

    return change


def within(file: str, path: str, edit: Callable[[Any], None]) -> Change:
    """Edit what is at a path of one file in place."""

    def change(tree: Tree) -> None:
        node: Any = tree[file]
        for part in path.split("|"):
            node = node[int(part) if isinstance(node, list) else part]
        edit(node)

    return change


def without(*files: str) -> Change:
    """Take whole files away; a name that ends with / takes away all below it."""

    def change(tree: Tree) -> None:
        gone = [name for name in tree if name in files or any(f.endswith("/") and name.startswith(f) for f in files)]
        assert gone
        for name in gone:
            del tree[name]

    return change


def put(file: str, value: Any) -> Change:
    """Write another file, or another content."""
    return lambda tree: tree.update({file: value})


def both(*changes: Change) -> Change:
    """One fact that several files tell."""

    def change(tree: Tree) -> None:
        for each in changes:
            each(tree)

    return change
