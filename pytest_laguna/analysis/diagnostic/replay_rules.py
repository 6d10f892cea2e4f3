# SPDX-License-Identifier: Apache-2.0
"""Rules over the replay profiles of both graph arms: complete files, planned graph, contained times, planned views."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from pytest_laguna.analysis.diagnostic.case import GRAPH_ARMS, DiagnosticCase, Rule
from pytest_laguna.analysis.diagnostic.replay_checks import CONTAINMENT, PREPARATION
from pytest_laguna.analysis.diagnostic.replay_profile import ArmProfile, RankFacts
from pytest_laguna.analysis.findings import RuleFinding
from pytest_laguna.evidence.arms.arm_record import Arm, ArmRecord
from pytest_laguna.evidence.arms.replay_profile import order_sha256
from pytest_laguna.evidence.diagnostic.reader import DiagnosticEvidence
from pytest_laguna.verdict import NotProvenError, UnusableEvidenceError, Verdict

NANOSECONDS = 1_000_000_000


def files_whole(case: DiagnosticCase) -> RuleFinding:
    """Rule ``files-whole``: only the ranks of both graph arms wrote files, one each, and all are readable."""
    for arm in GRAPH_ARMS:
        expected = {f"rank{rank}.json" for rank in range(case.plan.ranks)}
        names = set(case.evidence.profiles[arm])
        if expected - names:
            return _absent(case, arm, min(expected - names))
        if names - expected:
            return Verdict.VOID, f"{arm}: seen a profile {min(names - expected)}; expected a file a rank"
        unusable = case.profiles[arm].unusable
        if unusable is not None:
            return Verdict.VOID, f"{arm}: {unusable}"
    return _of_others(case.evidence)


def _absent(case: DiagnosticCase, arm: Arm, name: str) -> RuleFinding:
    """Finding for a rank without a file, with its count of replays if it reported one."""
    for report in case.record(arm).ranks:
        if report.profile is not None and name == f"rank{report.rank}.json":
            taken = f"seen {report.profile.taken} of {report.profile.samples} replays, and no profile"
            return Verdict.NOT_PROVEN, f"{arm} rank {report.rank}: {taken}; expected both whole"
    return Verdict.NOT_PROVEN, f"{arm}: seen no {name}; expected a profile of each rank"


def _of_others(evidence: DiagnosticEvidence) -> RuleFinding:
    """Finding for a profile of an arm without graphs."""
    for arm, profiles in evidence.profiles.items():
        if profiles and arm not in GRAPH_ARMS:
            return Verdict.VOID, f"{arm}: seen a profile {min(profiles)}; expected none of an arm without graphs"
    return None


def files_as_reported(case: DiagnosticCase) -> RuleFinding:
    """Rule ``files-as-reported``: each file has the digest in its rank's report."""
    for arm in GRAPH_ARMS:
        reports = {f"rank{report.rank}.json": report.profile for report in case.record(arm).ranks}
        for facts in _profile(case, arm).ranks:
            report = reports.get(facts.name)
            if report is None or report.sha256 != facts.sha256:
                wrote = None if report is None else report.sha256
                return Verdict.VOID, f"{arm}: {facts.name}: seen digest {facts.sha256}; expected its rank's {wrote}"
    return None


def ranks_named(case: DiagnosticCase) -> RuleFinding:
    """Rule ``ranks-named``: each file states the rank of its name and the number of ranks."""
    for arm, facts in _facts(case):
        seen = (f"rank{facts.header.rank}.json", facts.header.world_size)
        if seen != (facts.name, case.plan.ranks):
            told = f"seen rank {facts.header.rank} of {facts.header.world_size}"
            expected = f"{facts.name.removesuffix('.json').replace('rank', 'rank ')} of {case.plan.ranks}"
            return Verdict.VOID, f"{arm}: {facts.name}: {told}; expected {expected}"
    return None


def samples_complete(case: DiagnosticCase) -> RuleFinding:
    """Rule ``samples-complete``: each rank profiled the planned number of replays."""
    for arm, facts in _facts(case):
        if facts.samples != case.plan.samples:
            where = f"{arm} rank {facts.header.rank}"
            return Verdict.VOID, f"{where}: seen {facts.samples} samples; expected {case.plan.samples}"
    return None


