# SPDX-License-Identifier: Apache-2.0
"""A device gate's records of its machine: the lease, snapshots of cards and host, the ends of processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from pytest_laguna.evidence.machine.host import HostAudit
from pytest_laguna.evidence.machine.idle import IdleRecord
from pytest_laguna.evidence.machine.leased_cards import (
    DIRECTORY,
    HOST,
    IDLE_AFTER,
    IDLE_BEFORE,
    LEASE,
    PROCESS,
    LeaseStart,
)
from pytest_laguna.evidence.machine.process import ProcessRecord
from pytest_laguna.evidence.reading import Missing, read_piece
from pytest_laguna.evidence.schemas import Model


@dataclasses.dataclass(frozen=True, slots=True)
class MachineEvidence:
    """Machine records of an attempt of a device gate.

    Attributes:
        before: snapshots before the first test.
        after: snapshots after the last.
        processes: the ends of all runs, by the path of the record.
    """

    lease: LeaseStart | Missing
    before: IdleRecord | Missing
    after: IdleRecord | Missing
    processes: Mapping[str, ProcessRecord | Missing]
    audits: Mapping[str, HostAudit | Missing]


def read_machine(evidence: Path) -> MachineEvidence:
    """Read all machine records of an attempt's ``evidence``, each file by itself."""
    return MachineEvidence(
        lease=read_piece(evidence, f"{DIRECTORY}/{LEASE}", LeaseStart),
        before=read_piece(evidence, f"{DIRECTORY}/{IDLE_BEFORE}", IdleRecord),
        after=read_piece(evidence, f"{DIRECTORY}/{IDLE_AFTER}", IdleRecord),
        processes=read_processes(evidence),
        audits=_read_all(evidence, HOST, HostAudit),
    )


def read_processes(evidence: Path) -> Mapping[str, ProcessRecord | Missing]:
    """Read the ends of all runs, by the path of the record."""
    return _read_all(evidence, PROCESS, ProcessRecord)


def _read_all(evidence: Path, name: str, model: type[Model]) -> Mapping[str, Model | Missing]:
    places = (path for path in sorted(evidence.rglob("*")) if path.name == name)  # links to nowhere too
    paths = [str(path.relative_to(evidence)) for path in places]
    return {path: read_piece(evidence, path, model) for path in paths}
