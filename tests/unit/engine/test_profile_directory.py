# SPDX-License-Identifier: Apache-2.0
"""A rank's profile goes where it was told or nowhere: each refusal fires."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_laguna.engine.profile_directory import ROOT, SAMPLES, ProfileDirectory, ProfileError, settings_from
from pytest_laguna.evidence.arms.arm_record import MOST_PROFILE_SAMPLES


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "profile"
    directory.mkdir(mode=0o700)
    return directory


def test_neither_variable_asks_for_nothing() -> None:
    assert settings_from({"LAGUNA_LANE": "cpu"}) is None


@pytest.mark.parametrize("samples", [1, 31, MOST_PROFILE_SAMPLES])
def test_both_ask_for_a_profile(samples: int) -> None:
    assert settings_from({ROOT: "/profile", SAMPLES: str(samples)}) == (Path("/profile"), samples)


@pytest.mark.parametrize(
    ("environment", "seen"),
    [
        ({ROOT: "/profile"}, f"{ROOT}, {SAMPLES}: seen '/profile', None"),
        ({SAMPLES: "31"}, f"{ROOT}, {SAMPLES}: seen None, '31'"),
    ],
)
def test_one_of_them_is_refused(environment: dict[str, str], seen: str) -> None:
    with pytest.raises(ProfileError, match=f"{seen}; expected both or neither"):
        settings_from(environment)


@pytest.mark.parametrize("samples", ["", "0", "-1", "+1", "01", "1.0", " 31", "31\n", "1_0", "٣", "513", "1000", "all"])
def test_any_other_number_is_refused(samples: str) -> None:
    with pytest.raises(ProfileError, match=f"{SAMPLES}: seen .*; expected 1 to 512"):
        settings_from({ROOT: "/profile", SAMPLES: samples})


def test_the_file_is_written_privately_and_by_its_digest(root: Path) -> None:
    digest = ProfileDirectory(root, 1, 2).write(b"profile")
    assert [path.name for path in root.iterdir()] == ["rank1.json"]
    written = root / "rank1.json"
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert digest == hashlib.sha256(written.read_bytes()).hexdigest()


def test_ranks_do_not_race_for_the_directory(root: Path) -> None:
    first = ProfileDirectory(root, 0, 4)
    first.write(b"0")
    late = ProfileDirectory(root, 3, 4)
    ProfileDirectory(root, 1, 4).write(b"1")
    late.write(b"3")
    assert sorted(path.name for path in root.iterdir()) == ["rank0.json", "rank1.json", "rank3.json"]


def _link(root: Path) -> Path:
    link = root.with_name("link")
    link.symlink_to(root)
    return link


def _below_a_link(root: Path) -> Path:
    link = root.parent.with_name("below")
    link.symlink_to(root.parent)
    return link / root.name


def _file(root: Path) -> Path:
    path = root.with_name("file")
    path.touch()
    return path


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (lambda root: Path(os.path.relpath(root)), "another; expected an absolute path without links"),
        (lambda root: root / ".." / root.name, "another; expected an absolute path without links"),
        (_link, "another; expected an absolute path without links"),
        (_below_a_link, "another; expected an absolute path without links"),
        (_file, "Not a directory; expected a directory"),
        (lambda root: root / "missing", "No such file .*; expected a directory"),
    ],
    ids=["relative", "dots", "link", "below a link", "file", "missing"],
)
def test_another_place_is_refused(place: Callable[[Path], Path], expected: str, root: Path) -> None:
    with pytest.raises(ProfileError, match=f"{ROOT} .*: seen {expected}"):
        ProfileDirectory(place(root), 0, 2)


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o500, 0o1700])
def test_another_mode_is_refused(mode: int, root: Path) -> None:
    root.chmod(mode)
    with pytest.raises(ProfileError, match=f"seen mode {mode:04o} .*; expected mode 0700 and owner {os.geteuid()}"):
        ProfileDirectory(root, 0, 2)


def test_another_owner_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(
        ProfileError, match=f"seen mode 0700 and owner {owner}; expected mode 0700 and owner {owner + 1}"
    ):
        ProfileDirectory(root, 0, 2)


def _directory(path: Path) -> None:
    path.mkdir(mode=0o600)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("other", lambda path: path.touch(0o600)),
        (".hidden", lambda path: path.touch(0o600)),
        ("rank2.json", lambda path: path.touch(0o600)),
        ("rank01.json", lambda path: path.touch(0o600)),
        ("rank1.json", lambda path: path.touch(0o644)),
        ("rank1.json", lambda path: path.symlink_to("/dev/null")),
        ("rank1.json", _directory),
        ("rank1.json", lambda path: os.mkfifo(path, 0o600)),
    ],
    ids=["file", "hidden", "no such rank", "another spelling", "mode", "link", "directory", "pipe"],
)
def test_anything_but_another_ranks_file_is_refused(name: str, make: Callable[[Path], None], root: Path) -> None:
    make(root / name)
    with pytest.raises(
        ProfileError, match=f"seen {name}, mode .*; expected nothing but other ranks' files of mode 0600"
    ):
        ProfileDirectory(root, 0, 2)


def test_a_second_attempt_is_refused(root: Path) -> None:
    first = ProfileDirectory(root, 0, 1)
    second = ProfileDirectory(root, 0, 1)
    first.write(b"first")
    for attempt in (
        lambda: second.write(b"second"),
        lambda: first.write(b"again"),
        lambda: ProfileDirectory(root, 0, 1),
    ):
        with pytest.raises(ProfileError, match=r"seen rank0\.json already there; expected one attempt of each rank"):
            attempt()
    assert (root / "rank0.json").read_bytes() == b"first"


def test_a_file_that_appears_at_the_last_moment_is_not_overwritten(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = ProfileDirectory(root, 0, 1)
    elsewhere = root.with_name("elsewhere")
    monkeypatch.setattr(directory, "_require_free", lambda _: (root / "rank0.json").symlink_to(elsewhere))
    with pytest.raises(FileExistsError):
        directory.write(b"profile")
    assert not elsewhere.exists()


def test_another_directory_of_that_name_is_refused(root: Path) -> None:
    directory = ProfileDirectory(root, 0, 1)
    root.rename(root.with_name("moved"))
    root.mkdir(mode=0o700)
    with pytest.raises(
        ProfileError, match=r"seen another .*; expected the directory as it was before the first sample"
    ):
        directory.write(b"profile")
    assert list(root.iterdir()) == []


def test_a_directory_that_was_opened_to_others_meanwhile_is_refused(root: Path) -> None:
    directory = ProfileDirectory(root, 0, 1)
    root.chmod(0o755)
    with pytest.raises(ProfileError, match="expected mode 0700"):
        directory.write(b"profile")
