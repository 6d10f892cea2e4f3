# SPDX-License-Identifier: Apache-2.0
"""What a diagnosis tells word for word: what it only lists, and each reason that more than one part makes up."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_laguna.analysis.arms.case import clause_verdict, exercised
from pytest_laguna.analysis.arms.each_arm import judge_models
from pytest_laguna.analysis.diagnostic.arms import attention_equal
from pytest_laguna.analysis.diagnostic.case import DiagnosticCase
from pytest_laguna.analysis.diagnostic.timing import GATES
from pytest_laguna.evidence.arms.arm_record import Arm, token_digest
from pytest_laguna.evidence.arms.plan import FolderModels
from pytest_laguna.evidence.arms.replay_profile import order_sha256
from pytest_laguna.evidence.diagnostic.analysis import DiagnosticPlan, RuleResult
from pytest_laguna.evidence.diagnostic.reader import read_diagnostic
from pytest_laguna.evidence.reading import PLAN
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.verdict import Verdict
from tests import diagnostic_root as root
from tests.diagnostic_root import Change, at, both, put, within, without
from tests.mutants.test_diagnostic_rules import (
    CANDIDATE,
    CANDIDATE_PROFILE,
    CONTROL,
    CONTROL_PROFILE,
    EAGER,
    LAYER,
    OTHER,
    PROCESS,
    Q1,
    acceptance,
    changed,
    of_request,
    one_more_packet,
)
from tests.unit.analysis.test_null_diagnostic import null_tree
from tests.unit.engine import support

ALL_PAIRS = [[first, second] for number, first in enumerate(Arm) for second in [*Arm][number + 1 :]]
ACCEPTED = "[34, 34, 34, 34, 34, 34, 34] of 34"
NOT_XPU = "not applicable: no XPU engine is recorded"

LISTED = {
    "identity-exact/stack-fits": NOT_XPU,
    "identity-exact/closure-whole": NOT_XPU,
    "identity-exact/closure-mapped": NOT_XPU,
    "tokens-identical/other-pairs": (
        "reported: q1 and eager identical; q1 and graph-candidate identical; eager and graph-candidate identical"
    ),
    "drafts-bounded/accepted-by-position": (
        f"reported: eager {ACCEPTED}; graph-control {ACCEPTED}; graph-candidate {ACCEPTED}"
    ),
    "sole-treatment/arm-local": (
        "reported: HF_HOME, HOME, LAGUNA_REPLAY_PROFILE_ROOT, NUMBA_CACHE_DIR, PYTHONPYCACHEPREFIX, SYCL_CACHE_DIR,"
        " TMPDIR, TORCHINDUCTOR_CACHE_DIR, TRITON_CACHE_DIR, VLLM_CACHE_ROOT, VLLM_RPC_BASE_PATH, XDG_CACHE_HOME,"
        " XDG_CONFIG_HOME, XDG_DATA_HOME, XDG_RUNTIME_DIR, XDG_STATE_HOME"
    ),
    "parity-packets/compiled-extension": "not applicable: lane cpu",
    "parity-packets/fallback-forbidden": "not applicable: lane cpu",
}


def same_environment(tree: root.Tree) -> None:
    flag = tree[CANDIDATE]["environment"][root.FLAG]
    tree[CANDIDATE]["environment"] = tree[CONTROL]["environment"] | {root.FLAG: flag}


def nothing_limited(tree: root.Tree) -> None:
    tree["plan.json"]["host"] = dict.fromkeys(tree["plan.json"]["host"]) | {"foreign_holders": True}


def short(record: str) -> Change:
    """Without the last token, on every rank."""

    def change(tree: root.Tree) -> None:
        ids = tree[record]["token_ids"][:-1]
        tree[record] |= {"token_ids": ids, "token_sha256": token_digest(ids)}
        for report in tree[record]["ranks"]:
            report["sampled_token_ids"] = list(ids)

    return change


def one_rank(tree: root.Tree) -> None:
    """The candidate's arm ran on one rank, and says so."""
    of_request(Arm.GRAPH_CANDIDATE, "tensor_parallel_size", 1)(tree)
    tree[CANDIDATE]["ranks"].pop()
    tree[CANDIDATE]["ranks"][0]["world_size"] = 1


