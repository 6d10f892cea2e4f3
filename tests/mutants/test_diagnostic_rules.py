# SPDX-License-Identifier: Apache-2.0
"""Every rule of the exact diagnostic has a mutant: a good directory with one fact changed, refused by it first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pytest_laguna.analysis.arms.case import clause_verdict
from pytest_laguna.analysis.arms.engine_identity import IDENTITY_RULES
from pytest_laguna.analysis.diagnostic import parity
from pytest_laguna.analysis.diagnostic.diagnosis import EXACTNESS
from pytest_laguna.analysis.diagnostic.timing import GATES
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.arm_record import Arm, token_digest
from pytest_laguna.evidence.arms.replay_profile import SegmentKind
from pytest_laguna.evidence.diagnostic.analysis import CLAUSES
from tests import diagnostic_root as root
from tests.caught_first import caught_first
from tests.diagnostic_root import SAMPLES, Change, at, both, put, within, without

RECORDS = {arm: f"arms/{arm}/record.json" for arm in Arm}
Q1, EAGER, CONTROL, CANDIDATE = RECORDS.values()
CONTROL_PROFILE = [f"arms/graph-control/profile/rank{rank}.json" for rank in range(2)]
CANDIDATE_PROFILE = [f"arms/graph-candidate/profile/rank{rank}.json" for rank in range(2)]
LAYER = "model.layers.7.self_attn.attn"
REPLAY = "samples|3|"
CARD_1 = root.CARDS[1:]
OTHER = "1" * 64
LEFT = {"pid": 77, "command": "python x.py", "start_ticks": 5}


def of_request(arm: Arm, field: str, value: Any) -> Change:
    """What an arm was told, in the request and in the record alike."""
    return both(at(f"arms/{arm}/request.json", field, value), at(RECORDS[arm], f"request|{field}", value))


def in_all_arms(path: str, value: Any) -> Change:
    """What is wrong in all arms alike, and so differs between none of them."""
    return both(*(at(record, path, value) for record in RECORDS.values()))


def tokens(record: str, edit: Any) -> Change:
    """Other tokens, with their own digest, on every rank."""

    def change(tree: root.Tree) -> None:
        edit(tree[record]["token_ids"])
        tree[record]["token_sha256"] = token_digest(tree[record]["token_ids"])
        for report in tree[record]["ranks"]:
            report["sampled_token_ids"] = list(tree[record]["token_ids"])

    return change


def one_token(record: str, position: int = 7) -> Change:
    def edit(ids: list[int]) -> None:
        ids[position] += 1

    return tokens(record, edit)


def acceptance(record: str, drafts: int, per_position: list[int], draft_tokens: int | None = None) -> Change:
    proposed = drafts * 7 if draft_tokens is None else draft_tokens
    counters = {"drafts": drafts, "draft_tokens": proposed, "accepted": sum(per_position)}
    return at(record, "acceptance", counters | {"accepted_per_position": per_position})


def all_drafts(drafts: int, per_position: list[int]) -> Change:
    return both(*(acceptance(record, drafts, per_position) for record in (EAGER, CONTROL, CANDIDATE)))


def half_acceptance() -> Change:
    """One arm of which the counters still account for the tokens, with more cycles."""
    return acceptance(CANDIDATE, 68, [34, 34, 34, 34, 34, 33, 0])


def segment(kind: SegmentKind, nanoseconds: int) -> Change:
    """The first segment of that kind, on one rank in one replay."""
    return at(CONTROL_PROFILE[1], f"{REPLAY}segment_ns|{root.TOPOLOGY.kinds.index(kind)}", nanoseconds)


def configured(name: str, folder: int, content: dict[str, Any]) -> Change:
    """Another configuration file, of another model."""
    digest = files.digest_of(content)
    return both(put(name, content), at("identity.json", f"models|folders|{folder}|files|0|sha256", digest))


def host_state(place: str, which: str, **changes: Any) -> Change:
    def change(tree: root.Tree) -> None:
        states = {name: tree[f"{place}/host.json"][name] for name in ("before", "after")}
        states[which] |= changes
        tree[f"{place}/host.json"] = json.loads(json.dumps(root.audit(states["before"], states["after"])))

    return change


def held(ours: bool) -> list[dict[str, Any]]:
    return [{"pid": 77, "start_ticks": 5, "command": "python x.py", "carries_token": ours, "seen_by": "fdinfo"}]


def candidate_slower(field: str, nanoseconds: int) -> Change:
    """A time of every replay of the candidate."""

    def change(tree: root.Tree) -> None:
        for name in CANDIDATE_PROFILE:
            for replay in tree[name]["samples"]:
                replay[field] += nanoseconds

    return change


def candidate_attention(nanoseconds: int) -> Change:
    """Attention that takes longer, and everything around it as long as before."""

    def change(tree: root.Tree) -> None:
        for name in CANDIDATE_PROFILE:
            for replay in tree[name]["samples"]:
                for index, kind in enumerate(tree[name]["kinds"]):
                    replay["segment_ns"][index] += {"attention": 2, "graph": -1}.get(kind, 0) * nanoseconds

    return change


def candidate_views(nanoseconds: int) -> Change:
    def change(tree: root.Tree) -> None:
        for name in CANDIDATE_PROFILE:
            for replay in tree[name]["samples"]:
                replay["views"]["forward_ns"] += nanoseconds

    return change


def slow_tail(nanoseconds: int) -> Change:
    """One replay of the candidate, on one rank."""
    return within(CANDIDATE_PROFILE[1], f"samples|{SAMPLES - 1}", lambda replay: replay.update(whole_ns=nanoseconds))


def changed(name: str, **values: Any) -> Change:
    return within(name, "views" if "views" in values else REPLAY + "views", lambda views: views.update(values))


def one_more_packet(tree: root.Tree) -> None:
    """A packet of a card that is not leased, good in itself."""
    for name in [name for name in tree if name.startswith("packets/1/")]:
        tree[name.replace("/1/", "/2/")] = json.loads(json.dumps(tree[name]))
    tree["packets/2/record.json"]["process"]["pid"] = 3002
    for name in ("idle", "host"):  # in the minute between the last card's packet and the first arm
        content = json.dumps(tree[f"packets/2/{name}.json"])
        tree[f"packets/2/{name}.json"] = json.loads(content.replace("T21:02:", "T21:03:"))


Mutant = tuple[str, str, Change, str, str]

PROCESS = "arms/eager/process.json"
SURROUNDINGS: list[Mutant] = [
    (
        "cards-idle/before-first",
        "phase",
        at("idle-before.json", "phase", "after"),
        "VOID",
        "idle-before.json: seen phase, lane",
    ),
    ("cards-idle/before-first", "absent", without("idle-before.json"), "NOT_PROVEN", "idle-before.json: there is none"),
    ("cards-idle/before-first", "torn", put("idle-before.json", b"{"), "VOID", "idle-before.json: not JSON"),
    (
        "cards-idle/before-first",
        "memory",
        at("idle-before.json", "snapshots|1|cards|0|memory_used_bytes", 5),
        "NOT_PROVEN",
        "memory-at-baseline: card cpu-slot-0: seen 5 bytes used in snapshot 1",
    ),
    (
        "cards-idle/after-packets",
        "holder",
        at("packets/1/idle.json", "snapshots|0|cards|0|holders", held(ours=True)),
        "FAIL",
        "packets/1: no-holder: process 77",
    ),
    (
        "cards-idle/after-packets",
        "cards",
        put("packets/0/idle.json", root.idle("after", root.CARDS)),
        "VOID",
        "packets/0: seen phase",
    ),
    (
        "cards-idle/looks-in-order",
        "copied look",
        put("arms/q1/idle.json", root.idle("after", root.CARDS, 0)),
        "VOID",
        "arms/q1/idle.json, snapshot 0: seen 2026-07-26T21:00:45.000000+00:00; expected later than arms/q1/host",
    ),
    (
        "cards-idle/looks-in-order",
        "one audit of all arms",
        lambda tree: tree.update({"arms/eager/host.json": tree["arms/q1/host.json"]}),
        "VOID",
        "arms/eager/host.json, before: seen 2026-07-26T21:04:10.000000+00:00; expected later than arms/q1/idle",
    ),
    (
        "cards-idle/looks-in-order",
        "packet after the arms",
        both(put("packets/1/host.json", root.host(30)), put("packets/1/idle.json", root.idle("after", CARD_1, 30))),
        "VOID",
        "arms/q1/host.json, before: seen 2026-07-26T21:04:10",
    ),
    (
        "cards-idle/after-arms",
        "worker",
        at("arms/eager/idle.json", "snapshots|0|workers", held(ours=True)),
        "FAIL",
        "eager: no-worker: process 77",
    ),
    (
        "cards-idle/after-arms",
        "looks",
        within("arms/q1/idle.json", "snapshots", list.pop),
        "NOT_PROVEN",
        "q1: interval-covered: snapshots: seen 1 over",
    ),
    (
        "cards-idle/after-last",
        "memory",
        at("idle-after.json", "settling|0|used_bytes|1", 9),
        "FAIL",
        "memory-returned: card",
    ),
    (
        "cards-idle/one-lease",
        "arm",
        at(CONTROL, "environment|LAGUNA_LEASE", "x"),
        "VOID",
        "arms/graph-control: seen LAGUNA_LEASE",
    ),
    (
        "cards-idle/one-lease",
        "packet",
        within("packets/1/record.json", "environment", lambda variables: variables.pop("LAGUNA_LEASE")),
        "VOID",
        "packets/1: seen LAGUNA_LEASE None; expected that of the snapshots",
    ),
    ("cards-idle/one-lease", "token", at("arms/q1/idle.json", "token", OTHER[:32]), "VOID", "snapshots: seen 2 leases"),
    (
        "host-within-limits/same-start",
        "restart",
        host_state("arms/eager", "after", boot_id="b1"),
        "VOID",
        "arms/eager: host: seen boot b1",
    ),
    (
        "host-within-limits/temperature-within",
        "hot",
        host_state("arms/q1", "after", temperatures_celsius={"zone": 91.0}),
        "VOID",
        "arms/q1: zone: seen 91.0 C",
    ),
    (
        "host-within-limits/not-throttled",
        "event",
        host_state("packets/0", "after", throttle_counts={"cpu0": 5}),
        "VOID",
        "packets/0: host: seen 1 throttle events",
    ),
    (
        "host-within-limits/kernel-log-quiet",
        "hang",
        within("arms/graph-control/host.json", "after|kernel_log|lines", lambda lines: lines.append("GPU HANG")),
        "VOID",
        "arms/graph-control: kernel log: seen 'GPU HANG'",
    ),
    (
        "host-within-limits/memory-free",
        "memory",
        host_state("arms/graph-candidate", "before", memory_available_bytes=7),
        "VOID",
        "arms/graph-candidate: memory: seen 7 bytes",
    ),
    (
        "host-within-limits/load-low",
        "load",
        host_state("arms/q1", "before", load=[9.0, 1.0, 1.0]),
        "VOID",
        "load: seen 9.0 before",
    ),
    (
        "host-within-limits/no-foreign-holder",
        "holder",
        host_state(
            "arms/q1",
            "after",
            cards=[
                {
                    "identity": "x",
                    "ordinal": 0,
                    "memory_used_bytes": 0,
                    "utilisation_percent": None,
                    "holders": held(ours=False),
                }
            ],
        ),
        "VOID",
        "arms/q1: card x: seen held by process 77",
    ),
    (
        "host-within-limits/same-start",
        "absent",
        without("arms/q1/host.json"),
        "NOT_PROVEN",
        "arms/q1/host.json: there is none",
    ),
]

ARMS: list[Mutant] = [
    (
        "arms-fresh/nothing-unexpected",
        "arm",
        put("arms/eager-2/record.json", {}),
        "VOID",
        "arms/eager-2: seen, unplanned; expected the four",
    ),
    (
        "arms-fresh/nothing-unexpected",
        "packet",
        put("packets/00/x.json", {}),
        "VOID",
        "packets/00: seen, unplanned; expected the four",
    ),
    (
        "arms-fresh/ended-clean",
        "left",
        at(PROCESS, "leftovers", [LEFT]),
        "FAIL",
        "eager: nothing-left: left behind: pid 77",
    ),
    (
        "arms-fresh/ended-clean",
        "survived",
        at(PROCESS, "survivors", [LEFT]),
        "FAIL",
        "eager: nothing-left: survived SIGKILL",
    ),
    (
        "arms-fresh/ended-clean",
        "deadline",
        at(PROCESS, "reason", "deadline"),
        "VOID",
        "eager: ended-by-itself: deadline",
    ),
    ("arms-fresh/ended-clean", "memory", at(PROCESS, "reason", "memory"), "VOID", "eager: ended-by-itself: memory"),
    (
        "arms-fresh/ended-clean",
        "code",
        at(PROCESS, "wait_status", 256),
        "VOID",
        "eager: ended-by-itself: exited, exit code 1",
    ),
    (
        "arms-fresh/ended-clean",
        "lost",
        at(PROCESS, "reason", "supervisor-lost"),
        "VOID",
        "eager: supervised-throughout",
    ),
    ("arms-fresh/ended-clean", "unproven", at(PROCESS, "proven_empty", False), "NOT_PROVEN", "eager: proven-empty"),
    ("arms-fresh/ended-clean", "absent", without(PROCESS), "NOT_PROVEN", "arms/eager/process.json: there is none"),
    (
        "arms-fresh/as-asked",
        "other request",
        at("arms/q1/request.json", "prompt", "x"),
        "VOID",
        "q1: seen a record of another request",
    ),
    (
        "arms-fresh/as-asked",
        "lane",
        of_request(Arm.EAGER, "lane", "xpu"),
        "VOID",
        "eager: seen lane 'xpu'; expected 'cpu'",
    ),
    (
        "arms-fresh/as-asked",
        "tokens",
        of_request(Arm.EAGER, "tokens", 271),
        "VOID",
        "eager: seen tokens 271; expected 272",
    ),
    (
        "arms-fresh/as-asked",
        "breaks",
        of_request(Arm.Q1, "collective_breaks", False),
        "VOID",
        "q1: seen collective_breaks False",
    ),
    (
        "arms-fresh/as-asked",
        "planted",
        of_request(Arm.GRAPH_CANDIDATE, "planted", "wrong-offset"),
        "VOID",
        "graph-candidate: seen planted",
    ),
    (
        "arms-fresh/as-asked",
        "absent",
        without("arms/q1/request.json"),
        "NOT_PROVEN",
        "arms/q1/request.json: there is none",
    ),
    (
        "arms-fresh/same-models-and-prompt",
        "prompt",
        of_request(Arm.EAGER, "prompt", "x"),
        "VOID",
        "eager: seen prompt 'x'",
    ),
    (
        "arms-fresh/same-models-and-prompt",
        "prompt tokens",
        at(EAGER, "prompt_token_sha256", OTHER),
        "VOID",
        "eager: seen prompt tokens (34, '1111",
    ),
    (
        "arms-fresh/same-models-and-prompt",
        "target",
        of_request(Arm.GRAPH_CANDIDATE, "target", "/models/draft"),
        "VOID",
        "graph-candidate: seen target '/models/draft'; expected '/models/target'",
    ),
    (
        "arms-fresh/same-models-and-prompt",
        "draft",
        of_request(Arm.GRAPH_CONTROL, "draft", "/models/target"),
        "VOID",
        "graph-control: seen draft '/models/target'; expected '/models/draft'",
    ),
    (
        "arms-fresh/own-processes",
        "shared",
        at(CANDIDATE, "ranks|1|process", {"pid": 4001, "start_ticks": 300_001}),
        "VOID",
        "graph-candidate rank 1: seen process 4001, started at tick 300001, as graph-control rank 1",
    ),
    (
        "arms-fresh/in-order",
        "early",
        at(EAGER, "ranks|1|process|start_ticks", 99_999),
        "VOID",
        "eager: seen started at tick 99999",
    ),
    (
        "arms-fresh/in-order",
        "packet after an arm",
        at("packets/1/record.json", "process|start_ticks", 150_000),
        "VOID",
        "q1: seen started at tick 100000; expected after the last packet at 150000",
    ),
    (
        "arms-fresh/within-process",
        "dead before it was done",
        at(PROCESS, "wall_seconds", 0.001),
        "VOID",
        "eager: seen a start of 29.9227705659996 s and a generation of 20.0 s; expected both within the 0.001 s",
    ),
    (
        "arms-fresh/vllm-planned",
        "all arms",
        at("plan.json", "vllm", "0.33.0"),
        "VOID",
        "q1: vLLM 0.32.0; expected 0.33",
    ),
    (
        "arms-fresh/models-planned",
        "other prompt of a generated pair",
        both(*(of_request(arm, "prompt", "z") for arm in Arm)),
        "VOID",
        f"prompt: seen digest {files.sha256_bytes(b'z')}; expected ",
    ),
    (
        "arms-fresh/models-planned",
        "prompt",
        at("plan.json", "models", {"target": "/models/target", "draft": "/models/draft", "prompt": "x"}),
        "VOID",
        "; expected 'x'",
    ),
    (
        "arms-fresh/models-planned",
        "target",
        at("plan.json", "models", {"target": "/models/other", "draft": "/models/draft", "prompt": "x"}),
        "VOID",
        "target: seen '/models/target'; expected '/models/other'",
    ),
    (
        "arms-fresh/one-generation",
        "finish",
        at(Q1, "finish_reason", "stop"),
        "FAIL",
        "q1: seen tokens and finish (272, 'stop')",
    ),
    ("arms-fresh/one-generation", "short", tokens(Q1, list.pop), "FAIL", "q1: seen tokens and finish (271, 'length')"),
    ("cache-cold/nothing-cached", "cached", at(EAGER, "cached_tokens", 16), "FAIL", "eager: seen 16 cached tokens"),
    ("tokens-identical/required-pairs", "q1", one_token(Q1), "FAIL", "q1 and graph-control: differ at token 7: "),
    (
        "tokens-identical/required-pairs",
        "eager",
        one_token(EAGER, 271),
        "FAIL",
        "eager and graph-control: differ at token 271",
    ),
    (
        "tokens-identical/required-pairs",
        "candidate",
        one_token(CANDIDATE, 0),
        "FAIL",
        "graph-control and graph-candidate: differ",
    ),
    (
        "tokens-identical/required-pairs",
        "text",
        at(CANDIDATE, "text_sha256", OTHER),
        "FAIL",
        "differ in text but not",
    ),
    ("tokens-identical/required-pairs", "no pair", at("plan.json", "identical", []), "NOT_PROVEN", " no pair"),
    (
        "tokens-identical/ranks-sampled-alike",
        "a token of one rank",
        at(CANDIDATE, "ranks|1|sampled_token_ids|7", 1),
        "FAIL",
        "graph-candidate rank 1: seen 1 sampled as token 7; expected ",
    ),
    (
        "tokens-identical/attention-equal",
        "digest",
        at(CANDIDATE, "ranks|1|attention|sha256", OTHER),
        "FAIL",
        "rank 1: ",
    ),
    (
        "drafts-bounded/depth-equal",
        "depth",
        acceptance(EAGER, 34, [34] * 6 + [33, 1]),
        "FAIL",
        "eager: seen draft depth 8; expected 7",
    ),
    (
        "drafts-bounded/depth-equal",
        "no draft",
        acceptance(CONTROL, 0, [0] * 7),
        "NOT_PROVEN",
        "graph-control: seen no draft cycle",
    ),
    (
        "drafts-bounded/proposals-whole",
        "fewer",
        at(EAGER, "acceptance|draft_tokens", 239),
        "FAIL",
        "eager: seen 239 tokens proposed in 34 cycles; expected 238",
    ),
    (
        "drafts-bounded/cycles-account",
        "too few",
        acceptance(EAGER, 33, [33] * 7),
        "VOID",
        "eager: seen 33 cycles and 231 accepted tokens yield 265; expected 272",
    ),
    (
        "drafts-bounded/cycles-account",
        "too many",
        acceptance(EAGER, 36, [36] * 7),
        "VOID",
        "eager: seen 36 cycles and 252 accepted tokens yield 289; expected 272",
    ),
    (
        "drafts-bounded/accepted-enough",
        "dead",
        all_drafts(271, [0] * 7),
        "FAIL",
        "eager: seen 0 tokens accepted in 271 cycles; expected more than 1.0 each",
    ),
    (
        "drafts-bounded/accepted-enough",
        "just not",
        both(all_drafts(136, [136] + [0] * 6)),
        "FAIL",
        "eager: seen 136 tokens accepted in 136 cycles",
    ),
    (
        "drafts-bounded/rate-bounded",
        "rate",
        half_acceptance(),
        "FAIL",
        " 0.426471 by graph-candidate and 1.000000 by eager, 0.573529 more; expected a difference of at most 0.001",
    ),
    (
        "drafts-bounded/rate-bounded",
        "just not",
        both(half_acceptance(), at("plan.json", "acceptance_rate_difference", 0.573529)),
        "FAIL",
        "0.5735294 more; expected a difference of at most 0.573529",
    ),
]

GRAPHS: list[Mutant] = [
    (
        "topology-unchanged/plan-derived",
        "layers of the campaign",
        at("plan.json", "models|layers", 12),
        "VOID",
        "target-config.json: seen num_hidden_layers 48; expected the campaign's 12",
    ),
    (
        "topology-unchanged/plan-derived",
        "width",
        configured("target-config.json", 0, root.TARGET_CONFIG | {"hidden_size": 1}),
        "VOID",
        "target-config.json: seen hidden_size 1; expected the campaign's 64",
    ),
    (
        "topology-unchanged/configurations-hashed",
        "target",
        at("identity.json", "models|folders|0|files|0|sha256", OTHER),
        "VOID",
        f"expected {OTHER}, that of /models/target/config.json",
    ),
    (
        "topology-unchanged/configurations-hashed",
        "draft",
        at("draft-config.json", "vocab_size", 7),
        "VOID",
        "draft-config.json: seen digest",
    ),
    (
        "topology-unchanged/configurations-hashed",
        "absent",
        without("draft-config.json"),
        "NOT_PROVEN",
        "draft-config.json: seen no digest",
    ),
    (
        "topology-unchanged/configurations-hashed",
        "not hashed",
        at("identity.json", "models|folders|0|files|0|path", "other.json"),
        "NOT_PROVEN",
        "/models/target/config.json: seen no digest",
    ),
    (
        "topology-unchanged/drafts-captured",
        "lost everywhere",
        both(*(within(arm, f"ranks|{rank}|graphs", list.pop) for arm in (CONTROL, CANDIDATE) for rank in range(2))),
        "FAIL",
        "graph-control rank 0: seen no captured graph of the draft; expected one",
    ),
    (
        "topology-unchanged/drafts-captured",
        "lost on a rank",
        within(CANDIDATE, "ranks|1|graphs", list.pop),
        "FAIL",
        "graph-candidate rank 1: seen no captured graph of the draft; expected one",
    ),
    (
        "topology-unchanged/drafts-captured",
        "other segments",
        at(CANDIDATE, "ranks|1|graphs|1|breaks", 1),
        "FAIL",
        "graph-candidate rank 1: seen captured [(3, 1)] of the draft; expected [(3, 2)]",
    ),
    (
        "topology-unchanged/plan-derived",
        "layers",
        at("target-config.json", "num_hidden_layers", 47),
        "VOID",
        "expected 143 graphs and 142 breaks (47 attention, 95 collective)",
    ),
    (
        "topology-unchanged/plan-derived",
        "absent",
        without("target-config.json"),
        "NOT_PROVEN",
        "target-config.json: there is",
    ),
    (
        "topology-unchanged/plan-derived",
        "architecture",
        at("target-config.json", "architectures", ["Other"]),
        "VOID",
        "architectures ['Other']",
    ),
    (
        "topology-unchanged/graphs-frozen",
        "count",
        at(CONTROL, "ranks|1|graphs|0|graphs", 145),
        "FAIL",
        "graph-control rank 1: seen captured 145 graphs and 145 breaks",
    ),
    (
        "topology-unchanged/graphs-frozen",
        "order",
        at(CANDIDATE, "ranks|0|graphs|0|order_sha256", OTHER),
        "FAIL",
        f"seen captured 146 graphs and 145 breaks (48 attention, 97 collective) in order {OTHER}",
    ),
    (
        "topology-unchanged/graphs-frozen",
        "kinds",
        at(CANDIDATE, "ranks|1|graphs|0|kinds|attention", 49),
        "FAIL",
        "graph-candidate rank 1: seen captured 146 graphs and 145 breaks (49 attention",
    ),
    (
        "topology-unchanged/graphs-frozen",
        "lost",
        at(CONTROL, "ranks|1|graphs", []),
        "FAIL",
        "graph-control rank 1: seen captured no graph of the target",
    ),
    (
        "topology-unchanged/graphs-frozen",
        "twice",
        within(CONTROL, "ranks|1|graphs", lambda graphs: graphs.append(graphs[0])),
        "FAIL",
        "graph-control rank 1: seen captured 146 graphs and 145 breaks (48 attention, 97 collective) in order e5b64443",
    ),
    (
        "topology-unchanged/eager-without-graphs",
        "graphs",
        lambda tree: tree[EAGER]["ranks"][1].update(graphs=tree[CONTROL]["ranks"][1]["graphs"]),
        "FAIL",
        "eager rank 1: seen 2 graphs; expected none",
    ),
    (
        "sole-treatment/same-engine",
        "version",
        at(CANDIDATE, "versions|python", "3.12"),
        "VOID",
        "versions: seen a difference",
    ),
    ("sole-treatment/same-engine", "runner", at(CONTROL, "ranks|1|model_runner", "other"), "VOID", "model runners"),
    (
        "sole-treatment/sole-treatment",
        "variable",
        at(CONTROL, "environment|VLLM_X", "1"),
        "VOID",
        "VLLM_X '1' and None",
    ),
    (
        "sole-treatment/sole-treatment",
        "other treatment",
        at("plan.json", "treatment", "2"),
        "VOID",
        ": seen '0' and '1'; expected '0' and '2'",
    ),
    (
        "sole-treatment/sole-treatment",
        "other control",
        at("plan.json", "control", "off"),
        "VOID",
        ": seen '0' and '1'; expected 'off' and '1'",
    ),
    (
        "sole-treatment/sole-treatment",
        "shared profile root",
        both(
            at(CONTROL, "environment|LAGUNA_REPLAY_PROFILE_ROOT", "/attempt/graph-control/profile"),
            at(CANDIDATE, "environment|LAGUNA_REPLAY_PROFILE_ROOT", "/attempt/graph-control/profile"),
        ),
        "VOID",
        "LAGUNA_REPLAY_PROFILE_ROOT '<arm>/profile' and '/attempt/graph-control/profile'",
    ),
    (
        "sole-treatment/teachers-same-engine",
        "version",
        at(Q1, "versions|transformers", "5.18.0"),
        "VOID",
        "q1: version of transformers: seen '5.18.0'; expected '5.19.0' as in graph-control",
    ),
    (
        "sole-treatment/teachers-same-engine",
        "configuration",
        at(EAGER, "configuration|resolved|block_size", 16),
        "VOID",
        "eager: resolved block_size: seen 16; expected 64 as in graph-control",
    ),
    (
        "sole-treatment/teachers-same-engine",
        "argument",
        at(Q1, "configuration|arguments|seed", 2),
        "VOID",
        "q1: arguments seed: seen 2; expected 1",
    ),
    (
        "sole-treatment/teachers-same-engine",
        "draft",
        at(EAGER, "configuration|resolved|speculative_tokens", 3),
        "VOID",
        "eager: resolved speculative_tokens: seen 3; expected 7",
    ),
    (
        "sole-treatment/teachers-same-engine",
        "environment",
        at(Q1, "environment|OMP_NUM_THREADS", "8"),
        "VOID",
        "q1: environment OMP_NUM_THREADS: seen '8'; expected '1'",
    ),
    (
        "sole-treatment/teachers-same-engine",
        "runner",
        at(EAGER, "ranks|1|model_runner", "other"),
        "VOID",
        "eager: rank 1: seen 'other'; expected '",
    ),
    (
        "sole-treatment/teachers-same-engine",
        "graphs",
        at(EAGER, "configuration|resolved|cudagraph_mode", "PIECEWISE"),
        "VOID",
        "eager: cudagraph_mode: seen 'PIECEWISE'; expected 'NONE'",
    ),
    (
        "sole-treatment/teachers-same-engine",
        "not told",
        at(Q1, "configuration|resolved", None),
        "VOID",
        "q1: seen an incomplete configuration; expected arguments",
    ),
    *(
        ("sole-treatment/arguments-as-asked", name, in_all_arms(f"configuration|{name}", value), "VOID", f"q1: {told}")
        for name, value, told in (
            ("arguments|enable_prefix_caching", True, "argument enable_prefix_caching: seen True; expected False"),
            ("arguments|seed", 2, "argument seed: seen 2; expected 1"),
            ("arguments|dtype", "float32", "argument dtype: seen 'float32'; expected 'bfloat16'"),
            ("arguments|model", "/other", "argument model: seen '/other'; expected '/models/target'"),
            ("arguments|quantization", "fp8", "argument quantization: seen 'fp8'; expected None"),
            ("resolved|prefix_caching", True, "resolved prefix_caching: seen True; expected False"),
            ("resolved|dtype", "torch.float32", "resolved dtype: seen 'torch.float32'; expected 'torch.bfloat16'"),
        )
    ),
    (
        "sole-treatment/arguments-as-asked",
        "whole graphs",
        both(*(at(record, "configuration|resolved|cudagraph_mode", "FULL") for record in (CONTROL, CANDIDATE))),
        "VOID",
        "graph-control: resolved cudagraph_mode: seen 'FULL'; expected 'PIECEWISE'",
    ),
    *(
        ("sole-treatment/environment-as-asked", name, in_all_arms(f"environment|{name}", value), "VOID", told)
        for name, value, told in (
            ("LD_PRELOAD", "/x.so", "q1: environment LD_PRELOAD: seen '/x.so'; expected None"),
            ("LAGUNA_PLANTED", "wrong-offset", "q1: environment LAGUNA_PLANTED: seen 'wrong-offset'; expected 'n"),
            ("OMP_NUM_THREADS", "8", "q1: environment OMP_NUM_THREADS: seen '8'; expected '1'"),
            ("VLLM_KV_CACHE_LAYOUT", "HND", "VLLM_KV_CACHE_LAYOUT: seen 'HND'; expected 'NHD'"),
        )
    ),
    (
        "sole-treatment/arguments-equal",
        "signature",
        at(CANDIDATE, f"ranks|1|kernel_signatures|{LAYER}|sha256", OTHER),
        "FAIL",
        f"rank 1: {LAYER}: seen control ",
    ),
    (
        "sole-treatment/arguments-equal",
        "layer",
        within(CONTROL, "ranks|0|kernel_signatures", dict.clear),
        "NOT_PROVEN",
        "graph-control rank 0: seen signatures of 0 layers; expected 48",
    ),
    (
        "sole-treatment/allocations-equal",
        "more",
        within(CANDIDATE, "ranks|1|allocations", lambda counts: counts.append(1)),
        "FAIL",
        "rank 1: allocations a replay: seen control",
    ),
    (
        "sole-treatment/allocations-equal",
        "none",
        within(CONTROL, "ranks|0|allocations", list.clear),
        "NOT_PROVEN",
        "graph-control rank 0: seen no replay ",
    ),
    (
        "selector-proven/layers-of-models",
        "draft",
        configured("draft-config.json", 1, root.DRAFT_CONFIG | {"num_hidden_layers": 6}),
        "FAIL",
        "eager rank 0: seen target and draft layers (48, 2); expected (48, 6)",
    ),
    (
        "selector-proven/layers-of-models",
        "drafted teacher",
        at(Q1, "ranks|1|candidate|draft_layers", ["model.layers.48.self_attn.attn"]),
        "FAIL",
        "q1 rank 1: seen target and draft layers (48, 1); expected (48, 0)",
    ),
    (
        "selector-proven/teachers-are-stock",
        "q1",
        at(Q1, "ranks|1|candidate|flag", True),
        "FAIL",
        "q1: rank 1: seen the control run",
    ),
    (
        "selector-proven/teachers-are-stock",
        "flag",
        at(EAGER, f"environment|{root.FLAG}", "1"),
        "VOID",
        f"eager: {root.FLAG}: seen '1'; expected '0'",
    ),
    (
        "selector-proven/control-is-stock",
        "flag",
        at(CONTROL, "ranks|1|candidate|flag", True),
        "FAIL",
        "rank 1: seen the control run",
    ),
    (
        "selector-proven/candidate-active",
        "nobody read it",
        at(CANDIDATE, "ranks|1|candidate|flag", False),
        "FAIL",
        "rank 1: seen flag, classes, lane, validator (False",
    ),
    (
        "selector-proven/candidate-active",
        "validator",
        at(CANDIDATE, "ranks|0|candidate|validator", "python"),
        "FAIL",
        "'cpu', 'python'",
    ),
    (
        "selector-proven/views-built-once",
        "rebuilt",
        at(CANDIDATE, f"ranks|1|candidate|layers|{LAYER}|builds", 2),
        "FAIL",
        f"rank 1: seen {LAYER} built 2 times",
    ),
    (
        "selector-proven/views-reach-kernel",
        "other views",
        at(CANDIDATE, f"ranks|1|kernel_views|{LAYER}|same_objects", 1),
        "FAIL",
        f"graph-candidate rank 1: {LAYER}: seen 1 of 35 calls",
    ),
]

PACKETS: list[Mutant] = [
    (
        "parity-packets/one-a-card",
        "extra",
        one_more_packet,
        "VOID",
        "packets/2: seen, unplanned; expected packets of 2 cards",
    ),
    (
        "parity-packets/one-a-card",
        "missing",
        without("packets/1/record.json"),
        "NOT_PROVEN",
        "packets/1/record.json: there is none",
    ),
    (
        "parity-packets/packets-ended-clean",
        "left",
        at("packets/1/process.json", "leftovers", [LEFT]),
        "FAIL",
        "packets/1: nothing-left: left behind",
    ),
    (
        "parity-packets/packets-as-asked",
        "other",
        at("packets/1/request.json", "target", "/other"),
        "VOID",
        "packets/1: seen a record of rank 1 and a request of rank 1",
    ),
    (
        "parity-packets/packets-as-asked",
        "rank",
        both(at("packets/1/request.json", "rank", 0), at("packets/1/record.json", "request|rank", 0)),
        "VOID",
        "packets/1: seen a record of rank 0",
    ),
    (
        "parity-packets/packets-same-engine",
        "version",
        at("packets/1/record.json", "versions|python", "3.12.0"),
        "VOID",
        "packets/1: seen python 3.12.0; expected the arms",
    ),
    (
        "parity-packets/packets-same-engine",
        "models",
        both(
            at("packets/1/request.json", "target", "/models/other"),
            at("packets/1/record.json", "request|target", "/models/other"),
        ),
        "VOID",
        "packets/1: seen models ('/models/other', '/models/draft'); expected the arms'",
    ),
    (
        "parity-packets/packets-own-processes",
        "shared",
        at("packets/1/record.json", "process", {"pid": 3000, "start_ticks": 50_000}),
        "VOID",
        "packets/1: seen process 3000, started at tick 50000, also in packets/0",
    ),
    (
        "parity-packets/card-of-lease",
        "card",
        at("packets/1/record.json", "platform|card", "cpu-slot-9"),
        "VOID",
        "card 1: seen card cpu-slot-9",
    ),
    (
        "parity-packets/outputs-equal",
        "bytes",
        both(
            at("packets/1/record.json", "cases|0|on|outputs|2", OTHER),
            at("packets/1/record.json", "cases|0|differing_output_bytes", 2),
        ),
        "FAIL",
        "card 1: q2 full: seen 2 differing bytes of the outputs",
    ),
]

REPORT = "ranks|1|profile"
REPLAYS: list[Mutant] = [
    (
        "replay-samples/files-whole",
        "torn",
        put(CONTROL_PROFILE[1], b'{"descriptor":'),
        "VOID",
        "graph-control: rank1.json: torn",
    ),
    (
        "replay-samples/files-whole",
        "lost",
        without(CONTROL_PROFILE[1]),
        "NOT_PROVEN",
        "graph-control rank 1: seen 5 of 5 replays",
    ),
    (
        "replay-samples/files-whole",
        "too few replays",
        both(
            without(CANDIDATE_PROFILE[1]),
            at(CANDIDATE, REPORT, {"samples": SAMPLES, "taken": 3, "sha256": None}),
        ),
        "NOT_PROVEN",
        "graph-candidate rank 1: seen 3 of 5 replays",
    ),
    (
        "replay-samples/files-whole",
        "one more",
        put("arms/graph-control/profile/rank2.json", {}),
        "VOID",
        "graph-control: seen a profile ",
    ),
    (
        "replay-samples/files-whole",
        "of eager",
        put("arms/eager/profile/rank0.json", {}),
        "VOID",
        "eager: seen a profile rank0.json; expected none of ",
    ),
    (
        "replay-samples/files-as-reported",
        "digest",
        at(CANDIDATE, f"{REPORT}|sha256", OTHER),
        "VOID",
        "graph-candidate: rank1.json: seen digest",
    ),
    (
        "replay-samples/ranks-named",
        "rank",
        at(CANDIDATE_PROFILE[1], "rank", 0),
        "VOID",
        "graph-candidate: rank1.json: seen rank 0 of 2; expected rank 1 of 2",
    ),
    (
        "replay-samples/ranks-named",
        "world",
        at(CANDIDATE_PROFILE[1], "world_size", 4),
        "VOID",
        "graph-candidate: rank1.json: seen rank 1 of 4; expected rank 1 of 2",
    ),
    (
        "replay-samples/samples-complete",
        "short",
        within(CANDIDATE_PROFILE[1], "samples", list.pop),
        "VOID",
        "graph-candidate rank 1: seen 4 samples; expected 5",
    ),
    (
        "replay-samples/captured-batch",
        "of another graph",
        at(CANDIDATE_PROFILE[1], "descriptor", "16 tokens"),
        "VOID",
        "graph-candidate rank 1: seen replays of '16 tokens'; expected the captured ['BatchDescriptor(num_tokens=8",
    ),
    (
        "replay-samples/one-batch",
        "captured otherwise",
        both(
            at(CANDIDATE_PROFILE[1], "descriptor", "16 tokens"),
            at(CANDIDATE, "ranks|1|graphs|0|descriptor", "16 tokens"),
        ),
        "VOID",
        "'16 tokens' on graph-candidate rank 1; expected one batch",
    ),
    (
        "replay-samples/segments-planned",
        "order",
        both(at(CONTROL_PROFILE[0], "kinds|0", "attention"), at(CONTROL_PROFILE[0], "kinds|3", "graph")),
        "FAIL",
        "graph-control rank 0: seen 291 segments in order",
    ),
    (
        "replay-samples/segments-timed",
        "zero",
        segment("collective", 0),
        "VOID",
        "graph-control rank 1 sample 3: seen a segment of 0",
    ),
    (
        "replay-samples/loop-contains-segments",
        "longer",
        segment("graph", 30_000),
        "VOID",
        "graph-control rank 1 sample 3: seen loop of 10158783 ns; expected at least the 10163770 ns of its segments",
    ),
    (
        "replay-samples/host-contains-loop",
        "shorter",
        at(CANDIDATE_PROFILE[0], f"{REPLAY}host_ns", 1),
        "VOID",
        "graph-candidate rank 0 sample 3: seen host of 1 ns; expected at least",
    ),
    (
        "replay-samples/whole-contains-host",
        "shorter",
        at(CANDIDATE_PROFILE[0], f"{REPLAY}whole_ns", 1),
        "VOID",
        "graph-candidate rank 0 sample 3: seen whole of 1 ns",
    ),
    (
        "replay-samples/synchronise-timed",
        "none",
        at(CANDIDATE_PROFILE[0], f"{REPLAY}synchronize_ns", 0),
        "VOID",
        "graph-candidate rank 0 sample 3: seen a synchronise of 0 ns",
    ),
    (
        "replay-samples/within-generation",
        "ten hours",
        at(CONTROL_PROFILE[1], f"{REPLAY}whole_ns", 36_000_000_000_000),
        "VOID",
        "graph-control rank 1: seen replays of 36000040672477 ns in all; expected them within 19000000000 ns",
    ),
    (
        "replay-samples/views-within-attention",
        "longer",
        changed(CONTROL_PROFILE[1], forward_ns=5_000_000),
        "VOID",
        "graph-control rank 1 sample 3: seen attention of 4320624 ns; expected at least the 5000000 ns of its views",
    ),
    (
        "view-preparations/preparations-counted",
        "forward",
        changed(CANDIDATE_PROFILE[1], forward_calls=47),
        "FAIL",
        "graph-candidate rank 1 sample 3: seen forward, update and ns of update (47, 0, 0); expected (48, 0, 0)",
    ),
    (
        "view-preparations/preparations-counted",
        "update",
        changed(CONTROL_PROFILE[0], update_calls=48),
        "FAIL",
        "graph-control rank 0 sample 3: seen forward, update and ns of update (48, 48, 0)",
    ),
    (
        "view-preparations/preparations-counted",
        "update time",
        changed(CONTROL_PROFILE[0], update_ns=1),
        "FAIL",
        "(48, 0, 1)",
    ),
    (
        "view-preparations/preparations-counted",
        "packet 1: seen no version of vllm",
        at(CONTROL_PROFILE[0], f"{REPLAY}views", None),
        "FAIL",
        "no view preparations",
    ),
    (
        "view-preparations/control-incumbent",
        "persistent",
        changed(CONTROL_PROFILE[0], persistent_calls=48),
        "FAIL",
        "graph-control rank 0 sample 3: seen incumbent, persistent, hits and builds (48, 48, 0, 0)",
    ),
    (
        "view-preparations/candidate-persistent",
        "a build",
        changed(CANDIDATE_PROFILE[0], persistent_hits=47, persistent_builds=1),
        "FAIL",
        "graph-candidate rank 0 sample 3: seen incumbent, persistent, hits and builds (0, 48, 47, 1)",
    ),
    (
        "view-preparations/candidate-persistent",
        "incumbent",
        changed(CANDIDATE_PROFILE[0], incumbent_calls=1),
        "FAIL",
        "builds (1, 48, 48, 0)",
    ),
]

TIMING: list[Mutant] = [
    ("timing/view_preparation", "equal", candidate_views(48_000), "STOP", " 0 ns; expected more than 0"),
    ("timing/attention_host", "longer", candidate_attention(700), "STOP", " -19200 ns; expected more than 0"),
    ("timing/whole_replay_p90", "tail", slow_tail(11_000_000), "STOP", "expected at least 0"),
    (
        "timing/post_replay_synchronise",
        "transfer",
        candidate_slower("synchronize_ns", 1),
        "STOP",
        "600 ns to 601 ns, a saving of -1 ns; expected at least 0",
    ),
    (
        "timing/generation_wall",
        "equal",
        at(CANDIDATE, "generation_seconds", 19.0),
        "STOP",
        " 0 ns; expected more than 0",
    ),
    (
        "timing/whole_replay",
        "longer",
        candidate_slower("whole_ns", 60_000),
        "STOP",
        " -12000 ns; expected more than 0",
    ),
]

IDENTITY: list[Mutant] = [
    (
        "identity-exact/versions-installed",
        "packet",
        within("packets/1/record.json", "versions", lambda versions: versions.pop("vllm")),
        "NOT_PROVEN",
        "packet 1: seen no version of vllm",
    ),
    (
        "identity-exact/interpreter-planned",
        "other",
        at("plan.json", "interpreter", "/usr/bin/python3"),
        "VOID",
        "engine's interpreter: seen /engine/bin/python; expected /usr/bin/python3",
    ),
    ("identity-exact/engine-unchanged", "absent", at("identity.json", "engine_after", None), "NOT_PROVEN", ""),
    (
        "identity-exact/models-frozen",
        "other",
        both(*(of_request(arm, "target", "/other") for arm in Arm)),
        "NOT_PROVEN",
        "/other",
    ),
    ("identity-exact/sources-frozen", "absent", without("identity.json"), "NOT_PROVEN", "identity.json: there is none"),
]

MUTANTS = [*IDENTITY, *SURROUNDINGS, *ARMS, *GRAPHS, *PACKETS, *REPLAYS, *TIMING]

TESTED_ELSEWHERE = {
    "arms-fresh/ranks-answered",
    *(f"identity-exact/{name}" for name in IDENTITY_RULES),
    *(f"parity-packets/{name}" for name in parity.RULES),
}
"""Each has its mutant in a file of its own; that they are asked at all is seen here."""

LISTED = {"tokens-identical/other-pairs", "drafts-bounded/accepted-by-position", "sole-treatment/arm-local"}
"""They decide nothing."""


def test_the_good_directory_satisfies_every_rule_in_every_clause(tmp_path: Path) -> None:
    diagnosis = root.judged(root.good(), tmp_path)
    assert root.findings(diagnosis) == {}
    assert tuple(diagnosis.clauses) == CLAUSES
    assert {clause: clause_verdict(rules)[0] for clause, rules in diagnosis.clauses.items()} == dict.fromkeys(
        CLAUSES, "PASS"
    )
    assert diagnosis.published is None  # of fewer samples than were published


def test_every_rule_has_a_mutant() -> None:
    rules = {f"{clause}/{name}" for clause, rules in EXACTNESS.items() for name in rules}
    rules |= {"timing/compared", *(f"timing/{name}" for name in GATES)}
    mutated = {rule for rule, *_ in MUTANTS}
    assert mutated <= rules
    assert rules - mutated - TESTED_ELSEWHERE - LISTED == {"timing/compared"}  # below: it has no fact of its own


@caught_first("rule name change verdict reason", MUTANTS)
def test_the_mutant_is_caught_by_its_rule_before_any_other(
    rule: str, change: Change, verdict: str, reason: str, tmp_path: Path
) -> list[str]:
    tree = root.good()
    change(tree)
    found = root.findings(root.judged(tree, tmp_path))
    assert found[rule][0] == verdict
    assert reason in found[rule][1]
    assert "\n" not in found[rule][1]
    return [*found]
