# SPDX-License-Identifier: Apache-2.0
"""Every rule over a control and a candidate arm has a mutant: real records of two arms with one fact changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.analysis.arms.arm_pair import RESULT_RULES, RULES, Expected, Pair, compare, without_arm_local
from pytest_laguna.evidence.arms.arm_record import ArmRecord, token_digest
from pytest_laguna.verdict import UnusableEvidenceError
from tests.caught_first import caught_first

RECORDS = Path(__file__).parent.parent / "data" / "arm-records"
FLAG = "VLLM_XPU_LAGUNA_M8_PERSISTENT_KV_CACHE_VIEWS"
EXPECTED = Expected(
    flag=FLAG,
    control="0",
    treatment="1",
    validator="native",
    completion_tokens=272,
    graphs=49,
    breaks=48,
    target_layers=48,
)

Record = dict[str, Any]


def _load() -> tuple[Record, Record]:
    return tuple(json.loads((RECORDS / f"{arm}.json").read_bytes()) for arm in ("graph-control", "graph-candidate"))


def _pair(control: Record, candidate: Record) -> Pair:
    return Pair(ArmRecord.model_validate(control), ArmRecord.model_validate(candidate), EXPECTED)


def _set(arm: str, path: str, value: Any) -> Callable[[Record, Record], None]:
    """Set one field; the path is joined by dots, numbers index lists."""

    def change(control: Record, candidate: Record) -> None:
        for record in {"control": [control], "candidate": [candidate], "both": [control, candidate]}[arm]:
            *parents, last = path.split("|")
            target: Any = record
            for part in parents:
                target = target[int(part) if part.isdigit() else part]
            target[int(last) if last.isdigit() else last] = value

    return change


def _one_token(_: Record, candidate: Record) -> None:
    candidate["token_ids"][7] += 1
    candidate["token_sha256"] = token_digest(candidate["token_ids"])


def _fewer_tokens(control: Record, candidate: Record) -> None:
    for record in (control, candidate):
        record["token_ids"].pop()
        record["token_sha256"] = token_digest(record["token_ids"])


def _candidate_token_short(_: Record, candidate: Record) -> None:
    candidate["token_ids"].pop()
    candidate["token_sha256"] = token_digest(candidate["token_ids"])


def _no_acceptance(accepted: int) -> Callable[[Record, Record], None]:
    def change(control: Record, candidate: Record) -> None:
        for record in (control, candidate):
            drafts = record["acceptance"]["drafts"]
            record["acceptance"] |= {
                "accepted": accepted * drafts,
                "accepted_per_position": [accepted * drafts] + [0] * 6,
            }

    return change


def _lose_draft(control: Record, candidate: Record) -> None:
    for record in (control, candidate):
        record["acceptance"] = {"drafts": 0, "draft_tokens": 0, "accepted": 0, "accepted_per_position": [0] * 7}


def _lose_flag(arm: str) -> Callable[[Record, Record], None]:
    def change(control: Record, candidate: Record) -> None:
        {"control": control, "candidate": candidate}[arm]["environment"].pop(FLAG)

    return change


def _lose_layer(_: Record, candidate: Record) -> None:
    proof = candidate["ranks"][0]["candidate"]
    proof["layers"].pop(proof["target_layers"][0])


def _rename_layer(_: Record, candidate: Record) -> None:
    proof = candidate["ranks"][0]["candidate"]
    proof["layers"]["another"] = proof["layers"].pop(proof["target_layers"][0])


def _lose_target_layer(_: Record, candidate: Record) -> None:
    proof = candidate["ranks"][0]["candidate"]
    proof["layers"].pop(proof["target_layers"].pop())


def _lose_graphs(control: Record, candidate: Record) -> None:
    for record in (control, candidate):
        record["ranks"][0]["graphs"] = []


def _lose_draft_graphs(*arms: str) -> Callable[[Record, Record], None]:
    def change(control: Record, candidate: Record) -> None:
        for arm in arms:
            report = {"control": control, "candidate": candidate}[arm]["ranks"][0]
            report["graphs"] = [graph for graph in report["graphs"] if graph["model"] == "target"]

    return change


def _lose_kernel(_: Record, candidate: Record) -> None:
    candidate["ranks"][0]["kernel_views"].popitem()


def _raw_cache_beyond_two_layers(_: Record, candidate: Record) -> None:
    """A candidate that counts its uses in all layers, and serves two."""
    for layer, seen in candidate["ranks"][0]["kernel_views"].items():
        if int(layer.split(".")[2]) > 1:
            seen["same_objects"] = 1


RANK = "ranks|0|"
PROOF = f"{RANK}candidate|"
KERNEL = f"{RANK}kernel_views|model.layers.0.self_attn.attn|"
LAYER = f"{PROOF}layers|model.layers.0.self_attn.attn|"

MUTANTS: list[tuple[str, str, Callable[[Record, Record], None], str]] = [
    ("arms-named", "arm", _set("candidate", "request|arm", "graph-control"), "expected graph-control and graph-cand"),
    (
        "arms-named",
        "control",
        _set("control", "request|arm", "eager"),
        "arms: seen eager and graph-candidate; expected",
    ),
    (
        "arms-named",
        "planted",
        _set("candidate", "request|planted", "wrong-offset"),
        "graph-candidate: seen planted defect wrong-offset; expected none",
    ),
    ("same-request", "prompt", _set("candidate", "request|prompt", "other"), "request: seen prompt "),
    ("same-request", "target", _set("control", "request|target", "/other"), "request: seen target "),
    ("same-engine", "version", _set("control", "versions|torch", "2.12"), "versions: seen a difference"),
    (
        "same-engine",
        "configuration",
        _set("candidate", "configuration|resolved|block_size", 32),
        "configuration: seen a difference",
    ),
    ("same-engine", "runner", _set("candidate", f"{RANK}model_runner", "other"), "model runners"),
    (
        "same-engine",
        "prompt",
        _set("candidate", "prompt_token_sha256", "0" * 64),
        "prompt_token_sha256: seen a difference",
    ),
    (
        "sole-treatment",
        "flag off twice",
        _set("candidate", f"environment|{FLAG}", "0"),
        f"{FLAG}: seen '0' and '0'; expected '0' and '1'",
    ),
    (
        "sole-treatment",
        "no flag in the control",
        _lose_flag("control"),
        f"{FLAG}: seen None and '1'; expected '0' and '1'",
    ),
    ("sole-treatment", "no flag in the candidate", _lose_flag("candidate"), f"{FLAG}: seen '0' and None; expected"),
    (
        "sole-treatment",
        "other",
        _set("candidate", "environment|OMP_NUM_THREADS", "9"),
        "environment: seen OMP_NUM_THREADS '1' and '9'",
    ),
    (
        "sole-treatment",
        "shared cache",
        _set("candidate", "environment|TRITON_CACHE_DIR", "/attempt/graph-control/cache/triton"),
        "TRITON_CACHE_DIR '<arm>/cache/triton' and '/attempt/graph-control/cache/triton'",
    ),
    (
        "sole-treatment",
        "other place",
        _set("candidate", "environment|HF_HOME", "/attempt/graph-candidate/cache/other"),
        "HF_HOME '<arm>/cache/huggingface' and '<arm>/cache/other'",
    ),
    (
        "sole-treatment",
        "other socket place",
        _set("control", "environment|VLLM_RPC_BASE_PATH", "/tmp/x"),  # noqa: S108 - nothing is written there
        "VLLM_RPC_BASE_PATH '/tmp/x' and '<short>'",
    ),
    ("sole-treatment", "extra", _set("control", "environment|VLLM_X", "1"), "VLLM_X '1' and None"),
    ("whole-generation", "short", _fewer_tokens, "seen tokens, finish, cached tokens (271, 'length', 0)"),
    ("whole-generation", "stop", _set("both", "finish_reason", "stop"), "(272, 'stop', 0)"),
    ("whole-generation", "cached", _set("control", "cached_tokens", 16), "graph-control: seen tokens, finish, cached"),
    ("topology-frozen", "graphs", _set("both", f"{RANK}graphs|0|graphs", 48), "[(48, 48)]; expected [(49, 48)]"),
    ("topology-frozen", "no graphs", _lose_graphs, "graphs and breaks []"),
    ("topology-frozen", "order", _set("candidate", f"{RANK}graphs|0|order_sha256", "0" * 64), "segment orders: seen ["),
    (
        "drafts-captured",
        "lost",
        _lose_draft_graphs("control", "candidate"),
        "graph-control rank 0: seen no captured graph of",
    ),
    (
        "drafts-captured",
        "lost by one",
        _lose_draft_graphs("candidate"),
        "graph-candidate rank 0: seen no captured graph of",
    ),
    (
        "drafts-captured",
        "other segments",
        _set("candidate", f"{RANK}graphs|1|graphs", 2),
        "graph-candidate rank 0: seen captured [(2, 2)] of the draft; expected [(3, 2)]",
    ),
    (
        "drafts-captured",
        "order",
        _set("candidate", f"{RANK}graphs|1|order_sha256", "0" * 64),
        "in the first rank's order",
    ),
    ("control-is-stock", "flag", _set("control", f"{PROOF}flag", True), "seen the control run"),
    (
        "control-is-stock",
        "class",
        _set("control", f"{PROOF}implementations", ["laguna_kv.backend.LagunaFlashAttentionImpl"]),
        "FlashAttentionBackend', 'laguna_kv.backend.LagunaFlashAttentionImpl'], flag False",
    ),
    (
        "control-is-stock",
        "another backend",
        _set("control", f"{PROOF}backends", ["vllm.v1.attention.backends.triton_attn.TritonAttentionBackend"]),
        "the control run ['vllm.v1.attention.backends.triton_attn.TritonAttentionBackend', 'vllm",
    ),
    ("control-is-stock", "no class", _set("control", f"{PROOF}implementations", []), "Backend'], flag False, 0 layers"),
    ("control-is-stock", "layers", _set("control", f"{PROOF}target_layers", []), "0 target layers in the control"),
    (
        "candidate-active",
        "flag",
        _set("candidate", f"{PROOF}flag", False),
        "rank 0: seen flag, classes, lane, validator",
    ),
    ("candidate-active", "class", _set("candidate", f"{PROOF}implementations", ["stock"]), "Backend', 'stock']"),
    ("candidate-active", "backend", _set("candidate", f"{PROOF}backends", ["stock"]), "['stock', 'laguna_kv.backend"),
    ("candidate-active", "lane", _set("candidate", f"{PROOF}lane", "xpu"), "'xpu', 'native'"),
    ("candidate-active", "validator", _set("candidate", f"{PROOF}validator", "python"), "'cpu', 'python'"),
    ("candidate-active", "layer", _lose_layer, "47 layers with counters; expected 48 of"),
    ("candidate-active", "another layer", _rename_layer, "48 layers with counters; expected 48 of"),
    ("candidate-active", "layer of all", _lose_target_layer, "47 layers with counters; expected 48 of"),
    (
        "views-built-once",
        "twice",
        _set("candidate", f"{LAYER}builds", 2),
        "built 2 times and invalidated 0 times; expected once and never",
    ),
    (
        "views-built-once",
        "invalidated",
        _set("candidate", f"{LAYER}invalidations", 1),
        "built 1 times and invalidated 1 times",
    ),
    (
        "views-built-once",
        "draft",
        _set("candidate", f"{PROOF}draft_layers_with_state", 2),
        "2 draft layers with a state; expected none",
    ),
    ("views-built-once", "unused", _set("candidate", f"{PROOF}forward_hits", 5), "5 forward and"),
    ("views-built-once", "no update", _set("candidate", f"{PROOF}update_hits", 0), "and 0 update uses"),
    (
        "views-reach-kernel",
        "two layers only",
        _raw_cache_beyond_two_layers,
        "graph-candidate rank 0: model.layers.10.self_attn.attn: seen 1 of 35 calls with the same views, 1 geometries",
    ),
    ("views-reach-kernel", "one call", _set("candidate", f"{KERNEL}same_objects", 34), "34 of 35 calls with the same"),
    ("views-reach-kernel", "moved", _set("candidate", f"{KERNEL}geometries", 2), "2 geometries; expected 35 and 1"),
    (
        "views-reach-kernel",
        "blind",
        _set("control", f"{KERNEL}same_objects", 35),
        "graph-control rank 0: model.layers.0",
    ),
    ("views-reach-kernel", "moved stock", _set("control", f"{KERNEL}geometries", 2), "2 geometries; expected 1 and 1"),
    (
        "views-reach-kernel",
        "calls",
        _set("candidate", f"{KERNEL}calls", 36),
        "1681 kernel calls; expected 1680, as attention",
    ),
    ("views-reach-kernel", "layer", _lose_kernel, "seen kernels of 47 layers; expected the target's"),
    ("drafts-accepted", "none", _no_acceptance(0), "acceptance: seen 0 tokens in"),
    ("drafts-accepted", "one each", _no_acceptance(1), "expected more than one each"),
    ("drafts-accepted", "no draft", _lose_draft, "acceptance: seen no draft cycle; expected one"),
    ("drafts-accepted", "differ", _set("control", "acceptance|draft_tokens", 245), "acceptance: seen candidate "),
    ("tokens-equal", "token", _one_token, "token 7: seen candidate "),
    ("tokens-equal", "length", _candidate_token_short, "tokens: seen 271 in the candidate; expected 272"),
    (
        "tokens-equal",
        "text",
        _set("candidate", "text_sha256", "0" * 64),
        "texts: seen a difference with equal tokens; expected none",
    ),
    ("attention-equal", "digest", _set("candidate", f"{RANK}attention|sha256", "0" * 64), "rank 0: "),
    ("attention-equal", "calls", _set("candidate", f"{RANK}attention|calls", 3), "calls=3"),
    (
        "attention-equal",
        "layers",
        _set("both", f"{RANK}attention|layers", 47),
        "seen attention of 47 layers; expected 48",
    ),
]


def test_the_real_records_satisfy_every_rule() -> None:
    assert compare(_pair(*_load())) == {}


def test_every_rule_has_a_mutant() -> None:
    assert {rule for rule, *_ in MUTANTS} == set(RULES)
    assert set(RESULT_RULES) <= set(RULES)


TOLD_FIRST = {"tokens-equal-length": "whole-generation", "attention-equal-calls": "views-reach-kernel"}
"""Mutants whose one fact is another rule's too, which is asked before."""


