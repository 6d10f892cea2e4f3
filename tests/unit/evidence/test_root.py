# SPDX-License-Identifier: Apache-2.0
"""What a sealed root says when it cannot be used, who holds it, and in which order an attempt is sealed."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.git import git
from pytest_laguna.evidence.schemas import Entry
from pytest_laguna.verdict import UnusableEvidenceError

# What a root is refused for


def _refusal(path: Path) -> str:
    with pytest.raises(root.RootError) as caught:
        root.check_root(path)
    return str(caught.value)


def test_a_root_behind_a_link_is_refused_with_the_place_behind_it(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    sealed = tmp_path / "link" / "sealed"
    expected = f"sealed root {sealed}: behind a symbolic link or not normal; expected {tmp_path / 'sealed'}"
    assert _refusal(sealed) == expected


def test_a_root_that_others_may_enter_is_refused_by_its_name(tmp_path: Path) -> None:
    sealed = tmp_path / "sealed"
    sealed.mkdir()
    sealed.chmod(0o750)
    assert _refusal(sealed) == (
        f"sealed root {sealed}: mode 0750 lets others in; expected 0700; choose a directory of its own for evidence"
    )


def test_a_lane_that_cannot_be_looked_at_is_named() -> None:
    with pytest.raises(root.RootError) as caught:
        root.check_tree(Path("/dev/null"), Path("/dev/null/demo/cpu"))
    assert str(caught.value) == (
        "sealed root /dev/null: demo: cannot be read (Not a directory); name another root with --sealed-root"
    )


def test_a_root_in_no_checkout_is_accepted(tmp_path: Path) -> None:
    root.check_root(tmp_path / "sealed")


def test_what_git_says_of_a_broken_checkout_is_passed_on(tmp_path: Path) -> None:
    made = git(tmp_path, "init", "--quiet", str(tmp_path))
    assert made is not None
    assert made.returncode == 0
    (tmp_path / ".git" / "config").write_text("[broken")
    told = _refusal(tmp_path / "sealed")
    where = f"sealed root {tmp_path / 'sealed'}: git cannot say whether it is inside a checkout"
    assert told.startswith(
        f"{where} (fatal: bad config line "
    )  # and then git's words, whose versions name it differently
    assert told.endswith(".git/config); fix git or move it")


def test_what_was_added_in_spite_of_the_pattern_is_ignored_all_the_same(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("sealed\n")
    attempt = tmp_path / "sealed" / "campaign" / "cpu" / "gate1" / "0001"
    root.make_directory(attempt)
    (attempt / "attempt.json").touch()
    for command in (("init", "--quiet", "."), ("add", "--force", str(attempt))):
        done = git(tmp_path, *command)
        assert done is not None
        assert done.returncode == 0, done.stderr
    root.check_root(tmp_path / "sealed")


# Who makes and who holds a directory


def test_a_directory_that_another_session_makes_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def and_another_makes_the_next(directory: Path) -> None:
        if directory == tmp_path:
            (tmp_path / "demo" / "cpu").mkdir()

    monkeypatch.setattr(files, "sync_directory", and_another_makes_the_next)
    root.make_directory(tmp_path / "demo" / "cpu")


def test_only_one_holds_a_lane_and_the_next_may_when_it_ends(tmp_path: Path) -> None:
    held = root.lock(tmp_path)
    with pytest.raises(root.RootError) as caught:
        root.lock(tmp_path)
    assert str(caught.value) == f"{tmp_path}: another gate session runs there; wait for its end, then run again"
    os.close(held)
    os.close(root.lock(tmp_path))


def test_a_file_is_no_lane(tmp_path: Path) -> None:
    (tmp_path / "cpu").touch()
    with pytest.raises(NotADirectoryError):
        root.lock(tmp_path / "cpu")


# What lies in it


def test_a_link_is_no_attempt(tmp_path: Path) -> None:
    gate = tmp_path / "gate1"
    (gate / "0001").mkdir(parents=True)
    assert root.attempt_numbers(gate) == [1]
    (gate / "0002").symlink_to("0001")
    with pytest.raises(UnusableEvidenceError) as caught:
        root.attempt_numbers(gate)
    assert str(caught.value) == "gate1/0002: not an attempt; expected directories 0001, 0002, ..."


def test_a_gate_that_cannot_be_listed_is_named() -> None:
    with pytest.raises(UnusableEvidenceError) as caught:
        root.attempt_numbers(Path("/dev/null/gate1"))
    assert str(caught.value) == "gate1: cannot be listed (Not a directory); expected a directory with attempts"


def test_the_entries_of_an_attempt(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "b").write_bytes(b"three")
    assert root.take_tree(tmp_path).entries == [
        Entry(path="d", kind="directory"),
        Entry(path="d/b", kind="file", size=5, sha256=files.sha256_bytes(b"three")),
    ]


def test_what_is_neither_file_nor_directory_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnusableEvidenceError) as caught:
        root.take_tree(tmp_path)
    assert str(caught.value) == ("pipe: neither a regular file nor a directory; expected evidence as it was written")


def test_a_file_that_the_disk_does_not_give_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def give_nothing(path: Path) -> str:
        raise OSError(errno.EIO, "Input/output error", str(path))

    (tmp_path / "torn").touch()
    monkeypatch.setattr(files, "sha256_file", give_nothing)
    with pytest.raises(UnusableEvidenceError) as caught:
        root.take_tree(tmp_path)
    assert str(caught.value) == "torn: cannot be read (Input/output error); expected a file as it was written"


def test_an_attempt_that_is_gone_cannot_be_listed(tmp_path: Path) -> None:
    with pytest.raises(UnusableEvidenceError) as caught:
        root.take_tree(tmp_path / "gone")
    assert str(caught.value) == ".: cannot be read (No such file or directory); expected a directory as it was written"


def test_the_innermost_is_sealed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[Path] = []
    attempt, chmod = tmp_path / "0001", Path.chmod
    (attempt / "evidence").mkdir(parents=True)
    (attempt / "evidence" / "log").touch()
    (attempt / "evidence").chmod(0o755)

    def note_and_change(path: Path, mode: int) -> None:
        order.append(path)
        chmod(path, mode)

    attempt.chmod(0o700)
    monkeypatch.setattr(Path, "chmod", note_and_change)
    root.seal(attempt)
    monkeypatch.undo()
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in order}
    for path in (attempt, attempt / "evidence"):
        path.chmod(0o700)
    assert list(modes.items()) == [
        (attempt / "evidence" / "log", 0o400),
        (attempt / "evidence", 0o500),
        (attempt, 0o500),
    ]
