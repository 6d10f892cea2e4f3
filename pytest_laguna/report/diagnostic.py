# SPDX-License-Identifier: Apache-2.0
"""Gate 2 with an exact diagnostic: arms, distributions, timing gates, timelines and acceptance."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from pytest_laguna.analysis.diagnostic.case import GRAPH_ARMS, DiagnosticCase
from pytest_laguna.analysis.diagnostic.timing import GATES
from pytest_laguna.evidence.arms.arm_record import Arm, ArmRecord
from pytest_laguna.evidence.arms.replay_profile import RankProfile
from pytest_laguna.evidence.diagnostic.analysis import Comparison, Diagnosis, DiagnosticPlan
from pytest_laguna.evidence.diagnostic.reader import read_diagnostic
from pytest_laguna.evidence.reading import PLAN, Missing, whole
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.report import charts
from pytest_laguna.report.figures import Drawing, figure, scale
from pytest_laguna.report.markup import Markup, code, element, facts, joined, table
from pytest_laguna.report.shown import ShownAttempt
from pytest_laguna.verdict import UnusableEvidenceError

_PERCENT = 100


def diagnostic_section(shown: ShownAttempt, own: Diagnosis, drawing: Drawing) -> Markup:
    """Measurements of the diagnostic."""
    place = shown.own_directory
    case = DiagnosticCase(read_model(place / PLAN, DiagnosticPlan), read_diagnostic(place))
    return joined([
        element("h3", "Arms"),
        _arms(case),
        *_acceptance(case, drawing),
        element("h3", "Time"),
        _decision(own),
        *_distributions(case, drawing),
        *_savings(own, drawing),
        *_timelines(case, drawing),
    ])


def undetectable(own: Diagnosis) -> Iterator[str]:
    """Limits of the samples, one line each."""
    if own.timing is None:
        yield "No timing was compared: a change of speed of any size would be invisible."
        return
    for name, gate in _in_order(own.timing):
        title = name.replace("_", " ")
        if gate.detectable is None:
            yield f"{title}: minimum detectable effect unknown; too few values for an interval."
        else:
            share = f" ({_PERCENT * gate.detectable / gate.control:.1f} % of the control)" if gate.control else ""
            yield f"{title}: minimum detectable effect {_time(gate.detectable)}{share}."
    yield "Each arm started once: the spread between starts of the same arm is unknown."


def _decision(own: Diagnosis) -> Markup:
    published = own.published or "none: the diagnostic is not exact, or not of the published shape"
    return facts([("rules that decide on this lane", own.decides), ("verdict of the published rules", published)])


def _records(case: DiagnosticCase) -> Mapping[Arm, ArmRecord]:
    return whole({arm: case.evidence.arms[arm].record for arm in Arm})


def _arms(case: DiagnosticCase) -> Markup:
    rows = []
    for arm, run in case.evidence.arms.items():
        record = run.record
        if isinstance(record, Missing):
            rows.append((code(arm), record.reason, "", "", "", ""))
            continue
        accepted = record.acceptance
        share = f"{accepted.accepted / accepted.draft_tokens:.6f}" if accepted and accepted.draft_tokens else "no draft"
        rows.append((
            code(arm),
            f"{len(record.token_ids)} tokens",
            code(record.token_sha256[:16]),
            share,
            f"{record.start_seconds:.1f} s",
            f"{record.generation_seconds:.3f} s",
        ))
    return table(("arm", "generated", "token digest", "acceptance rate", "start time", "generation time"), rows)


def _acceptance(case: DiagnosticCase, drawing: Drawing) -> Iterator[Markup]:
    runs = {
        arm.value: [count / record.acceptance.drafts for count in record.acceptance.accepted_per_position]
        for arm, record in _records(case).items()
        if record.acceptance is not None and record.acceptance.drafts
    }
    if runs:
        yield figure(
            charts.acceptance(drawing, runs),
            "Acceptance by position: share of cycles with the draft's token accepted.",
        )


def _distributions(case: DiagnosticCase, drawing: Drawing) -> Iterator[Markup]:
    maxima = {arm.value: case.profiles[arm].maxima for arm in GRAPH_ARMS}
    wanted = dict.fromkeys(gate.quantity for gate in GATES.values() if gate.quantity is not None)
    wanted |= dict.fromkeys(("graph_host", "collective_host"))
    arms = {
        arm: {name: samples[name] for name in wanted if samples.get(name)} for arm, samples in reversed(maxima.items())
    }
    if all(arms.values()):
        count = max(len(samples) for samples in next(iter(arms.values())).values())
        yield figure(
            charts.distributions(drawing, arms),
            f"Control and candidate: each point is one of {count} profiled replays, the maximum over the ranks. The"
            " line above the points spans p10 to p90; its mark is the median.",
        )


def _savings(own: Diagnosis, drawing: Drawing) -> Iterator[Markup]:
    if own.timing is None:
        return
    yield table(
        (
            "timing gate",
            "control",
            "candidate",
            "saving",
            "95 % interval",
            "minimum detectable effect",
            "published rule",
        ),
        [(name.replace("_", " "), *_gate(gate)) for name, gate in _in_order(own.timing)],
        class_="numbers",
    )
    relative = {name: _relative(gate) for name, gate in _in_order(own.timing) if gate.control > 0}
    if relative:
        yield figure(
            charts.savings(drawing, relative, "saving against the control, %"),
            "Savings with 95 % intervals; right of zero the candidate took less time. The grey band ends at the minimum"
            " detectable effect: a saving inside it is not distinguishable from zero. A hollow mark is a single pair of"
            " values without an interval.",
        )


def _in_order(timing: Mapping[str, Comparison]) -> list[tuple[str, Comparison]]:
    """Timing gates in the rules' order; canonical JSON has them by name."""
    return [(name, timing[name]) for name in GATES if name in timing]


