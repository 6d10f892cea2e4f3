# SPDX-License-Identifier: Apache-2.0
"""The registry of experiments: gate, directory, clauses and files of each.

A new experiment is one row here; the row names the implementation (``pytest_laguna.experiments.experiment``).
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from pytest_laguna.evidence.aa import rehearsal
from pytest_laguna.evidence.aa.rehearsal import NullAnalysis
from pytest_laguna.evidence.diagnostic import analysis as diagnostic
from pytest_laguna.evidence.diagnostic.analysis import Diagnosis
from pytest_laguna.evidence.endpoint import plan as endpoint_campaign
from pytest_laguna.evidence.endpoint import reader as endpoint_reader
from pytest_laguna.evidence.endpoint.analysis import EndpointAnalysis
from pytest_laguna.evidence.events import analysis as event_analysis
from pytest_laguna.evidence.events.analysis import EventAnalysis
from pytest_laguna.evidence.schemas import Schema


class Asking(Protocol):
    """The facts of a campaign that select experiments."""

    @property
    def diagnostic(self) -> object | None:
        """Table of the exact diagnostic, or None."""

    @property
    def event_profile(self) -> object | None:
        """Table of the event profile, or None."""

    def gate_clauses(self, gate: int) -> Mapping[str, str]:
        """Node ids by clause id of one gate."""

    def protocol_of(self, lane: str) -> str | None:
        """Name of the endpoint protocol of a lane, or None."""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """The static facts of one experiment.

    Attributes:
        name: of the drawer with its code in every room.
        gate: the gate that runs it.
        directory: its place below an attempt's ``evidence``.
        clauses: ids of the clauses that it judges, in the order of judging.
        analysis: form of its ``analysis.json``.
        implementation: ``module:attribute`` of its ``Experiment``.
        asked: True if the campaign asks for it on the lane.
        files: patterns of the files behind a clause, relative to ``evidence``; ``*`` matches slashes too.
        judged_files: names of the files in its directory that hold a verdict.
    """

    name: str
    gate: int
    directory: str
    clauses: tuple[str, ...]
    analysis: type[Schema]
    implementation: str
    asked: Callable[[Asking, str], bool]
    files: Mapping[str, Sequence[str]]
    judged_files: tuple[str, ...] = ("analysis.json",)


_ARMS, _LEGS = "*/arms/*/", "endpoint/legs/*/"

_WITH_CARDS: Mapping[str, Sequence[str]] = {
    "identity-exact": ("identity.json", "*/identity.json", "*/engine-*/engine.json"),
    "cards-idle": ("cards/*.json", "*/idle-*.json", "*/*/*/idle.json"),
    "host-within-limits": ("*/host.json",),
    "arms-fresh": (f"{_ARMS}re*.json", f"{_ARMS}process.json", f"{_ARMS}failure.json", f"{_ARMS}rank-*-stack.txt"),
    "cache-cold": (f"{_ARMS}record.json", f"{_LEGS}leg.json", f"{_LEGS}*.prom"),
    "tokens-identical": (f"{_ARMS}record.json",),
    "topology-unchanged": (f"{_ARMS}record.json", "*/target-config.json"),
    "sole-treatment": (f"{_ARMS}re*.json", f"{_LEGS}request.json", f"{_LEGS}ranks/*"),
}
"""Files of the clauses that several experiments share."""

AA: Final = Row(
    name="aa",
    gate=1,
    directory=rehearsal.STARTS_DIRECTORY,
    clauses=(rehearsal.NULL_TIMING,),
    analysis=NullAnalysis,
    implementation="pytest_laguna.experiments.aa:EXPERIMENT",
    # On the cpu lane the campaign's own gates are the rehearsal.
    asked=lambda campaign, lane: lane != "cpu" and rehearsal.NULL_TIMING in campaign.gate_clauses(1),
    files={
        "rehearsal": ("rehearsed/shortened.json", "rehearsed/gate?/*.log", "rehearsed/sealed/*/receipt.json"),
        "null-exact": ("rehearsed-null/gate?/*.log", "rehearsed-null/sealed/*/receipt.json"),
        "null-timing": ("null-starts/*.json", "null-starts/starts/*/record.json", "null-starts/starts/*/profile/*"),
    },
)

DIAGNOSTIC: Final = Row(
    name="diagnostic",
    gate=2,
    directory=diagnostic.DIRECTORY,
    clauses=diagnostic.CLAUSES,
    analysis=Diagnosis,
    implementation="pytest_laguna.experiments.diagnostic:EXPERIMENT",
    asked=lambda campaign, _: campaign.diagnostic is not None,
    files={
        **_WITH_CARDS,
        "parity-packets": ("diagnostic/packets/*/record.json",),
        "drafts-bounded": (f"{_ARMS}record.json",),
        "selector-proven": (f"{_ARMS}record.json",),
        "replay-samples": (f"{_ARMS}profile/*",),
        "view-preparations": (f"{_ARMS}profile/*",),
        "timing": (f"{_ARMS}profile/*", f"{_ARMS}record.json"),
    },
)

EVENTS: Final = Row(
    name="events",
    gate=2,
    directory=event_analysis.DIRECTORY,
    clauses=event_analysis.CLAUSES,
    analysis=EventAnalysis,
    implementation="pytest_laguna.experiments.events:EXPERIMENT",
    asked=lambda campaign, _: campaign.event_profile is not None,
    files={
        **_WITH_CARDS,
        "profile-complete": (f"{_ARMS}profile/*",),
        "closure-bound": ("event-profile/closure.json",),
        "instrument-fit": (f"{_ARMS}profile/*",),
        "decision": ("event-profile/analysis.json",),
    },
)

ENDPOINT: Final = Row(
    name="endpoint",
    gate=3,
    directory=endpoint_reader.DIRECTORY,
    clauses=endpoint_campaign.CLAUSES,
    analysis=EndpointAnalysis,
    implementation="pytest_laguna.experiments.endpoint:EXPERIMENT",
    asked=lambda campaign, lane: campaign.protocol_of(lane) is not None,
    files={
        **_WITH_CARDS,
        "legs-fresh": (f"{_LEGS}leg.json", f"{_LEGS}end.json", f"{_LEGS}failure.json"),
        "legs-in-order": (f"{_LEGS}leg.json", "endpoint/phase1-analysis.json"),
        "captures-proven": (f"{_LEGS}ranks/*",),
        "prompts-fresh": (f"{_LEGS}row-*", "endpoint/suite.json"),
        "counters-true": (f"{_LEGS}*.prom",),
        "teacher-exact": ("endpoint/teacher.json", f"{_LEGS}leg.json"),
        "cross-leg-exact": (f"{_LEGS}leg.json",),
        "long-next": (f"{_LEGS}leg.json",),
        "rollover": (f"{_LEGS}leg.json", "endpoint/suite.json"),
        "acceptance-drift": (f"{_LEGS}*.prom",),
        "adjacent-pairs": (f"{_LEGS}row-*.sse", f"{_LEGS}*.prom"),
        "control-health": (f"{_LEGS}row-*.sse",),
        "promotion": (f"{_LEGS}leg.json", "endpoint/protocol*"),
    },
    judged_files=(endpoint_reader.PHASE_1, "analysis.json"),
)

ROWS: dict[str, Row] = {row.name: row for row in (AA, DIAGNOSTIC, EVENTS, ENDPOINT)}
"""Every experiment by its name."""


def rows_asked(campaign: Asking, gate: int, lane: str) -> list[Row]:
    """Return the experiments of a gate on a lane; v1 campaigns have at most one."""
    return [row for row in ROWS.values() if row.gate == gate and row.asked(campaign, lane)]


def files_behind(paths: Iterable[str], clause: str) -> list[str]:
    """Return the files behind a clause: those in its own directory, and those read by an experiment.

    Args:
        paths: of an attempt's files, relative to its directory; the result keeps their order.
        clause: its id.
    """
    registered = (pattern for row in ROWS.values() for pattern in row.files.get(clause, ()))
    patterns = [f"evidence/{pattern}" for pattern in (f"{clause}/*", *registered)]
    return [path for path in paths if any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)]
