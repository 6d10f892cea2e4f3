# SPDX-License-Identifier: Apache-2.0
"""Rules over one leg: the planned leg, on our own cold server, with exact rows and a clean end.

Source: the laboratory's endpoint protocol, and public reports of benchmarks that measured another server or a warm one.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Mapping

from pytest_laguna.analysis.endpoint.candidate_rules import CANDIDATE_RULES
from pytest_laguna.analysis.endpoint.case import NO_TEACHER, LegCase, inexact_rows
from pytest_laguna.analysis.endpoint.counter_rules import COUNTER_RULES
from pytest_laguna.analysis.endpoint.fact_rules import FACT_RULES
from pytest_laguna.analysis.endpoint.figures import has_rate, leg_figures
from pytest_laguna.analysis.findings import Finding
from pytest_laguna.analysis.machine.process import judge_cleanliness
from pytest_laguna.evidence.arms.arm_record import Arm, CapturedGraph
from pytest_laguna.evidence.endpoint.leg import LegEnd, RankState
from pytest_laguna.evidence.endpoint.plan import RATE_TOKENS
from pytest_laguna.evidence.endpoint.server_command import HOST, server_argv
from pytest_laguna.evidence.machine.process import Reason
from pytest_laguna.verdict import Verdict


def leg_named(case: LegCase) -> Finding | None:
    """Rule ``leg-named``: the request has the arm and the selector's value of the leg's name."""
    flag = case.plan.selector.flag
    seen = (case.leg.request.arm, case.leg.request.variables.get(flag))
    expected = (case.arm, case.selector_value)
    if seen != expected:
        return Verdict.VOID, f"arm and {flag}: seen {_pair(seen)}; expected {_pair(expected)}"
    return None


def suite_passed(case: LegCase) -> Finding | None:
    """Rule ``suite-passed``: the leg ran the frozen suite, by digest and count, each prompt once and in order."""
    if case.leg.request.suite != case.plan.suite:
        return Verdict.VOID, f"suite: seen {case.leg.request.suite}; expected {case.plan.suite}"
    seen = [row.index for row in case.leg.rows]
    if seen != list(range(case.plan.suite.prompts)):
        return Verdict.VOID, f"rows: seen {seen}; expected each of {case.plan.suite.prompts} once and in order"
    return None


def server_ours(case: LegCase) -> Finding | None:
    """Rule ``server-ours``: the server names our model and nonce alone, holds the port and answers by one of them.

    A request names the nonce, unknown to other servers; vLLM answers with the first of its names.
    """
    server = case.leg.server
    expected = {case.leg.request.model, server.nonce}
    if set(server.models) != expected:
        return Verdict.VOID, f"names of the server: seen {server.models}; expected {sorted(expected)}"
    before, after = server.listener_before, server.listener_after
    if (before.address, before.inode) != (after.address, after.inode):
        seen = f"{before.inode} at {before.address} before and {after.inode} at {after.address} after"
        return Verdict.VOID, f"the port's socket: seen {seen}; expected the same"
    for listener in (before, after):
        if server.pid not in listener.holders:
            return Verdict.VOID, f"{listener.address}: seen holders {listener.holders}; expected server {server.pid}"
    for row in case.leg.rows:
        if row.model not in expected:
            return Verdict.VOID, f"row {row.index}: seen an answer by {row.model!r}; expected {sorted(expected)}"
    return None


def server_called(case: LegCase) -> Finding | None:
    """Rule ``server-called``: the server's command has the request's arguments, our two names and the port."""
    server, request = case.leg.server, case.leg.request
    host, _, port = server.listener_before.address.rpartition(":")
    if host != HOST or not port.isdecimal():
        return Verdict.VOID, f"the server's address: seen {server.listener_before.address}; expected a port of {HOST}"
    names = (request.model, server.nonce)
    expected = server_argv(server.argv[0], request.engine_arguments, names, int(port))
    for seen, wanted in itertools.zip_longest(server.argv, expected):
        if seen != wanted:
            return Verdict.VOID, f"the server's command: seen {seen!r}; expected the request's {wanted!r}"
    return None


def selector_observed(case: LegCase) -> Finding | None:
    """Rule ``selector-observed``: each rank's own environment holds the selector and the request's variables."""
    flag = case.plan.selector.flag
    told = {flag: case.selector_value} | case.leg.request.variables
    for state in case.states:
        for name, value in told.items():
            if state.variables.get(name) != value:
                return Verdict.VOID, f"{_state(state)}: {name}: seen {state.variables.get(name)!r}; expected {value!r}"
    return None


def captures_proven(case: LegCase) -> Finding | None:
    """Rule ``captures-proven``: each rank held the frozen capture before the first request and after the last.

    vLLM captures at start-up, outside of measured requests. Tokens do not show a loss of all graphs.
    """
    topology = case.plan.topology
    told = case.leg.request.engine_arguments.get("tensor_parallel_size", 1)
    if told != topology.ranks:
        return Verdict.VOID, f"tensor_parallel_size: seen {told}; expected {topology.ranks}"
    orders = set()
    for moment, states in (("captured", case.leg.ranks_captured), ("served", case.leg.ranks_served)):
        ranks = [state.rank for state in states]
        if ranks != list(range(topology.ranks)):
            return Verdict.NOT_PROVEN, f"{moment}: seen ranks {ranks}; expected each of {topology.ranks} once"
        others = [_state(state) for state in states if state.moment != moment]
        if others:
            return Verdict.NOT_PROVEN, f"{moment}: seen {others[0]}; expected each rank's state at that moment"
        for state in states:
            targets = [graph for graph in state.graphs if graph.model == "target"]
            seen = [(graph.graphs, graph.breaks) for graph in targets]
            expected = (topology.graphs, topology.breaks)
            if seen != [expected]:
                return Verdict.FAIL, f"{_state(state)}: seen graphs and breaks {seen}; expected [{expected}]"
            orders.add(targets[0].order_sha256)
    if len(orders) != 1:
        return Verdict.FAIL, f"segment orders: seen {sorted(orders)}; expected one on every rank"
    return None


def draft_captured(case: LegCase) -> Finding | None:
    """Rule ``draft-captured``: every rank has the same graphs of the draft, before the suite and after it.

    Without them every cycle is slower; tokens and the target's graphs do not show that.
    """
    first: list[CapturedGraph] = []
    for state in case.states:
        seen = [graph for graph in state.graphs if graph.model == "draft"]
        if not seen:
            return Verdict.FAIL, f"{_state(state)}: seen no graph of the draft; expected one"
        first = first or seen
        if seen != first:
            return Verdict.FAIL, f"{_state(state)}: seen other graphs of the draft; expected the first rank's"
    return None


def one_at_a_time(case: LegCase) -> Finding | None:
    """Rule ``one-at-a-time``: a row is sent after the previous one has ended."""
    for earlier, later in itertools.pairwise(case.leg.rows):
        if later.sent_ns < earlier.sent_ns + earlier.done_ns:
            return Verdict.VOID, f"row {later.index}: seen before row {earlier.index} had ended; expected one at a time"
    return None


def rows_complete(case: LegCase) -> Finding | None:
    """Rule ``rows-complete``: every row has its counted tokens, enough for a rate, and a known end."""
    for row in case.leg.rows:
        seen, counted = len(row.token_ids), row.usage.completion_tokens
        if seen != counted:
            return Verdict.VOID, f"row {row.index}: seen {seen} tokens; expected the server's count of {counted}"
        if not has_rate(row.arrival_ns):
            return Verdict.VOID, f"row {row.index}: seen {seen} tokens; expected {RATE_TOKENS} that take some time"
        full = counted == case.plan.suite.max_tokens
        if row.finish_reason not in {"length", "stop"} or (row.finish_reason == "length" and not full):
            told = f"seen its end by {row.finish_reason!r} after {counted} tokens"
            return Verdict.VOID, f"row {row.index}: {told}; expected 'stop', or 'length' at the suite's bound"
    reread = (case.leg.final_gate.rows, case.leg.final_gate.completion_tokens)
    expected = (len(case.leg.rows), [row.usage.completion_tokens for row in case.leg.rows])
    if reread != expected:
        return Verdict.VOID, f"the kept streams: seen rows and tokens {reread}; expected {expected}"
    return None


def fresh_unique(case: LegCase) -> Finding | None:
    """Rule ``fresh-unique``: prompt ids, prompt texts and request ids equal the rows', each once."""
    fresh, rows = case.leg.freshness, case.leg.rows
    copies = {
        "prompt ids": (fresh.prompt_ids, [row.prompt_id for row in rows]),
        "prompt digests": (fresh.prompt_sha256, [row.prompt_sha256 for row in rows]),
        "request ids": (fresh.request_ids, [row.request_id for row in rows]),
    }
    for name, (gathered, recorded) in copies.items():
        if gathered != recorded:
            return Verdict.VOID, f"{name}: seen others in the freshness block; expected those of the rows"
        if len(set(gathered)) != len(gathered):
            return Verdict.VOID, f"{name}: seen {len(set(gathered))} different of {len(gathered)}; expected each once"
    return None


