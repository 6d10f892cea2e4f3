# SPDX-License-Identifier: Apache-2.0
"""Every rule over a parity packet has a mutant: a good record with one fact changed.

The cpu lane's record is a real one. The two device lanes' differ from it in what their rules read, written down here
from the sources of vLLM and of its XPU kernels.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.analysis.diagnostic.parity import COMPILED_LANES, KERNELS, NOT_APPLICABLE, RULES, judge_packet
from pytest_laguna.evidence.arms.parity import CALLS, AttentionKind, PacketRecord
from pytest_laguna.evidence.schemas import parse_model
from pytest_laguna.evidence.values import Lane
from pytest_laguna.verdict import Verdict
from tests.caught_first import caught_first

Record = dict[str, Any]
Change = Callable[[Record], None]

RECORD = Path(__file__).parent.parent / "data" / "parity-packets" / "cpu.json"
QUERIES = range(2, 9)
CALLED = CALLS * len(QUERIES)
CARDS: dict[Lane, str] = {
    "cpu": "cpu-slot-1",
    "cuda": "GPU-5a8f1c9e-7d3b-4c2a-9e61-0f4b8d27a913",
    "xpu": "0000:03:00.0",
}
XPU_MODULE = "vllm_xpu_kernels.flash_attn_interface"


def good(lane: Lane) -> Record:
    record: Record = json.loads(RECORD.read_bytes())
    if lane == "cpu":
        return record
    record["request"]["lane"] = lane
    record["platform"] |= {"device_type": lane, "card": CARDS[lane], "is_cpu": False, f"is_{lane}": True}
    version, served_by = (3, "vllm/vllm_flash_attn") if lane == "cuda" else (2, "vllm_xpu_kernels")
    extension = f"_vllm_fa{version}_C"
    kernels = record["kernels"]
    kernels["functions"][0]["module"] = KERNELS[lane].attention
    kernels["functions"][1]["module"] = "vllm._custom_ops"
    kernels["served_by"] |= {"module": KERNELS[lane].served_by, "file": f"/{served_by}/flash_attn_interface.py"}
    kernels["flash_attention_version"] = version
    kernels["extensions"] = [
        {
            "module": f"{served_by.replace('/', '.')}.{extension}",
            "file": f"/{served_by}/{extension}.abi3.so",
            "sha256": "1" * 64,
        }
    ]
    kernels["forbidden"] = list(KERNELS[lane].forbidden)
    operator = f"{extension}::{'fwd' if lane == 'cuda' else 'varlen_fwd'}"
    for side in ("off", "on"):
        for layer in record[side]["layers"].values():
            layer["attention"]["operators"] = {operator: CALLED, "aten::empty_like": CALLED}
            layer["update"]["operators"] = {"_C_cache_ops::reshape_and_cache_flash": CALLED}
    return record


def judged(record: Record, lane: Lane) -> dict[str, tuple[Verdict, str]]:
    packet = parse_model(copy.deepcopy(record), PacketRecord, "packet")
    found = judge_packet(packet, lane, CARDS[lane], QUERIES)
    return {rule: finding for rule, finding in found.items() if finding is not None}


def change(path: str, value: Any) -> Change:
    """Set one field; the path is joined by bars, numbers index lists."""

    def apply(record: Record) -> None:
        *parents, last = path.split("|")
        target: Any = record
        for part in parents:
            target = target[int(part) if part.isdigit() else part]
        assert target[int(last) if last.isdigit() else last] != value
        target[int(last) if last.isdigit() else last] = value

    return apply


def lose(path: str) -> Change:
    """Leave one entry out."""

    def apply(record: Record) -> None:
        *parents, last = path.split("|")
        target: Any = record
        for part in parents:
            target = target[int(part) if part.isdigit() else part]
        del target[int(last) if last.isdigit() else last]

    return apply


def ran_too(side: str, kernel: str, operator: str) -> Change:
    """One more operator in the calls of the full layer's kernel."""

    def apply(record: Record) -> None:
        record[side]["layers"]["full"][kernel]["operators"][operator] = 1

    return apply


def both(*changes: Change) -> Change:
    def apply(record: Record) -> None:
        for each in changes:
            each(record)

    return apply


def case_twice(record: Record) -> None:
    record["cases"].append(copy.deepcopy(record["cases"][0]))


def nothing_written(record: Record) -> None:
    for side in ("off", "on"):
        record["cases"][9][side]["cache"] = record["cache_sha256"]


def bytes_differ(record: Record) -> None:
    """Query 8 of the full layer: one output of three, and its bytes counted."""
    record["cases"][6]["on"]["outputs"][2] = "0" * 64
    record["cases"][6]["differing_output_bytes"] = 4