def one_more_layer(tree: root.Tree) -> None:
    signatures = tree[CANDIDATE]["ranks"][1]["kernel_signatures"]
    signatures["model.layers.99.self_attn.attn"] = signatures[LAYER]


def only_lists(*pairs: tuple[Arm, Arm]) -> Change:
    return at("plan.json", "identical", [[*pair] for pair in pairs])


CHANGED: list[tuple[str, str, Change]] = [
    (
        "tokens-identical/other-pairs",
        "reported: every pair of arms is required to be identical",
        at("plan.json", "identical", ALL_PAIRS),
    ),
    (
        "tokens-identical/other-pairs",
        (
            "reported: q1 and eager differ in text but not in tokens; q1 and graph-control differ in text but not"
            " in tokens; q1 and graph-candidate differ in text but not in tokens; eager and graph-control identical;"
            " eager and graph-candidate identical"
        ),
        both(only_lists((Arm.GRAPH_CONTROL, Arm.GRAPH_CANDIDATE)), at(Q1, "text_sha256", "1" * 64)),
    ),
    ("sole-treatment/arm-local", "reported: no variable", same_environment),
    *(
        (f"host-within-limits/{rule}", "not applicable: the campaign sets no limit", nothing_limited)
        for rule in (
            "temperature-within",
            "not-throttled",
            "kernel-log-quiet",
            "memory-free",
            "load-low",
            "no-foreign-holder",
        )
    ),
]


def listed(tree: root.Tree, directory: Path) -> dict[str, str]:
    return {
        f"{clause}/{rule}": result.reason
        for clause, rules in root.judged(tree, directory).clauses.items()
        for rule, result in rules.items()
        if result.verdict is None
    }


def test_what_a_good_diagnosis_lists(tmp_path: Path) -> None:
    assert listed(root.good(), tmp_path) == LISTED


@pytest.mark.parametrize(("rule", "told", "change"), CHANGED)
def test_what_another_diagnosis_lists(rule: str, told: str, change: Change, tmp_path: Path) -> None:
    tree = root.good()
    change(tree)
    assert listed(tree, tmp_path)[rule] == told


def within_wall(seconds: float) -> Change:
    """Eager's process lived so long; it started in 29.5 s and generated in 20 s."""
    return both(at(EAGER, "start_seconds", 29.5), at(PROCESS, "wall_seconds", seconds))


def within_replays(more_ns: int) -> Change:
    """The control's generation took so much longer than the replays of its slowest rank."""

    def change(tree: root.Tree) -> None:
        wholes = [sum(replay["whole_ns"] for replay in tree[name]["samples"]) for name in CONTROL_PROFILE]
        tree[CONTROL]["generation_seconds"] = (max(wholes) + more_ns) / 1e9

    return change


def looked_later(seconds: float) -> Change:
    """The last look at the cards, after the one that follows the last arm."""

    def change(tree: root.Tree) -> None:
        before = datetime.datetime.fromisoformat(tree["arms/graph-candidate/idle.json"]["snapshots"][-1]["utc"])
        for number, look in enumerate(tree["idle-after.json"]["snapshots"]):
            utc = before + datetime.timedelta(seconds=seconds + 60 * number)
            look["utc"] = utc.isoformat(timespec="microseconds")

    return change


