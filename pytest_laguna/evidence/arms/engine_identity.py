# SPDX-License-Identifier: Apache-2.0
"""Which engine, which binaries and which models the exact diagnostic ran: ``diagnostic/identity.json``.

What is hashed is hashed once an attempt. Later looks compare what the file system says of a file (device, inode, size,
change time), which any write to it and any replacement of it changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.evidence.machine.device_runtime import DeviceRuntime
from pytest_laguna.evidence.schemas import Identity, Schema, Sha256
from pytest_laguna.verdict import UnusableEvidenceError

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

    def named(self, names: Sequence[str]) -> dict[str, Mapping[str, str] | None]:
        """By folder as the campaign names it, each file's digest by its path.

        Args:
            names: of the folders, in the order in which they were hashed.

        Raises:
            UnusableEvidenceError: there are more or fewer.
        """
        if len(names) != len(self.folders):
            raise UnusableEvidenceError(f"identity.json: {len(self.folders)} models; expected {len(names)}")
        pairs = zip(names, self.folders, strict=True)
        return {name: {file.path: file.sha256 for file in folder.files} for name, folder in pairs}


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


ENGINE_PACKAGES = ("torch", "vllm")
"""What the engine is made of, by import name, which is the distribution's too but for the name of a device."""


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


class Distribution(Schema):
    """One distribution that the engine's interpreter finds, without a look into its files.

    Attributes:
        name: as its metadata spells it.
        version: of it.
        metadata: the directory that holds its metadata, or the file that is all of it.
        stamps_sha256: digest over the stamps of the files that its RECORD lists.
        editable: where its sources are; None when its files were copied.
    """

    name: str
    version: str
    metadata: str
    stamps_sha256: Sha256
    editable: SourceTree | None


class ImportedPackage(Schema):
    """A package of this project that the engine's interpreter imports, without a look into its files.

    Attributes:
        directory: that it is imported from, without links.
        stamps_sha256: digest over the stamps of its sources.
    """

    directory: str
    stamps_sha256: Sha256


class EngineState(Schema):
    """The interpreter that runs the engine and what it finds, without a look into any file.

    Attributes:
        interpreter: as the campaign names it.
        program: the file behind all links.
        stamp: of ``program``.
        version: ``sys.version``.
        prefix: ``sys.prefix``.
        base_prefix: ``sys.base_prefix``.
        path: ``sys.path``.
        standard_library: the directory of the standard library, where an operating system may lay a start file.
        start_files: stamps by path of what Python reads or runs by itself when it starts: ``pyvenv.cfg``, ``.pth``
            files, ``sitecustomize`` and ``usercustomize``.
        distributions: all of them, in the order in which they are found.
        packages: the candidate's package and ``pytest_laguna``, by import name.
        imported: what the engine is made of, by import name, and from which directory it is imported; None where from
            no single one.
    """

    interpreter: str
    program: str
    stamp: FileStamp
    version: str
    prefix: str
    base_prefix: str
    path: list[str]
    standard_library: str
    start_files: dict[str, FileStamp]
    distributions: list[Distribution]
    packages: dict[str, ImportedPackage]
    imported: dict[str, str | None]


class DistributionContent(Schema):
    """What is in a distribution's files.

    Attributes:
        record_sha256: of its RECORD, which lists its files with their digests; None where it has none.
        differing: files that RECORD lists and that are missing or have another content, one line each.
        unlisted: what can be imported from beside the files of what the engine is made of, and no RECORD lists.
        start_files: the paths of those start files that its RECORD lists.
    """

    record_sha256: Sha256 | None
    differing: list[str]
    unlisted: list[str]
    start_files: list[str]


class EngineContent(Schema):
    """The digests of what ``EngineState`` names, taken once.

    Attributes:
        program: SHA-256 of the interpreter's program.
        start_files: path to SHA-256.
        distributions: by the path of their metadata.
        packages: by import name, path to SHA-256 of the sources, in the form in which the controller's own are frozen.
        extensions: path on disk to SHA-256 of the compiled parts of these packages.
    """

    program: Sha256
    start_files: dict[str, Sha256]
    distributions: dict[str, DistributionContent]
    packages: dict[str, dict[str, Sha256]]
    extensions: dict[str, Sha256]


class EngineIdentity(Schema):
    """The engine before the first arm.

    Attributes:
        state: what there is.
        content: digests of it.
        runtime: what it stands on below Python; None on every lane but xpu.
    """

    state: EngineState
    content: EngineContent
    runtime: DeviceRuntime | None = None


class Binary(Schema):
    """A file that a process had mapped executable, as the controller found it on disk afterwards.

    Attributes:
        path: where it lies.
        device: as the kernel tells it of a mapping that the controller made of the file, in the form of
            ``arm_record.MappedFile``; on some file systems ``stat`` says something else.
        inode: likewise.
        stamp: of the file.
        sha256: of its content.
    """

    path: str
    device: Size
    inode: Size
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
        python: the interpreter that ran the gate, which is the engine's too where the campaign names none.
        engine: before the first process of the diagnostic.
        engine_after: the later look, after the last one; None when it was not reached.
        models: hashed before the first process.
        models_around: the later looks, by arm.
        arm_directories: by arm, below which everything lies that an arm makes for itself; absolute, without links.
        binaries: everything that an arm or a packet had mapped and that was on disk afterwards, each file once.
    """

    file_schema: Annotated[Literal["pytest-laguna-diagnostic-identity-v1"], pydantic.Field(alias="schema")] = (
        "pytest-laguna-diagnostic-identity-v1"
    )
    attempt: Identity
    frozen: FrozenSources
    candidate: str
    python: str
    engine: EngineIdentity
    engine_after: EngineState | None
    models: ModelFiles
    models_around: dict[str, ArmModels]
    arm_directories: dict[str, str]
    binaries: list[Binary]
