# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pytest_laguna.evidence import files
from pytest_laguna.evidence.git import git
from pytest_laguna.identity import source


@pytest.mark.parametrize(
    ("package", "message"),
    [
        ("", "expected the import name"),
        (".demo", "expected the import name"),
        ("os", "expected a package with a directory of its own"),
        ("sys", "expected a package with a directory of its own"),
        ("__main__", "expected the import name|directory of its own"),
        ("json.decoder", "expected a package with a directory of its own"),
        ("json.decoder.deeper", "expected the import name"),
        ("no_such_package", "install it, or start pytest in the project that has it"),
        ("no_such_package.part", "expected the import name"),
    ],
)
def test_what_is_no_package_has_no_directory(package: str, message: str) -> None:
    with pytest.raises(source.IdentityError, match=message) as caught:
        source.package_directory(package)
    assert "\n" not in str(caught.value)


def test_a_package_has_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert source.package_directory("json") == Path(json.__file__).parent
    assert "json" in sys.modules
    for place in ("one", "two"):
        (tmp_path / place / "spread_out").mkdir(parents=True)
        monkeypatch.syspath_prepend(tmp_path / place)
    with pytest.raises(source.IdentityError, match=r"package spread_out: seen .*two.*one.*; expected"):
        source.package_directory("spread_out")


def test_a_linked_source_is_the_file_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "linked_in").mkdir()
    (tmp_path / "stored").write_bytes(b"ANSWER = 42\n")
    (tmp_path / "linked_in" / "__init__.py").symlink_to(tmp_path / "stored")
    monkeypatch.syspath_prepend(tmp_path)
    assert source.candidate_sources("linked_in") == {"linked_in/__init__.py": files.sha256_bytes(b"ANSWER = 42\n")}


def test_the_state_is_that_of_the_project_and_not_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("project", "other"):
        (tmp_path / name).mkdir()
        made = git(tmp_path / name, "init", "--quiet")
        assert made is not None
        assert made.returncode == 0, made.stderr
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    commit = git(tmp_path / "other", *identity, "commit", "--quiet", "--allow-empty", "-m", "other")
    assert commit is not None
    assert commit.returncode == 0, commit.stderr
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    assert source.git_state(tmp_path / "project") is None
    monkeypatch.delenv("GIT_DIR")
    state = source.git_state(tmp_path / "other")
    assert isinstance(state, dict)
    assert state["dirty"] is False