BOUNDS: list[tuple[str, str | None, Change]] = [
    ("arms-fresh/within-process", None, within_wall(49.5)),
    ("arms-fresh/within-process", "VOID", within_wall(49.25)),
    ("drafts-bounded/cycles-account", None, acceptance(EAGER, 34, [34] * 6 + [33])),
    ("drafts-bounded/cycles-account", "VOID", acceptance(EAGER, 34, [34] * 6 + [32])),
    ("drafts-bounded/cycles-account", None, acceptance(EAGER, 35, [35] * 6 + [33])),
    ("drafts-bounded/cycles-account", "VOID", acceptance(EAGER, 35, [35] * 6 + [34])),
    ("drafts-bounded/accepted-enough", None, acceptance(EAGER, 136, [136, 1, 0, 0, 0, 0, 0])),
    ("drafts-bounded/rate-bounded", None, at("plan.json", "acceptance_rate_difference", 0.0)),
    ("replay-samples/within-generation", None, within_replays(0)),
    ("replay-samples/within-generation", "VOID", within_replays(-1)),
    ("cards-idle/looks-in-order", "VOID", looked_later(0)),
    ("cards-idle/looks-in-order", None, looked_later(0.5)),
    ("arms-fresh/in-order", "VOID", at(EAGER, "ranks|1|process|start_ticks", 100_001)),
    ("arms-fresh/in-order", None, at(EAGER, "ranks|1|process|start_ticks", 100_002)),
]


@pytest.mark.parametrize(("rule", "verdict", "change"), BOUNDS, ids=range(len(BOUNDS)))
def test_where_a_bound_lies(rule: str, verdict: str | None, change: Change, tmp_path: Path) -> None:
    tree = root.good()
    change(tree)
    assert root.findings(root.judged(tree, tmp_path)).get(rule, (None, ""))[0] == verdict


ORDER = root.TOPOLOGY.order_sha256
GRAPHS = f"146 graphs and 145 breaks (48 attention, 97 collective) in order {ORDER}"
SIGNATURE = root.good()[CONTROL]["ranks"][1]["kernel_signatures"][LAYER]["sha256"]
PROFILE_DIGEST = root.good()[CANDIDATE]["ranks"][1]["profile"]["sha256"]
MOVED = [root.TOPOLOGY.kinds[1], root.TOPOLOGY.kinds[0], *root.TOPOLOGY.kinds[2:]]
LOOKS = [name for name in root.good() if "idle" in name]
STATES = [name for name in root.good() if name.endswith("host.json")]
LOST = "arms/graph-control/record.json: there is none"
OTHER_BATCH = both(
    at(CANDIDATE_PROFILE[1], "descriptor", "16 tokens"), at(CANDIDATE, "ranks|1|graphs|0|descriptor", "16 tokens")
)


def two_more_packets(tree: root.Tree) -> None:
    one_more_packet(tree)
    for name in [name for name in tree if name.startswith("packets/2/")]:
        tree[name.replace("/2/", "/3/")] = json.loads(json.dumps(tree[name]))


def packet_died(tree: root.Tree) -> None:
    del tree["packets/1/record.json"]
    tree["packets/1/failure.json"] = {"reason": "no kernel"}
    tree["packets/1/process.json"]["wait_status"] = 256


def look(seen: tuple[str, list[str]], due: tuple[str, list[str]]) -> str:
    """Of a look at other cards or in another phase than was due."""
    told, expected = ((phase, "cpu", cards) for phase, cards in (seen, due))
    return f"seen phase, lane and cards {told}; expected {expected}"


BEFORE, AFTER, FIRST = ("before", root.CARDS), ("after", root.CARDS), ("after", root.CARDS[:1])
PACKET = "packets/1/record.json"


def control_died(tree: root.Tree) -> None:
    del tree[CONTROL]
    tree["arms/graph-control/failure.json"] = {"reason": "rank 1 died"}