def cached_zero(case: LegCase) -> Finding | None:
    """Rule ``cached-zero``: all three copies of the cached tokens are zero for every row."""
    copies = {
        "rows": [row.usage.cached_tokens for row in case.leg.rows],
        "freshness": case.leg.freshness.cached_tokens,
        "final gate": case.leg.final_gate.cached_tokens,
    }
    expected = [0] * case.plan.suite.prompts
    for name, copy in copies.items():
        if copy != expected:
            return Verdict.VOID, f"cached tokens of the {name}: seen {copy}; expected {len(expected)} zeros"
    return None


def cleanup_clean(case: LegCase) -> Finding | None:
    """Rule ``cleanup-clean``: suite, stop, workers and cards ended well; a surviving process is a failure."""
    end = case.leg.end
    statuses = end.cleanup.model_dump()
    if end.cleanup.worker_status and not end.cleanup.idle_status and _unwatched(end):
        return Verdict.NOT_PROVEN, f"cleanup: seen {statuses}; expected proof that no process is left"
    if end.cleanup.worker_status or end.cleanup.idle_status:
        return Verdict.FAIL, f"cleanup: seen {statuses}; expected no process left and idle cards"
    if end.cleanup.original_status or end.cleanup.stop_status or end.reason:
        return Verdict.VOID, f"cleanup: seen {statuses}, {end.reason or 'no reason'}; expected zeros"
    if end.cleanup.idle_status is None:
        return Verdict.NOT_PROVEN, "cleanup: seen no check of idle cards afterwards; expected idle_status 0"
    return None


