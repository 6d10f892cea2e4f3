# SPDX-License-Identifier: Apache-2.0
"""Gate 2 of the persistent KV-cache views: the exact diagnostic, with one test for each of the campaign's clauses.

The diagnostic runs once, before the first clause is looked at: a parity packet on each card, then the four arms, each
in a fresh process. Every clause is then what the analysis of the raw files says of it; ``laguna verify`` derives the
same again from the same files, and the worse of the two counts. The file is named after the lane that the
preregistration is about; it runs on every lane.
"""

from __future__ import annotations

import pytest

from pytest_laguna.analysis.arms.case import exercised
from pytest_laguna.evidence.diagnostic.analysis import Diagnosis
from pytest_laguna.experiments.experiment import Derived
from pytest_laguna.fixtures import Prove, prove_clause
from pytest_laguna.verdict import JSON


@pytest.mark.gate(2)
@pytest.mark.clause("identity-exact")
def test_source_binary_model_environment_and_flag_identity_is_exact(
    prove: Prove, diagnosis: Derived[Diagnosis]
) -> None:
    """Everything that ran was frozen, and did not change."""
    prove_clause(prove, diagnosis, "identity-exact", "engine, sources, models and mapped binaries are the frozen ones")


@pytest.mark.gate(2)
@pytest.mark.clause("cards-idle")
def test_the_cards_are_idle_before_and_after_every_run(prove: Prove, diagnosis: Derived[Diagnosis]) -> None:
    """No holder, memory at its baseline, no worker left."""
    prove_clause(prove, diagnosis, "cards-idle", "the cards were idle before the first run and after each")


@pytest.mark.gate(2)
@pytest.mark.clause("host-within-limits")
def test_the_host_stays_within_its_limits(prove: Prove, diagnosis: Derived[Diagnosis]) -> None:
    """Around every run."""
    rules = exercised(diagnosis.analysis.clauses["host-within-limits"])
    prove_clause(prove, diagnosis, "host-within-limits", f"the host kept to every limit that is set: {rules}")


@pytest.mark.gate(2)
@pytest.mark.clause("parity-packets")
def test_attention_is_bitwise_equal_on_every_card(prove: Prove, diagnosis: Derived[Diagnosis]) -> None:
    """Selector off against selector on, for every verification length and both kinds of attention."""
    prove_clause(
        prove, diagnosis, "parity-packets", "attention outputs and caches are equal byte by byte on every card"
    )


@pytest.mark.gate(2)
@pytest.mark.clause("arms-fresh")
def test_each_arm_is_one_cold_generation_in_a_fresh_process(prove: Prove, diagnosis: Derived[Diagnosis]) -> None:
    """In order q1, eager, graph-control, graph-candidate; no warm-up and no retry."""
    prove_clause(
        prove, diagnosis, "arms-fresh", "four fresh processes made one cold generation each and ended by themselves"
    )


@pytest.mark.gate(2)
@pytest.mark.clause("cache-cold")
def test_no_token_comes_from_a_cache(prove: Prove, diagnosis: Derived[Diagnosis]) -> None:
    """cached_tokens is 0."""
    prove_clause(prove, diagnosis, "cache-cold", "cached_tokens is 0 in every arm")


@pytest.mark.gate(2)
@pytest.mark.clause("tokens-identical")
def test_tokens_are_bitwise_identical(prove: Prove, diagnosis: Derived[Diagnosis]) -> None:
    """Between the campaign's required pairs of arms; the others are reported."""
    prove_clause(prove, diagnosis, "tokens-identical", "tokens and text are equal bit by bit where that is required")


@pytest.mark.gate(2)
@pytest.mark.clause("drafts-bounded")
def test_draft_depth_is_unchanged_and_acceptance_bounded(prove: Prove, diagnosis: Derived[Diagnosis]) -> None:
    """Equal depth, and acceptance rates within the campaign's bound of each other."""
    prove_clause(prove, diagnosis, "drafts-bounded", "draft depth is equal and acceptance is within its bounds")


@pytest.mark.gate(2)
@pytest.mark.clause("topology-unchanged")
def test_the_graphs_topology_is_the_derived_one_on_every_rank(prove: Prove, diagnosis: Derived[Diagnosis]) -> None:
    """Derived from the model's configuration before anything ran."""
    prove_clause(
        prove, diagnosis, "topology-unchanged", "every rank captured the derived graphs and breaks in their order"
    )


@pytest.mark.gate(2)
@pytest.mark.clause("sole-treatment")
def test_the_flag_is_the_sole_treatment(prove: Prove, diagnosis: Derived[Diagnosis]) -> None:
    """The graph arms differ in it and in arm-local paths."""
    prove_clause(prove, diagnosis, "sole-treatment", "the graph arms differ in the flag and in arm-local paths only")


@pytest.mark.gate(2)
@pytest.mark.clause("selector-proven")
def test_every_rank_proves_which_backend_ran(prove: Prove, diagnosis: Derived[Diagnosis]) -> None:
    """Stock classes with the flag off, the candidate's with one state a layer with it on."""
    prove_clause(prove, diagnosis, "selector-proven", "every rank ran the backend that its flag selects")


@pytest.mark.gate(2)
@pytest.mark.clause("replay-samples")
def test_every_rank_of_both_graph_arms_has_its_samples(prove: Prove, diagnosis: Derived[Diagnosis]) -> None:
    """All of them, consistent in themselves, of one batch and one topology."""
    prove_clause(prove, diagnosis, "replay-samples", "every rank of both graph arms has its profiled replays")


@pytest.mark.gate(2)
@pytest.mark.clause("view-preparations")
def test_every_replay_prepares_views_exactly_as_derived(prove: Prove, diagnosis: Derived[Diagnosis]) -> None:
    """One forward preparation a layer, none for the update, and hits without builds in the candidate."""
    prove_clause(prove, diagnosis, "view-preparations", "every replay prepared views as often as derived")


@pytest.mark.gate(2)
@pytest.mark.clause("timing")
def test_the_six_timing_gates(prove: Prove, diagnosis: Derived[Diagnosis]) -> None:
    """All must pass if timing decides; else they are reported beside the published rules' verdicts."""
    gates: dict[str, JSON] = {name: gate.canonical() for name, gate in (diagnosis.analysis.timing or {}).items()}
    prove_clause(
        prove,
        diagnosis,
        "timing",
        "the six timing gates were computed from every sample",
        decides=diagnosis.analysis.decides,
        published=diagnosis.analysis.published,
        gates=gates,
    )
