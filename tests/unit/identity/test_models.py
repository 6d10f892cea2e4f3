# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.engine_identity import BY_STAT, ModelFiles
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.identity import stamps
from pytest_laguna.identity.models import check_models, freeze_models
from pytest_laguna.identity.source import IdentityError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder in the form of a download cache: contents by digest, and a snapshot of links to them."""
    blobs, snapshot = tmp_path / "cache" / "blobs", tmp_path / "cache" / "snapshots" / "revision"
    blobs.mkdir(parents=True)
    (snapshot / "deeper").mkdir(parents=True)
    (blobs / "a1").write_bytes(b"weights")
    (blobs / "a2").write_bytes(b"other weights")
    (snapshot / "model.safetensors").symlink_to("../../blobs/a1")
    (snapshot / "config.json").write_bytes(b"{}")
    (snapshot / "deeper" / ".hidden").write_bytes(b"")
    return snapshot


def test_every_file_is_frozen_with_link_and_target(model: Path, tmp_path: Path) -> None:
    frozen = freeze_models([model])
    [folder] = frozen.folders
    assert [file.path for file in folder.files] == ["config.json", "deeper/.hidden", "model.safetensors"]
    weights = folder.files[2]
    status = (tmp_path / "cache/blobs/a1").stat()
    assert (weights.link, weights.target) == ("../../blobs/a1", str(tmp_path / "cache/blobs/a1"))
    assert weights.sha256 == files.sha256_bytes(b"weights")
    assert (weights.stamp.inode, weights.stamp.size) == (str(status.st_ino), 7)
    assert int(weights.stamp.changed.replace(".", "")) == status.st_ctime_ns
    assert weights.stamp.device == f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    assert folder.files[0].link is None
    files.write_new(tmp_path / "models.json", files.canonical_json(frozen.canonical()))
    assert read_model(tmp_path / "models.json", ModelFiles) == frozen


def test_what_stays_as_it_was_has_no_changes(model: Path) -> None:
    frozen = freeze_models([model])
    (model / "config.json").read_bytes()
    check = check_models(frozen)
    assert (check.changes, check.looked_at, check.method) == ([], 3, BY_STAT)


def same_size_and_modification_time(model: Path) -> None:
    path = model / "config.json"
    before = path.stat()
    path.write_bytes(b"[]")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replaced_by_its_like(model: Path) -> None:
    (model.parent / "new").write_bytes(b"{}")
    (model.parent / "new").replace(model / "config.json")


def grown(model: Path) -> None:
    (model / "config.json").write_bytes(b"{} ")


def content_behind_the_link(model: Path) -> None:
    (model.parents[1] / "blobs" / "a1").write_bytes(b"Weights")


def led_elsewhere(model: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").symlink_to("../../blobs/a2")


def same_target_by_another_link(model: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").symlink_to(model.parents[1] / "blobs" / "a1")


def broken(model: Path) -> None:
    (model.parents[1] / "blobs" / "a1").unlink()


def removed(model: Path) -> None:
    (model / "deeper" / ".hidden").unlink()


def added(model: Path) -> None:
    (model / "adapter.bin").write_bytes(b"")


def folder_gone(model: Path) -> None:
    model.rename(model.parent / "elsewhere")


CHANGES: list[tuple[Callable[[Path], None], str, str]] = [
    (same_size_and_modification_time, "config.json", "changed since the models were hashed: changed is"),
    (replaced_by_its_like, "config.json", "inode is"),
    (grown, "config.json", "size is 3, expected 2"),
    (content_behind_the_link, "model.safetensors", "changed since the models were hashed"),
    (led_elsewhere, "model.safetensors", "blobs/a2 now; expected"),
    (same_target_by_another_link, "model.safetensors", "leads to"),
    (broken, "model.safetensors", "expected a file or a link to one"),
    (removed, "deeper/.hidden", "removed since"),
    (added, "adapter.bin", "added since"),
    (folder_gone, "revision", "expected the absolute path of a model's folder"),
]


@pytest.mark.parametrize(("change", "path", "words"), CHANGES, ids=[change.__name__ for change, *_ in CHANGES])
def test_a_change_is_named(model: Path, change: Callable[[Path], None], path: str, words: str) -> None:
    frozen = freeze_models([model])
    time.sleep(0.02)  # the kernel's clock for change times ticks in steps of some milliseconds
    change(model)
    [line] = check_models(frozen).changes
    assert path in line
    assert words in line
    assert "\n" not in line


def test_nothing_is_hashed_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = freeze_models([model])

    def hashed(path: Path) -> str:
        raise AssertionError(path)

    monkeypatch.setattr(files, "sha256_file", hashed)
    assert check_models(frozen).changes == []
    with pytest.raises(AssertionError):
        freeze_models([model])


def no_folder(model: Path) -> Path:
    return model / "none"


def relative(model: Path) -> Path:
    return model.relative_to("/")


def empty(model: Path) -> Path:
    (model / "empty").mkdir()
    return model / "empty"


def dangling(model: Path) -> Path:
    (model / "gone").symlink_to("nowhere")
    return model


def circle(model: Path) -> Path:
    (model / "circle").symlink_to("circle")
    return model


def linked_folder(model: Path) -> Path:
    (model / "folder").symlink_to("deeper")
    return model


def pipe(model: Path) -> Path:
    os.mkfifo(model / "pipe")
    return model


def no_text(model: Path) -> Path:
    (model / os.fsdecode(b"\xff.bin")).write_bytes(b"")
    return model


def two_lines(model: Path) -> Path:
    (model / "two\nlines").symlink_to("nowhere")
    return model


REFUSED: list[tuple[Callable[[Path], Path], str]] = [
    (no_folder, "none; expected the absolute path"),
    (relative, "expected the absolute path"),
    (empty, "empty: seen no files"),
    (dangling, "gone: seen .*; expected a file"),
    (circle, "circle: seen .*; expected a file"),
    (linked_folder, "folder: seen .*deeper, which is no file"),
    (pipe, "pipe: seen .*pipe, which is no file"),
    (no_text, "seen a name not in UTF-8"),
    (two_lines, r"two\\nlines: seen .*; expected a file"),
]


@pytest.mark.parametrize(("make", "words"), REFUSED, ids=[make.__name__ for make, _ in REFUSED])
def test_what_cannot_be_frozen_is_refused_in_one_line(model: Path, make: Callable[[Path], Path], words: str) -> None:
    directory = make(model)
    with pytest.raises(IdentityError, match=words) as caught:
        freeze_models([directory])
    assert "\n" not in str(caught.value)


def test_a_file_that_changes_while_it_is_hashed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"x")
    real = files.sha256_file

    def slow(target: Path) -> str:
        digest = real(target)
        target.write_bytes(b"xy")
        return digest

    monkeypatch.setattr(files, "sha256_file", slow)
    with pytest.raises(IdentityError, match=r"weights: seen .* after hashing; expected"):
        stamps.digest_stamped(path)


def test_files_are_hashed_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor core")
    together = threading.Barrier(2, timeout=20)

    def meet(target: Path) -> str:
        together.wait()
        return files.sha256_bytes(target.read_bytes())

    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode())
    monkeypatch.setattr(files, "sha256_file", meet)
    assert [file.sha256 for file in freeze_models([tmp_path]).folders[0].files] == [
        files.sha256_bytes(b"a"),
        files.sha256_bytes(b"b"),
    ]
