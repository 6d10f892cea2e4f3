# SPDX-License-Identifier: Apache-2.0
"""Mapped binaries: what a real process of its own says of its maps, tied to the files on disk."""

from __future__ import annotations

import _ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.arm_record import MappedFile
from pytest_laguna.identity import binaries
from pytest_laguna.identity.binaries import hash_mapped
from pytest_laguna.identity.source import IdentityError

LIBRARY = Path(_ctypes.__file__)

PROGRAM = """
import ctypes, json, os, sys
ctypes.CDLL(sys.argv[1])
input()
lines = [line.split(maxsplit=5) for line in open("/proc/self/maps")]
found = {}
for line in lines:
    if len(line) == 6 and "x" in line[1] and line[5].startswith("/"):
        path = line[5].rstrip("\\n")
        major, minor = (int(part, 16) for part in line[3].split(":"))
        size = os.stat(path).st_size if os.path.exists(path) else None
        found[path] = {"path": path, "device": os.makedev(major, minor), "inode": int(line[4]), "size": size}
print(json.dumps(list(found.values())))
"""


class Mapper:
    """A process that has mapped a library, and tells its maps when it is asked."""

    def __init__(self, library: Path) -> None:
        command = [sys.executable, "-I", "-B", "-c", PROGRAM, str(library)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._wait_for(library)

    def _wait_for(self, library: Path) -> None:
        maps = Path(f"/proc/{self._process.pid}/maps")
        while str(library) not in maps.read_text():
            assert self._process.poll() is None

    def tell(self) -> list[MappedFile]:
        output, _ = self._process.communicate("\n", timeout=60)
        values: list[dict[str, Any]] = json.loads(output)
        return [MappedFile(**value) for value in values]

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return Path(shutil.copyfile(LIBRARY, tmp_path / "libcopied.so"))


@pytest.fixture
def mapper(library: Path) -> Iterator[Mapper]:
    process = Mapper(library)
    yield process
    process.end()


def of(found: list[MappedFile], path: Path) -> MappedFile:
    [file] = [file for file in found if file.path.startswith(str(path))]
    return file


def test_what_is_mapped_is_hashed_and_tied_to_its_file(mapper: Mapper, library: Path) -> None:
    mapped = mapper.tell()
    table = hash_mapped(mapped, [])
    assert {binary.path for binary in table} == {file.path for file in mapped}
    for file in mapped:
        [binary] = [binary for binary in table if binary.path == file.path]
        assert (binary.device, binary.inode, binary.stamp.size) == (file.device, file.inode, file.size)
        assert binary.sha256 == files.sha256_file(Path(file.path))
    assert of(mapped, library).path == str(library)
    assert str(Path(sys.executable).resolve()) in {file.path for file in mapped}


def test_a_file_that_kept_its_stamp_is_hashed_once(
    mapper: Mapper, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped = mapper.tell()
    table = hash_mapped(mapped, [])
    hashed: list[Path] = []
    real = files.sha256_file

    def watched(path: Path) -> str:
        hashed.append(path)
        return real(path)

    monkeypatch.setattr(files, "sha256_file", watched)
    assert hash_mapped(mapped, table) == table
    assert hashed == []
    os.chmod(library, 0o755)  # noqa: PTH101, S103 - changes the change time only
    later = hash_mapped(mapped, table)
    assert hashed == [library]
    assert [binary.sha256 for binary in later if binary.path == str(library)] == [real(library)] * 2


def test_a_replaced_file_is_another_inode(mapper: Mapper, library: Path, tmp_path: Path) -> None:
    shutil.copyfile(LIBRARY, tmp_path / "new")
    (tmp_path / "new").replace(library)
    mapped = mapper.tell()
    file = of(mapped, library)
    assert file.path == f"{library} (deleted)"
    assert not [binary for binary in hash_mapped(mapped, []) if binary.path == file.path]


def test_a_file_that_is_replaced_after_the_arm_is_not_the_mapped_one(
    mapper: Mapper, library: Path, tmp_path: Path
) -> None:
    mapped = mapper.tell()
    shutil.copyfile(LIBRARY, tmp_path / "new")
    (tmp_path / "new").replace(library)
    file = of(mapped, library)
    [binary] = [binary for binary in hash_mapped(mapped, []) if binary.path == file.path]
    assert binary.inode != file.inode


def test_what_is_gone_or_empty_is_left_out(mapper: Mapper, library: Path) -> None:
    mapped = mapper.tell()
    library.write_bytes(b"")
    assert str(library) not in {binary.path for binary in hash_mapped(mapped, [])}
    library.unlink()
    assert str(library) not in {binary.path for binary in hash_mapped(mapped, [])}
    library.symlink_to(LIBRARY)
    assert str(library) not in {binary.path for binary in hash_mapped(mapped, [])}


def test_the_kernels_words_are_used_and_not_those_of_stat(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps = tmp_path / "maps"
    maps.write_text(f"7f00-7f01 r--p 00000000 103:02 77 {library}\n7f02-7f03 r--p 00000000 00:00 0 \n")
    monkeypatch.setattr(binaries, "MAPS", maps)
    mapped = MappedFile(path=str(library), device=os.makedev(0x103, 2), inode=77, size=library.stat().st_size)
    [binary] = hash_mapped([mapped], [])
    assert (binary.device, binary.inode) == (mapped.device, mapped.inode)
    assert binary.stamp.inode == str(library.stat().st_ino)
    maps.write_text("")
    with pytest.raises(IdentityError, match=r"libcopied.so: seen no entry in .*maps; expected the kernel"):
        hash_mapped([mapped], [])


def test_a_line_end_in_a_name_is_found(tmp_path: Path) -> None:
    library = Path(shutil.copyfile(LIBRARY, tmp_path / "lib\ncopied.so"))
    mapped = MappedFile(path=str(library), device=1, inode=1, size=library.stat().st_size)
    [binary] = hash_mapped([mapped], [])
    assert (binary.path, str(binary.inode)) == (str(library), binary.stamp.inode)
