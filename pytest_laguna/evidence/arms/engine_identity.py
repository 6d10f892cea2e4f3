# SPDX-License-Identifier: Apache-2.0
"""``diagnostic/identity.json``: engine, binaries and models of the exact diagnostic.

Every file is hashed once an attempt. Later checks compare its device, inode, size and change time, because any write to
it and any replacement of it changes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.evidence.machine.device_runtime import DeviceRuntime
from pytest_laguna.evidence.schemas import Identity, Schema, Sha256
from pytest_laguna.evidence.values import SchemaName
from pytest_laguna.verdict import UnusableEvidenceError

Size = Annotated[int, pydantic.Field(ge=0)]
Device = Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{2,}:[0-9a-f]{2,}$")]
"""Major and minor number in hexadecimal, as the kernel prints them in ``/proc/<pid>/maps``."""
Inode = Annotated[str, pydantic.Field(pattern=r"^[0-9]+$")]
"""Decimal text: an inode number may be larger than what canonical JSON holds as a number."""

BY_STAT: Final = "device, inode, size and change time"
"""Method of a later check of a hashed file."""


class FileStamp(Schema):
    """The file system's account of a file; every write to it and every replacement of it changes it.

    Attributes:
        size: in bytes.
        changed: change time (not the modification time, which anybody can set) in seconds since 1970.
    """

    device: Device
    inode: Inode
    size: Size
    changed: Annotated[str, pydantic.Field(pattern=r"^-?[0-9]+\.[0-9]{9}$")]


class ModelFile(Schema):
    """One file of a model.

    Attributes:
        path: below the model's folder.
        link: content of the symbolic link at ``path``; None if the file itself lies there.
        target: the file behind all links.
        stamp: of the target.
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
        """Return each file's digest by its path, by folder as the campaign names it.

        Args:
            names: of the folders, in the order of hashing.

        Raises:
            UnusableEvidenceError: there are more or fewer.
        """
        if len(names) != len(self.folders):
            raise UnusableEvidenceError(f"identity.json: seen {len(self.folders)} models; expected {len(names)}")
        pairs = zip(names, self.folders, strict=True)
        return {name: {file.path: file.sha256 for file in folder.files} for name, folder in pairs}


class StampCheck(Schema):
    """One later check of the hashed files.

    Attributes:
        changes: one line for each changed, added or removed file.
    """

    method: Literal["device, inode, size and change time"] = BY_STAT
    looked_at: Size
    changes: list[str]


class ArmModels(Schema):
    """The models right before and right after one arm."""

    before: StampCheck
    after: StampCheck


ENGINE_PACKAGES = ("torch", "vllm")
"""The engine's packages by import name, and by distribution name but for a device's suffix."""


class SourceTree(Schema):
    """The sources of an editable distribution.

    Attributes:
        commit: the checked-out one; None outside git.
        dirty: True if anything is changed or untracked; None likewise.
    """

    directory: str
    commit: str | None
    dirty: bool | None


class Distribution(Schema):
    """One distribution in the engine's interpreter; its files are not read.

    Attributes:
        metadata: directory of its metadata, or the one file with all of it.
        stamps_sha256: digest over the stamps of the files in its RECORD.
        editable: None for copied files.
    """

    name: str
    version: str
    metadata: str
    stamps_sha256: Sha256
    editable: SourceTree | None


class ImportedPackage(Schema):
    """A package of this project as the engine's interpreter imports it; its files are not read.

    Attributes:
        directory: of the import, without links.
        stamps_sha256: digest over the stamps of its sources.
    """

    directory: str
    stamps_sha256: Sha256


class EngineState(Schema):
    """The engine's interpreter and everything it finds; no file is read.

    Attributes:
        program: the file behind all links.
        stamp: of ``program``.
        standard_library: the directory of the standard library, a place for an operating system's start file.
        start_files: stamps by path of the files read or run by Python itself at its start: ``pyvenv.cfg``, ``.pth``
            files, ``sitecustomize`` and ``usercustomize``.
        distributions: all, in the order of finding.
        packages: the candidate's package and ``pytest_laguna``, by import name.
        imported: directory of the import of each engine package, by import name; None if it has no single one.
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
    """Check of a distribution's files against its RECORD.

    Attributes:
        record_sha256: of its RECORD, the list of its files with their digests; None without one.
        differing: files in RECORD, missing or with other content, one line each.
        unlisted: importable files beside those of the engine's packages, listed in no RECORD.
        start_files: paths of the start files in its RECORD.
    """

    record_sha256: Sha256 | None
    differing: list[str]
    unlisted: list[str]
    start_files: list[str]


class EngineContent(Schema):
    """Digests of the files in ``EngineState``, taken once.

    Attributes:
        distributions: by the path of their metadata.
        packages: by import name, path to SHA-256 of the sources, in the form of the controller's own.
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
        runtime: None on every lane but xpu.
    """

    state: EngineState
    content: EngineContent
    runtime: DeviceRuntime | None = None


class Binary(Schema):
    """A file once mapped as executable by a process, as the controller found it on disk afterwards.

    Attributes:
        device: from the kernel's map of the controller's own mapping, as in ``arm_record.MappedFile``; on some file
            systems ``stat`` says something else.
        inode: from the same map.
    """

    path: str
    device: Size
    inode: Size
    stamp: FileStamp
    sha256: Sha256


class FrozenSources(Schema):
    """Sources of the controller's own copies, the basis of the attempt's identity: path to SHA-256."""

    candidate: dict[str, Sha256]
    harness: dict[str, Sha256]

    @property
    def candidate_sha256(self) -> str:
        """Expected value of ``Identity.candidate``."""
        return files.digest_of(dict(self.candidate))

    @property
    def harness_sha256(self) -> str:
        """Expected value of ``Identity.harness``."""
        return files.digest_of(dict(self.harness))


class DiagnosticIdentity(Schema):
    """``diagnostic/identity.json``.

    Attributes:
        candidate: import name of the candidate's package.
        python: the gate's interpreter, also the engine's if the campaign names none.
        engine_after: the engine after the last process; None if the gate did not get so far.
        models: hashed before the first process.
        models_around: later checks, by arm.
        arm_directories: by arm, the directory of everything made by the arm for itself; absolute, without links.
        binaries: every file mapped by an arm or a packet and still on disk afterwards, each once.
    """

    file_schema: SchemaName[Literal["pytest-laguna-diagnostic-identity-v1"]] = "pytest-laguna-diagnostic-identity-v1"
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
