# SPDX-License-Identifier: Apache-2.0
"""Rules over a leg's counters: the server was cold before the suite and counted the suite alone.

Source: the laboratory's endpoint protocol. A counter that does not add up makes the leg unusable: something else ran,
or the counter is wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from pytest_laguna.analysis.endpoint.case import LegCase
from pytest_laguna.analysis.endpoint.figures import NANOSECONDS, counter_changes, decode_seconds
from pytest_laguna.analysis.findings import Finding
from pytest_laguna.analysis.wording import shown_outside
from pytest_laguna.evidence.endpoint.leg import Counters
from pytest_laguna.verdict import Verdict

NEEDED = ("drafts", "draft_tokens", "accepted", "decode_count", "decode_seconds", "prompt_tokens", "generated_tokens")
"""Counters for a leg's figures and the proof of a cold server."""
DECODE_SHARE, DECODE_SECONDS = 0.1, 0.05
"""Largest difference of a server's decode time and the arrivals: a share of their span, and seconds a row."""
CACHES = ("prefix_cache_hits", "external_cache_hits", "cached_prompt_tokens")


def counters_present(case: LegCase) -> Finding | None:
    """Rule ``counters-present``: every counter of a figure or rule is exposed, before and after the suite."""
    for moment, counters in _readings(case):
        missing = [name for name in NEEDED if getattr(counters, name) is None]
        missing += [name for name in ("accepted_per_position", "finished") if not getattr(counters, name)]
        if missing:
            return Verdict.NOT_PROVEN, f"counters {moment} the suite: seen no {', '.join(missing)}; expected each"
    return None


def counters_start_zero(case: LegCase) -> Finding | None:
    """Rule ``counters-start-zero``: before the suite nothing was proposed, accepted, decoded or finished."""
    before = case.leg.counters_before
    values = {name: getattr(before, name) for name in NEEDED}
    values |= {f"accepted_per_position {label}": value for label, value in before.accepted_per_position.items()}
    values |= {f"finished {reason}": value for reason, value in before.finished.items()}
    for name, value in values.items():
        if value:
            return Verdict.VOID, f"{name} before the suite: seen {value}; expected 0 on a fresh server"
    return None


def counters_rise(case: LegCase) -> Finding | None:
    """Rule ``counters-rise``: no counter falls; a fall means a reset or another server."""
    changes: dict[str, float] = dict(counter_changes(case.leg.counters_before, case.leg.counters_after))
    changes["decode_seconds"] = decode_seconds(case.leg) or 0.0
    for name, change in changes.items():
        if change < 0:
            return Verdict.VOID, f"{name}: seen a change by {change}; expected a counter to rise"
    return None


def positions_contiguous(case: LegCase) -> Finding | None:
    """Rule ``positions-contiguous``: both readings count acceptance for positions 0, 1, ... without a gap."""
    readings = [sorted(counters.accepted_per_position) for _, counters in _readings(case)]
    expected = sorted(str(position) for position in range(len(readings[1])))
    if readings != [expected, expected]:
        told = f"seen {readings[0]} before and {readings[1]} after"
        return Verdict.VOID, f"position labels: {told}; expected {expected} twice"
    return None


def decode_count(case: LegCase) -> Finding | None:
    """Rule ``decode-count``: the server decoded exactly one request for each prompt of the suite."""
    change = counter_changes(case.leg.counters_before, case.leg.counters_after).get("decode_count")
    if change != case.plan.suite.prompts:
        return Verdict.VOID, f"decoded requests: seen {change}; expected exactly {case.plan.suite.prompts}"
    return None


def counters_add_up(case: LegCase) -> Finding | None:
    """Rule ``counters-add-up``: counters agree with each other and with the rows."""
    changes = counter_changes(case.leg.counters_before, case.leg.counters_after)
    rows = case.leg.rows
    sums = {
        "accepted over positions": (_labelled(changes, "accepted_per_position"), changes.get("accepted")),
        "finished requests": (_labelled(changes, "finished"), len(rows)),
        "prompt tokens": (changes.get("prompt_tokens"), sum(row.usage.prompt_tokens for row in rows)),
        "generated tokens": (changes.get("generated_tokens"), sum(row.usage.completion_tokens for row in rows)),
    }
    for name, (seen, expected) in sums.items():
        if seen != expected:
            return Verdict.VOID, f"{name}: seen {seen}; expected {expected}"
    return None


def acceptance_possible(case: LegCase) -> Finding | None:
    """Rule ``acceptance-possible``: tokens are proposed, and acceptance never grows from one position to the next."""
    changes = counter_changes(case.leg.counters_before, case.leg.counters_after)
    drafts, proposed, accepted = (changes.get(name, 0) for name in ("drafts", "draft_tokens", "accepted"))
    if not 1 <= drafts <= proposed or accepted > proposed:
        seen = f"{drafts} drafts, {proposed} proposed and {accepted} accepted tokens"
        return Verdict.VOID, f"seen {seen}; expected a draft, and no more accepted than proposed tokens"
    by_position = [changes.get(f"accepted_per_position {position}", 0) for position in range(_positions(case))]
    for position, (earlier, later) in enumerate(itertools.pairwise([drafts, *by_position])):
        if later > earlier:
            return Verdict.VOID, f"position {position}: seen {later} acceptances; expected at most {earlier}"
    return None


