# SPDX-License-Identifier: Apache-2.0
"""Gate 2 of the current-stream event profile: one teacher, one profiled replay, and one test a clause.

The arms run once, before the first clause is looked at, each in a fresh process: q1, graph-event, and where the
campaign tries its instrument graph-fitness. Every clause is then what the analysis of the raw files says of it;
``laguna verify`` derives the same again. A complete profile passes with the published status
``exact_event_profile_stop``: it authorises research and neither an endpoint nor a submission, whatever it shows.
"""

from __future__ import annotations

import pytest

from pytest_laguna.analysis.arms.case import exercised
from pytest_laguna.evidence.events.analysis import EventAnalysis
from pytest_laguna.experiments.experiment import Derived
from pytest_laguna.fixtures import Prove, prove_clause


@pytest.mark.gate(2)
@pytest.mark.clause("identity-exact")
def test_source_binary_model_and_environment_identity_is_exact(
    prove: Prove, event_profile: Derived[EventAnalysis]
) -> None:
    """Everything that ran was frozen, and did not change."""
    prove_clause(
        prove, event_profile, "identity-exact", "engine, sources, models and mapped binaries are the frozen ones"
    )


@pytest.mark.gate(2)
@pytest.mark.clause("cards-idle")
def test_the_cards_are_idle_before_and_after_every_arm(prove: Prove, event_profile: Derived[EventAnalysis]) -> None:
    """No holder, memory at its baseline, no worker left."""
    prove_clause(prove, event_profile, "cards-idle", "the cards were idle before the first arm and after each")


@pytest.mark.gate(2)
@pytest.mark.clause("host-within-limits")
def test_the_host_stays_within_its_limits(prove: Prove, event_profile: Derived[EventAnalysis]) -> None:
    """Around every arm."""
    rules = exercised(event_profile.analysis.clauses["host-within-limits"])
    prove_clause(prove, event_profile, "host-within-limits", f"the host kept to every limit that is set: {rules}")


@pytest.mark.gate(2)
@pytest.mark.clause("arms-fresh")
def test_each_arm_is_one_cold_generation_in_a_fresh_process(
    prove: Prove, event_profile: Derived[EventAnalysis]
) -> None:
    """In their order; no warm-up and no retry."""
    prove_clause(
        prove, event_profile, "arms-fresh", "fresh processes made one cold generation each and ended by themselves"
    )


@pytest.mark.gate(2)
@pytest.mark.clause("cache-cold")
def test_no_token_comes_from_a_cache(prove: Prove, event_profile: Derived[EventAnalysis]) -> None:
    """cached_tokens is 0."""
    prove_clause(prove, event_profile, "cache-cold", "cached_tokens is 0 in every arm")


@pytest.mark.gate(2)
@pytest.mark.clause("tokens-identical")
def test_tokens_and_text_are_those_of_the_teacher(prove: Prove, event_profile: Derived[EventAnalysis]) -> None:
    """Bit for bit: the instrument changes nothing."""
    prove_clause(prove, event_profile, "tokens-identical", "tokens and text of every arm are those of q1 bit by bit")


@pytest.mark.gate(2)
@pytest.mark.clause("topology-unchanged")
def test_the_graphs_topology_is_the_derived_one_on_every_rank(
    prove: Prove, event_profile: Derived[EventAnalysis]
) -> None:
    """Derived from the model's configuration before anything ran."""
    prove_clause(
        prove, event_profile, "topology-unchanged", "every rank captured the derived graphs and breaks in their order"
    )


@pytest.mark.gate(2)
@pytest.mark.clause("profile-complete")
def test_every_rank_has_its_one_whole_profile(prove: Prove, event_profile: Derived[EventAnalysis]) -> None:
    """One event before the first callback and one after each, on one stream, adjacent and of the planned kinds."""
    prove_clause(
        prove,
        event_profile,
        "profile-complete",
        "every rank timed one whole replay by events on one stream",
        rank_total_ns=dict(event_profile.analysis.rank_total_ns),
    )


@pytest.mark.gate(2)
@pytest.mark.clause("closure-bound")
def test_the_closure_binds_every_file_of_the_checks(prove: Prove, event_profile: Derived[EventAnalysis]) -> None:
    """By digest, and nothing was generated beyond the arms."""
    prove_clause(prove, event_profile, "closure-bound", "the closure binds every file that is looked at")


@pytest.mark.gate(2)
@pytest.mark.clause("instrument-fit")
def test_the_instrument_is_tried_as_planned(prove: Prove, event_profile: Derived[EventAnalysis]) -> None:
    """A planned replay with events is within the limit; without a plan the fitness is unmeasured."""
    figures = event_profile.analysis.fitness_figures
    prove_clause(
        prove,
        event_profile,
        "instrument-fit",
        f"the instrument's fitness is {event_profile.analysis.fitness}",
        figures=None if figures is None else figures.canonical(),
    )


@pytest.mark.gate(2)
@pytest.mark.clause("decision")
def test_the_decision_rule_is_applied_to_the_slowest_rank(prove: Prove, event_profile: Derived[EventAnalysis]) -> None:
    """Chosen by its total; the category sums are its own."""
    chosen = event_profile.analysis.selected
    prove_clause(
        prove,
        event_profile,
        "decision",
        f"{event_profile.analysis.status}; next: {event_profile.analysis.action}",
        selected=None if chosen is None else chosen.model_copy(update={"ranges": None}).canonical(),
        global_critical_path_validated=event_profile.analysis.global_critical_path_validated,
        collective_cross_stream_completion_validated=event_profile.analysis.collective_cross_stream_completion_validated,
        device_work_only=event_profile.analysis.device_work_only,
    )
