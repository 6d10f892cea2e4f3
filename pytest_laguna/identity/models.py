# SPDX-License-Identifier: Apache-2.0
"""A model's files: hashed once an attempt, and checked again around every arm and leg without hashing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_laguna.evidence.arms.engine_identity import ModelFile, ModelFiles, ModelFolder, StampCheck
from pytest_laguna.identity.source import IdentityError
from pytest_laguna.identity.stamps import digest_all, printable, stamp


def freeze_models(directories: Sequence[Path]) -> ModelFiles:
    """Hash every file below the models' folders; a file may be a link, as in a content-addressed cache.

    Raises:
        IdentityError: a folder is none or has no files; an entry is neither a file, a link to one, nor a folder; a name
            is not UTF-8; a file cannot be read or changes meanwhile.
    """
    found = [(directory, list(_files_below(directory))) for directory in directories]
    digests = digest_all(target for _, files in found for _, _, target in files)
    return ModelFiles(
        folders=[
            ModelFolder(
                directory=str(directory),
                files=[
                    ModelFile(path=path, link=link, target=str(target), stamp=stamped, sha256=sha256)
                    for path, link, target in files
                    for stamped, sha256 in [digests[target]]
                ],
            )
            for directory, files in found
        ]
    )


def check_models(frozen: ModelFiles) -> StampCheck:
    """Check frozen models again, without hashing; one line for each file changed, added or removed since."""
    changes = [line for folder in frozen.folders for line in _changes(folder)]
    return StampCheck(looked_at=sum(len(folder.files) for folder in frozen.folders), changes=changes)


def _changes(folder: ModelFolder) -> Iterator[str]:
    directory = Path(folder.directory)
    try:
        seen = {path: (link, target) for path, link, target in _files_below(directory)}
    except IdentityError as error:
        yield str(error)
        return
    frozen = {file.path: file for file in folder.files}
    for path in sorted(seen.keys() | frozen.keys()):
        where = printable(directory / path)
        if path not in frozen:
            yield f"{where}: added since the models were hashed"
        elif path not in seen:
            yield f"{where}: removed since the models were hashed"
        else:
            change = _change(frozen[path], *seen[path])
            if change:
                yield f"{where}: {change}"


def _change(frozen: ModelFile, link: str | None, target: Path) -> str | None:
    if (link, str(target)) != (frozen.link, frozen.target):
        return f"leads to {printable(target)} now; expected {printable(frozen.target)}"
    try:
        now = stamp(target.lstat())
    except OSError as error:
        return f"cannot be looked at ({error.strerror})"
    differing = [
        f"{name} is {getattr(now, name)}, expected {getattr(frozen.stamp, name)}"
        for name in type(now).model_fields
        if getattr(now, name) != getattr(frozen.stamp, name)
    ]
    return f"changed since the models were hashed: {'; '.join(differing)}" if differing else None


def _files_below(directory: Path) -> Iterator[tuple[str, str | None, Path]]:
    """Yield every file: its path below the directory, its link as spelt, and the file behind all links."""
    if not directory.is_absolute() or not directory.is_dir():
        raise IdentityError(f"model: seen {printable(directory)}; expected the absolute path of a model's folder")
    paths = sorted(_names_below(directory))
    if not paths:
        raise IdentityError(f"model {printable(directory)}: seen no files; expected a model's folder")
    for path in paths:
        yield path, *_target(directory / path)


def _names_below(directory: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(directory, onerror=_refuse):
        for name in names + [name for name in folders if os.path.islink(Path(folder, name))]:  # noqa: PTH114
            path = Path(folder, name).relative_to(directory).as_posix()
            if not _is_text(path):
                raise IdentityError(f"{printable(directory / path)}: seen a name not in UTF-8; expected one; rename it")
            yield path


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse(error: OSError) -> None:
    raise IdentityError(f"{printable(error.filename)}: seen {error.strerror}; expected a readable folder") from error


def _target(path: Path) -> tuple[str | None, Path]:
    try:
        link = os.readlink(path) if path.is_symlink() else None  # noqa: PTH115 - as it is spelt, which Path changes
        target = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # a circle of links is a RuntimeError in Python 3.11 and 3.12
        raise IdentityError(f"{printable(path)}: seen {error}; expected a file or a link to one") from error
    if not target.is_file():
        message = f"{printable(path)}: seen {printable(target)}, which is no file; expected a file or a link to one"
        raise IdentityError(message)
    return link, target
