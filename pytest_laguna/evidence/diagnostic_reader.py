# SPDX-License-Identifier: Apache-2.0
"""Reads the exact diagnostic's directory, live or sealed; what is absent or unusable is a fact and not an error."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arm_record import Arm, ArmRecord, ArmRequest
from pytest_laguna.evidence.diagnostic import DiagnosticPlan
from pytest_laguna.evidence.diagnostic_evidence import DiagnosticEvidence, Missing, Profiles, RunEvidence
from pytest_laguna.evidence.engine_identity import DiagnosticIdentity
from pytest_laguna.evidence.host import HostAudit
from pytest_laguna.evidence.idle import IdleRecord
from pytest_laguna.evidence.parity import PacketRecord, PacketRequest
from pytest_laguna.evidence.process_record import ProcessRecord
from pytest_laguna.evidence.profile_file import read_profile
from pytest_laguna.evidence.rank_stacks import read_stacks
from pytest_laguna.evidence.replay_profile import RankProfile
from pytest_laguna.evidence.schemas import Model, Schema, read_model
from pytest_laguna.verdict import JSON, UnusableEvidenceError, Verdict

Content = TypeVar("Content")
Request = TypeVar("Request", bound=Schema)
Record = TypeVar("Record", bound=Schema)

ARMS, PACKETS, PROFILE = "arms", "packets", "profile"
RECORD, FAILURE, IDLE = "record.json", "failure.json", "idle.json"

_CONFIG_LIMIT = 1024 * 1024
_POSITION = re.compile(r"0|[1-9][0-9]{0,3}")


class Failure(Schema):
    """``failure.json``: why a run left no record."""

    reason: str


def read_plan(directory: Path) -> DiagnosticPlan:
    """Read what was expected before anything ran.

    Args:
        directory: the diagnostic's.

    Raises:
        UnusableEvidenceError: there is no plan, or it is not one; nothing can be judged without it.
    """
    return read_model(directory / "plan.json", DiagnosticPlan)


def read_diagnostic(directory: Path) -> DiagnosticEvidence:
    """Read everything that the diagnostic left.

    Args:
        directory: the diagnostic's, whole or not.

    Returns:
        Never raises for what lies there: a file that is missing, torn or of another form is a ``Missing`` in its
        place, and profiles are read when they are asked for.
    """
    packets = [name for name in names_in(directory / PACKETS) if _POSITION.fullmatch(name)]
    return DiagnosticEvidence(
        target_config=read_configuration(directory, "target-config.json"),
        draft_config=read_configuration(directory, "draft-config.json"),
        config_sha256=_digests(directory, "target-config.json", "draft-config.json"),
        identity=read_piece(directory, "identity.json", DiagnosticIdentity),
        idle_before=read_piece(directory, "idle-before.json", IdleRecord),
        idle_after=read_piece(directory, "idle-after.json", IdleRecord),
        packets={
            int(name): read_run(directory, f"{PACKETS}/{name}", PacketRequest, PacketRecord)
            for name in sorted(packets, key=int)
        },
        arms={arm: read_run(directory, f"{ARMS}/{arm}", ArmRequest, ArmRecord) for arm in Arm},
        profiles={arm: profiles_in(directory / ARMS / arm / PROFILE) for arm in Arm},
        unexpected=_unexpected(directory),
    )


def read_run(directory: Path, place: str, request: type[Request], record: type[Record]) -> RunEvidence[Request, Record]:
    """What a run left below ``directory``; what is absent or unusable is a ``Missing`` in its place."""
    return RunEvidence(
        request=read_piece(directory, f"{place}/request.json", request),
        record=_told(directory, place) or read_piece(directory, f"{place}/{RECORD}", record),
        process=read_piece(directory, f"{place}/process.json", ProcessRecord),
        idle=read_piece(directory, f"{place}/{IDLE}", IdleRecord),
        host=read_piece(directory, f"{place}/host.json", HostAudit),
        stacks=read_stacks(directory / place),
    )


def _told(directory: Path, place: str) -> Missing | None:
    """What is said in place of a record; with a record beside it, neither can be used."""
    failure = read_piece(directory, f"{place}/{FAILURE}", Failure)
    if isinstance(failure, Missing):
        return failure if failure.verdict is Verdict.VOID else None
    if _there(directory / place / RECORD):
        return Missing(Verdict.VOID, f"{place}: a record and a failure ({failure.reason}); expected one of them")
    return Missing(Verdict.NOT_PROVEN, f"{place}: no record: {failure.reason}", told=True)


def read_piece(directory: Path, place: str, model: type[Model]) -> Model | Missing:
    """One file of ``directory``, or why it is not there or cannot be used."""
    return _read(directory, place, functools.partial(read_model, model=model))


def read_configuration(directory: Path, place: str) -> dict[str, JSON] | Missing:
    """A model's configuration file in ``directory``, likewise."""
    return _read(directory, place, read_config)


def _digests(directory: Path, *places: str) -> dict[str, str]:
    read = functools.partial(files.read_bytes, limit=_CONFIG_LIMIT)
    contents = {place: _read(directory, place, read) for place in places}
    return {
        place: files.sha256_bytes(content) for place, content in contents.items() if not isinstance(content, Missing)
    }


def _read(directory: Path, place: str, read: Callable[[Path], Content]) -> Content | Missing:
    path = directory / place
    if not _there(path):
        return Missing(Verdict.NOT_PROVEN, f"{place}: there is none")
    try:
        return read(path)
    except UnusableEvidenceError as error:
        return Missing(Verdict.VOID, f"{place}: {str(error).removeprefix(f'{path.name}: ')}")


def read_config(path: Path) -> dict[str, JSON]:
    """Read a model's configuration file, as its maker wrote it; raises UnusableEvidenceError."""
    value = files.parse_json(files.read_bytes(path, limit=_CONFIG_LIMIT), path.name)
    if not isinstance(value, dict):
        message = f"{path.name}: not an object; expected a model's configuration"
        raise UnusableEvidenceError(message)
    return value


def profiles_in(directory: Path) -> Profiles:
    """What reads each profile of a directory, by the name of its file."""

    def reader(name: str) -> Callable[[], RankProfile]:
        return lambda: read_profile(directory / name)

    return {name: reader(name) for name in names_in(directory)}


def _unexpected(directory: Path) -> tuple[str, ...]:
    """Arms and packets that nobody planned; a run's own directory may hold what it likes."""
    arms = [f"{ARMS}/{name}" for name in names_in(directory / ARMS) if name not in set(Arm)]
    packets = [f"{PACKETS}/{name}" for name in names_in(directory / PACKETS) if not _POSITION.fullmatch(name)]
    return (*arms, *packets)


def _there(path: Path) -> bool:
    """Whether there is anything of that name; what cannot be looked at is left to the reader to refuse."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def names_in(directory: Path) -> list[str]:
    """What lies in a directory, sorted; nothing where there is none."""
    try:
        return sorted(path.name for path in directory.iterdir())
    except OSError:
        return []