def cache_differs(record: Record) -> None:
    record["cases"][6]["on"]["cache"] = "0" * 64
    record["cases"][6]["differing_cache_bytes"] = 2


FULL = "layers|full|"
KERNEL = f"on|{FULL}attention|"
FOREIGN = "_C::cpu_attention_with_kv_cache"

MUTANTS: list[tuple[str, str, Lane, Change, Verdict, str]] = [
    ("answers-plan", "lane", "cpu", change("request|lane", "xpu"), Verdict.VOID, "card 1: seen lane, queries, planted"),
    ("answers-plan", "queries", "cpu", change("request|queries", [2, 3]), Verdict.VOID, "('cpu', [2, 3], "),
    ("answers-plan", "planted", "cpu", change("request|planted", "wrong-offset"), Verdict.VOID, "wrong-offset"),
    ("platform-of-lane", "device", "xpu", change("platform|device_type", "cpu"), Verdict.VOID, "('cpu', False, False"),
    ("platform-of-lane", "unspecified", "xpu", change("platform|is_xpu", False), Verdict.VOID, "False, False, False)"),
    ("platform-of-lane", "two", "cpu", change("platform|is_cuda", True), Verdict.VOID, "('cpu', True, True, False)"),
    ("one-card-visible", "two", "xpu", change("platform|visible_devices", 4), Verdict.VOID, "4 visible cards"),
    ("one-card-visible", "none", "cuda", change("platform|visible_devices", 0), Verdict.VOID, "0 visible cards"),
    (
        "card-of-lease",
        "neighbour",
        "xpu",
        change("platform|card", "0000:07:00.0"),
        Verdict.VOID,
        "card 1: seen card 0000:07:00.0; expected the leased 0000:03:00.0",
    ),
    (
        "kernel-of-lane",
        "reference on a device",
        "xpu",
        change("kernels|functions|0|module", "pytest_laguna.engine.reference_kernels"),
        Verdict.VOID,
        "attention called in and served by ('",
    ),
    ("kernel-of-lane", "served", "cuda", change("kernels|served_by|module", XPU_MODULE), Verdict.VOID, XPU_MODULE),
    (
        "kernel-of-lane",
        "served by another",
        "cpu",
        change("kernels|served_by|module", "other"),
        Verdict.VOID,
        "; expected ('",
    ),
    ("kernel-of-lane", "update", "cpu", lose("kernels|functions|1"), Verdict.VOID, "seen no kernel that writes"),
    (
        "compiled-extension",
        "missing",
        "xpu",
        change("kernels|extensions", []),
        Verdict.VOID,
        "_vllm_fa2_C from none; expected one in /vllm_xpu_kernels",
    ),
    (
        "compiled-extension",
        "from elsewhere",
        "cuda",
        change("kernels|extensions|0|file", "/elsewhere/_vllm_fa3_C.abi3.so"),
        Verdict.VOID,
        "_vllm_fa3_C from ['/elsewhere/_vllm_fa3_C.abi3.so']; expected one in /vllm/vllm_flash_attn",
    ),
    (
        "compiled-extension",
        "other version",
        "xpu",
        change("kernels|extensions|0|module", "vllm_xpu_kernels._xpu_C"),
        Verdict.VOID,
        "_vllm_fa2_C from none",
    ),
    ("fallback-forbidden", "allowed", "xpu", lose("kernels|forbidden|0"), Verdict.VOID, "seen forbidden ['vllm"),
    (
        "no-fallback",
        "another library",
        "cpu",
        both(ran_too("on", "attention", FOREIGN), ran_too("off", "attention", FOREIGN)),
        Verdict.FAIL,
        f"card 1: full attention off: seen operators ['{FOREIGN}']; expected plain torch alone",
    ),
    (
        "no-fallback",
        "nothing ran",
        "cpu",
        both(change(f"off|{FULL}update|operators", {}), change(f"on|{FULL}update|operators", {})),
        Verdict.FAIL,
        "card 1: full update off: seen operators none",
    ),
    (
        "no-fallback",
        "reference beside the kernel",
        "xpu",
        both(ran_too("on", "attention", "aten::softmax.int"), ran_too("off", "attention", "aten::softmax.int")),
        Verdict.FAIL,
        " 21 times in 21 calls, plain attention ['aten::softmax.int']",
    ),
    (
        "no-fallback",
        "kernel skipped",
        "cuda",
        both(
            change(f"off|{FULL}attention|operators", {"_vllm_fa3_C::fwd": CALLED - 1}),
            change(f"on|{FULL}attention|operators", {"_vllm_fa3_C::fwd": CALLED - 1}),
        ),
        Verdict.FAIL,
        "_vllm_fa3_C:: 20 times in 21 calls",
    ),
    (
        "no-fallback",
        "update skipped",
        "xpu",
        both(
            change(f"off|{FULL}update|operators", {"aten::index_put_": CALLED}),
            change(f"on|{FULL}update|operators", {"aten::index_put_": CALLED}),
        ),
        Verdict.FAIL,
        "card 1: full update off: seen _C_cache_ops::reshape_and_cache_flash 0 times",
    ),
    ("inputs-frozen", "pages", "cpu", change("cache|shape|0", 8), Verdict.VOID, "the cache shape=[8, 2, 64, 256]"),
    ("inputs-frozen", "layout", "cpu", change("cache|stride|1", 16384), Verdict.VOID, "stride=[32768, 16384, 512, 1]"),
    ("inputs-frozen", "dtype", "cpu", change("cache|dtype", "torch.float16"), Verdict.VOID, "torch.float16"),
    ("inputs-frozen", "window", "cpu", change("on|layers|sliding|window", [512, 0]), Verdict.VOID, "on: seen windows"),
    (
        "inputs-frozen",
        "seed",
        "cpu",
        change("cases|13|seed", 90108),
        Verdict.VOID,
        "q8 sliding: seen seed 90108; expected ",
    ),
    (
        "cases-once",
        "missing",
        "cpu",
        lose("cases|3"),
        Verdict.NOT_PROVEN,
        "card 1: seen no case q5 full; expected 14 cases",
    ),
    ("cases-once", "twice", "cpu", case_twice, Verdict.VOID, "2 cases q2 full; expected q2 to q8 once each"),
    ("both-kinds", "missing", "cpu", lose("on|layers|sliding"), Verdict.NOT_PROVEN, "card 1: seen no sliding layer on"),
    (
        "off-is-stock",
        "class",
        "cpu",
        change(f"off|{FULL}implementation", "laguna_kv.backend.LagunaFlashAttentionImpl"),
        Verdict.FAIL,
        "card 1: full off: seen flag, backend, class ('0', '",
    ),
    ("off-is-stock", "flag", "cpu", change("off|flag", "1"), Verdict.FAIL, "class ('1', 'vllm"),
    ("off-is-stock", "flag told", "cpu", change("off|flag", "1"), Verdict.FAIL, "; expected ('0', 'vllm"),
    (
        "off-is-stock",
        "state",
        "cpu",
        change(f"off|{FULL}state", {"builds": 1, "invalidations": 0, "forward_hits": 21, "update_hits": 21}),
        Verdict.FAIL,
        "card 1: full off: seen the state builds=1",
    ),
    ("on-is-candidate", "backend", "cpu", change("on|backend", "stock.Backend"), Verdict.FAIL, "('1', 'stock.Backend'"),
    ("on-is-candidate", "flag", "cpu", change("on|flag", "0"), Verdict.FAIL, "full on: seen flag, backend, class ('0'"),
    ("on-is-candidate", "state", "cpu", change(f"on|{FULL}state", None), Verdict.FAIL, "full on: seen no state"),
    ("views-built-once", "twice", "cpu", change(f"on|{FULL}state|builds", 2), Verdict.FAIL, "update (2, 0, 21, 21)"),
    (
        "views-built-once",
        "discarded",
        "cpu",
        change(f"on|{FULL}state|invalidations", 1),
        Verdict.FAIL,
        "(1, 1, 21, 21)",
    ),
    ("views-built-once", "unused", "cpu", change(f"on|{FULL}state|forward_hits", 20), Verdict.FAIL, "(1, 0, 20, 21)"),
    ("views-built-once", "raw", "cpu", change(f"on|{FULL}state|update_hits", 0), Verdict.FAIL, "(1, 0, 21, 0)"),
    (
        "calls-counted",
        "fewer",
        "cpu",
        change(f"off|{FULL}attention|calls", 20),
        Verdict.FAIL,
        "attention off: seen 20 calls",
    ),
    (
        "views-reused",
        "new",
        "cpu",
        change(f"{KERNEL}same_objects", 20),
        Verdict.FAIL,
        "attention on: seen 20 of 21 calls",
    ),
    ("views-reused", "moved", "cpu", change(f"{KERNEL}places", 2), Verdict.FAIL, "2 places; expected 21 and 1"),
    (
        "views-reused",
        "raw",
        "cpu",
        change(f"on|{FULL}update|same_objects", 1),
        Verdict.FAIL,
        "full update on: seen 1 of 21",
    ),
    ("views-reused", "blind", "cpu", change(f"off|{FULL}attention|same_objects", 21), Verdict.FAIL, "expected 1 and 1"),
    ("views-equal", "offset", "cpu", change(f"{KERNEL}key|offset", 1), Verdict.FAIL, "full attention: seen key shape"),
    (
        "views-equal",
        "stride",
        "cpu",
        change(f"{KERNEL}value|stride|1", 513),
        Verdict.FAIL,
        "full attention: seen value shape",
    ),
    (
        "views-equal",
        "raw",
        "cpu",
        change(f"on|{FULL}update|key|dtype", "torch.int8"),
        Verdict.FAIL,
        "full update: seen key",
    ),
    (
        "operators-equal",
        "one more",
        "cpu",
        ran_too("on", "attention", "aten::contiguous"),
        Verdict.FAIL,
        "card 1: full attention: seen operator ('aten::contiguous', 1) on one side only",
    ),
    ("caches-equal", "bytes", "cpu", cache_differs, Verdict.FAIL, "q8 full: seen 2 differing bytes of the caches"),
    ("caches-equal", "count", "cpu", change("cases|0|differing_cache_bytes", 3), Verdict.VOID, "3 differing bytes"),
    (
        "caches-equal",
        "digest",
        "cpu",
        change("cases|0|on|cache", "0" * 64),
        Verdict.VOID,
        "0 differing bytes; expected some, by different digests",
    ),
    ("caches-equal", "unwritten", "cpu", nothing_written, Verdict.VOID, "q4 sliding: seen the cache unchanged"),
    (
        "outputs-equal",
        "bytes",
        "cpu",
        bytes_differ,
        Verdict.FAIL,
        "card 1: q8 full: seen 4 differing bytes of the outputs",
    ),
    ("outputs-equal", "count", "cpu", change("cases|0|differing_output_bytes", 3), Verdict.VOID, "3 differing bytes"),
    ("outputs-equal", "digest", "cpu", change("cases|0|on|outputs|1", "0" * 64), Verdict.VOID, "0 differing bytes"),
    ("outputs-equal", "short", "cpu", lose("cases|0|on|outputs|2"), Verdict.NOT_PROVEN, "3 and 2 outputs; expected 3"),
    (
        "outputs-equal",
        "stock not repeatable",
        "cpu",
        change("cases|0|off|outputs|2", "0" * 64),
        Verdict.VOID,
        "q2 full: seen different bytes from equal calls off; expected equal bytes",
    ),
]

