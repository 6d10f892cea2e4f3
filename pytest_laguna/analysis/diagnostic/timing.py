# SPDX-License-Identifier: Apache-2.0
"""The six published timing gates, with the interval and the minimum detectable effect of each saving.

The published rules read the sign of a saving alone. Its 95 % interval and its minimum detectable effect decide nothing.
Source of the gates: the preregistration of the persistent KV-cache views, Gate 2, with its addenda.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from pytest_laguna.analysis.diagnostic.case import GRAPH_ARMS, DiagnosticCase, Rule
from pytest_laguna.analysis.diagnostic.replay_rules import REPLAY_SAMPLES, VIEW_PREPARATIONS, generation_ns
from pytest_laguna.analysis.findings import Finding, RuleFinding, reported
from pytest_laguna.analysis.order_statistics import compare_percentile
from pytest_laguna.analysis.statistics import linear_percentile
from pytest_laguna.evidence.arms.arm_record import Arm
from pytest_laguna.evidence.diagnostic.analysis import Comparison, Percentiles
from pytest_laguna.verdict import NotProvenError, UnusableEvidenceError, Verdict

Timing: TypeAlias = "Mapping[str, Comparison] | Finding"
"""The six comparisons by gate, or the finding that prevents them."""

CONFIDENCE = 0.95
MEDIAN, P10, P90 = 0.5, 0.1, 0.9


@dataclasses.dataclass(frozen=True, slots=True)
class TimingGate:
    """One published timing gate.

    Attributes:
        quantity: of the replays; None for the wall time of the one generation.
        fraction: percentile, from 0 to 1.
        strict: True if the saving must be above zero; False if zero passes.
    """

    quantity: str | None
    fraction: float
    strict: bool

    def holds(self, saving: float) -> bool:
        """True if the published rule holds for a saving in nanoseconds."""
        return saving > 0 if self.strict else saving >= 0


GATES: Mapping[str, TimingGate] = {
    "view_preparation": TimingGate("view_preparation", MEDIAN, strict=True),
    "attention_host": TimingGate("attention_host", MEDIAN, strict=True),
    "whole_replay": TimingGate("whole_replay", MEDIAN, strict=True),
    "whole_replay_p90": TimingGate("whole_replay", P90, strict=False),
    "post_replay_synchronise": TimingGate("post_replay_synchronise", MEDIAN, strict=False),
    "generation_wall": TimingGate(None, MEDIAN, strict=True),
}
"""Published gates; the last two forbid moving the saving into the wait, and require a shorter fresh generation."""


def compare(name: str, control: Sequence[float], candidate: Sequence[float]) -> Comparison:
    """Compare both arms' samples, in nanoseconds, by one gate; single values give no interval."""
    gate = GATES[name]
    seen = compare_percentile(control, candidate, gate.fraction, CONFIDENCE)
    return Comparison(
        control=seen.control,
        candidate=seen.candidate,
        saving=seen.saving,
        passed=gate.holds(seen.saving),
        interval=seen.interval,
        detectable=seen.detectable,
    )


def published_verdict(timing: Mapping[str, Comparison]) -> Literal["diagnostic_pass", "exact_timing_stop"]:
    """Name of the published verdict for an exact diagnostic with these six comparisons."""
    return "diagnostic_pass" if all(timing[name].passed for name in GATES) else "exact_timing_stop"


def compare_arms(case: DiagnosticCase) -> Timing:
    """Compare the arms by the six gates, or return the first finding that prevents it."""
    try:
        for name, rule in {**REPLAY_SAMPLES, **VIEW_PREPARATIONS}.items():
            finding = rule(case)
            if finding is not None:
                return finding[0] or Verdict.NOT_PROVEN, f"{name}: {finding[1]}"
        control, candidate = (_samples(case, arm) for arm in GRAPH_ARMS)
    except NotProvenError as error:
        return Verdict.NOT_PROVEN, str(error)
    except UnusableEvidenceError as error:
        return Verdict.VOID, str(error)
    return {name: compare(name, control[name], candidate[name]) for name in GATES}


def _samples(case: DiagnosticCase, arm: Arm) -> dict[str, Sequence[float]]:
    """Samples of one arm by gate, in nanoseconds."""
    maxima = case.profiles[arm].maxima
    return {
        name: [generation_ns(case.record(arm))] if gate.quantity is None else maxima[gate.quantity]
        for name, gate in GATES.items()
    }


def distributions(case: DiagnosticCase) -> dict[str, dict[str, Percentiles]]:
    """Percentiles of every sampled quantity of both graph arms."""
    return {
        arm.value: {name: _distribution(values) for name, values in case.profiles[arm].maxima.items() if values}
        for arm in GRAPH_ARMS
    }


def _distribution(values: Sequence[int]) -> Percentiles:
    return Percentiles(
        minimum=min(values),
        p10=linear_percentile(values, P10),
        median=linear_percentile(values, MEDIAN),
        p90=linear_percentile(values, P90),
        maximum=max(values),
    )


def timing_rules(timing: Timing) -> Mapping[str, Rule]:
    """Rules of the clause ``timing``: ``compared``, and one a gate."""
    gates = {name: functools.partial(_gate_holds, name=name, timing=timing) for name in GATES}
    return {"compared": functools.partial(_compared, timing=timing), **gates}


def _compared(_: DiagnosticCase, timing: Timing) -> RuleFinding:
    """Rule ``compared``: both arms were measured, with any result."""
    return timing if isinstance(timing, tuple) else None


def _gate_holds(case: DiagnosticCase, name: str, timing: Timing) -> RuleFinding:
    """Finding of one gate: STOP for a failed saving if timing decides, else a listed fact."""
    decides = case.plan.decides == "exactness+timing" and not case.plan.null
    if isinstance(timing, tuple):
        return timing if decides else reported("nothing to compare")
    seen = timing[name]
    expected = f"expected {'more than' if GATES[name].strict else 'at least'} 0"
    told = f"seen {_ns(seen.control)} to {_ns(seen.candidate)}, a saving of {_ns(seen.saving)}"
    if not decides:
        return reported(f"{told}; the published rule, {expected}, {'holds' if seen.passed else 'does not hold'}")
    return None if seen.passed else (Verdict.STOP, f"{told}; {expected}")


def _ns(nanoseconds: float) -> str:
    """Nanoseconds to a tenth, since a median of an even number of samples may end in a half."""
    return f"{nanoseconds:.1f}".removesuffix(".0") + " ns"
