# SPDX-License-Identifier: Apache-2.0
"""The distributions installed for an interpreter, perhaps another one, and the changes to their files since.

Sources: the packaging specifications "Recording installed projects" (METADATA, RECORD) and "Recording the Direct URL".
"""

from __future__ import annotations

import base64
import collections
import csv
import dataclasses
import email.parser
import urllib.parse
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.engine_identity import ENGINE_PACKAGES, Distribution, DistributionContent, SourceTree
from pytest_laguna.identity import source
from pytest_laguna.identity.source import IdentityError
from pytest_laguna.identity.stamps import digest_all, digest_stamped, printable, stamp

_SIZE_LIMIT = 64 * 1024 * 1024
_IMPORTABLE = frozenset({".py", ".pyc", ".so"})
"""A compiled module beside its source, and not in ``__pycache__``, is imported without it."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Recorded:
    """A file with a digest in RECORD; ``path`` and ``digest`` (algorithm and value) as spelt there."""

    path: str
    file: Path
    digest: str


def metadata_on(path: Sequence[str]) -> Iterator[Path]:
    """Yield the metadata of every distribution on a ``sys.path``, in its order."""
    for place in dict.fromkeys(path):
        if Path(place).is_dir():
            yield from sorted(
                entry for entry in Path(place).iterdir() if entry.name.endswith((".dist-info", ".egg-info"))
            )


def look_at_distribution(metadata: Path) -> Distribution:
    """Describe an installed distribution without reading its files.

    Raises:
        IdentityError: its metadata names no name and version, or is damaged.
        OSError: a file of it cannot be examined.
    """
    headers = email.parser.HeaderParser().parsestr(_headers(metadata))
    name, version = headers.get("Name"), headers.get("Version")
    if not name or not version:
        found = f"{printable(metadata)}: seen {name or 'no name'}, {version or 'no version'}; expected both"
        raise IdentityError(f"{found}; remove it, or install its distribution again")
    listed = {row.path: stamp(row.file.stat()).canonical() for row in _recorded(metadata) if row.file.exists()}
    return Distribution(
        name=name,
        version=version,
        metadata=str(metadata),
        stamps_sha256=files.digest_of(dict(listed)),
        editable=_editable(metadata),
    )


def hash_distributions(metadata: Sequence[Path], start_files: Collection[str]) -> dict[str, DistributionContent]:
    """Compare every file of installed distributions with their ``RECORD``; return contents by the metadata's path.

    A file shared by several distributions may match any one of their digests, and counts as wrong for none of them
    then. ``start_files`` are those that Python reads or runs by itself when it starts.

    Raises:
        IdentityError: a file cannot be read, or changes meanwhile.
    """
    rows = {place: _recorded(place) for place in metadata}
    there = dict(_resolved(dict.fromkeys(row.file for listed in rows.values() for row in listed)))
    digests = digest_all(there.values())
    accepted: dict[Path, set[str]] = collections.defaultdict(set)
    for row in (row for listed in rows.values() for row in listed if row.file in there):
        accepted[there[row.file]].add(row.digest)
    wrong = {file for file, recorded in accepted.items() if _as_recorded(digests[file][1]) not in recorded}
    listed_files = {row.file for listed in rows.values() for row in listed}
    return {
        str(place): DistributionContent(
            unlisted=list(_unlisted(place, listed, listed_files)),
            record_sha256=digest_stamped(place / "RECORD")[1] if (place / "RECORD").is_file() else None,
            differing=[line for row in listed if (line := _difference(row, there.get(row.file), wrong)) is not None],
            start_files=[str(row.file) for row in listed if str(row.file) in start_files],
        )
        for place, listed in rows.items()
    }


def _resolved(named: Collection[Path]) -> Iterator[tuple[Path, Path]]:
    """Yield the existing ones of the named files with their real paths; folders, being few, are resolved once."""
    folders = {folder: folder.resolve() for folder in {file.parent for file in named}}
    for file in named:
        if file.is_file():
            yield file, file.resolve() if file.is_symlink() else folders[file.parent] / file.name


def _unlisted(metadata: Path, rows: Sequence[_Recorded], listed: Collection[Path]) -> Iterator[str]:
    """Yield importable files within the engine's packages without an entry in any RECORD.

    A directory of a module's name wins against the module, so RECORD could list only good files of which none runs.
    """
    for name in ENGINE_PACKAGES:
        if not any(row.path == f"{name}/__init__.py" for row in rows):
            continue
        for path in source.files_in(name, metadata.parent / name, _IMPORTABLE):
            if metadata.parent / path not in listed:
                yield f"{printable(path)}: no RECORD lists it"


def _as_recorded(sha256: str) -> str:
    return f"sha256={base64.urlsafe_b64encode(bytes.fromhex(sha256)).rstrip(b'=').decode()}"


def _difference(row: _Recorded, file: Path | None, wrong: Collection[Path]) -> str | None:
    if file is None:
        return f"{printable(row.path)}: missing"
    return f"{printable(row.path)}: not as it was installed" if file in wrong else None


def _headers(metadata: Path) -> str:
    for file in (metadata / "METADATA", metadata / "PKG-INFO", metadata):
        if file.is_file():
            return files.read_bytes(file, limit=_SIZE_LIMIT).decode(errors="replace")
    return ""


def _recorded(metadata: Path) -> list[_Recorded]:
    """Entries of RECORD with a digest; compiled Python has none, and neither has RECORD itself.

    Programs and data outside the directory of modules are left out: the engine imports none of them, and moving an
    environment rewrites them.
    """
    record = metadata / "RECORD"
    if not record.is_file():
        return []
    text = files.read_bytes(record, limit=_SIZE_LIMIT).decode(errors="backslashreplace")
    rows = [row for row in csv.reader(text.splitlines()) if len(row) > 1 and row[1] and not row[0].startswith("../")]
    return [_Recorded(row[0], metadata.parent / row[0], row[1]) for row in rows]


def _editable(metadata: Path) -> SourceTree | None:
    origin = metadata / "direct_url.json"
    if not origin.is_file():
        return None
    value = files.parse_json(files.read_bytes(origin, limit=_SIZE_LIMIT), str(origin))
    url = value.get("url") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(url, str):
        message = f"{printable(origin)}: seen {type(value).__name__}; expected an object with a url; install it again"
        raise IdentityError(message)
    local = value.get("dir_info")
    if not isinstance(local, dict) or local.get("editable") is not True:
        return None
    directory = Path(urllib.parse.unquote(urllib.parse.urlsplit(url).path)).resolve()
    state = source.git_state(directory)
    if not isinstance(state, dict):
        return SourceTree(directory=str(directory), commit=None, dirty=None)
    return SourceTree(directory=str(directory), commit=str(state["commit"]), dirty=bool(state["dirty"]))