SURROUNDINGS: list[tuple[str, str, str, Change]] = [
    ("parity-packets/one-a-card", "VOID", "packets/2: seen, unplanned; expected packets of 2 cards", two_more_packets),
    (
        "parity-packets/packets-ended-clean",
        "VOID",
        "packets/1: ended-by-itself: exited, exit code 1 after 90.0 s; packets/1: no record: no kernel",
        packet_died,
    ),
    (
        "parity-packets/packets-as-asked",
        "VOID",
        "packets/1: seen a record of rank 1 and a request of rank 1; expected one request for its card",
        at("packets/1/request.json", "target", "/other"),
    ),
    (
        "parity-packets/packets-same-engine",
        "VOID",
        "packets/1: seen more 1; expected the arms' None",
        at(PACKET, "versions|more", "1"),
    ),
    (
        "parity-packets/packets-same-engine",
        "VOID",
        ("packets/1: seen models ('/other', '/models/draft'); expected the arms' ('/models/target', '/models/draft')"),
        both(at("packets/1/request.json", "target", "/other"), at(PACKET, "request|target", "/other")),
    ),
    (
        "parity-packets/packets-own-processes",
        "VOID",
        ("packets/1: seen process 4001, started at tick 300001, also in graph-control rank 1; expected a fresh one"),
        at(PACKET, "process", root.good()[CONTROL]["ranks"][1]["process"]),
    ),
    (
        "parity-packets/packets-own-processes",
        "VOID",
        "packets/1: seen process 3000, started at tick 50000, also in packets/0; expected a fresh one",
        at(PACKET, "process", {"pid": 3000, "start_ticks": 50_000}),
    ),
    (
        "parity-packets/card-of-lease",
        "VOID",
        "card 0: seen card x; expected the leased cpu-slot-0",
        both(*(at(f"packets/{position}/record.json", "platform|card", "x") for position in (0, 1))),
    ),
    (
        "cards-idle/one-lease",
        "VOID",
        "arms/graph-control: seen LAGUNA_LEASE 'x'; expected that of the snapshots",
        at(CONTROL, "environment|LAGUNA_LEASE", "x"),
    ),
    *(
        (
            "cards-idle/looks-in-order",
            "VOID",
            (
                f"{later}: seen 2026-07-26T{after}.000000+00:00; expected later than {earlier} at"
                f" 2026-07-26T{before}.000000+00:00"
            ),
            put(name, look_again),
        )
        for name, look_again, later, after, earlier, before in (
            (
                "idle-before.json",
                root.idle("before", root.CARDS, 40),
                "packets/0/host.json, before",
                "21:01:10",
                "idle-before.json, snapshot 1",
                "21:40:46",
            ),
            (
                "idle-after.json",
                root.idle("after", root.CARDS, 0),
                "idle-after.json, snapshot 0",
                "21:00:45",
                "arms/graph-candidate/idle.json, snapshot 1",
                "21:07:46",
            ),
            (
                "arms/q1/host.json",
                root.host(30),
                "arms/q1/idle.json, snapshot 0",
                "21:04:45",
                "arms/q1/host.json, after",
                "21:30:40",
            ),
        )
    ),
    (
        "cards-idle/before-first",
        "VOID",
        f"idle-before.json: {look(AFTER, BEFORE)}",
        at("idle-before.json", "phase", "after"),
    ),
    (
        "cards-idle/after-packets",
        "VOID",
        f"packets/0: {look(AFTER, FIRST)}",
        put("packets/0/idle.json", root.idle("after", root.CARDS, 1)),
    ),
    (
        "cards-idle/after-arms",
        "VOID",
        f"q1: {look(BEFORE, AFTER)}",
        put("arms/q1/idle.json", root.idle("before", root.CARDS, 3)),
    ),
    (
        "cards-idle/after-last",
        "VOID",
        f"idle-after.json: {look(BEFORE, AFTER)}",
        at("idle-after.json", "phase", "before"),
    ),
]

