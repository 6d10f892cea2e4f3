# SPDX-License-Identifier: Apache-2.0
"""Places of gate 3's evidence, and its reader.

protocol.toml  protocol-commit.json  suite.json  teacher.json  target-config.json  draft-config.json  identity.json
plan.json  phase1-analysis.json  analysis.json  idle-<sequence>-{before,after}.json
legs/<sequence>-<leg>/leg.json with the leg's other files, or failure.json in its place: ``{"reason": <one line>}``
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.evidence.endpoint.leg import LegEnd, LegName, LegRecord, LegRequest
from pytest_laguna.evidence.endpoint.plan import Teacher, leg_name, leg_sequence
from pytest_laguna.evidence.endpoint.surroundings import LegSurroundings
from pytest_laguna.evidence.foreign_json import parse_foreign_json
from pytest_laguna.evidence.machine.host import HostAudit
from pytest_laguna.evidence.machine.idle import IdleRecord
from pytest_laguna.evidence.machine.leased_cards import HOST, PROCESS
from pytest_laguna.evidence.machine.process import ProcessRecord
from pytest_laguna.evidence.reading import FAILURE, REQUEST, Failure, Missing, read_piece, usable
from pytest_laguna.evidence.schemas import Schema, parse_model, read_model
from pytest_laguna.evidence.values import SchemaName
from pytest_laguna.verdict import UnusableEvidenceError

DIRECTORY = "endpoint"
"""Place below the attempt's ``evidence``."""
LEGS = "legs"
PROTOCOL, SUITE, TEACHER = "protocol.toml", "suite.json", "teacher.json"
PROTOCOL_COMMIT = "protocol-commit.json"
PHASE_1 = "phase1-analysis.json"
LEG, END = "leg.json", "end.json"

Phase: TypeAlias = Literal["before", "after"]
PHASES: tuple[Phase, ...] = ("before", "after")