def captured_batch(case: DiagnosticCase) -> RuleFinding:
    """Rule ``captured-batch``: every rank of both arms replayed the batch of its one target graph."""
    for arm in GRAPH_ARMS:
        reports = {report.rank: report for report in case.record(arm).ranks}
        for facts in _profile(case, arm).ranks:
            graphs = reports[facts.header.rank].graphs if facts.header.rank in reports else []
            captured = [graph.descriptor for graph in graphs if graph.model == "target"]
            if captured != [facts.header.descriptor]:
                told = f"seen replays of {facts.header.descriptor!r}; expected the captured {captured}"
                return Verdict.VOID, f"{arm} rank {facts.header.rank}: {told}"
    return None


def one_batch(case: DiagnosticCase) -> RuleFinding:
    """Rule ``one-batch``: all ranks of both arms replayed the same batch."""
    seen: dict[str, str] = {}
    for arm, facts in _facts(case):
        seen.setdefault(facts.header.descriptor, f"{arm} rank {facts.header.rank}")
    if len(seen) > 1:
        told = ", ".join(f"{descriptor!r} on {where}" for descriptor, where in seen.items())
        return Verdict.VOID, f"batches: seen {told}; expected one batch"
    return None


def segments_planned(case: DiagnosticCase) -> RuleFinding:
    """Rule ``segments-planned``: the replayed segments are the plan's, in its order."""
    for arm, facts in _facts(case):
        if facts.header.kinds != case.plan.topology.kinds:
            seen = f"seen {len(facts.header.kinds)} segments in order {order_sha256(facts.header.kinds)}"
            expected = f"{len(case.plan.topology.kinds)} in order {case.plan.topology.order_sha256}"
            return Verdict.FAIL, f"{arm} rank {facts.header.rank}: {seen}; expected {expected}"
    return None


def within_generation(case: DiagnosticCase) -> RuleFinding:
    """Rule ``within-generation``: each rank's replays took no longer in all than the arm's one generation."""
    for arm, facts in _facts(case):
        generation = generation_ns(case.record(arm))
        if facts.whole_ns > generation:
            told = f"seen replays of {facts.whole_ns} ns in all"
            return Verdict.VOID, f"{arm} rank {facts.header.rank}: {told}; expected them within {generation} ns"
    return None


def generation_ns(record: ArmRecord) -> int:
    """Wall time of the one generation, in whole nanoseconds."""
    return round(record.generation_seconds * NANOSECONDS)


def _facts(case: DiagnosticCase) -> Iterator[tuple[Arm, RankFacts]]:
    return ((arm, facts) for arm in GRAPH_ARMS for facts in _profile(case, arm).ranks)


def _profile(case: DiagnosticCase, arm: Arm) -> ArmProfile:
    """Reduced profile of an arm, over all its ranks.

    Raises:
        NotProvenError: a rank's file is missing.
        UnusableEvidenceError: a file is torn or of another form.
    """
    profile = case.profiles[arm]
    if profile.unusable is not None:
        raise UnusableEvidenceError(f"{arm}: {profile.unusable}")
    if len(profile.ranks) != case.plan.ranks:
        case.record(arm)  # raises with the root cause if the arm left nothing at all
        raise NotProvenError(f"{arm}: seen profiles of {len(profile.ranks)} ranks; expected {case.plan.ranks}")
    return profile


def _checked(case: DiagnosticCase, name: str, verdict: Verdict) -> RuleFinding:
    """First finding of a check of replays, over both arms."""
    for arm in GRAPH_ARMS:
        complaint = _profile(case, arm).complaints.get(name)
        if complaint is not None:
            return verdict, f"{arm} {complaint}"
    return None


REPLAY_SAMPLES: Mapping[str, Rule] = {
    "files-whole": files_whole,
    "files-as-reported": files_as_reported,
    "ranks-named": ranks_named,
    "samples-complete": samples_complete,
    "captured-batch": captured_batch,
    "one-batch": one_batch,
    "segments-planned": segments_planned,
    **{name: functools.partial(_checked, name=name, verdict=Verdict.VOID) for name in CONTAINMENT},
    "within-generation": within_generation,
}

VIEW_PREPARATIONS: Mapping[str, Rule] = {
    name: functools.partial(_checked, name=name, verdict=Verdict.FAIL) for name in PREPARATION
}
