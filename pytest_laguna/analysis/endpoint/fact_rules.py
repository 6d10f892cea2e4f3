# SPDX-License-Identifier: Apache-2.0
"""Rules over a leg's declared facts: each names its observation, and contradicts no other part of the record."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytest_laguna.analysis.endpoint.case import LegCase
from pytest_laguna.analysis.findings import Finding
from pytest_laguna.evidence.endpoint.leg import Fact
from pytest_laguna.evidence.endpoint.server_command import TEXT_DRAFTERS
from pytest_laguna.verdict import Verdict


def no_retry(case: LegCase) -> Finding | None:
    """Rule ``no-retry``: each row was requested once; request and response ids are all different."""
    found = _declared(case.leg.facts.no_retry)
    if found is not None:
        return found
    rows = case.leg.rows
    if case.leg.posted != len(rows):
        return Verdict.VOID, f"requests: seen {case.leg.posted} for {len(rows)} rows; expected one each"
    for name, ids in (("request", [row.request_id for row in rows]), ("response", [row.response_id for row in rows])):
        if len(set(ids)) != len(ids):
            return Verdict.VOID, f"{name} ids: seen {len(set(ids))} in {len(ids)} rows; expected each once"
    return None


def no_warm_up(case: LegCase) -> Finding | None:
    """Rule ``no-warm-up``: nothing was generated before the first row."""
    found = _declared(case.leg.facts.no_warm_up)
    generated = case.leg.counters_before.generated_tokens
    if found is None and generated:
        return Verdict.VOID, f"before the first row: seen {generated} generated tokens; expected none"
    return found


def fresh_service(case: LegCase) -> Finding | None:
    """Rule ``fresh-service``: this leg started the server, and the same processes served all of it."""
    found = _declared(case.leg.facts.fresh_service)
    if found is not None:
        return found
    begun, server = case.leg.begun_ticks, case.leg.server.start_ticks
    ranks = [state.start_ticks for state in case.states]
    if not begun <= server <= min(ranks, default=server):
        told = f"seen the leg begin at {begun}, the server at {server} and its ranks at {sorted({*ranks})}"
        return Verdict.VOID, f"start ticks: {told}; expected that order"
    moments = [
        sorted((state.rank, state.pid, state.start_ticks) for state in states)
        for states in (case.leg.ranks_captured, case.leg.ranks_served)
    ]
    if moments[0] != moments[1]:
        told = f"seen {moments[0]} before and {moments[1]} after"
        return Verdict.VOID, f"ranks, pids and starts: {told}; expected the same"
    return None


def no_network(case: LegCase) -> Finding | None:
    """Rule ``no-network``: snapshots after every row show no socket of the server to another host."""
    found = _declared(case.leg.facts.no_network)
    if found is not None:
        return found
    listener = f"tcp {case.leg.server.listener_before.address} -> listening"
    for snapshot in case.leg.sockets:
        if snapshot.foreign:
            return Verdict.VOID, f"after {snapshot.moment}: seen a socket to {snapshot.foreign[0]}; expected none"
        if listener not in snapshot.local:
            told = f"after {snapshot.moment}: seen no socket of the server itself"
            return Verdict.NOT_PROVEN, f"{told}; expected {listener}, as proof of a working snapshot"
    moments = {snapshot.moment for snapshot in case.leg.sockets}
    unseen = [row.prompt_id for row in case.leg.rows if row.prompt_id not in moments]
    if unseen:
        return Verdict.NOT_PROVEN, f"after {unseen[0]}: seen no snapshot of the sockets; expected one after every row"
    return None


def no_history(case: LegCase) -> Finding | None:
    """Rule ``no-history``: no row's prompt contains an earlier row."""
    return _declared(case.leg.facts.no_history)


def no_ngram(case: LegCase) -> Finding | None:
    """Rule ``no-ngram``: a draft model on every rank made all proposals, and no text drafter any."""
    found = _declared(case.leg.facts.no_ngram)
    config = case.leg.request.engine_arguments.get("speculative_config")
    if found is not None or config is None:
        return found
    method = config.get("method") if isinstance(config, dict) else None
    if not isinstance(method, str) or method in TEXT_DRAFTERS:
        return Verdict.VOID, f"speculative method: seen {method!r}; expected one with a draft model"
    without = [state.rank for state in case.states if not state.candidate.get("draft_layers")]
    if without:
        return Verdict.VOID, f"rank {without[0]}: seen no layer of a draft model; expected one"
    return None


def no_response_reuse(case: LegCase) -> Finding | None:
    """Rule ``no-response-reuse``: no answer was given twice."""
    return _declared(case.leg.facts.no_response_reuse)


def no_prefix_reuse(case: LegCase) -> Finding | None:
    """Rule ``no-prefix-reuse``: no prompt token came from an earlier row or a checkpoint; prefix caching is off."""
    found = _declared(case.leg.facts.no_prefix_reuse)
    told = case.leg.request.engine_arguments.get("enable_prefix_caching")
    if found is None and told is not False:
        return Verdict.VOID, f"enable_prefix_caching: seen {told}; expected False"
    return found


FACT_RULES: Mapping[str, Callable[[LegCase], Finding | None]] = {
    "no-retry": no_retry,
    "no-warm-up": no_warm_up,
    "fresh-service": fresh_service,
    "no-network": no_network,
    "no-history": no_history,
    "no-ngram": no_ngram,
    "no-response-reuse": no_response_reuse,
    "no-prefix-reuse": no_prefix_reuse,
}


def declared(case: LegCase) -> dict[str, str]:
    """Observation of each holding fact, by the fact's rule."""
    facts = {rule: getattr(case.leg.facts, rule.replace("-", "_")) for rule in FACT_RULES}
    return {rule: fact.observation for rule, fact in facts.items() if fact is not None and fact.holds}


def _declared(fact: Fact | None) -> Finding | None:
    if fact is None:
        return Verdict.NOT_PROVEN, "seen no observation; expected one"
    if not fact.holds:
        return Verdict.VOID, f"seen {fact.observation}; expected the fact to hold"
    return None
