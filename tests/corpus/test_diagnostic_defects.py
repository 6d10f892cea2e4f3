# SPDX-License-Identifier: Apache-2.0
"""Published harness defects that a diagnostic's evidence shows: each planted in a good one, and refused by its rule.

The rehearsal in gate 1 runs these rules on evidence that the real emitters wrote. Numbers: docs/rehearsal.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_laguna.analysis.arms.engine_identity import judge_identity
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.arm_record import Arm
from tests import diagnostic_root as root
from tests.diagnostic_root import SAMPLES, Change, at, both, without
from tests.mutants import test_engine_identity_rules as identity

CONTROL, CANDIDATE = (f"arms/{arm}/record.json" for arm in (Arm.GRAPH_CONTROL, Arm.GRAPH_CANDIDATE))
EAGER = "arms/eager/record.json"
PROFILE = "arms/graph-candidate/profile/rank1.json"
OTHER = "1" * 64


def _draft_of(layers: int) -> Change:
    """A draft that has more layers than anybody counted."""
    content = root.DRAFT_CONFIG | {"num_hidden_layers": layers}
    digest = files.digest_of(content)
    return both(
        lambda tree: tree.update({"draft-config.json": content}),
        at("identity.json", "models|folders|1|files|0|sha256", digest),
    )


def _two_places_off(tree: root.Tree) -> None:
    """A graph and a collective segment have changed places, as in an analyser whose fixture had the same error."""
    kinds = tree[PROFILE]["kinds"]
    kinds[2], kinds[4] = kinds[4], kinds[2]
    kinds[1], kinds[2] = kinds[2], kinds[1]


DEFECTS: dict[str, tuple[Change, str, str, str]] = {
    "03-arm-local-path-is-no-treatment": (
        at(CANDIDATE, "environment|LAGUNA_REPLAY_PROFILE_ROOT", "/elsewhere/profile"),
        "sole-treatment/sole-treatment",
        "VOID",
        "LAGUNA_REPLAY_PROFILE_ROOT '<arm>/profile' and '/elsewhere/profile'",
    ),
    "04-update-counted-at-replay": (
        both(*(at(PROFILE, f"samples|{sample}|views|update_calls", root.LAYERS) for sample in range(SAMPLES))),
        "view-preparations/preparations-counted",
        "FAIL",
        "forward, update and ns of update (48, 48, 0); expected (48, 0, 0)",
    ),
    "07-eager-arm-with-graphs": (
        at(EAGER, "configuration|resolved|cudagraph_mode", "PIECEWISE"),
        "sole-treatment/teachers-same-engine",
        "VOID",
        "eager: cudagraph_mode: seen 'PIECEWISE'; expected 'NONE'",
    ),
    "10-draft-layers-not-counted": (
        _draft_of(6),
        "selector-proven/layers-of-models",
        "FAIL",
        "eager rank 0: seen target and draft layers (48, 2); expected (48, 6)",
    ),
    "12-event-order-two-places-off": (
        _two_places_off,
        "replay-samples/segments-planned",
        "FAIL",
        f"; expected 291 in order {root.TOPOLOGY.order_sha256}",
    ),
    "30-filtered-card-is-renumbered": (
        at("packets/1/record.json", "platform|card", root.CARDS[0]),
        "parity-packets/card-of-lease",
        "VOID",
        f"card 1: seen card {root.CARDS[0]}",
    ),
    "32-helper-in-place-of-the-class": (
        at("packets/1/record.json", "on|layers|full|implementation", "laguna_kv.views.build_views"),
        "parity-packets/on-is-candidate",
        "FAIL",
        "card 1: full on: seen flag, backend, class ('1', ",
    ),
    "36-selector-without-a-reader": (
        at(CANDIDATE, "ranks|1|candidate|flag", False),
        "selector-proven/candidate-active",
        "FAIL",
        "rank 1: seen flag, classes, lane, validator (False",
    ),
    "37-marker-of-one-rank-only": (
        without(PROFILE),
        "replay-samples/files-whole",
        "NOT_PROVEN",
        "graph-candidate rank 1: seen 5 of 5 replays, and no profile; expected both whole",
    ),
    "43-raw-prompt-in-one-arm": (
        at(CANDIDATE, "prompt_token_sha256", OTHER),
        "arms-fresh/same-models-and-prompt",
        "VOID",
        "graph-candidate: seen prompt tokens ",
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_the_defect_is_refused_for_its_reason(name: str, tmp_path: Path) -> None:
    plant, rule, verdict, reason = DEFECTS[name]
    tree = root.good()
    plant(tree)
    found = root.findings(root.judged(tree, tmp_path))
    assert found[rule][0] == verdict
    assert reason in found[rule][1]


def test_03_the_arms_own_profile_roots_are_no_treatment(tmp_path: Path) -> None:
    """What the third published attempt was lost to holds here: the roots differ, and nothing is found."""
    tree = root.good()
    paths = {tree[record]["environment"]["LAGUNA_REPLAY_PROFILE_ROOT"] for record in (CONTROL, CANDIDATE)}
    assert len(paths) == 2
    assert root.findings(root.judged(tree, tmp_path)) == {}


IDENTITY_DEFECTS: dict[str, tuple[identity.Change, str, str]] = {
    "34-library-not-tied-to-its-commit": (
        identity._at("packets|0|1|inode", 5),
        "binaries-on-disk",
        "packet 0: ",
    ),
    "44-another-copy-than-the-hashed-one": (
        identity._also_mapped("/elsewhere/laguna_kv/_contract.so", "packets|0"),
        "native-mapped",
        "/elsewhere/laguna_kv/_contract.so",
    ),
}


@pytest.mark.parametrize("name", IDENTITY_DEFECTS)
def test_another_binary_is_refused_for_its_reason(name: str) -> None:
    plant, rule, reason = IDENTITY_DEFECTS[name]
    values = identity._good()
    plant(values)
    finding = judge_identity(identity._case(values))[rule]
    assert finding is not None
    assert (finding[0], reason in finding[1]) == ("VOID", True)
