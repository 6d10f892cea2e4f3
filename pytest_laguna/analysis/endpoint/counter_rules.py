# SPDX-License-Identifier: Apache-2.0
"""Rules over a leg's counters: the server was cold before the suite, and what it counted is what was asked.

Source: the laboratory's endpoint protocol. A counter that does not add up makes the leg unusable: it says that
something else ran, or that the server does not tell the truth.
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
"""Without one of these a leg has no figures, or is not known to be cold."""
DECODE_SHARE, DECODE_SECONDS = 0.1, 0.05
"""By how much a server's decode time and the arrivals may differ: a share of their span, and seconds a row."""
CACHES = ("prefix_cache_hits", "external_cache_hits", "cached_prompt_tokens")


def counters_present(case: LegCase) -> Finding | None:
    """Rule ``counters-present``: every counter that a figure or a rule needs is exposed, before and after."""
    for moment, counters in _readings(case):
        missing = [name for name in NEEDED if getattr(counters, name) is None]
        missing += [name for name in ("accepted_per_position", "finished") if not getattr(counters, name)]
        if missing:
            return Verdict.NOT_PROVEN, f"{moment} the suite the server exposes no {', '.join(missing)}; expected each"
    return None


def counters_start_zero(case: LegCase) -> Finding | None:
    """Rule ``counters-start-zero``: before the suite nothing was proposed, accepted, decoded or finished."""
    before = case.leg.counters_before
    values = {name: getattr(before, name) for name in NEEDED}
    values |= {f"accepted_per_position {label}": value for label, value in before.accepted_per_position.items()}
    values |= {f"finished {reason}": value for reason, value in before.finished.items()}
    for name, value in values.items():
        if value:
            return Verdict.VOID, f"{name} is {value} before the suite; expected 0 on a fresh server"
    return None


def counters_rise(case: LegCase) -> Finding | None:
    """Rule ``counters-rise``: no counter falls; one that does was reset, or belongs to another server."""
    changes: dict[str, float] = dict(counter_changes(case.leg.counters_before, case.leg.counters_after))
    changes["decode_seconds"] = decode_seconds(case.leg) or 0.0
    for name, change in changes.items():
        if change < 0:
            return Verdict.VOID, f"{name} changed by {change}; expected a counter to rise"
    return None


def positions_contiguous(case: LegCase) -> Finding | None:
    """Rule ``positions-contiguous``: acceptance is counted for positions 0, 1, ... without a gap, the same twice."""
    readings = [sorted(counters.accepted_per_position) for _, counters in _readings(case)]
    expected = sorted(str(position) for position in range(len(readings[1])))
    if readings != [expected, expected]:
        return Verdict.VOID, f"position labels {readings[0]} before and {readings[1]} after; expected {expected} twice"
    return None


def decode_count(case: LegCase) -> Finding | None:
    """Rule ``decode-count``: as many requests were decoded as the suite has prompts, neither more nor fewer."""
    change = counter_changes(case.leg.counters_before, case.leg.counters_after).get("decode_count")
    if change != case.plan.suite.prompts:
        return Verdict.VOID, f"{change} requests decoded; expected exactly {case.plan.suite.prompts}"
    return None


def counters_add_up(case: LegCase) -> Finding | None:
    """Rule ``counters-add-up``: counters agree with each other and with what the rows say."""
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
            return Verdict.VOID, f"{name}: {seen}; expected {expected}"
    return None


def acceptance_possible(case: LegCase) -> Finding | None:
    """Rule ``acceptance-possible``: tokens are proposed, and no position is accepted more often than the one before."""
    changes = counter_changes(case.leg.counters_before, case.leg.counters_after)
    drafts, proposed, accepted = (changes.get(name, 0) for name in ("drafts", "draft_tokens", "accepted"))
    if not 1 <= drafts <= proposed or accepted > proposed:
        return Verdict.VOID, f"{drafts} drafts, {proposed} proposed and {accepted} accepted tokens; expected a draft"
    by_position = [changes.get(f"accepted_per_position {position}", 0) for position in range(_positions(case))]
    for position, (earlier, later) in enumerate(itertools.pairwise([drafts, *by_position])):
        if later > earlier:
            return Verdict.VOID, f"position {position} is accepted {later} times; expected at most {earlier}"
    return None


