# SPDX-License-Identifier: Apache-2.0
"""What every rule over identity looks at: who ran, what it had mapped, and what the controller hashed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

from pytest_laguna.evidence.arms.arm_record import Arm, ArmRecord, MappedFile, RankReport
from pytest_laguna.evidence.arms.engine_identity import DiagnosticIdentity
from pytest_laguna.evidence.values import Validator

HARNESS = "pytest_laguna"
"""This package, by its import name."""
DELETED = " (deleted)"
"""What the kernel appends to the path of a mapped file that has no name any more."""
IN_MEMORY = "/memfd:"
"""How the kernel names what a process made for itself in memory: no file, so it has a name and no digest."""
MADE_BY_ARM = "<arm>"
"""Stands for the directory that was made new for an arm, in the names of what was compiled there."""


@dataclasses.dataclass(frozen=True)
class IdentityCase:
    """What the rules look at.

    Attributes:
        identity: of the diagnostic.
        arms: the records of the arms that left one.
        packets: what the parity packets that left a record had mapped, by the position of their card.
        validator: which implementation of the candidate's contract runs.
        expected: the arms that were to run.
        interpreter: the engine's, as the campaign names it; None where it names none.
        packet_versions: what each packet says of the versions that it ran, by the position of its card.
        null: whether the candidate's slot held a control.
    """

    identity: DiagnosticIdentity
    arms: Mapping[Arm, ArmRecord]
    packets: Mapping[int, Sequence[MappedFile]]
    validator: Validator
    expected: tuple[Arm, ...] = tuple(Arm)
    interpreter: str | None = None
    packet_versions: Mapping[int, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    null: bool = False

    @property
    def candidate_directory(self) -> str:
        """From where the engine imports the candidate; empty when that is not recorded."""
        return self.directory(self.identity.candidate)

    def directory(self, package: str) -> str:
        """From where the engine imports one of the two packages; empty when that is not recorded."""
        found = self.identity.engine.state.packages.get(package)
        return found.directory if found else ""

    def processes(self) -> Iterator[tuple[str, Sequence[MappedFile]]]:
        """Every rank of every arm, and every packet, with what it had mapped."""
        for arm, record in self.arms.items():
            yield from ((f"{arm} rank {report.rank}", report.mapped) for report in record.ranks)
        yield from ((f"packet {position}", mapped) for position, mapped in self.packets.items())

    def own_directory(self, process: str) -> str:
        """The directory that was made new for a process of ``processes``; empty where none is recorded."""
        return self.identity.arm_directories.get(process.partition(" ")[0], "")

    @functools.cached_property
    def _digests(self) -> dict[tuple[str, int, int, int | None], str]:
        return {
            (binary.path, binary.device, binary.inode, binary.stamp.size): binary.sha256
            for binary in self.identity.binaries
        }

    def digest(self, file: MappedFile) -> str | None:
        """The SHA-256 of what is mapped; None when the controller did not find that very file."""
        return self._digests.get((file.path, file.device, file.inode, file.size))

    def contents(self, arm: Arm, report: RankReport) -> dict[str, str]:
        """What a rank of an arm had mapped: digest by path.

        Of what the arm made for itself the place below the arm's directory stands for the content: a compiler writes
        the directory into it. Where two ranks compile the same at once, the later file takes the name of the earlier
        one, which stays mapped without a name.
        """
        own = self.identity.arm_directories.get(arm, "")
        found = {}
        for file in report.mapped:
            if is_below(file.path, own):
                name = content = f"{MADE_BY_ARM}{file.path.removeprefix(own).removesuffix(DELETED)}"
            else:
                name = file.path
                content = name if name.startswith(IN_MEMORY) else self.digest(file) or "unknown"
            found[name] = content
        return found


def is_below(path: str, directory: str) -> bool:
    """Whether a path lies below a directory; nothing lies below none."""
    return bool(directory) and path.startswith(f"{directory}/")
