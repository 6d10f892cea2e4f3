# SPDX-License-Identifier: Apache-2.0
"""Gate 1 of a device campaign: how often its rules promote noise, control against control, and what they can tell."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_laguna.analysis.aa.noise import detectable_words, warnings
from pytest_laguna.evidence.aa.rehearsal import Detection, NullAnalysis, Promotions
from pytest_laguna.report.figures import Drawing
from pytest_laguna.report.markup import Markup, code, element, facts, joined, table
from pytest_laguna.report.shown import ShownAttempt

_PERCENT = 100


def null_section(shown: ShownAttempt, own: NullAnalysis, drawing: Drawing) -> Markup:
    """Section of the A/A starts; it has no drawing."""
    del shown, drawing
    promoted = [("gate 2, all timing gates", own.diagnostic), ("gate 3, the published rules", own.endpoint)]
    detected = [("whole replay", own.whole_replay), ("headline of a leg", own.headline)]
    return joined([
        element("h3", "Control against control"),
        facts([("measured on lane", own.lane), ("decides on the device lane", own.decides)]),
        *(element("p", f"Differs: {rule}: {told}", class_="notice") for rule, told in own.against.items()),
        table(
            ("rules", "noise promoted", "rate", "95 % interval"),
            [_promotions(name, seen) for name, seen in promoted if seen is not None],
            class_="numbers",
        ),
        table(
            ("timing gate", f"held alone, of {own.diagnostic.count}"),
            [(code(name), str(count)) for name, count in own.gates.items()],
            class_="numbers",
        ),
        table(
            ("quantity", "deviation of a start", "starts or blocks", "detectable", "expected", "needed for it"),
            [_detection(name, seen) for name, seen in detected if seen is not None],
            class_="numbers",
        ),
    ])


def undetectable(own: NullAnalysis) -> Iterator[str]:
    """What the campaign's rules cannot tell from noise, one line each."""
    yield from warnings(own)
    yield f"Starts of lane {own.lane}: how far apart starts on a card are is not known from them."


def _promotions(name: str, seen: Promotions) -> tuple[str, ...]:
    low, high = (f"{_PERCENT * end:.1f} %" for end in seen.interval)
    return name, f"{seen.promoted} of {seen.count}", f"{_PERCENT * seen.rate:.1f} %", f"{low} to {high}"


def _detection(name: str, seen: Detection) -> tuple[str, ...]:
    return (
        name,
        f"{_PERCENT * seen.deviation:.2f} %",
        str(seen.count),
        detectable_words(seen),
        "none" if seen.effect_percent is None else f"{seen.effect_percent} %",
        "cannot be told" if seen.needed is None else str(seen.needed),
    )
