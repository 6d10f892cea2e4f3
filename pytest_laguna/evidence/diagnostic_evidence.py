# SPDX-License-Identifier: Apache-2.0
"""All that the exact diagnostic left, in memory; what is not there says why."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeAlias, TypeVar

from pytest_laguna.evidence.arm_record import Arm, ArmRecord, ArmRequest
from pytest_laguna.evidence.engine_identity import DiagnosticIdentity
from pytest_laguna.evidence.host import HostAudit
from pytest_laguna.evidence.idle import IdleRecord
from pytest_laguna.evidence.parity import PacketRecord, PacketRequest
from pytest_laguna.evidence.process_record import ProcessRecord
from pytest_laguna.evidence.replay_profile import RankProfile
from pytest_laguna.evidence.schemas import Schema
from pytest_laguna.verdict import JSON, NotProvenError, UnusableEvidenceError, Verdict

Content = TypeVar("Content")
Request_co = TypeVar("Request_co", bound=Schema, covariant=True)
Record_co = TypeVar("Record_co", bound=Schema, covariant=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Missing:
    """In place of a file's content: why it is not there (NOT_PROVEN), or cannot be used (VOID).

    Attributes:
        verdict: which of the two.
        reason: one line that begins with the file's place.
        told: whether the run itself said why it left nothing; else the cause lies before it.
    """

    verdict: Verdict
    reason: str
    told: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """One call of a rank's, as Python's fault handler writes it.

    Attributes:
        file: path of its source.
        line: its number; ``???`` where the handler did not know it.
        function: its name.
    """

    file: str
    line: str
    function: str

    def __str__(self) -> str:
        *_, where = self.file.rpartition("site-packages/")
        return f"{self.function} ({where}, line {self.line})"


Stack: TypeAlias = tuple[Frame, ...]
"""The calls that a rank's main thread was in, the innermost first."""

Stacks: TypeAlias = Mapping[int, Stack | Missing]
"""By rank; of one whose text cannot be used, why. A rank that wrote nothing is not in it."""

Profiles: TypeAlias = Mapping[str, Callable[[], RankProfile]]
"""By file name what reads it, from the start at every call, so that one file at a time is in memory.

A call, and each step through its samples, raises UnusableEvidenceError where the file is torn or of another form.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class RunEvidence(Generic[Request_co, Record_co]):
    """What one arm or one packet left.

    Attributes:
        request: what it was told.
        record: what it did.
        process: how it ended.
        idle: its cards afterwards.
        host: around it.
        stacks: where its ranks were before it was ended.
    """

    request: Request_co | Missing
    record: Record_co | Missing
    process: ProcessRecord | Missing
    idle: IdleRecord | Missing
    host: HostAudit | Missing
    stacks: Stacks


@dataclasses.dataclass(frozen=True, slots=True)
class DiagnosticEvidence:
    """What lies in the diagnostic's directory.

    Attributes:
        target_config: the target's ``config.json``.
        draft_config: the draft's.
        config_sha256: digest of each of the two, by the name of its file; without one that cannot be read.
        identity: of engine, binaries and models.
        idle_before: the leased cards before the first process.
        idle_after: and after the last one.
        packets: by the position of the card in the lease.
        arms: each of the four, in their order.
        profiles: of each arm; empty where it has none.
        unexpected: files and directories that the diagnostic does not write.
    """

    target_config: dict[str, JSON] | Missing
    draft_config: dict[str, JSON] | Missing
    config_sha256: Mapping[str, str]
    identity: DiagnosticIdentity | Missing
    idle_before: IdleRecord | Missing
    idle_after: IdleRecord | Missing
    packets: Mapping[int, RunEvidence[PacketRequest, PacketRecord]]
    arms: Mapping[Arm, RunEvidence[ArmRequest, ArmRecord]]
    profiles: Mapping[Arm, Profiles]
    unexpected: tuple[str, ...]

    def runs(self) -> Iterator[tuple[str, RunEvidence[Schema, Schema]]]:
        """Every packet and every arm, in the order in which they ran, by its place in the directory."""
        yield from ((f"packets/{position}", packet) for position, packet in self.packets.items())
        yield from ((f"arms/{arm}", run) for arm, run in self.arms.items())


def present(piece: Content | Missing) -> Content:
    """The content of what was read.

    Raises:
        NotProvenError: it is not there.
        UnusableEvidenceError: it cannot be used.
    """
    if isinstance(piece, Missing):
        raise (UnusableEvidenceError if piece.verdict is Verdict.VOID else NotProvenError)(piece.reason)
    return piece
