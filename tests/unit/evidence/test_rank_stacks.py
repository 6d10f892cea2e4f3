# SPDX-License-Identifier: Apache-2.0
"""Where ranks say that they are: what Python's fault handler really writes is read, and anything else is not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_laguna.evidence.arms.rank_files import stack_name
from pytest_laguna.evidence.arms.rank_stacks import SIZE_LIMIT, Frame, main_stack, remove_unwritten
from pytest_laguna.evidence.reading import Missing, read_stacks
from pytest_laguna.verdict import UnusableEvidenceError, Verdict

PROGRAM = """\
import faulthandler, sys, threading

def wait():
    threading.Event().wait()

def spin():
    while True:
        pass

threading.Thread(target=wait, daemon=True).start()
with open(sys.argv[1], "ab") as stream:
    faulthandler.dump_traceback_later(0.3, file=stream)
    spin()
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a program with two threads that never comes back."""
    directory = tmp_path_factory.mktemp("written")
    (directory / "program.py").write_text(PROGRAM)
    path = directory / "stack.txt"
    with subprocess.Popen([sys.executable, str(directory / "program.py"), str(path)]) as process:
        while not (path.exists() and path.read_text().endswith("in <module>\n")):
            assert process.poll() is None
        process.kill()
    return path.read_text()


def put(directory: Path, rank: int, content: bytes | str) -> None:
    (directory / stack_name(rank)).write_bytes(content.encode() if isinstance(content, str) else content)


def test_the_main_thread_is_read_from_what_the_handler_writes(written: str, tmp_path: Path) -> None:
    put(tmp_path, 0, written)
    stack = read_stacks(tmp_path)[0]
    assert not isinstance(stack, Missing)
    assert [frame.function for frame in stack] == ["spin", "<module>"]
    assert (Path(stack[0].file).name, stack[0].line in {"7", "8"}) == ("program.py", True)


def test_the_last_text_counts(written: str, tmp_path: Path) -> None:
    put(tmp_path, 3, written + written.replace("in spin\n", "in turn\n"))
    stack = read_stacks(tmp_path)[3]
    assert not isinstance(stack, Missing)
    assert stack[0].function == "turn"


def test_no_part_of_a_text_is_taken_for_it(written: str) -> None:
    for length in range(len(written)):
        with pytest.raises(UnusableEvidenceError, match=r"^rank-0-stack\.txt: not the whole stack of a main thread"):
            main_stack(written[:length], "rank-0-stack.txt")


@pytest.mark.parametrize(
    "spoil",
    [lambda text: text[:-5] + text, lambda text: text.replace(" in spin\n", "\n")],
    ids=["the text before", "a frame"],
)
def test_a_text_with_a_torn_line_is_none(spoil: Callable[[str], str], written: str) -> None:
    with pytest.raises(UnusableEvidenceError, match="not the whole stack of a main thread"):
        main_stack(spoil(written), "torn")


def test_a_program_of_one_thread_has_a_main_thread() -> None:
    text = 'Timeout (0:00:01)!\nThread 0x1 (most recent call first):\n  File "a.py", line 7 in spin\n'
    assert main_stack(f'{text}  File "a.py", line 9 in <module>\n', "one") == (
        Frame("a.py", "7", "spin"),
        Frame("a.py", "9", "<module>"),
    )


def test_a_stack_that_is_too_deep_to_be_written_whole_is_read(written: str) -> None:
    frame = '  File "program.py", line 8 in spin\n'
    deep = written[: written.rindex("  File")] + 2 * frame + "  ...\n"
    assert [frame.function for frame in main_stack(deep, "deep")] == 3 * ["spin"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfe", "rank-1-stack.txt: not ASCII"),
        ("Timeout (0:00:01)!\nThread 0x1 (most recent call first):\n  File \u00e9\n".encode(), "not ASCII"),
        (b"Timeout (0:00:01)!\n", "rank-1-stack.txt: not the whole stack of a main thread"),
        (b"\0" * 4096, "not the whole stack"),
        (b"x" * (SIZE_LIMIT + 1), f"rank-1-stack.txt: larger than {SIZE_LIMIT} bytes"),
    ],
)
def test_what_the_handler_does_not_write_says_nothing(content: bytes, reason: str, tmp_path: Path) -> None:
    put(tmp_path, 1, content)
    piece = read_stacks(tmp_path)[1]
    assert isinstance(piece, Missing)
    assert (piece.verdict, reason in piece.reason) == (Verdict.VOID, True), piece


def test_a_huge_file_is_refused_without_being_read(tmp_path: Path) -> None:
    put(tmp_path, 0, b"")
    os.truncate(tmp_path / stack_name(0), 2**40)
    piece = read_stacks(tmp_path)[0]
    assert isinstance(piece, Missing)
    assert "larger than" in piece.reason


def test_links_and_directories_are_not_followed(written: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(written)
    (tmp_path / stack_name(0)).symlink_to("elsewhere")
    (tmp_path / stack_name(1)).mkdir()
    assert all(isinstance(piece, Missing) for piece in read_stacks(tmp_path).values())
    assert [*read_stacks(tmp_path)] == [0, 1]


def test_a_rank_that_wrote_nothing_is_not_there(tmp_path: Path) -> None:
    put(tmp_path, 0, b"")
    put(tmp_path, 1, b"?")
    (tmp_path / "rank-01-stack.txt").touch()
    assert [*read_stacks(tmp_path)] == [1]
    assert read_stacks(tmp_path / "nowhere") == {}
    remove_unwritten(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-01-stack.txt", stack_name(1)]


def test_a_frame_is_told_without_the_place_of_the_engine() -> None:
    frame = Frame("/engine/lib/python3.11/site-packages/vllm/v1/worker/worker_base.py", "7", "init_device")
    assert str(frame) == "init_device (vllm/v1/worker/worker_base.py, line 7)"
