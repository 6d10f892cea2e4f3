# SPDX-License-Identifier: Apache-2.0
"""What is installed for an interpreter that need not be this one, and whether its files are still as installed.

Sources: the packaging specifications "Recording installed projects" (METADATA, RECORD) and "Recording the Direct URL".
"""

from __future__ import annotations

import base64
import csv
import dataclasses
import email.parser
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_laguna.evidence import files
from pytest_laguna.evidence.engine_identity import Distribution, DistributionContent, SourceTree
from pytest_laguna.identity import source
from pytest_laguna.identity.source import IdentityError
from pytest_laguna.identity.stamps import digest_all, digest_stamped, printable, stamp

_SIZE_LIMIT = 64 * 1024 * 1024


@dataclasses.dataclass(frozen=True, slots=True)
class _Recorded:
    """A file that RECORD lists with a digest.

    Attributes:
        path: as RECORD spells it.
        file: where it lies.
        digest: algorithm and value as RECORD spells them.
    """

    path: str
    file: Path
    digest: str


def metadata_on(path: Sequence[str]) -> Iterator[Path]:
    """The metadata of every distribution on a ``sys.path``, in its order."""
    for place in dict.fromkeys(path):
        if Path(place).is_dir():
            yield from sorted(
                entry for entry in Path(place).iterdir() if entry.name.endswith((".dist-info", ".egg-info"))
            )


def look_at_distribution(metadata: Path) -> Distribution:
    """What an installed distribution is, without a look into its files.

    Raises:
        IdentityError: its metadata names no name and version, or is damaged.
        OSError: something of it cannot be read.
    """
    headers = email.parser.HeaderParser().parsestr(_headers(metadata))
    name, version = headers.get("Name"), headers.get("Version")
    if not name or not version:
        message = f"{printable(metadata)}: names no name and version; remove it, or install its distribution again"
        raise IdentityError(message)
    listed = {row.path: stamp(row.file.stat()).canonical() for row in _recorded(metadata) if row.file.exists()}
    return Distribution(
        name=name,
        version=version,
        metadata=str(metadata),
        stamps_sha256=files.digest_of(dict(listed)),
        editable=_editable(metadata),
    )


def hash_distribution(metadata: Path) -> DistributionContent:
    """Compare every file of an installed distribution with what its RECORD says.

    Raises:
        IdentityError: a file cannot be read, or changes meanwhile.
    """
    record = metadata / "RECORD"
    if not record.is_file():
        return DistributionContent(record_sha256=None, differing=[])
    rows = _recorded(metadata)
    there = {row.path: row.file.resolve() for row in rows if row.file.is_file()}
    digests = digest_all(there.values())
    found = {path: digests[file][1] for path, file in there.items()}
    differing = [line for row in rows if (line := _difference(row, found.get(row.path))) is not None]
    return DistributionContent(record_sha256=digest_stamped(record)[1], differing=differing)


def _headers(metadata: Path) -> str:
    for file in (metadata / "METADATA", metadata / "PKG-INFO", metadata):
        if file.is_file():
            return files.read_bytes(file, limit=_SIZE_LIMIT).decode(errors="replace")
    return ""


def _recorded(metadata: Path) -> list[_Recorded]:
    """What RECORD lists with a digest; compiled Python has none, and neither has RECORD itself."""
    record = metadata / "RECORD"
    if not record.is_file():
        return []
    text = files.read_bytes(record, limit=_SIZE_LIMIT).decode(errors="backslashreplace")
    rows = [row for row in csv.reader(text.splitlines()) if len(row) > 1 and row[1]]
    return [_Recorded(row[0], metadata.parent / row[0], row[1]) for row in rows]


def _difference(row: _Recorded, sha256: str | None) -> str | None:
    if sha256 is None:
        return f"{printable(row.path)}: missing"
    encoded = base64.urlsafe_b64encode(bytes.fromhex(sha256)).rstrip(b"=").decode()
    return None if row.digest == f"sha256={encoded}" else f"{printable(row.path)}: not as it was installed"


def _editable(metadata: Path) -> SourceTree | None:
    origin = metadata / "direct_url.json"
    if not origin.is_file():
        return None
    value = files.parse_json(files.read_bytes(origin, limit=_SIZE_LIMIT), str(origin))
    url = value.get("url") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(url, str):
        message = f"{printable(origin)}: expected an object with a url; install its distribution again"
        raise IdentityError(message)
    local = value.get("dir_info")
    if not isinstance(local, dict) or local.get("editable") is not True:
        return None
    directory = Path(urllib.parse.unquote(urllib.parse.urlsplit(url).path)).resolve()
    state = source.git_state(directory)
    if not isinstance(state, dict):
        return SourceTree(directory=str(directory), commit=None, dirty=None)
    return SourceTree(directory=str(directory), commit=str(state["commit"]), dirty=bool(state["dirty"]))
