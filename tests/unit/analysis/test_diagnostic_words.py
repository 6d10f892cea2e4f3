# SPDX-License-Identifier: Apache-2.0
"""What a diagnosis tells word for word: what it only lists, and each reason that more than one part makes up."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_laguna.evidence.arm_record import Arm
from tests import diagnostic_root as root
from tests.diagnostic_root import Change, at, both
from tests.mutants.test_diagnostic_rules import CANDIDATE, CONTROL, EAGER, PROCESS, Q1, acceptance

ALL_PAIRS = [[first, second] for number, first in enumerate(Arm) for second in [*Arm][number + 1 :]]
ACCEPTED = "[34, 34, 34, 34, 34, 34, 34] of 34"
NOT_XPU = "not applicable: no part of it is an XPU's"

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
            "reported: q1 and eager differ in text though not in tokens; q1 and graph-control differ in text though not"
            " in tokens; q1 and graph-candidate differ in text though not in tokens; eager and graph-control identical;"
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


BOUNDS: list[tuple[str, str | None, Change]] = [
    ("arms-fresh/within-process", None, within_wall(49.5)),
    ("arms-fresh/within-process", "VOID", within_wall(49.25)),
    ("drafts-bounded/cycles-account", None, acceptance(EAGER, 34, [34] * 6 + [33])),
    ("drafts-bounded/cycles-account", "VOID", acceptance(EAGER, 34, [34] * 6 + [32])),
    ("drafts-bounded/cycles-account", None, acceptance(EAGER, 35, [35] * 6 + [33])),
    ("drafts-bounded/cycles-account", "VOID", acceptance(EAGER, 35, [35] * 6 + [34])),
    ("drafts-bounded/accepted-enough", None, acceptance(EAGER, 136, [136, 1, 0, 0, 0, 0, 0])),
    ("arms-fresh/in-order", "VOID", at(EAGER, "ranks|1|process|start_ticks", 100_001)),
    ("arms-fresh/in-order", None, at(EAGER, "ranks|1|process|start_ticks", 100_002)),
]


@pytest.mark.parametrize(("rule", "verdict", "change"), BOUNDS, ids=range(len(BOUNDS)))
def test_where_a_bound_lies(rule: str, verdict: str | None, change: Change, tmp_path: Path) -> None:
    tree = root.good()
    change(tree)
    assert root.findings(root.judged(tree, tmp_path)).get(rule, (None, ""))[0] == verdict
