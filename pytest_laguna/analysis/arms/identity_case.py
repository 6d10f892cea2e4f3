# SPDX-License-Identifier: Apache-2.0
"""Evidence of the rules over identity: records, mapped files, and the controller's digests."""

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
"""Suffix of the kernel for the path of a mapped file without a name."""
IN_MEMORY = "/memfd:"
"""Prefix of the kernel for a process's own memory: no file, so it has a name and no digest."""
MADE_BY_ARM = "<arm>"
"""Stands for the directory made new for an arm, in the names of files compiled there."""


@dataclasses.dataclass(frozen=True)
class IdentityCase:
    """Evidence and expectations of the rules.

    Attributes:
        packets: files mapped by the recorded parity packets, by the position of their card.
        expected: the arms of the plan.
        interpreter: the engine's, as the campaign names it; None if it names none.
        packet_versions: versions of each packet, by the position of its card.
        null: True if the candidate's slot held a control.
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
        """Place of the engine's candidate; empty if not recorded."""
        return self.directory(self.identity.candidate)

    def directory(self, package: str) -> str:
        """Return the engine's place of one of the two packages; empty if not recorded."""
        found = self.identity.engine.state.packages.get(package)
        return found.directory if found else ""

    def processes(self) -> Iterator[tuple[str, Sequence[MappedFile]]]:
        """Yield every rank of every arm, and every packet, with its mapped files."""
        for arm, record in self.arms.items():
            yield from ((f"{arm} rank {report.rank}", report.mapped) for report in record.ranks)
        yield from ((f"packet {position}", mapped) for position, mapped in self.packets.items())

    def own_directory(self, process: str) -> str:
        """Return the directory made new for a process of ``processes``; empty if not recorded."""
        return self.identity.arm_directories.get(process.partition(" ")[0], "")

    @functools.cached_property
    def _digests(self) -> dict[tuple[str, int, int, int | None], str]:
        return {
            (binary.path, binary.device, binary.inode, binary.stamp.size): binary.sha256
            for binary in self.identity.binaries
        }

    def digest(self, file: MappedFile) -> str | None:
        """Return the SHA-256 of a mapped file; None if the controller did not find that very file."""
        return self._digests.get((file.path, file.device, file.inode, file.size))

    def contents(self, arm: Arm, report: RankReport) -> dict[str, str]:
        """Return the files mapped by a rank of an arm: digest by path.

        For the arm's own files the place below its directory stands for the content, since a compiler writes the
        directory into them. If two ranks compile the same at once, the later file takes the name of the earlier one,
        still mapped without one.
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
    """True if a path lies below a directory; nothing lies below an empty one."""
    return bool(directory) and path.startswith(f"{directory}/")