IN_FULL: list[tuple[str, str, str, Change]] = [
    (
        "identity-exact/engine-mapped",
        "NOT_PROVEN",
        (
            "graph-control: seen no mapped files; expected them for each rank;"
            " arms/graph-control: no record: rank 1 died"
        ),
        control_died,
    ),
    (
        "identity-exact/versions-installed",
        "NOT_PROVEN",
        "packet 1: seen no version of vllm; expected one",
        within(PACKET, "versions", lambda versions: versions.pop("vllm")),
    ),
    ("arms-fresh/ended-clean", "NOT_PROVEN", "arms/q1/record.json: there is none", without("arms/q1/")),
    (
        "parity-packets/packets-ended-clean",
        "NOT_PROVEN",
        "packets/1: seen none; expected a packet a card",
        without("packets/1/"),
    ),
    ("cards-idle/after-packets", "NOT_PROVEN", "packets/1: seen none; expected a packet a card", without("packets/1/")),
    ("cards-idle/one-lease", "NOT_PROVEN", "snapshots: seen 0 leases; expected one", without(*LOOKS)),
    (
        "cards-idle/looks-in-order",
        "NOT_PROVEN",
        "surroundings: seen no snapshot of cards and no state of the host; expected both",
        without(*LOOKS, *STATES),
    ),
    (
        "arms-fresh/vllm-planned",
        "VOID",
        "eager: vLLM not recorded; expected 0.32.0",
        within(EAGER, "versions", lambda versions: versions.pop("vllm")),
    ),
    (
        "sole-treatment/teachers-same-engine",
        "VOID",
        "q1: environment VLLM_X: seen '1'; expected None as in graph-control",
        at(Q1, "environment|VLLM_X", "1"),
    ),
    (
        "sole-treatment/arguments-equal",
        "FAIL",
        (
            f"rank 1: {LAYER}: seen control calls=35 distinct=2 sha256='{SIGNATURE}', candidate calls=35 distinct=2"
            f" sha256='{OTHER}'; expected equal"
        ),
        at(CANDIDATE, f"ranks|1|kernel_signatures|{LAYER}|sha256", OTHER),
    ),
    (
        "sole-treatment/arguments-equal",
        "FAIL",
        (
            "rank 1: model.layers.99.self_attn.attn: seen control None,"
            f" candidate calls=35 distinct=2 sha256='{SIGNATURE}'; expected equal"
        ),
        one_more_layer,
    ),
    (
        "sole-treatment/allocations-equal",
        "VOID",
        "ranks: seen 2 in the control, 1 in the candidate; expected as many",
        one_rank,
    ),
    (
        "sole-treatment/environment-as-asked",
        "VOID",
        (
            "graph-control: environment LAGUNA_REPLAY_PROFILE_ROOT: seen '/attempt/graph-control/profile';"
            " expected 'profile'"
        ),
        within(CONTROL, "environment", lambda variables: variables.pop("HOME")),
    ),
    (
        "tokens-identical/required-pairs",
        "FAIL",
        f"q1 and graph-control: differ at token 271: None and {root.good()[CONTROL]['token_ids'][271]}",
        short(Q1),
    ),
    (
        "topology-unchanged/graphs-frozen",
        "FAIL",
        f"graph-control rank 1: seen captured {GRAPHS}; {GRAPHS}; expected {GRAPHS}",
        within(CONTROL, "ranks|1|graphs", lambda graphs: graphs.append(graphs[0])),
    ),
    (
        "topology-unchanged/graphs-frozen",
        "FAIL",
        f"graph-control rank 1: seen captured no graph of the target; expected {GRAPHS}",
        at(CONTROL, "ranks|1|graphs", []),
    ),
    (
        "topology-unchanged/configurations-hashed",
        "NOT_PROVEN",
        "draft-config.json: seen no digest; expected one here and in the model's identity",
        without("draft-config.json"),
    ),
    (
        "replay-samples/one-batch",
        "VOID",
        (
            f"batches: seen {root.DESCRIPTOR!r} on graph-control rank 0, '16 tokens' on graph-candidate rank 1;"
            " expected one batch"
        ),
        OTHER_BATCH,
    ),
    *(
        (
            "selector-proven/layers-of-models",
            "VOID",
            f"{name}: seen num_hidden_layers 0; expected a whole number from 1 to 1024",
            at(name, "num_hidden_layers", 0),
        )
        for name in ("target-config.json", "draft-config.json")
    ),
    (
        "replay-samples/files-whole",
        "NOT_PROVEN",
        "graph-control rank 0: seen 5 of 5 replays, and no profile; expected both whole",
        without(*CONTROL_PROFILE),
    ),
    (
        "replay-samples/files-whole",
        "NOT_PROVEN",
        "graph-control: seen no rank2.json; expected a profile of each rank",
        at("plan.json", "cards", [*root.CARDS, "cpu-slot-2"]),
    ),
    (
        "replay-samples/files-whole",
        "VOID",
        "graph-control: seen a profile rank2.json; expected a file a rank",
        both(*(put(f"arms/graph-control/profile/rank{rank}.json", {}) for rank in (3, 2))),
    ),
    (
        "replay-samples/files-whole",
        "VOID",
        "eager: seen a profile rank0.json; expected none of an arm without graphs",
        both(*(put(f"arms/eager/profile/rank{rank}.json", {}) for rank in (1, 0))),
    ),
    (
        "replay-samples/files-as-reported",
        "VOID",
        f"graph-candidate: rank1.json: seen digest {PROFILE_DIGEST}; expected its rank's None",
        one_rank,
    ),
    (
        "replay-samples/files-as-reported",
        "VOID",
        f"graph-candidate: rank1.json: seen digest {PROFILE_DIGEST}; expected its rank's {OTHER}",
        at(CANDIDATE, "ranks|1|profile|sha256", OTHER),
    ),
    (
        "replay-samples/captured-batch",
        "VOID",
        f"graph-candidate rank 1: seen replays of {root.DESCRIPTOR!r}; expected the captured []",
        one_rank,
    ),
    (
        "replay-samples/ranks-named",
        "NOT_PROVEN",
        "graph-control: seen profiles of 1 ranks; expected 2",
        without(CONTROL_PROFILE[1]),
    ),
    ("replay-samples/ranks-named", "NOT_PROVEN", LOST, without("arms/graph-control/")),
    (
        "replay-samples/ranks-named",
        "VOID",
        "graph-control: rank1.json: torn, or without samples; expected a whole replay profile",
        put(CONTROL_PROFILE[1], b'{"descriptor":'),
    ),
    (
        "replay-samples/segments-planned",
        "FAIL",
        f"graph-control rank 0: seen 291 segments in order {order_sha256(MOVED)}; expected 291 in order {ORDER}",
        at(CONTROL_PROFILE[0], "kinds", MOVED),
    ),
    (
        "replay-samples/within-generation",
        "VOID",
        "graph-control rank 0: seen replays of 50826410 ns in all; expected them within 50000000 ns",
        at(CONTROL, "generation_seconds", 0.05),
    ),
    ("timing/compared", "NOT_PROVEN", LOST, without(CONTROL)),
    (
        "timing/compared",
        "VOID",
        "files-whole: graph-control: rank1.json: torn, or without samples; expected a whole replay profile",
        put(CONTROL_PROFILE[1], b'{"descriptor":'),
    ),
    (
        "timing/compared",
        "VOID",
        "arms/graph-control: a record and a failure (x); expected one of them",
        put("arms/graph-control/failure.json", {"reason": "x"}),
    ),
    (
        "timing/compared",
        "FAIL",
        (
            "preparations-counted: graph-candidate rank 1 sample 3: seen forward, update and ns of update (47, 0, 0);"
            " expected (48, 0, 0)"
        ),
        changed(CANDIDATE_PROFILE[1], forward_calls=47),
    ),
]


