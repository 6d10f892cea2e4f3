# SPDX-License-Identifier: Apache-2.0
"""What git is asked, in which surroundings, and what is made of its answer; the git of these tests is a script."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pytest_laguna.evidence import git as git_module
from pytest_laguna.evidence.git import git


def script(directory: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "git").write_text(f"#!/bin/sh\n{text}\n")
    (directory / "git").chmod(0o700)
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")


def test_git_is_asked_for_one_directory_in_surroundings_that_do_not_change_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = """printf '%s\\n' "$@" "$LC_ALL" "${GIT_DIR-none}"; printf '\\377' >&2; cat; exit 3"""
    script(tmp_path, told, monkeypatch)
    monkeypatch.setenv("GIT_DIR", "/elsewhere")
    monkeypatch.setenv("LC_ALL", "de_DE")
    reading, writing = os.pipe()
    os.write(writing, b"typed")
    os.close(writing)
    before = os.dup(0)
    os.dup2(reading, 0)
    try:
        done = git(tmp_path, "status", "--short")
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(reading)
    assert done is not None
    expected = ["-c", "safe.directory=*", "-C", str(tmp_path), "status", "--short", "C", "none"]
    assert (done.stdout.splitlines(), done.stderr, done.returncode) == (expected, "\udcff", 3)


def test_no_git_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git(tmp_path, "status") is None


def test_a_git_that_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "exec sleep 3", monkeypatch)
    monkeypatch.setattr(git_module, "DEADLINE_SECONDS", 0.1)
    with pytest.raises(OSError, match=r"git gave no answer in 0\.1 s") as caught:
        git(tmp_path, "status")
    assert (caught.value.errno, caught.value.strerror, caught.value.filename) == (
        errno.ETIMEDOUT,
        "git gave no answer in 0.1 s",
        str(tmp_path),
    )