def _unwatched(end: LegEnd) -> bool:
    """True if no supervisor saw the server's end, and no process is known to be left."""
    process = end.process
    if process is None or process.reason is not Reason.SUPERVISOR_LOST:
        return False
    return judge_cleanliness(process)[0] is Verdict.NOT_PROVEN


def server_ended(case: LegCase) -> Finding | None:
    """Rule ``server-ended``: by its supervisor's record the server ran until its stop and left no process.

    This record outweighs the statuses, which only summarise it.
    """
    process = case.leg.end.process
    if process is None:
        return Verdict.NOT_PROVEN, "the server's end: seen no record; expected the supervisor's"
    verdict, reason = judge_cleanliness(process)
    if verdict is not Verdict.PASS:
        return verdict, reason
    if process.reason is not Reason.STOPPED or process.exit_code in {None, -signal.SIGKILL}:
        return Verdict.VOID, f"the server: seen {process}; expected its end by a stop, without a kill"
    if process.last_signal == signal.SIGKILL:
        return Verdict.FAIL, "the server: seen a process of it that had to be killed; expected none"
    return None


def teacher_exact(case: LegCase) -> Finding | None:
    """Rule ``teacher-exact``: every row equals the canonical q1 teacher's, token by token: 13 of 13."""
    if case.teacher is None:
        return NO_TEACHER
    inexact = inexact_rows(case.leg.rows, case.teacher.rows)
    if inexact:
        place, reason = min(inexact.items())
        rows = len(case.teacher.rows)
        return Verdict.FAIL, f"{rows - len(inexact)} of {rows} rows are exact; row {place}: {reason}"
    return None


def long_next(case: LegCase) -> Finding | None:
    """Rule ``long-next``: the first row has the most tokens allowed, and the first two rows are exact."""
    longest, tokens = case.plan.suite.max_tokens, case.leg.rows[0].usage.completion_tokens
    if tokens != longest:
        return Verdict.FAIL, f"row 0: seen {tokens} tokens; expected {longest}"
    inexact = case.inexact_rows()
    if inexact is None:
        return NO_TEACHER
    for place in (0, 1):
        if place in inexact:
            return Verdict.FAIL, f"row {place}: {inexact[place]}"
    return None


def rollover(case: LegCase) -> Finding | None:
    """Rule ``rollover``: exactly one prompt is long enough to roll over the window, and its row is exact."""
    bound = case.plan.suite.rollover_prompt_tokens
    places = [row.index for row in case.leg.rows if row.usage.prompt_tokens >= bound]
    if len(places) != 1:
        return Verdict.VOID, f"prompts of {bound} tokens or more: seen in rows {places}; expected exactly one"
    inexact = case.inexact_rows()
    if inexact is None:
        return NO_TEACHER
    if places[0] in inexact:
        return Verdict.FAIL, f"row {places[0]}: {inexact[places[0]]}"
    return None


def figures_taken(case: LegCase) -> Finding | None:
    """Rule ``figures-taken``: the leg has the figures for the rules over timing."""
    if leg_figures(case.leg) is None:
        return Verdict.NOT_PROVEN, "figures: seen none; expected two rows with a rate at least, and counters of a draft"
    return None


LEG_RULES: Mapping[str, Callable[[LegCase], Finding | None]] = {
    "leg-named": leg_named,
    "suite-passed": suite_passed,
    "server-ours": server_ours,
    "server-called": server_called,
    "selector-observed": selector_observed,
    **CANDIDATE_RULES,
    "captures-proven": captures_proven,
    "draft-captured": draft_captured,
    "one-at-a-time": one_at_a_time,
    "rows-complete": rows_complete,
    "fresh-unique": fresh_unique,
    "cached-zero": cached_zero,
    **COUNTER_RULES,
    **FACT_RULES,
    "cleanup-clean": cleanup_clean,
    "server-ended": server_ended,
    "teacher-exact": teacher_exact,
    "long-next": long_next,
    "rollover": rollover,
    "figures-taken": figures_taken,
}


def _state(state: RankState) -> str:
    return f"rank {state.rank} ({state.moment})"


def _pair(values: tuple[Arm, str | None]) -> str:
    return f"{values[0]} and {values[1]!r}"
