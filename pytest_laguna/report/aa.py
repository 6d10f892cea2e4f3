# SPDX-License-Identifier: Apache-2.0
"""Gate 1 of a device campaign: false promotions and minimum detectable effects, from A/A starts."""

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
    detected = [("whole replay", own.whole_replay), ("median throughput of a leg", own.headline)]
    return joined([
        element("h3", "A/A: control against control"),
        facts([("measured on lane", own.lane), ("rules that decide on the device lane", own.decides)]),
        *(element("p", f"{rule}: {told}", class_="notice") for rule, told in own.against.items()),
        table(
            ("rules", "false promotions", "rate", "95 % interval"),
            [_promotions(name, seen) for name, seen in promoted if seen is not None],
            class_="numbers",
        ),
        table(
            ("timing gate", f"false promotions of {own.diagnostic.count}"),
            [(code(name), str(count)) for name, count in own.gates.items()],
            class_="numbers",
        ),
        table(
            (
                "quantity",
                "standard deviation of a start",
                "starts or blocks",
                "minimum detectable effect",
                "expected effect",
                "needed",
            ),
            [_detection(name, seen) for name, seen in detected if seen is not None],
            class_="numbers",
        ),
    ])


def undetectable(own: NullAnalysis) -> Iterator[str]:
    """Limits of the A/A starts, one line each."""
    yield from warnings(own)
    yield f"The starts ran on lane {own.lane}: the spread of starts on a card is unknown."


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
        "unknown" if seen.needed is None else str(seen.needed),
    )