_SHA1_DIGITS = 40
_GitName = Annotated[str, pydantic.Field(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")]
_LEG_NAME = re.compile(r"[0-9]{2}-(A1|B1|B2|A2)")


class ProtocolCommit(Schema):
    """Place of the protocol in git.

    Attributes:
        commit: the checked-out one.
        blob: git's name of the protocol's bytes in it.
    """

    file_schema: SchemaName[Literal["pytest-laguna-protocol-commit-v1"]] = "pytest-laguna-protocol-commit-v1"
    commit: _GitName
    blob: _GitName

    def holds(self, content: bytes) -> bool:
        """True if the blob consists of these bytes; its name is their SHA-1, or SHA-256 in such a repository."""
        algorithm = "sha1" if len(self.blob) == _SHA1_DIGITS else "sha256"
        named = hashlib.new(algorithm, b"blob %d\0" % len(content) + content, usedforsecurity=False)
        return named.hexdigest() == self.blob


@dataclasses.dataclass(frozen=True, slots=True)
class EndedLeg:
    """A leg without a record.

    Attributes:
        end: end of its server; None if none was started.
    """

    reason: str
    end: LegEnd | None


@dataclasses.dataclass(frozen=True, slots=True)
class EndpointEvidence:
    """Content of the legs' directories.

    Attributes:
        ended: by directory, the legs without a record.
    """

    legs: list[LegRecord]
    ended: Mapping[str, EndedLeg]


def leg_directory(directory: Path, sequence: int, leg: LegName) -> Path:
    """Return the directory of a leg; ``directory`` is the endpoint's."""
    return directory / LEGS / leg_name(sequence, leg)


def started_legs(directory: Path) -> set[str]:
    """Return the names of the legs with a request: a measurement may have begun."""
    return {path.parent.name for path in (directory / LEGS).glob(f"*/{REQUEST}")}


def idle_file(directory: Path, sequence: int, phase: Phase) -> Path:
    """Return the file of the snapshots before or after a leg."""
    return directory / f"idle-{sequence:02d}-{phase}.json"


def read_legs(directory: Path) -> EndpointEvidence:
    """Read every leg in the endpoint's directory.

    Raises:
        UnusableEvidenceError: a file is not of its form, or is foreign to every leg.
    """
    legs: list[LegRecord] = []
    ended: dict[str, EndedLeg] = {}
    for place in sorted((directory / LEGS).iterdir()) if (directory / LEGS).is_dir() else []:
        if not _LEG_NAME.fullmatch(place.name):
            raise UnusableEvidenceError(f"{LEGS}/{place.name}: not a leg; expected directories such as 01-A1")
        failure, record = place / FAILURE, place / LEG
        if failure.exists() == record.exists():
            seen = "both" if record.exists() else "neither"
            raise UnusableEvidenceError(f"{LEGS}/{place.name}: {seen} of {LEG} and {FAILURE}; expected one of them")
        if record.exists():
            legs.append(read_model(record, LegRecord))
            _require_named(place, legs[-1].request)
        else:
            ended[place.name] = _ended_leg(place, read_model(failure, Failure).reason)
    return EndpointEvidence(legs, ended)


def _ended_leg(place: Path, reason: str) -> EndedLeg:
    request = usable(read_piece(place, REQUEST, LegRequest))
    if not isinstance(request, Missing):
        _require_named(place, request)
    end = usable(read_piece(place, END, LegEnd))
    if isinstance(end, Missing):
        return EndedLeg(reason=reason, end=None)
    if end.process is not None:
        require_end(place, end)
    return EndedLeg(reason=reason, end=end)


def require_end(place: Path, end: LegEnd) -> None:
    """Compare the leg's account of its server's end with the supervisor's own file in the leg's directory.

    Raises:
        UnusableEvidenceError: the file is absent, not of its form, or says something else.
    """
    if read_model(place / PROCESS, ProcessRecord) != end.process:
        message = f"{PROCESS} in {place.name}: another end of the server than in the leg's record; expected the same"
        raise UnusableEvidenceError(message)


def _require_named(place: Path, request: LegRequest) -> None:
    """Require the directory's name of its leg's request."""
    named = leg_name(request.sequence, request.leg)
    if place.name != named:
        message = f"{LEGS}/{place.name}: its leg is number {request.sequence}, {request.leg}; expected it in {named}"
        raise UnusableEvidenceError(message)


def read_surroundings(directory: Path, name: str, span: tuple[str, str] | None) -> LegSurroundings:
    """Read the records around a leg.

    Args:
        directory: the endpoint's.
        name: of the leg's directory.
        span: of its begin and its end, by its record; None without one.

    Raises:
        UnusableEvidenceError: a record exists and is not of its form.
    """
    sequence, place = leg_sequence(name), directory / LEGS / name
    return LegSurroundings(
        name=name,
        served=name in started_legs(directory),
        before=usable(read_piece(directory, idle_file(directory, sequence, "before").name, IdleRecord)),
        after=usable(read_piece(directory, idle_file(directory, sequence, "after").name, IdleRecord)),
        host=usable(read_piece(place, HOST, HostAudit)),
        span=span,
    )


def take_teacher(directory: Path, legs: Sequence[LegRecord]) -> Teacher | None:
    """Return the canonical answers: the protocol's own, or those of the first control in ``legs``; None without either.

    The candidate is judged by them, so they never come from it.

    Raises:
        UnusableEvidenceError: the file is not of its form.
    """
    if (directory / TEACHER).exists():
        return read_teacher(directory / TEACHER)
    control = next((leg for leg in legs if leg.request.leg.startswith("A")), None)
    if control is None:
        return None
    request = control.request
    source = files.sha256_file(leg_directory(directory, request.sequence, request.leg) / LEG)
    return Teacher.of(control.rows, source)


def read_teacher(path: Path) -> Teacher:
    """Read the canonical answers, as their maker wrote them; raises UnusableEvidenceError."""
    content = files.read_bytes(path, limit=files.SIZE_LIMIT)
    return parse_model(parse_foreign_json(content.decode("utf-8", "replace"), path.name), Teacher, path.name)
