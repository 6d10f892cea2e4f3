# SPDX-License-Identifier: Apache-2.0
"""What a device gate records of its machine: the lease, looks at cards and host, the ends of processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from pytest_laguna.evidence import leased_cards
from pytest_laguna.evidence.host import HostAudit
from pytest_laguna.evidence.idle import IdleRecord
from pytest_laguna.evidence.leased_cards import LeaseStart
from pytest_laguna.evidence.process_record import ProcessRecord
from pytest_laguna.evidence.schemas import Model, read_model


@dataclasses.dataclass(frozen=True, slots=True)
class MachineEvidence:
    """What lies in an attempt of a device gate.

    Attributes:
        lease: None when it was not recorded.
        before: the looks before the first test; None when there are none.
        after: the looks after the last.
        processes: the ends of everything that was run, by the path of the record.
        audits: the host around them, likewise.
    """

    lease: LeaseStart | None
    before: IdleRecord | None
    after: IdleRecord | None
    processes: Mapping[str, ProcessRecord]
    audits: Mapping[str, HostAudit]


def read_machine(evidence: Path) -> MachineEvidence:
    """Read it all.

    Args:
        evidence: the attempt's directory of that name.

    Raises:
        UnusableEvidenceError: a file is there and is not what its name says.
    """
    cards = evidence / leased_cards.DIRECTORY
    return MachineEvidence(
        lease=_read(cards / leased_cards.LEASE, LeaseStart),
        before=_read(cards / leased_cards.IDLE_BEFORE, IdleRecord),
        after=_read(cards / leased_cards.IDLE_AFTER, IdleRecord),
        processes=_read_all(evidence, leased_cards.PROCESS, ProcessRecord),
        audits=_read_all(evidence, leased_cards.HOST, HostAudit),
    )


def _read(path: Path, model: type[Model]) -> Model | None:
    return read_model(path, model) if path.exists() else None


def _read_all(evidence: Path, name: str, model: type[Model]) -> Mapping[str, Model]:
    return {str(path.relative_to(evidence)): read_model(path, model) for path in sorted(evidence.rglob(name))}