def _gate(gate: Comparison) -> tuple[str, ...]:
    interval = "none" if gate.interval is None else " to ".join(_time(end) for end in gate.interval)
    detectable = "unknown" if gate.detectable is None else _time(gate.detectable)
    holds = "holds" if gate.passed else "does not hold"
    return _time(gate.control), _time(gate.candidate), _time(gate.saving), interval, detectable, holds


def _relative(gate: Comparison) -> tuple[float, tuple[float, float] | None, float | None]:
    def percent(value: float) -> float:
        return _PERCENT * value / gate.control

    interval = None if gate.interval is None else (percent(gate.interval[0]), percent(gate.interval[1]))
    return percent(gate.saving), interval, None if gate.detectable is None else percent(gate.detectable)


def _time(nanoseconds: float) -> str:
    divisor, unit = scale(abs(nanoseconds))
    return f"{nanoseconds / divisor:,.3f} {unit}" if unit != "ns" else f"{nanoseconds:,.0f} ns"


def _timelines(case: DiagnosticCase, drawing: Drawing) -> Iterator[Markup]:
    rows: list[tuple[str, Sequence[str], Sequence[float]]] = []
    for arm in GRAPH_ARMS:
        for _, read in sorted(case.evidence.profiles[arm].items(), key=lambda item: (len(item[0]), item[0])):
            try:
                rows.append(_typical(arm, read()))
            except UnusableEvidenceError as error:
                yield element("p", f"{arm}: no timeline: {error}")
    if rows:
        segments = len(rows[0][1])
        yield figure(
            charts.timelines(drawing, rows),
            f"One replay by rank: the {segments} segments of the target's graph in their order. A segment's length is"
            " its median host time over the profiled replays, without the wait for the device afterwards.",
        )


def _typical(arm: Arm, profile: RankProfile) -> tuple[str, Sequence[str], Sequence[float]]:
    """Median host time of each segment over the samples of one rank, in nanoseconds."""
    kinds = profile.header.kinds
    columns = zip(*(sample.segment_ns for sample in profile.samples), strict=True)
    return f"{arm} rank {profile.header.rank}", kinds, [float(statistics.median(column)) for column in columns]
