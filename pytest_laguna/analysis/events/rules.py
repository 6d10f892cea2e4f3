# SPDX-License-Identifier: Apache-2.0
"""Rules over the content of event profiles, and over the trial of the instrument."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

from pytest_laguna.analysis.events.case import EventCase, EventRule
from pytest_laguna.analysis.events.profile import category_sums, decide_action, slowest
from pytest_laguna.analysis.events.sparse import Group, sparse_shares
from pytest_laguna.analysis.events.work import waiting
from pytest_laguna.analysis.findings import RuleFinding, not_applicable, reported
from pytest_laguna.analysis.wording import shown_in_places
from pytest_laguna.evidence.arms.arm_record import RankReport
from pytest_laguna.evidence.arms.replay_profile import SegmentKind
from pytest_laguna.evidence.events.analysis import EVENTS, FITNESS, SPARSE, Action, MeasuredFitness, SparseShare
from pytest_laguna.evidence.events.profile import EventFitness, EventProfile
from pytest_laguna.evidence.events.sparse import SparseProfile
from pytest_laguna.verdict import NotProvenError, Verdict

SPAN_TOLERANCE = 0.001
"""Largest difference of span and sum of intervals, as a share of the span; rounding of events stays below it."""


def every_rank(case: EventCase) -> RuleFinding:
    """Rule ``every-rank``: each rank has one file, and no other file is there."""
    expected = {f"rank{rank}.json" for rank in range(case.plan.ranks)}
    case.record(EVENTS)
    odd = sorted(case.evidence.profiles.keys() - expected)
    if odd:
        return Verdict.VOID, f"{EVENTS}: seen {odd[0]}; expected {case.plan.ranks} rank files and no others"
    _ = case.profiles  # raises if one is missing
    return None


def as_recorded(case: EventCase) -> RuleFinding:
    """Rule ``as-recorded``: each file has the digest in its rank's report."""
    for report in case.reports(EVENTS):
        said = report.event_profile.sha256 if report.event_profile else None
        path = f"arms/{EVENTS}/profile/rank{report.rank}.json"
        if said is None:
            return Verdict.NOT_PROVEN, f"{EVENTS} rank {report.rank}: seen no profile; expected one replay at least"
        if finding := _changed(case, path, said):
            return finding
    return None


def _changed(case: EventCase, path: str, said: str | None) -> RuleFinding:
    """Finding over a file without the digest in its rank's report."""
    seen = case.evidence.digests.get(path)
    if seen != said:
        return Verdict.VOID, f"{path}: seen {seen or 'nothing'}; expected {said}, as its rank wrote it"
    return None


def of_its_place(case: EventCase) -> RuleFinding:
    """Rule ``of-its-place``: each file states the rank of its name and the plan's number of ranks."""
    for rank, profile in case.profiles.items():
        seen, expected = (profile.rank, profile.world_size), (rank, case.plan.ranks)
        if seen != expected:
            return Verdict.VOID, f"rank{rank}.json: seen rank and world size {seen}; expected {expected}"
    return None


def one_batch(case: EventCase) -> RuleFinding:
    """Rule ``one-batch``: all ranks replayed the same batch, captured by every rank of the arm."""
    descriptors = {profile.descriptor for profile in case.profiles.values()}
    if len(descriptors) != 1:
        return Verdict.VOID, f"{EVENTS}: seen batches {sorted(descriptors)}; expected one on all ranks"
    for report in case.reports(EVENTS):
        captured = [graph.descriptor for graph in report.graphs if graph.model == "target"]
        if not descriptors <= set(captured):
            told = f"seen captures of {captured}"
            return Verdict.VOID, f"{EVENTS} rank {report.rank}: {told}; expected {descriptors.pop()}"
    return None


def topology_exact(case: EventCase) -> RuleFinding:
    """Rule ``topology-exact``: each rank's intervals have the plan's kinds in the plan's order."""
    for rank, profile in case.profiles.items():
        if profile.kinds != case.plan.topology.kinds:
            seen = f"seen {len(profile.kinds)} intervals in order {profile.order_sha256}"
            expected = f"{len(case.plan.topology.kinds)} in {case.plan.topology.order_sha256}"
            return Verdict.FAIL, f"rank{rank}.json: {seen}; expected {expected}"
    return None


def clock_of_lane(case: EventCase) -> RuleFinding:
    """Rule ``clock-of-lane``: events are the lane's device's; on the cpu lane, the host's clock is marked as such.

    The host's lead is required for device clocks and forbidden for host clocks.
    """
    expected = ("host-clock", "cpu") if case.plan.lane == "cpu" else ("device-event", case.plan.lane)
    for rank, profile in case.profiles.items():
        seen = (profile.clock, profile.stream.device_type)
        if seen != expected:
            return Verdict.VOID, f"rank{rank}.json: seen clock and device {seen}; expected {expected}"
        if (profile.lead is None) != (profile.clock == "host-clock"):
            told = "seen no host's lead; expected it" if profile.lead is None else "seen a host's lead; expected none"
            return Verdict.VOID, f"rank{rank}.json: {told} for clock {profile.clock}"
    return None