def proposals_whole(case: LegCase) -> Finding | None:
    """Rule ``proposals-whole``: each cycle proposed as many tokens as the server was told, and counts that many places.

    Source: vLLM's metrics; a speculating engine counts one draft a cycle, and its tokens.
    """
    depth = _draft_depth(case)
    changes = counter_changes(case.leg.counters_before, case.leg.counters_after)
    drafts, proposed = changes.get("drafts", 0), changes.get("draft_tokens", 0)
    if depth is None:
        return Verdict.NOT_PROVEN, "how many tokens a cycle drafts is not among the server's arguments"
    if proposed != depth * drafts or _positions(case) != depth:
        seen = f"{drafts} drafts with {proposed} tokens, at {_positions(case)} positions"
        return Verdict.VOID, f"{seen}; expected {depth} tokens a draft"
    return None


def cycles_account(case: LegCase) -> Finding | None:
    """Rule ``cycles-account``: drafts and accepted tokens make the answers that came.

    A row is its first token and, of each cycle, what was accepted and one more; its last cycle may give more than the
    row takes, by at most the depth of the draft.
    """
    depth = _draft_depth(case)
    changes = counter_changes(case.leg.counters_before, case.leg.counters_after)
    made = changes.get("drafts", 0) + changes.get("accepted", 0)
    least = sum(len(row.token_ids) - 1 for row in case.leg.rows)
    most = least + len(case.leg.rows) * (depth or 0)
    if not least <= made <= most:
        return Verdict.VOID, f"drafts and accepted tokens are {made}; expected {least} to {most} for the rows that came"
    return None


def decode_time_possible(case: LegCase) -> Finding | None:
    """Rule ``decode-time-possible``: the server decoded for as long as its answers took to come, at most and about.

    About is the time between the first and the last token of each row, within a tenth and a twentieth of a second a
    row: a token that comes late to the client was decoded sooner. On a quiet host the two agree within 0.04 %, and
    within 3 % on one with twice as many runnable processes as cores (legs of the cpu lane, 2026-11-29).
    """
    seconds = decode_seconds(case.leg)
    rows = [row for row in case.leg.rows if row.arrival_ns]
    span = sum(row.arrival_ns[-1] - row.arrival_ns[0] for row in rows) / NANOSECONDS
    late = DECODE_SHARE * span + DECODE_SECONDS * len(rows)
    shortest, longest = span - late, min(span + late, sum(row.done_ns for row in rows) / NANOSECONDS)
    if seconds is not None and not shortest <= seconds <= longest:
        seen, least, most = shown_outside(seconds, shortest, longest)
        return Verdict.VOID, f"decoded for {seen} s; expected {least} to {most} s by the arrivals"
    return None


def prefix_cache_cold(case: LegCase) -> Finding | None:
    """Rule ``prefix-cache-cold``: no tier of the prefix cache had a hit, by the server's own counters."""
    if case.leg.counters_after.prefix_cache_hits is None:
        return Verdict.NOT_PROVEN, "the server exposes no prefix_cache_hits; expected the counter"
    for moment, counters in _readings(case):
        hits = {name: getattr(counters, name) for name in CACHES}
        warm = {name: value for name, value in hits.items() if value}
        if warm:
            return Verdict.VOID, f"{moment} the suite {warm}; expected no hit in any tier"
    return None


def no_preemption(case: LegCase) -> Finding | None:
    """Rule ``no-preemption``: no request was set aside and computed again, which would be timed with the row."""
    change = counter_changes(case.leg.counters_before, case.leg.counters_after).get("preemptions")
    if change is None:
        return Verdict.NOT_PROVEN, "the server exposes no preemptions; expected the counter"
    if change or case.leg.counters_before.preemptions:
        seen = case.leg.counters_after.preemptions
        return Verdict.VOID, f"{seen} preemptions; expected none of one request at a time: give the cache more memory"
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
    """How many tokens a cycle proposes, as the server was told."""
    config = case.leg.request.engine_arguments.get("speculative_config")
    depth = config.get("num_speculative_tokens") if isinstance(config, dict) else None
    return depth if isinstance(depth, int) else None


def _positions(case: LegCase) -> int:
    return len(case.leg.counters_after.accepted_per_position)


def _labelled(changes: Mapping[str, int], name: str) -> int:
    return sum(change for label, change in changes.items() if label.startswith(f"{name} "))
