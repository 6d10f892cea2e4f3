# SPDX-License-Identifier: Apache-2.0
"""Which engine, which binaries and which models the exact diagnostic ran: ``diagnostic/identity.json``.

What is hashed is hashed once an attempt. Later looks compare what the file system says of a file (device, inode, size,
change time), which any write to it and any replacement of it changes.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.evidence.schemas import Identity, Schema, Sha256

Size = Annotated[int, pydantic.Field(ge=0)]
Device = Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{2,}:[0-9a-f]{2,}$")]
"""Major and minor number in hexadecimal, as the kernel prints them in ``/proc/<pid>/maps``."""
Inode = Annotated[str, pydantic.Field(pattern=r"^[0-9]+$")]
"""Decimal text: an inode number may be larger than what canonical JSON holds as a number."""

BY_STAT: Final = "device, inode, size and change time"
"""How a file that has been hashed before is looked at again."""


class FileStamp(Schema):
    """What the file system says of a file; every write to it and every replacement of it changes that.

    Attributes:
        device: that it lies on.
        inode: its number there.
        size: in bytes.
        changed: its change time (not the modification time, which anybody can set) in seconds since 1970.
    """

    device: Device
    inode: Inode
    size: Size
    changed: Annotated[str, pydantic.Field(pattern=r"^-?[0-9]+\.[0-9]{9}$")]


class ModelFile(Schema):
    """One file of a model.

    Attributes:
        path: below the model's folder.
        link: what the symbolic link at ``path`` says; None where the file itself lies there.
        target: the file behind all links.
        stamp: of the target.
        sha256: of its content.
    """

    path: str
    link: str | None
    target: str
    stamp: FileStamp
    sha256: Sha256


class ModelFolder(Schema):
    """One model: every file below its folder, by path."""

    directory: str
    files: Annotated[list[ModelFile], pydantic.Field(min_length=1)]


class ModelFiles(Schema):
    """The models of a run, hashed once."""

    folders: Annotated[list[ModelFolder], pydantic.Field(min_length=1)]


class StampCheck(Schema):
    """One later look at what was hashed.

    Attributes:
        method: how it was looked at; nothing is hashed again.
        looked_at: how many files.
        changes: one line for each that was changed, added or removed.
    """

    method: Literal["device, inode, size and change time"] = BY_STAT
    looked_at: Size
    changes: list[str]


class ArmModels(Schema):
    """The models right before and right after one arm."""

    before: StampCheck
    after: StampCheck


class SourceTree(Schema):
    """Where an editable distribution has its sources.

    Attributes:
        directory: the tree's.
        commit: that is checked out; None where it is no git tree.
        dirty: whether anything is changed or untracked; None likewise.
    """

    directory: str
    commit: str | None
    dirty: bool | None


class InstalledDistribution(Schema):
    """One distribution that the engine's interpreter finds.

    Attributes:
        name: as its metadata spells it.
        version: of it.
        location: the directory in which it lies.
        record_sha256: of its RECORD, which lists its files with their digests; None where it has none.
        stamps_sha256: digest over the stamps of the files in RECORD that are there.
        differing: files in RECORD that are missing or have another content than RECORD says.
        editable: where its sources are; None when its files were copied.
    """

    name: str
    version: str
    location: str
    record_sha256: Sha256 | None
    stamps_sha256: Sha256
    differing: list[str]
    editable: SourceTree | None


class PackageCopy(Schema):
    """A package of this project as the engine's interpreter imports it.

    Attributes:
        directory: that it is imported from.
        sources: path to SHA-256, in the form in which the controller's own copy is frozen.
    """

    directory: str
    sources: dict[str, Sha256]


class EngineIdentity(Schema):
    """The interpreter that runs the engine, and what it finds.

    Attributes:
        interpreter: as the campaign names it.
        resolved: the program behind all links.
        sha256: of that program.
        version: ``sys.version``.
        prefix: ``sys.prefix``.
        base_prefix: ``sys.base_prefix``.
        path: ``sys.path``.
        start_files: path to SHA-256 of what Python runs by itself when it starts: ``.pth`` files, ``sitecustomize`` and
            ``usercustomize``.
        distributions: all of them, in the order in which they are found.
        packages: ``laguna_kv`` or whatever the candidate is called, and ``pytest_laguna``.
    """

    interpreter: str
    resolved: str
    sha256: Sha256
    version: str
    prefix: str
    base_prefix: str
    path: list[str]
    start_files: dict[str, Sha256]
    distributions: list[InstalledDistribution]
    packages: dict[str, PackageCopy]


class MappedFile(Schema):
    """A file that a process has mapped executable, in the words of its ``/proc/<pid>/maps``.

    Attributes:
        path: with the kernel's `` (deleted)`` where the file has no name any more.
        device: as the kernel prints it there, which on some file systems is not what ``stat`` says.
        inode: likewise.
        size: of the file at ``path``, in bytes; None when there is none.
    """

    path: str
    device: Device
    inode: Inode
    size: Size | None


class Binary(Schema):
    """A file that some process had mapped, as the controller found it on disk.

    Attributes:
        path: where it lies.
        device: as the kernel prints it for a mapping that the controller made of it.
        inode: likewise.
        stamp: of the file.
        sha256: of its content.
    """

    path: str
    device: Device
    inode: Inode
    stamp: FileStamp
    sha256: Sha256


class FrozenSources(Schema):
    """The sources of the controller's own copies, which the attempt's identity is made of: path to SHA-256."""

    candidate: dict[str, Sha256]
    harness: dict[str, Sha256]

    @property
    def candidate_sha256(self) -> str:
        """What ``Identity.candidate`` must be."""
        return files.digest_of(dict(self.candidate))

    @property
    def harness_sha256(self) -> str:
        """What ``Identity.harness`` must be."""
        return files.digest_of(dict(self.harness))


class DiagnosticIdentity(Schema):
    """``diagnostic/identity.json``.

    Attributes:
        attempt: the digests that the attempt is bound to.
        frozen: the files behind them.
        candidate: import name of the candidate's package.
        engine_before: before the first process of the diagnostic.
        engine_after: after the last one; None when it was not reached.
        models: hashed before the first process.
        models_around: the later looks, by arm.
        arm_directories: by arm, below which everything lies that an arm makes for itself.
        binaries: everything that a rank had mapped and that was on disk after its arm, each file once.
    """

    file_schema: Annotated[Literal["pytest-laguna-diagnostic-identity-v1"], pydantic.Field(alias="schema")] = (
        "pytest-laguna-diagnostic-identity-v1"
    )
    attempt: Identity
    frozen: FrozenSources
    candidate: str
    engine_before: EngineIdentity
    engine_after: EngineIdentity | None
    models: ModelFiles
    models_around: dict[str, ArmModels]
    arm_directories: dict[str, str]
    binaries: list[Binary]