@caught_first("rule name change reason", MUTANTS, TOLD_FIRST)
def test_the_mutant_is_caught_by_its_rule(
    rule: str, change: Callable[[Record, Record], None], reason: str
) -> list[str]:
    control, candidate = _load()
    change(control, candidate)
    findings = compare(_pair(control, candidate))
    assert reason in findings[rule][1]
    return [*findings]


def test_a_proof_without_its_form_is_unusable() -> None:
    control, candidate = _load()
    candidate["ranks"][0]["candidate"]["builds"] = "48"
    with pytest.raises(UnusableEvidenceError, match="rank 0 candidate proof: builds"):
        compare(_pair(control, candidate))


def test_an_environment_without_directories_of_its_own_stays_as_it_is() -> None:
    environment = {"PATH": "/usr/bin", "XXXX": "XXXX"}
    assert without_arm_local(environment | {"LAGUNA_LEASE": "a token"}) == environment
    at_home = environment | {"HOME": "/a/home", "TMPDIR": "/s", "X": "/a/x", "Y": "/s/y", "Z": "/around"}
    placed = {"HOME": "<arm>/home", "TMPDIR": "<short>", "X": "<arm>/x", "Y": "<short>/y", "Z": "/around"}
    assert without_arm_local(at_home) == environment | placed
