# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import re
import sys
import zipfile
from pathlib import Path

import pytest

from tools import fetch_vllm_sources as fetch

FILES = {
    "vllm/__init__.py": "version = 1\n",
    "vllm/_C.abi3.so": "binary",
    "vllm/config.json": "{}",
    "vllm-9.0.dist-info/METADATA": "Name: vllm\n",
    "vllm-9.0.dist-info/RECORD": "",
    "vllm-9.0.dist-info/entry_points.txt": "",
}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "vllm-9.0-cp38-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
    return path


@pytest.fixture
def pinned(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Version 9.0 pinned to the wheel, which pip "downloads"; what is unpacked goes to the folder returned."""
    folder = tmp_path / "wheels"
    monkeypatch.setattr(fetch, "FOLDER", folder)
    monkeypatch.setattr(fetch, "WHEELS", {"9.0": hashlib.sha256(wheel.read_bytes()).hexdigest()})
    monkeypatch.setattr(fetch, "download", lambda *_: wheel)
    return folder


def test_python_files_and_metadata_are_kept_and_nothing_else(pinned: Path) -> None:
    assert fetch.fetch("9.0").endswith("vllm-9.0: 3 files of vllm-9.0-cp38-abi3-manylinux_2_28_x86_64.whl")
    kept = {str(path.relative_to(pinned / "vllm-9.0")) for path in pinned.rglob("*") if path.is_file()}
    assert kept == {name for name in FILES if name.endswith((".py", "METADATA", "RECORD"))}
    assert [path.name for path in pinned.iterdir()] == ["vllm-9.0"]
    assert fetch.fetch("9.0").endswith("vllm-9.0: there already")


def test_another_wheel_than_the_pinned_one_is_not_unpacked(pinned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fetch.WHEELS, "9.0", "0" * 64)
    with pytest.raises(fetch.FetchError, match=r"seen SHA-256 [0-9a-f]{64}; expected 0{64}; do not use it"):
        fetch.fetch("9.0")
    assert not pinned.exists()


def test_a_broken_wheel_leaves_nothing_behind(pinned: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel.write_bytes(
        wheel.read_bytes().replace(b"version = 1", b"version = 2")
    )  # the archive's own checksum now fails
    monkeypatch.setitem(fetch.WHEELS, "9.0", hashlib.sha256(wheel.read_bytes()).hexdigest())
    with pytest.raises(zipfile.BadZipFile):
        fetch.fetch("9.0")
    assert list(pinned.iterdir()) == []


@pytest.mark.usefixtures("pinned")
def test_a_version_without_a_pin_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fetch_vllm_sources.py", "9.1"])
    assert fetch.main() == 1
    assert capsys.readouterr().err == "version: seen 9.1; expected one of 9.0; pin its digest in this file first\n"


def test_pip_that_fails_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(fetch.FetchError, match=re.escape("vllm==9.0: seen exit code 1 of pip")):
        fetch.download("vllm==9.0", tmp_path)


def test_every_pin_is_a_sha256() -> None:
    assert {"0.26.0", "0.32.0", "0.33.0"} == fetch.WHEELS.keys()
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in fetch.WHEELS.values())