TOLD = [*SURROUNDINGS, *IN_FULL]


@pytest.mark.parametrize(("rule", "verdict", "reason", "change"), TOLD, ids=range(len(TOLD)))
def test_what_is_told_in_full(rule: str, verdict: str, reason: str, change: Change, tmp_path: Path) -> None:
    tree = root.good()
    change(tree)
    assert root.findings(root.judged(tree, tmp_path))[rule] == (verdict, reason)


FOLDERS = FolderModels(target="models/target", draft="models/draft", prompt="p")
AS_PLANNED = {"target": "/here/models/target", "draft": "models/draft", "prompt": "p"}


@pytest.mark.parametrize(
    ("planned", "changed", "told"),
    [
        ({}, {}, None),
        ({}, {"target": "/here/other/target"}, "target: seen '/here/other/target'; expected 'models/target'"),
        ({}, {"target": "/here/xmodels/target"}, "target: seen '/here/xmodels/target'; expected 'models/target'"),
        ({"target": "/models/target"}, {}, "target: seen '/here/models/target'; expected '/models/target'"),
        (
            {"target": "/models/target"},
            {"target": "/x//models/target"},
            "target: seen '/x//models/target'; expected '/m",
        ),
        ({}, {"draft": None}, "draft: seen None; expected 'models/draft'"),
        ({}, {"prompt": "/p"}, "prompt: seen '/p'; expected 'p'"),
    ],
)
def test_a_planned_folder_may_lie_anywhere_and_no_prompt_does(
    planned: dict[str, str], changed: dict[str, str | None], told: str | None
) -> None:
    request = support.request(**AS_PLANNED).model_copy(update=changed)
    found = judge_models(request, FOLDERS.model_copy(update=planned))
    if told is None:
        assert found is None
    else:
        assert found is not None
        assert found[0] is Verdict.VOID
        assert found[1].startswith(told)


