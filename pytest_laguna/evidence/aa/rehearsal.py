# SPDX-License-Identifier: Apache-2.0
"""The rehearsal of a device campaign in its gate 1: places, and the plan and analysis of control against control."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import pydantic

from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.arms.arm_record import ArmRecord
from pytest_laguna.evidence.arms.profile_file import Profiles, profiles_in
from pytest_laguna.evidence.reading import PROFILE, RECORD, names_in
from pytest_laguna.evidence.schemas import Schema, parse_model, read_model
from pytest_laguna.evidence.values import Count, Decides, Finite, NonNegative, Positive, SchemaName, Share, Validator
from pytest_laguna.verdict import JSON, UnusableEvidenceError

DIRECTORY = "rehearsed"
"""Place below the attempt's ``evidence`` of the rehearsal's own sealed root and of its sessions' output."""
NULL_DIRECTORY = "rehearsed-null"
"""Likewise, with a control in the candidate's slot (A/A)."""
SEALED = "sealed"
SHORTENED = "shortened.json"
"""Beside it: the differences between rehearsal and lane."""

STARTS_DIRECTORY, STARTS = "null-starts", "starts"
"""Below ``evidence``: ``plan.json``, ``starts/<number>/`` as an arm's directory each, and ``analysis.json``."""

CLAUSES: Final = ("rehearsal", "null-exact", "null-timing")
"""Clauses of gate 1; a campaign without a candidate and a control needs the first alone."""
REHEARSAL, NULL_EXACT, NULL_TIMING = CLAUSES

CONFIDENCE: Final = 0.95
POWER: Final = 0.8
"""Probability of finding the minimum detectable effect."""
MOST_FALSE_PROMOTIONS: Final = 0.05
"""Rate of false promotions; rules whose interval lies above it promote noise."""


def sealed_root(evidence: Path, *, null: bool) -> Path:
    """Return the place of a rehearsal's sealed root in an attempt's evidence."""
    return evidence / (NULL_DIRECTORY if null else DIRECTORY) / SEALED


def rehearsed_attempt(evidence: Path, campaign: str, gate: int, *, null: bool) -> Path:
    """Return the place of the one attempt of a rehearsed gate."""
    return root.attempt_directory(sealed_root(evidence, null=null) / campaign / "cpu" / f"gate{gate}", 1)


class Shortened(Schema):
    """One value of the lane, and the rehearsal's in its place."""

    lane: pydantic.JsonValue
    rehearsal: pydantic.JsonValue


def read_shortened(evidence: Path) -> list[tuple[str, str, str]]:
    """Return clause, place and both values of everything shortened, as a receipt lists unexercised rules.

    Raises:
        UnusableEvidenceError: it is not of its form.
    """
    path = evidence / DIRECTORY / SHORTENED
    if not os.path.lexists(path):
        return []
    value = files.read_canonical_json(path)
    entries = {place: parse_model(entry, Shortened, path.name) for place, entry in _object(value, path).items()}
    return [
        (REHEARSAL, place, f"shortened: {json.dumps(entry.lane)} on the lane, {json.dumps(entry.rehearsal)} here")
        for place, entry in entries.items()
    ]


def _object(value: JSON, path: Path) -> dict[str, JSON]:
    if not isinstance(value, dict):
        raise UnusableEvidenceError(f"{path.name}: not an object; expected what was shortened, by its place")
    return value


def start_directory(directory: Path, number: int) -> Path:
    """Return the directory of a start, below the directory of all starts."""
    return directory / STARTS / f"{number:02d}"


def read_starts(directory: Path) -> Iterator[tuple[ArmRecord, Profiles]]:
    """Yield the record and the profiles of every start, in their order.

    Raises:
        UnusableEvidenceError: a record is missing or not of its form.
    """
    for name in names_in(directory / STARTS):
        place = directory / STARTS / name
        yield read_model(place / RECORD, ArmRecord), profiles_in(place / PROFILE)


class NullPlan(Schema):
    """``plan.json``: written before the first start.

    Attributes:
        decides: on the device lane.
        starts: processes of the control.
        flag: the variable of the treatment; ``control`` is its value in every start.
        samples: replays in each rank's profile.
        effect_percent: the preregistered effect on the whole replay; None if none is expected.
    """

    file_schema: SchemaName[Literal["pytest-laguna-null-plan-v1"]] = "pytest-laguna-null-plan-v1"
    lane: Literal["cpu"] = "cpu"
    decides: Decides
    starts: Annotated[int, pydantic.Field(ge=4, multiple_of=2)]
    ranks: pydantic.PositiveInt
    flag: str
    control: str
    validator: Validator
    completion_tokens: pydantic.PositiveInt
    collective_breaks: bool
    graphs: pydantic.PositiveInt
    breaks: pydantic.PositiveInt
    target_layers: pydantic.PositiveInt
    samples: pydantic.PositiveInt
    effect_percent: Positive | None


class Promotions(Schema):
    """How often rules promoted control against control.

    Attributes:
        interval: of the rate, exact, 95 %.
    """

    promoted: Count
    count: pydantic.PositiveInt
    rate: Share
    interval: tuple[Share, Share]


class Detection(Schema):
    """Minimum detectable effect, from the deviation of starts of the control.

    Attributes:
        deviation: standard deviation of a start's logarithmic figure.
        count: of pairs of starts, or of blocks of legs.
        detectable_percent: minimum effect that ``count`` of them find with probability 0.8 by a 95 % t interval; None
            for a single one, and if no two starts differ.
        needed: number that would find that effect with the same probability; None without an effect or a difference, or
            if more than a million are not enough.
    """

    deviation: NonNegative
    count: pydantic.PositiveInt
    detectable_percent: Finite | None
    effect_percent: Finite | None
    needed: pydantic.PositiveInt | None

    @property
    def in_vain(self) -> bool:
        """True if ``count`` of them cannot detect the preregistered effect."""
        if self.effect_percent is None or self.deviation == 0:
            return False
        return self.needed is None or self.needed > self.count


class NullAnalysis(Schema):
    """``analysis.json``: the result of control against control, valid for its lane alone.

    Attributes:
        decides: on the device lane.
        against: rules of exactness that found a difference, with their findings; the rules are sealed.
        diagnostic: cases in which all six timing gates of gate 2 held between two consecutive starts.
        gates: such cases of each timing gate alone.
        whole_replay: minimum detectable effect on the whole replay.
        endpoint: cases in which gate 3's rules found a block of controls ahead; None without a gate 3.
        headline: minimum detectable effect on a leg's median throughput; None likewise.
    """

    file_schema: SchemaName[Literal["pytest-laguna-null-analysis-v2"]] = "pytest-laguna-null-analysis-v2"
    lane: Literal["cpu"]
    decides: Decides
    against: dict[str, str]
    diagnostic: Promotions
    gates: dict[str, Count]
    whole_replay: Detection
    endpoint: Promotions | None
    headline: Detection | None

    @pydantic.field_validator("against", mode="before")
    @classmethod
    def _without_findings(cls, against: Any) -> Any:
        """Accept rules as they are sealed, without their findings."""
        return dict.fromkeys(against, "") if isinstance(against, list) else against

    @pydantic.field_serializer("against")
    def _sealed(self, against: dict[str, str]) -> list[str]:
        return list(against)