def intervals_add_up(case: EventCase) -> RuleFinding:
    """Rule ``intervals-add-up``: the intervals are adjacent: their sum is the span from first to last event."""
    for rank, profile in case.profiles.items():
        if not profile.total_ns:
            return Verdict.VOID, f"rank{rank}.json: seen 0 ns in all; expected a replay that took time"
        if abs(profile.span_ns - profile.total_ns) > SPAN_TOLERANCE * profile.span_ns:
            told = f"seen intervals of {profile.total_ns} ns in a span of {profile.span_ns} ns"
            return Verdict.VOID, f"rank{rank}.json: {told}; expected them equal to a thousandth"
    return None


def clocks_agree(case: EventCase) -> RuleFinding:
    """Rule ``clocks-agree``: times of the stream and of the host do not contradict each other."""
    found = [waiting(profile) for profile in case.profiles.values()]
    return not_applicable("the host is the device") if None in found else None


def sparse_whole(case: EventCase) -> RuleFinding:
    """Rule ``sparse-whole``: each rank has its own whole sparse profile, if the plan requires one."""
    if not case.plan.sparse_replays:
        if case.evidence.sparse:
            return Verdict.VOID, f"{SPARSE}: seen {min(case.evidence.sparse)}; expected none: the plan has no such arm"
        return not_applicable("the campaign plans no sparse profile")
    for report in case.reports(SPARSE):
        finding = _sparse_of(case, report)
        if finding is not None:
            return finding
    try:
        measured_shares(case, sparse_shares)
    except NotProvenError as error:  # a small graph has few intervals to draw; shares decide nothing
        return reported(str(error))
    return None


def _sparse_of(case: EventCase, report: RankReport) -> RuleFinding:
    """Finding over one rank's file."""
    path = f"arms/{SPARSE}/profile/rank{report.rank}.json"
    said = report.event_profile.sha256 if report.event_profile else None
    if said is None or path not in case.evidence.digests:
        return Verdict.NOT_PROVEN, f"{path}: seen none; expected {case.plan.sparse_replays} replays at least"
    if finding := _changed(case, path, said):
        return finding
    profile = case.piece(case.evidence.sparse[f"rank{report.rank}.json"])
    seen = (profile.rank, profile.world_size, len(profile.replays), profile.kinds)
    if seen != (report.rank, case.plan.ranks, case.plan.sparse_replays, case.plan.topology.kinds):
        return Verdict.VOID, f"{path}: seen another rank, number of ranks or replays, or kinds; expected the plan's"
    return None


def measured_shares(
    case: EventCase, shares: Callable[[SparseProfile], dict[Group, SparseShare]]
) -> dict[str, dict[Group, SparseShare]]:
    """Shares of the sparse profiles by rank and group; empty without profiles.

    Raises:
        NotProvenError: a profile has too few replays.
        UnusableEvidenceError: a profile cannot be used.
    """
    profiles = [case.piece(piece) for piece in case.evidence.sparse.values()]
    return {str(profile.rank): shares(profile) for profile in profiles}


def measured_fitness(case: EventCase) -> MeasuredFitness | None:
    """Cost of the instrument on the slowest rank; None without a planned trial.

    Raises:
        NotProvenError: a rank's trial is missing.
        UnusableEvidenceError: a rank's trial cannot be used.
    """
    if case.plan.fitness is None:
        return None
    case.record(FITNESS)
    trials = [case.piece(case.evidence.fitness[name]) for name in _fitness_files(case)]
    figures = [_figures(trial, case.plan.fitness.slowdown_limit) for trial in trials]
    return max(figures, key=lambda each: each.slowdown)


def _fitness_files(case: EventCase) -> list[str]:
    expected = [f"rank{rank}.json" for rank in range(case.plan.ranks)]
    missing = [name for name in expected if name not in case.evidence.fitness]
    if missing:
        raise NotProvenError(f"{FITNESS}: {missing[0]}: seen none; expected every rank to try the instrument")
    return expected


def _figures(fitness: EventFitness, limit: float) -> MeasuredFitness:
    rounds = fitness.rounds
    kinds: dict[SegmentKind, float] = {
        kind: statistics.median(each.events_kind_ns[kind] / max(1, each.stamped_kind_ns[kind]) for each in rounds)
        for kind in dict.fromkeys(fitness.kinds)
    }
    return MeasuredFitness(
        slowdown=statistics.median(each.events_ns / each.plain_ns for each in rounds),
        stamped_slowdown=statistics.median(each.stamped_ns / each.plain_ns for each in rounds),
        kind_slowdown=kinds,
        spread=max(kinds.values()) / max(min(kinds.values()), 1e-9),
        limit=limit,
    )


def trial_as_planned(case: EventCase) -> RuleFinding:
    """Rule ``trial-as-planned``: the instrument was tried only if the plan has a trial."""
    if case.plan.fitness is None and case.evidence.fitness:
        return Verdict.VOID, f"{FITNESS}: seen {min(case.evidence.fitness)}; expected none: the plan has no trial"
    if case.plan.fitness is not None:
        case.record(FITNESS)
    return None