def test_attention_that_is_equal_is_listed_on_a_device(tmp_path: Path) -> None:
    root.write(root.good(), tmp_path)
    case = DiagnosticCase(
        read_model(tmp_path / PLAN, DiagnosticPlan).model_copy(update={"lane": "cuda"}), read_diagnostic(tmp_path)
    )
    assert attention_equal(case) == (None, "reported: equal")


def not_exact(tree: root.Tree) -> None:
    tree[Q1]["cached_tokens"] = 1


def other_text(tree: root.Tree) -> None:
    """Of an arm of which the plan requires no pair."""
    only_lists((Arm.GRAPH_CONTROL, Arm.GRAPH_CANDIDATE))(tree)
    tree[Q1]["text_sha256"] = "1" * 64


@pytest.mark.parametrize(
    ("build", "change", "shape", "named"),
    [
        (root.good, lambda _: None, True, "diagnostic_pass"),
        (root.good, at(CANDIDATE, "generation_seconds", 19.0), True, "exact_timing_stop"),
        (root.good, lambda _: None, False, None),
        (root.good, not_exact, True, None),
        (root.good, other_text, True, None),
        (null_tree, lambda _: None, True, None),
    ],
    ids=["as published", "slower", "of fewer samples", "not exact", "other text", "null"],
)
def test_what_the_published_rules_call_it(  # noqa: PLR0913, PLR0917 - a row of the table
    build: Callable[[], root.Tree],
    change: Change,
    shape: bool,
    named: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Samples and ranks as many as were published take a second each time; here their number is said to be so."""
    tree = build()
    change(tree)
    monkeypatch.setattr(DiagnosticPlan, "has_published_shape", shape)
    diagnosis = root.judged(tree, tmp_path)
    assert diagnosis.published == named
    assert diagnosis.timing is not None
    assert [*diagnosis.timing] == [*GATES]


def test_what_a_clause_comes_to_and_which_rules_prove_something(tmp_path: Path) -> None:
    listed = RuleResult(verdict=None, reason="not applicable: lane cpu")
    held = RuleResult(verdict=Verdict.PASS, reason="")
    assert clause_verdict({"a": held, "b": held}) == (Verdict.PASS, "2 rules hold")
    assert clause_verdict({"a": held, "b": listed}) == (Verdict.PASS, "1 rules hold, 1 are listed only")
    assert exercised({"a": held, "b": listed, "c": held}) == "a, c"
    rules = root.judged(root.good(), tmp_path).clauses.values()
    assert {result.reason for each in rules for result in each.values() if result.verdict is Verdict.PASS} == {""}
