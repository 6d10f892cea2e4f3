# SPDX-License-Identifier: Apache-2.0
"""Reader of absent and present evidence: each file, directory of files, or run becomes its content or a ``Missing``.

The shared names of files and directories of several experiments are here too.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.engine_identity import DiagnosticIdentity
from pytest_laguna.evidence.arms.rank_stacks import Stack, read_stack, stack_files
from pytest_laguna.evidence.machine import leased_cards
from pytest_laguna.evidence.machine.host import HostAudit
from pytest_laguna.evidence.machine.idle import IdleRecord
from pytest_laguna.evidence.machine.process import ProcessRecord
from pytest_laguna.evidence.schemas import Model, Schema, read_model
from pytest_laguna.verdict import JSON, NotProvenError, UnusableEvidenceError, Verdict

Name = TypeVar("Name")
Content = TypeVar("Content")
Request = TypeVar("Request", bound=Schema)
Record = TypeVar("Record", bound=Schema)
Request_co = TypeVar("Request_co", bound=Schema, covariant=True)
Record_co = TypeVar("Record_co", bound=Schema, covariant=True)

PLAN, IDENTITY = "plan.json", "identity.json"
TARGET_CONFIG, DRAFT_CONFIG = "target-config.json", "draft-config.json"
ARMS, PACKETS, PROFILE = "arms", "packets", "profile"
REQUEST, RECORD, FAILURE, IDLE = "request.json", "record.json", "failure.json", "idle.json"

CONFIG = "config.json"
"""Name of a model's configuration file in the model's folder."""
CONFIG_LIMIT = 1024 * 1024
"""Largest configuration file of a model that is read, in bytes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Missing:
    """An absent (NOT_PROVEN) or unusable (VOID) piece of evidence.

    Attributes:
        reason: one line, beginning with the file's place.
        told: True if the run itself gave the reason; otherwise the cause lies before the run.
    """

    verdict: Verdict
    reason: str
    told: bool = False


class Failure(Schema):
    """``failure.json``: the reason for a missing record."""

    reason: str


Stacks: TypeAlias = Mapping[int, Stack | Missing]
"""Stacks by rank, without the ranks that wrote nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class RunEvidence(Generic[Request_co, Record_co]):
    """The files of one arm or one packet.

    Attributes:
        idle: state of its cards afterwards.
        host: state of the host around it.
        stacks: stacks of its ranks shortly before it was ended.
    """

    request: Request_co | Missing
    record: Record_co | Missing
    process: ProcessRecord | Missing
    idle: IdleRecord | Missing
    host: HostAudit | Missing
    stacks: Stacks


def present(piece: Content | Missing) -> Content:
    """Return the content of a piece.

    Raises:
        NotProvenError: the piece is absent.
        UnusableEvidenceError: the piece cannot be used.
    """
    if isinstance(piece, Missing):
        raise (UnusableEvidenceError if piece.verdict is Verdict.VOID else NotProvenError)(piece.reason)
    return piece


def usable(piece: Content | Missing) -> Content | Missing:
    """Return a piece, present or absent; raises UnusableEvidenceError for an unusable one."""
    return present(piece) if isinstance(piece, Missing) and piece.verdict is Verdict.VOID else piece


def whole(pieces: Mapping[Name, Content | Missing]) -> dict[Name, Content]:
    """Return the pieces with content."""
    return {name: piece for name, piece in pieces.items() if not isinstance(piece, Missing)}


def read_as(directory: Path, place: str, read: Callable[[Path], Content]) -> Content | Missing:
    """Read one file.

    Args:
        directory: base of ``place``.
        place: of the file; reasons begin with it.
        read: returns the content of a path, or raises UnusableEvidenceError.
    """
    path = directory / place
    if not _is_there(path):
        return Missing(Verdict.NOT_PROVEN, f"{place}: there is none")
    try:
        return read(path)
    except UnusableEvidenceError as error:
        return Missing(Verdict.VOID, f"{place}: {str(error).removeprefix(f'{path.name}: ')}")


def read_piece(directory: Path, place: str, model: type[Model]) -> Model | Missing:
    """Read one file of ``directory`` into its model."""
    return read_as(directory, place, functools.partial(read_model, model=model))


def read_pieces(directory: Path, place: str, model: type[Model]) -> dict[str, Model | Missing]:
    """Read every file in one place of ``directory`` into a model, by file name."""
    return {name: read_piece(directory, f"{place}/{name}", model) for name in names_in(directory / place)}


def read_run(directory: Path, place: str, request: type[Request], record: type[Record]) -> RunEvidence[Request, Record]:
    """Read the files of the run in one place of ``directory``."""
    return RunEvidence(
        request=read_piece(directory, f"{place}/{REQUEST}", request),
        record=_failure(directory, place) or read_piece(directory, f"{place}/{RECORD}", record),
        process=read_piece(directory, f"{place}/{leased_cards.PROCESS}", ProcessRecord),
        idle=read_piece(directory, f"{place}/{IDLE}", IdleRecord),
        host=read_piece(directory, f"{place}/{leased_cards.HOST}", HostAudit),
        stacks=read_stacks(directory / place),
    )


def _failure(directory: Path, place: str) -> Missing | None:
    """Return the reason in place of a record; a record beside a reason makes both unusable."""
    failure = read_piece(directory, f"{place}/{FAILURE}", Failure)
    if isinstance(failure, Missing):
        return failure if failure.verdict is Verdict.VOID else None
    if _is_there(directory / place / RECORD):
        return Missing(Verdict.VOID, f"{place}: a record and a failure ({failure.reason}); expected one of them")
    return Missing(Verdict.NOT_PROVEN, f"{place}: no record: {failure.reason}", told=True)


def read_stacks(directory: Path) -> Stacks:
    """Read the stack of every rank of the run in ``directory``, without those of empty files."""
    names = [path.name for path in stack_files(directory)]
    found = {int(name.split("-")[1]): read_as(directory, name, read_stack) for name in names}
    return {rank: stack for rank, stack in found.items() if stack}


def read_identity(directory: Path) -> DiagnosticIdentity:
    """Read the identity of the engine; raises UnusableEvidenceError if it is absent or unusable."""
    return read_model(directory / IDENTITY, DiagnosticIdentity)


def read_config(path: Path) -> dict[str, JSON]:
    """Read a model's configuration file, as its maker wrote it; raises UnusableEvidenceError."""
    value = files.parse_json(files.read_bytes(path, limit=CONFIG_LIMIT), path.name)
    if not isinstance(value, dict):
        raise UnusableEvidenceError(f"{path.name}: not an object; expected a model's configuration")
    return value


def digests_in(directory: Path, places: Iterable[str], limit: int = files.SIZE_LIMIT) -> dict[str, str]:
    """SHA-256 by place of every readable file of at most ``limit`` bytes."""

    def digest(path: Path) -> str:
        return files.sha256_bytes(files.read_bytes(path, limit=limit))

    return whole({place: read_as(directory, place, digest) for place in places})


def names_in(directory: Path) -> list[str]:
    """Sorted names in a directory; empty if there is no directory."""
    try:
        return sorted(path.name for path in directory.iterdir())
    except OSError:
        return []


def _is_there(path: Path) -> bool:
    """True if a file has this name, or if that is unknown: a read then refuses it."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
