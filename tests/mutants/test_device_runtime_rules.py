# SPDX-License-Identifier: Apache-2.0
"""Every rule over what an XPU's engine stands on has a mutant: a good case with one fact changed."""

from __future__ import annotations

import dataclasses

from pytest_laguna.analysis.arms.engine_identity import IDENTITY_RULES, judge_identity
from pytest_laguna.analysis.arms.identity_case import IdentityCase
from pytest_laguna.analysis.machine.device_runtime import RUNTIME_RULES
from pytest_laguna.evidence.machine.xpu_stack import STACKS
from pytest_laguna.verdict import Verdict
from tests.caught_first import caught_first
from tests.mutants import test_engine_identity_rules as engine
from tests.mutants.test_engine_identity_rules import Change, Values

STACK = STACKS[0]
RUNTIME, STATES = "identity|engine|runtime|", ("identity|engine|state|", "identity|engine_after|")
TORCH = engine.TORCH
KERNEL = f"{engine.SITE}/vllm_xpu_kernels/_vllm_fa2_C.abi3.so"
GONE = {"name": "libgrouped_gemm_xe_default.so", "needed_by": "_xpu_C.abi3.so", "renamed": None}
VOID, MISSING = Verdict.VOID, Verdict.NOT_PROVEN


def good() -> Values:
    """An engine for an XPU, of which every process loaded what was hashed before."""
    values = engine._good()
    engine._also_mapped(KERNEL, *[f"ranks|{arm}|{rank}" for arm in values["ranks"] for rank in (0, 1)])(values)
    kernels = engine._distribution("vllm_xpu_kernels") | {"version": STACK.kernels}
    versions = {"torch": f"{STACK.torch}+xpu", "vllm": f"{STACK.vllm}+xpu"}
    for state in (values["identity"]["engine"]["state"], values["identity"]["engine_after"]):
        for number, (name, version) in enumerate(versions.items()):
            state["distributions"][number] |= {"name": name, "version": version}
        state["distributions"].append(dict(kernels))
    values["identity"]["engine"]["content"]["distributions"][kernels["metadata"]] = engine._content("5" * 64)
    values |= {"versions": dict.fromkeys(values["ranks"], versions), "packet_versions": {0: versions}}
    digests = {KERNEL: "7" * 64, TORCH: engine.DIGESTS[TORCH]}
    values["identity"]["engine"]["runtime"] = {
        "host": {"kernel": "6.17.0", "driver": "built in", "packages": {}},
        "closure": {
            "libraries": [
                {"path": path, "link": None, "target": path, "soname": None, "needed": [], "sha256": digest}
                for path, digest in digests.items()
            ],
            "absent": [],
        },
    }
    return values


def case(values: Values, lane: str = "xpu") -> IdentityCase:
    made = engine._case(values)
    arms = {
        arm: record.model_copy(update={"request": record.request.model_copy(update={"lane": lane})})
        for arm, record in made.arms.items()
    }
    return dataclasses.replace(made, arms=arms)


def _ran(torch: str) -> Change:
    """Every arm and packet ran that torch."""

    def change(values: Values) -> None:
        for said in (values["versions"], values["packet_versions"]):
            said |= {place: versions | {"torch": torch} for place, versions in said.items()}

    return change


MUTANTS: list[tuple[str, str, Change, Verdict, str]] = [
    (
        "stack-fits",
        "another torch",
        engine._both(*(engine._at(f"{path}distributions|0|version", "2.8.0+xpu") for path in STATES), _ran("2.8.0")),
        VOID,
        f"torch 2.8.0+xpu does not go with vllm {STACK.vllm}+xpu; expected {STACK}",
    ),
    (
        "stack-fits",
        "no kernels",
        engine._both(*(engine._without(f"{path}distributions|-1") for path in STATES)),
        VOID,
        "vllm-xpu-kernels absent does not go with",
    ),
    (
        "closure-whole",
        "not recorded",
        engine._at("identity|engine|runtime", None),
        MISSING,
        "vllm-xpu-kernels: seen no ",
    ),
    (
        "closure-whole",
        "nothing found",
        engine._at(f"{RUNTIME}closure|libraries", []),
        MISSING,
        "seen no library; expected its closure",
    ),
    (
        "closure-whole",
        "two are missing",
        engine._at(f"{RUNTIME}closure|absent", [GONE, GONE | {"name": "libsycl.so.9"}]),
        VOID,
        "libgrouped_gemm_xe_default.so: needed by _xpu_C.abi3.so, and in none of its directories, and 1 more",
    ),
    ("closure-whole", "no driver", engine._at(f"{RUNTIME}host|driver", None), VOID, "seen no driver xe"),
    (
        "closure-mapped",
        "not recorded",
        engine._at("identity|engine|runtime", None),
        MISSING,
        "vllm-xpu-kernels: seen no ",
    ),
    (
        "closure-mapped",
        "another copy",
        engine._also_mapped("/opt/intel/lib/libtorch_cpu.so", "ranks|q1|0", "ranks|q1|1"),
        VOID,
        f"q1 rank 0: seen mapped /opt/intel/lib/libtorch_cpu.so; expected {TORCH}, which was hashed before",
    ),
    (
        "closure-mapped",
        "rebuilt",
        engine._at(f"{RUNTIME}closure|libraries|0|sha256", "8" * 64),
        VOID,
        f"q1 rank 0: seen {KERNEL} with digest {'7' * 64}; expected {'8' * 64}, hashed before",
    ),
]


def test_a_good_case_satisfies_every_rule() -> None:
    for lane in ("xpu", "cpu"):  # what is recorded is judged whatever the arms say
        assert judge_identity(case(good(), lane)) == dict.fromkeys(IDENTITY_RULES)


def test_every_rule_has_a_mutant() -> None:
    assert {rule for rule, *_ in MUTANTS} == set(RUNTIME_RULES)


TOLD_FIRST = {"closure-mapped-not recorded": "closure-whole"}
"""What would be loaded is missed by both."""


@caught_first("rule name change verdict reason", MUTANTS, TOLD_FIRST)
def test_the_mutant_is_caught_by_its_rule(rule: str, change: Change, verdict: Verdict, reason: str) -> list[str]:
    values = good()
    change(values)
    found = judge_identity(case(values))
    finding = found[rule]
    assert finding is not None
    assert finding[0] is verdict
    assert reason in finding[1]
    assert "\n" not in finding[1]
    return engine.against(found)


def test_what_has_no_part_of_an_xpu_is_not_judged_and_proves_nothing() -> None:
    values = good()
    engine._at("identity|engine|runtime", None)(values)
    assert {name: rule(case(values, "cpu")) for name, rule in RUNTIME_RULES.items()} == dict.fromkeys(
        RUNTIME_RULES, (None, "not applicable: no XPU engine is recorded")
    )


def test_what_is_missing_alone_is_all_that_is_told() -> None:
    values = good()
    engine._at(f"{RUNTIME}closure|absent", [GONE])(values)
    finding = RUNTIME_RULES["closure-whole"](case(values))
    assert finding is not None
    assert finding[1].endswith("in none of its directories")


def test_modules_of_one_name_are_of_several_packages() -> None:
    values = good()
    engine._also_mapped("/engine/lib/other/_vllm_fa2_C.abi3.so", "ranks|q1|0")(values)
    assert RUNTIME_RULES["closure-mapped"](case(values)) is None
