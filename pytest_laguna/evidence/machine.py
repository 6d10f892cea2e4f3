# SPDX-License-Identifier: Apache-2.0
"""What a device gate records of its machine: the lease, looks at cards and host, the ends of processes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from pytest_laguna.evidence import leased_cards
from pytest_laguna.evidence.host import HostAudit
from pytest_laguna.evidence.idle import IdleRecord
from pytest_laguna.evidence.leased_cards import LeaseStart
from pytest_laguna.evidence.process_record import ProcessRecord
from pytest_laguna.evidence.schemas import Model, read_model
from pytest_laguna.verdict import UnusableEvidenceError


@dataclasses.dataclass(frozen=True, slots=True)
class MachineEvidence:
    """What lies in an attempt of a device gate.

    Attributes:
        lease: None when it was not recorded.
        before: the looks before the first test; None when there are none.
        after: the looks after the last.
        processes: the ends of everything that was run, by the path of the record.
        audits: the host around them, likewise.
        damaged: by path why a file of these cannot be used; it makes nothing of the others unread.
    """

    lease: LeaseStart | None
    before: IdleRecord | None
    after: IdleRecord | None
    processes: Mapping[str, ProcessRecord]
    audits: Mapping[str, HostAudit]
    damaged: Mapping[str, str]


def read_machine(evidence: Path) -> MachineEvidence:
    """Read it all, each file by itself.

    Args:
        evidence: the attempt's directory of that name.
    """
    reader = _Reader(evidence)
    cards = evidence / leased_cards.DIRECTORY
    return MachineEvidence(
        lease=reader.read(cards / leased_cards.LEASE, LeaseStart),
        before=reader.read(cards / leased_cards.IDLE_BEFORE, IdleRecord),
        after=reader.read(cards / leased_cards.IDLE_AFTER, IdleRecord),
        processes=reader.read_all(leased_cards.PROCESS, ProcessRecord),
        audits=reader.read_all(leased_cards.HOST, HostAudit),
        damaged=reader.damaged,
    )


def read_processes(evidence: Path) -> tuple[Mapping[str, ProcessRecord], Mapping[str, str]]:
    """The ends of everything that was run, by the path of the record, and why other such records cannot be used."""
    reader = _Reader(evidence)
    return reader.read_all(leased_cards.PROCESS, ProcessRecord), reader.damaged


class _Reader:
    """Reads files below a directory and remembers which of them cannot be used."""

    def __init__(self, evidence: Path) -> None:
        self._evidence = evidence
        self.damaged: dict[str, str] = {}

    def read(self, path: Path, model: type[Model]) -> Model | None:
        if not os.path.lexists(path):
            return None
        try:
            return read_model(path, model)
        except UnusableEvidenceError as error:
            self.damaged[str(path.relative_to(self._evidence))] = str(error).removeprefix(f"{path.name}: ")
            return None

    def read_all(self, name: str, model: type[Model]) -> Mapping[str, Model]:
        places = (path for path in sorted(self._evidence.rglob("*")) if path.name == name)  # links to nowhere too
        found = {path: self.read(path, model) for path in places}
        return {str(path.relative_to(self._evidence)): record for path, record in found.items() if record is not None}
