# SPDX-License-Identifier: Apache-2.0
"""Finds the needed libraries of libraries like the dynamic linker, without loading any of them.

Source: the order of the search is that of ``ld.so(8)``; ``$LIB`` and ``$PLATFORM`` are not expanded.
"""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_laguna.evidence.machine.closure import AbsentLibrary, Closure, Library
from pytest_laguna.identity.elf import DynamicSection, is_elf, read_dynamic
from pytest_laguna.identity.source import IdentityError
from pytest_laguna.identity.stamps import digest_all, printable

LINKER_CONFIGURATION = Path("/etc/ld.so.conf")
DEFAULT_DIRECTORIES = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")


@dataclasses.dataclass(frozen=True, slots=True)
class _Loaded:
    """A library as it was loaded; ``rpath`` is DT_RPATH of the library and of those that needed it."""

    path: Path
    dynamic: DynamicSection
    rpath: tuple[Path, ...]


def resolve_closure(roots: Sequence[Path], search: Sequence[Path] = ()) -> Closure:
    """Find and hash every library that a process would load for libraries and modules opened by path in this order.

    ``search`` are the directories of ``LD_LIBRARY_PATH``, or those of libraries already loaded by the process, whose
    names the linker knows, such as ``torch/lib``. The result is breadth first, as the linker loads.

    Raises:
        IdentityError: a library cannot be read or is no ELF file.
    """
    system = list(system_directories())
    loaded: dict[Path, _Loaded] = {}
    settled: set[str] = set()
    absent: list[AbsentLibrary] = []
    waiting = collections.deque(_opened(path) for path in roots)
    while waiting:
        library = waiting.popleft()
        if loaded.setdefault(_target(library.path), library) is not library:
            continue
        settled |= {library.dynamic.soname} if library.dynamic.soname else set()
        for needed in library.dynamic.needed:
            if needed in settled:
                continue
            settled.add(needed)
            places = _directories(library, search)
            found = _find(needed, library, [*places, *system])
            if found is not None:
                waiting.append(found)
            else:
                renamed = _called(needed, places)
                absent.append(AbsentLibrary(name=needed, needed_by=str(library.path), renamed=renamed))
    return Closure(libraries=_hashed(loaded), absent=absent)


def libraries_below(directory: Path) -> list[Path]:
    """Every library and module below a package's folder."""
    return sorted(path for path in directory.rglob("*.so*") if path.is_file() and is_elf(path))


def system_directories(configuration: Path = LINKER_CONFIGURATION) -> Iterator[Path]:
    """Yield the directories of the linker's configuration, and its built-in ones."""
    yield from _configured(configuration)
    yield from (Path(directory) for directory in DEFAULT_DIRECTORIES)


def _configured(configuration: Path) -> Iterator[Path]:
    if not configuration.is_file():
        return
    for line in configuration.read_text(errors="replace").splitlines():
        words = line.partition("#")[0].split()
        if words[:1] == ["include"]:
            for pattern in words[1:]:
                for file in sorted(Path("/").glob(str(configuration.parent / pattern).lstrip("/"))):
                    yield from _configured(file)
        elif words and words[0].startswith("/"):
            yield Path(words[0])


def _opened(path: Path, inherited: tuple[Path, ...] = ()) -> _Loaded:
    dynamic = read_dynamic(path)
    return _Loaded(path, dynamic, (*_expand(dynamic.rpath, path), *inherited))


def _directories(library: _Loaded, search: Sequence[Path]) -> list[Path]:
    """Directories searched for a library's needs before the system's."""
    if library.dynamic.runpath is None:
        return [*library.rpath, *search]
    return [*search, *_expand(library.dynamic.runpath, library.path)]


def _expand(directories: Sequence[str], library: Path) -> Iterator[Path]:
    origin = str(library.resolve().parent)
    for directory in directories:
        yield Path(directory.replace("${ORIGIN}", origin).replace("$ORIGIN", origin))


def _find(name: str, by: _Loaded, places: Sequence[Path]) -> _Loaded | None:
    for path in [Path(name)] if "/" in name else [place / name for place in places]:
        if path.is_file() and is_elf(path):
            found = _opened(path, by.rpath)
            if found.dynamic.machine == by.dynamic.machine:
                return found
    return None


def _called(name: str, places: Sequence[Path]) -> str | None:
    """Path of a file whose soname is ``name``, under another file name, or None."""
    for place in places:
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            if path.is_file() and is_elf(path) and _soname(path) == name:
                return str(path)
    return None


def _soname(path: Path) -> str | None:
    try:
        return read_dynamic(path).soname
    except IdentityError:  # an object file, or a damaged one: no match
        return None


def _hashed(loaded: Mapping[Path, _Loaded]) -> list[Library]:
    digests = digest_all(loaded)
    return [
        Library(
            path=str(library.path),
            link=os.readlink(library.path) if library.path.is_symlink() else None,  # noqa: PTH115 - as it is spelt
            target=str(target),
            soname=library.dynamic.soname,
            needed=library.dynamic.needed,
            sha256=digests[target][1],
        )
        for target, library in loaded.items()
    ]


def _target(path: Path) -> Path:
    try:
        return path.resolve(strict=True)
    except OSError as error:
        raise IdentityError(f"{printable(path)}: seen {error.strerror}; expected a library that stays there") from error
