# SPDX-License-Identifier: Apache-2.0
"""Reads a library's dynamic section.

Source: the System V ABI, "Dynamic Section".
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.construct.core import ConstructError
from elftools.elf.dynamic import DynamicSegment, DynamicTag
from elftools.elf.elffile import ELFFile

from pytest_laguna.identity.source import IdentityError
from pytest_laguna.identity.stamps import printable


@dataclasses.dataclass(frozen=True, slots=True)
class DynamicSection:
    """The fields used to find libraries.

    Attributes:
        machine: word size and machine; a library of another kind does not match.
        soname: None without one.
        needed: DT_NEEDED in its order.
        rpath: the directories of DT_RPATH, unexpanded; empty beside DT_RUNPATH, which overrides it.
        runpath: of DT_RUNPATH; None without one.
    """

    machine: tuple[int, str]
    soname: str | None
    needed: list[str]
    rpath: list[str]
    runpath: list[str] | None


def is_elf(path: Path) -> bool:
    """True if a file begins like an ELF file; a linker script named like a library does not."""
    with path.open("rb") as stream:
        return stream.read(4) == b"\x7fELF"


def read_dynamic(path: Path) -> DynamicSection:
    """Read the dynamic section of an ELF file.

    Raises:
        IdentityError: it cannot be read, is no ELF file or a damaged one, or has no dynamic section.
    """
    try:
        with path.open("rb") as stream:
            file = ELFFile(stream)
            segment = next((found for found in file.iter_segments() if isinstance(found, DynamicSegment)), None)
            tags: list[DynamicTag] = list(segment.iter_tags()) if segment is not None else []
            machine = (int(file.elfclass), str(file["e_machine"]))
            named = [(str(tag.entry.d_tag), tag) for tag in tags]
            texts = {
                kind: [str(getattr(tag, attribute)) for name, tag in named if name == kind]
                for kind, attribute in (
                    ("DT_SONAME", "soname"),
                    ("DT_NEEDED", "needed"),
                    ("DT_RPATH", "rpath"),
                    ("DT_RUNPATH", "runpath"),
                )
            }
    except (OSError, ELFError, ConstructError, ValueError, KeyError, AttributeError) as error:
        raise IdentityError(f"{printable(path)}: seen {printable(str(error))}; expected a readable ELF file") from error
    if not tags:
        raise IdentityError(f"{printable(path)}: seen no dynamic section; expected a library or a module")
    runpath = _directories(texts["DT_RUNPATH"]) if texts["DT_RUNPATH"] else None
    return DynamicSection(
        machine=machine,
        soname=next(iter(texts["DT_SONAME"]), None),
        needed=texts["DT_NEEDED"],
        rpath=_directories(texts["DT_RPATH"]) if runpath is None else [],
        runpath=runpath,
    )


def _directories(paths: list[str]) -> list[str]:
    return [directory for path in paths for directory in path.split(":") if directory]
