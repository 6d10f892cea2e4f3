# SPDX-License-Identifier: Apache-2.0
"""Gate 3 of the persistent KV-cache views: the endpoint crossover, with one test for each of the campaign's clauses.

The legs run once, before the first clause is looked at: A1, B1, B2, A2, each a fresh server and one pass of the suite.
Every clause is then what the analysis of the raw files says of it; ``laguna verify`` derives the same again from the
same files, and the worse of the two counts. Where the lane decides by exactness, figures of time are reported.
"""

from __future__ import annotations

import pytest

from pytest_laguna.evidence.endpoint.analysis import EndpointAnalysis
from pytest_laguna.experiments.experiment import Derived
from pytest_laguna.fixtures import Prove, prove_clause


@pytest.mark.gate(3)
@pytest.mark.clause("legs-fresh")
def test_each_leg_is_one_pass_on_a_fresh_server(prove: Prove, crossover: Derived[EndpointAnalysis]) -> None:
    """No warm-up, no retry, no other request; nothing is left of the server."""
    prove_clause(prove, crossover, "legs-fresh", "every leg is one pass of the suite on a fresh server of ours")


@pytest.mark.gate(3)
@pytest.mark.clause("legs-in-order")
def test_the_legs_run_in_the_frozen_order(prove: Prove, crossover: Derived[EndpointAnalysis]) -> None:
    """A1, B1, phase 1, B2, A2; none is repeated, replaced or added."""
    prove_clause(prove, crossover, "legs-in-order", "the legs ran in the frozen order, each once")


@pytest.mark.gate(3)
@pytest.mark.clause("identity-exact")
def test_engine_and_models_are_those_of_gate_2(prove: Prove, crossover: Derived[EndpointAnalysis]) -> None:
    """The content proven by the diagnostic, whatever its path."""
    prove_clause(
        prove,
        crossover,
        "identity-exact",
        "engine and models are those that gate 2 proved, unchanged through every leg",
    )


@pytest.mark.gate(3)
@pytest.mark.clause("cards-idle")
def test_the_cards_are_idle_before_and_after_every_leg(prove: Prove, crossover: Derived[EndpointAnalysis]) -> None:
    """Over the campaign's interval, by snapshots of that place and time; the host's limits belong to it."""
    statement = "the cards were idle before and after every leg, and the host was within its limits around each"
    prove_clause(prove, crossover, "cards-idle", statement)


@pytest.mark.gate(3)
@pytest.mark.clause("sole-treatment")
def test_the_flag_is_the_sole_treatment(prove: Prove, crossover: Derived[EndpointAnalysis]) -> None:
    """As told to the servers and as their ranks saw it."""
    prove_clause(
        prove, crossover, "sole-treatment", "legs differ in the flag alone, and every rank runs what it selects"
    )


@pytest.mark.gate(3)
@pytest.mark.clause("captures-proven")
def test_every_rank_captured_the_derived_graphs_before_the_first_request(
    prove: Prove, crossover: Derived[EndpointAnalysis]
) -> None:
    """Silent loss of all graphs leaves the tokens right."""
    prove_clause(
        prove, crossover, "captures-proven", "every rank had captured the derived graphs before the first request"
    )


@pytest.mark.gate(3)
@pytest.mark.clause("cache-cold")
def test_no_token_comes_from_a_cache(prove: Prove, crossover: Derived[EndpointAnalysis]) -> None:
    """In the answers, in the gathered rows, and in the rows read again."""
    prove_clause(
        prove, crossover, "cache-cold", "cached tokens are 0 in all three copies, and the cache counters agree"
    )


@pytest.mark.gate(3)
@pytest.mark.clause("prompts-fresh")
def test_every_prompt_is_asked_once_and_cold(prove: Prove, crossover: Derived[EndpointAnalysis]) -> None:
    """No history, no n-gram, no reuse."""
    prove_clause(prove, crossover, "prompts-fresh", "every prompt is unique and was asked once in each leg")


@pytest.mark.gate(3)
@pytest.mark.clause("counters-true")
def test_the_counters_are_true(prove: Prove, crossover: Derived[EndpointAnalysis]) -> None:
    """An identity violated by the counters makes a leg unusable."""
    prove_clause(prove, crossover, "counters-true", "the counters start at zero and add up with the rows")


@pytest.mark.gate(3)
@pytest.mark.clause("teacher-exact")
def test_every_row_equals_the_canonical_teacher(prove: Prove, crossover: Derived[EndpointAnalysis]) -> None:
    """13 of 13 a leg."""
    prove_clause(
        prove,
        crossover,
        "teacher-exact",
        "every row equals the canonical q1 teacher's, token by token",
        exactness=crossover.analysis.exactness.canonical(),
    )


@pytest.mark.gate(3)
@pytest.mark.clause("cross-leg-exact")
def test_the_legs_agree_row_by_row(prove: Prove, crossover: Derived[EndpointAnalysis]) -> None:
    """39 of 39."""
    prove_clause(prove, crossover, "cross-leg-exact", "every later leg equals the first, token by token")


@pytest.mark.gate(3)
@pytest.mark.clause("long-next")
def test_the_row_after_a_whole_row_is_exact(prove: Prove, crossover: Derived[EndpointAnalysis]) -> None:
    """State left over from a row would show here."""
    prove_clause(prove, crossover, "long-next", "the first row runs to its end and the next is exact")


@pytest.mark.gate(3)
@pytest.mark.clause("rollover")
def test_the_rollover_row_is_exact(prove: Prove, crossover: Derived[EndpointAnalysis]) -> None:
    """The prompt across the cache's windows."""
    prove_clause(prove, crossover, "rollover", "the one rollover row is exact")


@pytest.mark.gate(3)
@pytest.mark.clause("acceptance-drift")
def test_acceptance_does_not_drift(prove: Prove, crossover: Derived[EndpointAnalysis]) -> None:
    """An exact candidate accepts the same drafts as the control."""
    prove_clause(prove, crossover, "acceptance-drift", "acceptance rates of adjacent legs differ by at most the bound")


@pytest.mark.gate(3)
@pytest.mark.clause("adjacent-pairs")
def test_the_adjacent_pairs(prove: Prove, crossover: Derived[EndpointAnalysis]) -> None:
    """B1 against A1 and B2 against A2, and never otherwise."""
    prove_clause(
        prove,
        crossover,
        "adjacent-pairs",
        "the adjacent pairs were measured",
        pairs=[pair.canonical() for pair in crossover.analysis.pairs],
        legs=[leg.canonical() for leg in crossover.analysis.legs],
    )


@pytest.mark.gate(3)
@pytest.mark.clause("control-health")
def test_the_controls_are_healthy(prove: Prove, crossover: Derived[EndpointAnalysis]) -> None:
    """A slow control makes any candidate look good."""
    prove_clause(prove, crossover, "control-health", "the controls were compared with the record")


@pytest.mark.gate(3)
@pytest.mark.clause("promotion")
def test_promotion(prove: Prove, crossover: Derived[EndpointAnalysis]) -> None:
    """Only the lower candidate start, only strictly above the record."""
    prove_clause(
        prove,
        crossover,
        "promotion",
        "promotion was weighed by the lower candidate start",
        disposition=crossover.analysis.disposition.value,
        published=crossover.analysis.published_verdict.value,
        promotion=crossover.analysis.promotion.canonical() if crossover.analysis.promotion else None,
        repetition=crossover.analysis.repetition.canonical() if crossover.analysis.repetition else None,
    )