def proposals_whole(case: LegCase) -> Finding | None:
    """Rule ``proposals-whole``: each cycle proposed the configured number of tokens, at as many positions.

    Source: vLLM's metrics; a speculating engine counts one draft a cycle, and its tokens.
    """
    depth = _draft_depth(case)
    changes = counter_changes(case.leg.counters_before, case.leg.counters_after)
    drafts, proposed = changes.get("drafts", 0), changes.get("draft_tokens", 0)
    if depth is None:
        return Verdict.NOT_PROVEN, "the server's arguments: seen no number of drafted tokens; expected one"
    if proposed != depth * drafts or _positions(case) != depth:
        seen = f"seen {drafts} drafts with {proposed} tokens, at {_positions(case)} positions"
        return Verdict.VOID, f"{seen}; expected {depth} tokens a draft"
    return None


def cycles_account(case: LegCase) -> Finding | None:
    """Rule ``cycles-account``: drafts and accepted tokens make up the rows.

    A row is its first token and, of each cycle, the accepted tokens and one more; its last cycle may give more, by at
    most the draft's depth.
    """
    depth = _draft_depth(case)
    changes = counter_changes(case.leg.counters_before, case.leg.counters_after)
    made = changes.get("drafts", 0) + changes.get("accepted", 0)
    least = sum(len(row.token_ids) - 1 for row in case.leg.rows)
    most = least + len(case.leg.rows) * (depth or 0)
    if not least <= made <= most:
        return Verdict.VOID, f"drafts and accepted tokens: seen {made}; expected {least} to {most} for the rows"
    return None


def decode_time_possible(case: LegCase) -> Finding | None:
    """Rule ``decode-time-possible``: the server's decode time fits the arrivals of its answers.

    It fits the time between the first and the last token of each row within a tenth, and a twentieth of a second a row,
    since a token may reach the client late. On a quiet host the two agree within 0.04 %, and within 3 % on one with
    twice as many runnable processes as cores (legs of the cpu lane, 2026-11-29).
    """
    seconds = decode_seconds(case.leg)
    rows = [row for row in case.leg.rows if row.arrival_ns]
    span = sum(row.arrival_ns[-1] - row.arrival_ns[0] for row in rows) / NANOSECONDS
    late = DECODE_SHARE * span + DECODE_SECONDS * len(rows)
    shortest, longest = span - late, min(span + late, sum(row.done_ns for row in rows) / NANOSECONDS)
    if seconds is not None and not shortest <= seconds <= longest:
        seen, least, most = shown_outside(seconds, shortest, longest)
        return Verdict.VOID, f"decode time: seen {seen} s; expected {least} to {most} s by the arrivals"
    return None


def prefix_cache_cold(case: LegCase) -> Finding | None:
    """Rule ``prefix-cache-cold``: the server's counters show no hit in any tier of the prefix cache."""
    if case.leg.counters_after.prefix_cache_hits is None:
        return Verdict.NOT_PROVEN, "prefix_cache_hits: seen no counter; expected it"
    for moment, counters in _readings(case):
        hits = {name: getattr(counters, name) for name in CACHES}
        warm = {name: value for name, value in hits.items() if value}
        if warm:
            return Verdict.VOID, f"{moment} the suite: seen {warm}; expected no hit in any tier"
    return None


def no_preemption(case: LegCase) -> Finding | None:
    """Rule ``no-preemption``: no request was preempted and computed again, since its row's time would include that."""
    change = counter_changes(case.leg.counters_before, case.leg.counters_after).get("preemptions")
    if change is None:
        return Verdict.NOT_PROVEN, "preemptions: seen no counter; expected it"
    if change or case.leg.counters_before.preemptions:
        seen = case.leg.counters_after.preemptions
        return Verdict.VOID, f"preemptions: seen {seen}; expected none of one request at a time; enlarge the cache"
    return None


COUNTER_RULES: Mapping[str, Callable[[LegCase], Finding | None]] = {
    "counters-present": counters_present,
    "counters-start-zero": counters_start_zero,
    "counters-rise": counters_rise,
    "positions-contiguous": positions_contiguous,
    "decode-count": decode_count,
    "counters-add-up": counters_add_up,
    "acceptance-possible": acceptance_possible,
    "proposals-whole": proposals_whole,
    "cycles-account": cycles_account,
    "decode-time-possible": decode_time_possible,
    "prefix-cache-cold": prefix_cache_cold,
    "no-preemption": no_preemption,
}


def _readings(case: LegCase) -> tuple[tuple[str, Counters], tuple[str, Counters]]:
    return ("before", case.leg.counters_before), ("after", case.leg.counters_after)


def _draft_depth(case: LegCase) -> int | None:
    """Tokens a cycle proposes by the server's arguments."""
    config = case.leg.request.engine_arguments.get("speculative_config")
    depth = config.get("num_speculative_tokens") if isinstance(config, dict) else None
    return depth if isinstance(depth, int) else None


def _positions(case: LegCase) -> int:
    return len(case.leg.counters_after.accepted_per_position)


def _labelled(changes: Mapping[str, int], name: str) -> int:
    return sum(change for label, change in changes.items() if label.startswith(f"{name} "))