def trial_whole(case: EventCase) -> RuleFinding:
    """Rule ``trial-whole``: each rank tried the instrument as often as planned, on the planned segments."""
    if case.plan.fitness is None:
        return not_applicable("the campaign does not try its instrument: its fitness is unmeasured")
    case.record(FITNESS)
    for name in _fitness_files(case):
        trial = case.piece(case.evidence.fitness[name])
        seen = (f"rank{trial.rank}.json", trial.world_size, len(trial.rounds), tuple(trial.kinds))
        expected = (name, case.plan.ranks, case.plan.fitness.rounds, tuple(case.plan.topology.kinds))
        if seen != expected:
            told = "seen another rank, number of ranks or rounds, or kinds"
            return Verdict.VOID, f"{FITNESS}: {name}: {told}; expected the plan's"
    for report in case.reports(FITNESS):
        path = f"arms/{FITNESS}/profile/rank{report.rank}.json"
        said = report.event_profile.sha256 if report.event_profile else None
        if finding := _changed(case, path, said):
            return finding
    return None


def slowdown_bounded(case: EventCase) -> RuleFinding:
    """Rule ``slowdown-bounded``: a replay with events takes at most the limit's multiple of one without."""
    figures = measured_fitness(case)
    if figures is None:
        return not_applicable("fitness is unmeasured; the shares are those of a replay that the instrument slowed")
    if not figures.fit:
        kinds = ", ".join(f"{kind} {ratio:.3f}" for kind, ratio in figures.kind_slowdown.items())
        slowdown = shown_in_places(figures.slowdown, figures.limit, 3)
        told = f"replay with events: seen {slowdown} times as long ({kinds})"
        return Verdict.STOP, f"{told}; expected at most {figures.limit}; shares are withheld"
    return None


def slowdown_by_kind(case: EventCase) -> RuleFinding:
    """Rule ``slowdown-by-kind``: the instrument's slowdown of each kind is listed."""
    figures = measured_fitness(case)
    if figures is None:
        return not_applicable("fitness is unmeasured")
    kinds = ", ".join(f"{kind} {ratio:.3f}" for kind, ratio in figures.kind_slowdown.items())
    return reported(f"{kinds}; the largest is {figures.spread:.3f} times the smallest")


def action_of(case: EventCase) -> Action:
    """Next action: the decision rule on the slowest rank, unless the instrument or the host's lead forbids it.

    Raises:
        NotProvenError: a rank's evidence is missing.
        UnusableEvidenceError: a rank's evidence cannot be used.
    """
    figures = measured_fitness(case)
    if figures is not None and not figures.fit:
        return "instrument_unfit"
    actions = {
        decide_action(sums, case.plan.material_percent) for sums in possible_sums(slowest([*case.profiles.values()]))
    }
    return actions.pop() if len(actions) == 1 else "withheld_host_lead"


def possible_sums(profile: EventProfile) -> list[Mapping[SegmentKind, float]]:
    """Category sums as published, then without the stream's waiting for the host, at both of its bounds."""
    sums: list[Mapping[SegmentKind, float]] = [category_sums(profile.kinds, profile.interval_ns)]
    waited = waiting(profile)
    for bound in (waited.least, waited.most) if waited else ():
        work = [interval - idle for interval, idle in zip(profile.interval_ns, bound, strict=True)]
        sums.append(category_sums(profile.kinds, work))
    return sums


def decided(case: EventCase) -> RuleFinding:
    """Rule ``decided``: the decision rule was applied to the slowest rank alone."""
    action_of(case)
    return None


def decision_listed(case: EventCase) -> RuleFinding:
    """Rule ``decision-listed``: the next action is listed; it authorises no endpoint."""
    return reported(f"{action_of(case)}; neither an endpoint nor a submission is authorised")


def network_isolated(case: EventCase) -> RuleFinding:
    """Rule ``network-isolated``: proof of arms with loopback alone is listed; without it nothing is claimed."""
    proven = every_arm_isolated(case)
    return reported("every arm ran in a network namespace with loopback alone" if proven else "not proven")


def every_arm_isolated(case: EventCase) -> bool:
    """True if every arm left the host's network; raises as ``EventCase.record``."""
    return all(
        record.network is not None
        and record.network.namespace != record.network.left
        and record.network.interfaces == ["lo"]
        for _, record in case.records()
    )


PROFILE_RULES: Mapping[str, Mapping[str, EventRule]] = {
    "profile-complete": {
        "every-rank": every_rank,
        "as-recorded": as_recorded,
        "of-its-place": of_its_place,
        "one-batch": one_batch,
        "topology-exact": topology_exact,
        "clock-of-lane": clock_of_lane,
        "intervals-add-up": intervals_add_up,
        "clocks-agree": clocks_agree,
        "sparse-whole": sparse_whole,
    },
    "instrument-fit": {
        "trial-as-planned": trial_as_planned,
        "trial-whole": trial_whole,
        "slowdown-bounded": slowdown_bounded,
        "slowdown-by-kind": slowdown_by_kind,
    },
    "decision": {"decided": decided, "decision-listed": decision_listed, "network-isolated": network_isolated},
}
"""Rules of each clause over a profile's content."""
