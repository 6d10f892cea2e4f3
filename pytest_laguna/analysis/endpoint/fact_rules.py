# SPDX-License-Identifier: Apache-2.0
"""Rules over what is declared of a leg: each fact names what showed it, and one without an observation is absent.

Where the record holds the observation itself, the fact must agree with it: a fact is not believed against it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytest_laguna.analysis.endpoint.case import LegCase
from pytest_laguna.analysis.findings import Finding
from pytest_laguna.evidence.endpoint.leg import Fact
from pytest_laguna.evidence.endpoint.server_command import TEXT_DRAFTERS
from pytest_laguna.verdict import Verdict


def no_retry(case: LegCase) -> Finding | None:
    """Rule ``no-retry``: each row was asked once; request and response ids are all different."""
    found = _declared(case.leg.facts.no_retry)
    if found is not None:
        return found
    rows = case.leg.rows
    if case.leg.posted != len(rows):
        return Verdict.VOID, f"{case.leg.posted} requests were begun for {len(rows)} rows; expected one each"
    for name, ids in (("request", [row.request_id for row in rows]), ("response", [row.response_id for row in rows])):
        if len(set(ids)) != len(ids):
            return Verdict.VOID, f"{len(set(ids))} {name} ids in {len(ids)} rows; expected each once"
    return None


def no_warm_up(case: LegCase) -> Finding | None:
    """Rule ``no-warm-up``: nothing was generated before the first row."""
    found = _declared(case.leg.facts.no_warm_up)
    generated = case.leg.counters_before.generated_tokens
    if found is None and generated:
        return Verdict.VOID, f"{generated} tokens were generated before the first row; expected none"
    return found


def fresh_service(case: LegCase) -> Finding | None:
    """Rule ``fresh-service``: the server was started for this leg, and the same processes served all of it."""
    found = _declared(case.leg.facts.fresh_service)
    if found is not None:
        return found
    begun, server = case.leg.begun_ticks, case.leg.server.start_ticks
    ranks = [state.start_ticks for state in case.states]
    if not begun <= server <= min(ranks, default=server):
        told = f"the leg began at tick {begun}, the server started at {server} and its ranks at {sorted({*ranks})}"
        return Verdict.VOID, f"{told}; expected that order"
    moments = [
        sorted((state.rank, state.pid, state.start_ticks) for state in states)
        for states in (case.leg.ranks_captured, case.leg.ranks_served)
    ]
    if moments[0] != moments[1]:
        return Verdict.VOID, f"ranks, pids and starts are {moments[0]} before and {moments[1]} after; expected the same"
    return None


def no_network(case: LegCase) -> Finding | None:
    """Rule ``no-network``: in a look after every row no process of the server had a socket to another host."""
    found = _declared(case.leg.facts.no_network)
    if found is not None:
        return found
    listener = f"tcp {case.leg.server.listener_before.address} -> listening"
    for look in case.leg.sockets:
        if look.foreign:
            return Verdict.VOID, f"after {look.moment} there is a socket to elsewhere: {look.foreign[0]}; expected none"
        if listener not in look.local:
            told = f"after {look.moment} the server's own socket was not seen"
            return Verdict.NOT_PROVEN, f"{told}; expected {listener}, or the look shows nothing"
    looked = {look.moment for look in case.leg.sockets}
    unseen = [row.prompt_id for row in case.leg.rows if row.prompt_id not in looked]
    if unseen:
        return Verdict.NOT_PROVEN, f"no look at the sockets after {unseen[0]}; expected one after every row"
    return None


def no_history(case: LegCase) -> Finding | None:
    """Rule ``no-history``: no row carried an earlier one along."""
    return _declared(case.leg.facts.no_history)


def no_ngram(case: LegCase) -> Finding | None:
    """Rule ``no-ngram``: no proposal came from the text itself: a draft model proposes, and every rank runs it."""
    found = _declared(case.leg.facts.no_ngram)
    config = case.leg.request.engine_arguments.get("speculative_config")
    if found is not None or config is None:
        return found
    method = config.get("method") if isinstance(config, dict) else None
    if not isinstance(method, str) or method in TEXT_DRAFTERS:
        return Verdict.VOID, f"the speculative method is {method!r}; expected one with a draft model"
    without = [state.rank for state in case.states if not state.candidate.get("draft_layers")]
    if without:
        return Verdict.VOID, f"rank {without[0]} runs no layer of a draft model; expected one"
    return None


def no_response_reuse(case: LegCase) -> Finding | None:
    """Rule ``no-response-reuse``: no answer was given twice."""
    return _declared(case.leg.facts.no_response_reuse)


def no_prefix_reuse(case: LegCase) -> Finding | None:
    """Rule ``no-prefix-reuse``: no prompt token came from an earlier row or a checkpoint; the server keeps none."""
    found = _declared(case.leg.facts.no_prefix_reuse)
    told = case.leg.request.engine_arguments.get("enable_prefix_caching")
    if found is None and told is not False:
        return Verdict.VOID, f"the server was told enable_prefix_caching {told}; expected False"
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
    """The observation behind each fact that holds, by the fact's rule."""
    facts = {rule: getattr(case.leg.facts, rule.replace("-", "_")) for rule in FACT_RULES}
    return {rule: fact.observation for rule, fact in facts.items() if fact is not None and fact.holds}


def _declared(fact: Fact | None) -> Finding | None:
    if fact is None:
        return Verdict.NOT_PROVEN, "nothing was observed, so it is not declared; expected an observation"
    if not fact.holds:
        return Verdict.VOID, f"does not hold: {fact.observation}"
    return None
