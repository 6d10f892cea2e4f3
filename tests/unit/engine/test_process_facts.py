# SPDX-License-Identifier: Apache-2.0
"""What a process says of itself is what the kernel says of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from pytest_laguna.engine import process_facts
from pytest_laguna.machine.descent import find


def test_a_process_is_known_by_number_and_start() -> None:
    told = process_facts.this_process()
    seen = find(os.getpid())
    assert seen is not None
    assert (told.pid, told.start_ticks) == (seen.pid, seen.start_ticks)


def test_every_executable_mapping_of_a_file_is_told_once() -> None:
    told = process_facts.mapped_files()
    by_path = {mapped.path: mapped for mapped in told}
    assert len(by_path) == len(told)
    assert [mapped.path for mapped in told] == sorted(by_path)
    python = os.path.realpath(sys.executable)
    assert by_path[python].size == Path(python).stat().st_size
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    assert by_path.keys() == {line[5] for line in lines if "x" in line[1] and len(line) > 5 and line[5][0] == "/"}


MAPS = """\
55d0-55d1 r--p 00000000 fe:01 17 {place}/read only.so
55d1-55d2 r-xp 00001000 fe:01 18 {place}/a name with spaces.so
55d2-55d3 r-xp 00002000 fe:01 18 {place}/a name with spaces.so
55d3-55d4 r-xp 00000000 fe:01 19 {place}/gone.so (deleted)
55d4-55d5 rwxp 00000000 00:00 0
55d5-55d6 r-xp 00000000 00:00 0                  [vdso]
55d6-55d7 r-xp 00000000 00:2a 20 {place}/line\\012end.so
55d7-55d8 r-xs 00000000 00:01 21 /memfd:jit (deleted)
"""


def test_device_and_inode_are_those_of_the_map(tmp_path: Path) -> None:
    (tmp_path / "a name with spaces.so").write_bytes(b"12345")
    (tmp_path / "gone.so").write_bytes(b"another file of that name")
    told = process_facts.executable_files(MAPS.format(place=tmp_path))
    assert [(Path(mapped.path).name, mapped.device, mapped.inode, mapped.size) for mapped in told] == [
        ("memfd:jit (deleted)", os.makedev(0, 1), 21, None),
        ("a name with spaces.so", os.makedev(0xFE, 1), 18, 5),
        ("gone.so (deleted)", os.makedev(0xFE, 1), 19, None),
        ("line\nend.so", os.makedev(0, 0x2A), 20, None),
    ]


def test_a_library_that_was_deleted_after_it_was_loaded_is_told_as_deleted(tmp_path: Path) -> None:
    library = tmp_path / "copy.so"
    program = (
        "import ctypes, json, os, shutil, sysconfig, glob, _struct\n"
        f"shutil.copy(_struct.__file__, {str(library)!r})\n"
        f"ctypes.PyDLL({str(library)!r}); os.unlink({str(library)!r})\n"
        "from pytest_laguna.engine import process_facts\n"
        "print(json.dumps([[m.path, m.size] for m in process_facts.mapped_files()]))"
    )
    seen = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert [f"{library} (deleted)", None] in json.loads(seen.stdout)