TOLD_FIRST = {"both-kinds-missing": "inputs-frozen"}
"""A lost layer has lost its window too."""


@pytest.mark.parametrize("lane", ["cpu", "cuda", "xpu"])
def test_a_good_packet_satisfies_every_rule(lane: Lane) -> None:
    assert judged(good(lane), lane) == {}


def test_every_rule_has_a_mutant() -> None:
    assert {rule for rule, *_ in MUTANTS} == set(RULES)


def test_a_rule_that_does_not_apply_has_its_mutants_on_other_lanes() -> None:
    assert NOT_APPLICABLE.keys() <= RULES.keys()
    for rule, lanes in NOT_APPLICABLE.items():
        assert lanes.isdisjoint(lane for mutated, _, lane, *_ in MUTANTS if mutated == rule)
    assert COMPILED_LANES | NOT_APPLICABLE["compiled-extension"] == KERNELS.keys()
    assert {lane for lane, kernels in KERNELS.items() if not kernels.forbidden} == NOT_APPLICABLE["fallback-forbidden"]


@caught_first("rule name lane mutate verdict reason", MUTANTS, TOLD_FIRST)
def test_the_mutant_is_caught_by_its_rule_alone(  # noqa: PLR0913, PLR0917 - a row of the table
    rule: str, name: str, lane: Lane, mutate: Change, verdict: Verdict, reason: str
) -> list[str]:
    record = good(lane)
    mutate(record)
    found = judged(record, lane)
    assert found[rule][0] is verdict
    assert reason in found[rule][1]
    assert "\n" not in found[rule][1]
    assert found.keys() == {rule, TOLD_FIRST.get(f"{rule}-{name}", rule)}
    return [*found]


def test_another_lane_or_card_than_the_plans_is_void() -> None:
    packet = parse_model(good("cpu"), PacketRecord, "packet")
    assert judge_packet(packet, "cpu", "cpu-slot-0", QUERIES)["card-of-lease"] is not None
    found = judge_packet(packet, "xpu", CARDS["xpu"], QUERIES)
    assert {rule for rule, finding in found.items() if finding is not None} >= {
        "answers-plan", "platform-of-lane", "card-of-lease", "kernel-of-lane", "compiled-extension",
        "fallback-forbidden", "no-fallback",
    }  # fmt: skip


def test_the_published_shape() -> None:
    record = good("cpu")
    assert {kind.query_heads for kind in AttentionKind} == {12, 18}
    assert [case["seed"] for case in record["cases"]][::7] == [91002, 91102]
    assert record["cache"] == {
        "shape": [16, 2, 64, 256], "stride": [32768, 256, 512, 1], "offset": 0, "dtype": "torch.bfloat16"
    }  # fmt: skip
