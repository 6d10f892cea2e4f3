# SPDX-License-Identifier: Apache-2.0
"""Where the rehearsal of a device campaign lies in its gate 1, and what control against control came to there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

import pydantic

from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.arm_record import ArmRecord
from pytest_laguna.evidence.diagnostic import Finite
from pytest_laguna.evidence.diagnostic_evidence import Profiles
from pytest_laguna.evidence.diagnostic_reader import PROFILE, RECORD, names_in, profiles_in
from pytest_laguna.evidence.schemas import Schema, parse_model, read_model
from pytest_laguna.verdict import JSON, UnusableEvidenceError

DIRECTORY = "rehearsed"
"""Below the attempt's ``evidence``: the rehearsal's own sealed root, and what each of its sessions printed."""
NULL_DIRECTORY = "rehearsed-null"
"""Likewise, with a control in the candidate's slot (A/A)."""
SEALED = "sealed"
SHORTENED = "shortened.json"
"""Beside it: what the rehearsal has otherwise than the lane."""

STARTS_DIRECTORY, STARTS = "null-starts", "starts"
"""Below ``evidence``: ``plan.json``, ``starts/<number>/`` as an arm's directory each, and ``analysis.json``."""

CLAUSES: Final = ("rehearsal", "null-exact", "null-timing")
"""Of gate 1; a campaign that compares no candidate with a control needs the first alone."""
REHEARSAL, NULL_EXACT, NULL_TIMING = CLAUSES

CONFIDENCE: Final = 0.95
POWER: Final = 0.8
"""The probability with which a detectable effect is found."""
MOST_FALSE_PROMOTIONS: Final = 0.05
"""Where the interval of their rate lies above, rules that decide promote noise."""

Share = Annotated[float, pydantic.Field(ge=0, le=1)]
Count = pydantic.NonNegativeInt


def sealed_root(evidence: Path, *, null: bool) -> Path:
    """Where a rehearsal's sealed root lies in an attempt's evidence."""
    return evidence / (NULL_DIRECTORY if null else DIRECTORY) / SEALED


def rehearsed_attempt(evidence: Path, campaign: str, gate: int, *, null: bool) -> Path:
    """The one attempt of a rehearsed gate."""
    return root.attempt_directory(sealed_root(evidence, null=null) / campaign / "cpu" / f"gate{gate}", 1)


class Shortened(Schema):
    """One value of the lane, and what the rehearsal had in its place."""

    lane: pydantic.JsonValue
    rehearsal: pydantic.JsonValue


def read_shortened(evidence: Path) -> list[tuple[str, str, str]]:
    """What a rehearsal shortened, as a receipt lists what was not exercised: clause, place and both values.

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
        message = f"{path.name}: not an object; expected what was shortened, by its place"
        raise UnusableEvidenceError(message)
    return value


def start_directory(directory: Path, number: int) -> Path:
    """Where a start writes, below the directory of all of them."""
    return directory / STARTS / f"{number:02d}"


def read_starts(directory: Path) -> Iterator[tuple[ArmRecord, Profiles]]:
    """The record and the profiles of every start, in their order.

    Raises:
        UnusableEvidenceError: a record is missing or not of its form.
    """
    for name in names_in(directory / STARTS):
        place = directory / STARTS / name
        yield read_model(place / RECORD, ArmRecord), profiles_in(place / PROFILE)


class NullPlan(Schema):
    """``plan.json``: written before the first start.

    Attributes:
        lane: where the starts run; what is found holds there.
        decides: what decides on the device lane.
        starts: processes of the control.
        ranks: of each.
        flag: the variable that is the sole treatment.
        control: its value in every start.
        validator: which implementation of the candidate's contract would run.
        completion_tokens: of each one's generation.
        collective_breaks: whether each all-reduce is a break of its own.
        graphs: graph segments of the target's capture, per rank.
        breaks: eager boundaries of it.
        target_layers: attention layers of the target.
        samples: replays that each rank profiles.
        effect_percent: the preregistered effect on the whole replay; None where none is expected.
    """

    file_schema: Annotated[Literal["pytest-laguna-null-plan-v1"], pydantic.Field(alias="schema")] = (
        "pytest-laguna-null-plan-v1"
    )
    lane: Literal["cpu"] = "cpu"
    decides: Literal["exactness", "exactness+timing"]
    starts: Annotated[int, pydantic.Field(ge=4, multiple_of=2)]
    ranks: pydantic.PositiveInt
    flag: str
    control: str
    validator: Literal["native", "python"]
    completion_tokens: pydantic.PositiveInt
    collective_breaks: bool
    graphs: pydantic.PositiveInt
    breaks: pydantic.PositiveInt
    target_layers: pydantic.PositiveInt
    samples: pydantic.PositiveInt
    effect_percent: Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)] | None


class Promotions(Schema):
    """How often rules promoted control against control.

    Attributes:
        promoted: how often.
        count: of how many.
        rate: promoted over count.
        interval: of the rate, exact, 95 %.
    """

    promoted: Count
    count: pydantic.PositiveInt
    rate: Share
    interval: tuple[Share, Share]


class Detection(Schema):
    """What can be told from noise, given how far starts of the control are apart.

    Attributes:
        deviation: standard deviation of a start's logarithmic figure.
        count: of what: pairs of starts, or blocks of legs.
        detectable_percent: the smallest effect that so many find with probability 0.8 by a 95 % t interval; None where
            one alone has no interval, or no two starts differ.
        effect_percent: the preregistered effect.
        needed: how many would find that with the same probability; None without an effect or a difference, or where
            more than a million are not enough.
    """

    deviation: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
    count: pydantic.PositiveInt
    detectable_percent: Finite | None
    effect_percent: Finite | None
    needed: pydantic.PositiveInt | None

    @property
    def in_vain(self) -> bool:
        """Whether so many cannot tell the preregistered effect from noise."""
        if self.effect_percent is None or self.deviation == 0:
            return False
        return self.needed is None or self.needed > self.count


class NullAnalysis(Schema):
    """``analysis.json``: what control against control came to; it holds for the lane that it was measured on.

    Attributes:
        lane: that lane.
        decides: what decides on the device lane.
        against: by rule of exactness what speaks against it: starts by number.
        diagnostic: how often the six timing gates of gate 2 all held between two starts that follow each other.
        gates: by timing gate, how often it held alone.
        whole_replay: what of the whole replay can be told.
        endpoint: how often gate 3's rules found a block of controls ahead; None without a gate 3.
        headline: what of a leg's headline can be told; None likewise.
    """

    file_schema: Annotated[Literal["pytest-laguna-null-analysis-v1"], pydantic.Field(alias="schema")] = (
        "pytest-laguna-null-analysis-v1"
    )
    lane: Literal["cpu"]
    decides: Literal["exactness", "exactness+timing"]
    against: dict[str, str]
    diagnostic: Promotions
    gates: dict[str, Count]
    whole_replay: Detection
    endpoint: Promotions | None
    headline: Detection | None
