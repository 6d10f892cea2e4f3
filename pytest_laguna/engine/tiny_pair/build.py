# SPDX-License-Identifier: Apache-2.0
"""Writes both models' folders from the shipped numbers, and checks every byte against its pinned hash."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from .grow import with_heads, with_layers
from .prompts import gate_2_prompts
from .shape import Size, draft_config, target_config
from .tokenizer import tokenizer_config, tokenizer_json
from .widen import with_width

HERE = Path(__file__).parent
SHIPPED = ("target.safetensors", "draft.safetensors")
HASHES = HERE / "hashes.json"


def build(directory: Path, size: Size) -> str:
    """Write the folders ``directory/target`` and ``directory/draft``, and their prompts ``directory/prompts.json``.

    Returns:
        SHA-256 over the names and hashes of all that was written.

    Raises:
        FileExistsError: one of them exists.
        RuntimeError: a file's SHA-256 is not the pinned one; the file is named.
    """
    require_shipped()
    write(directory, size)
    return check(directory, size)


def write(directory: Path, size: Size) -> None:
    """Write the files of ``build``, whatever their bytes; raises FileExistsError like it."""
    target, draft = directory / "target", directory / "draft"
    target.mkdir(parents=True)
    draft.mkdir()
    for folder, weights, config in (
        (target, with_layers(load_file(HERE / "target.safetensors"), size.layers), target_config(size)),
        (draft, load_file(HERE / "draft.safetensors"), draft_config(size)),
    ):
        of_all_ranks = with_heads(weights, size.tensor_parallel_size)
        save_file(with_width(of_all_ranks, size.width), folder / "model.safetensors", metadata={"format": "pt"})
        _write_json(folder / "config.json", config)
    _write_json(target / "generation_config.json", {"bos_token_id": 1, "pad_token_id": 0})
    _write_json(target / "tokenizer.json", tokenizer_json())
    _write_json(target / "tokenizer_config.json", tokenizer_config())
    _write_json(directory / "prompts.json", gate_2_prompts())


def check(directory: Path, size: Size) -> str:
    """Compare built files with the pinned hashes of their size; an unpinned size is not compared.

    Returns:
        SHA-256 over the names and hashes of all files.

    Raises:
        RuntimeError: a file is missing, unexpected or different.
    """
    built = hashes(directory)
    if is_pinned(size):
        _require_equal(directory, built, _pinned()[str(size)])
    return hashlib.sha256(json.dumps(built, sort_keys=True).encode()).hexdigest()


def is_pinned(size: Size) -> bool:
    """True if the hashes of this size are shipped."""
    return str(size) in _pinned()


def require_shipped(directory: Path = HERE) -> None:
    """Compare the trained numbers with their pinned hashes; raises RuntimeError if a file is missing or different."""
    seen = {name: sha256(directory / name) for name in SHIPPED if (directory / name).is_file()}
    _require_equal(directory, seen, _pinned()["shipped"])


def hashes(directory: Path) -> dict[str, str]:
    """SHA-256 of every file below a directory, by its path relative to it."""
    return {
        path.relative_to(directory).as_posix(): sha256(path) for path in sorted(directory.rglob("*")) if path.is_file()
    }


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _require_equal(directory: Path, seen: dict[str, str], pinned: dict[str, str]) -> None:
    for name in sorted(seen.keys() | pinned.keys()):
        if seen.get(name) != pinned.get(name):
            message = (
                f"{directory / name}: seen SHA-256 {seen.get(name)}; expected {pinned.get(name)}, as the pair is made "
                "of hashes and shipped numbers alone; look for another version of safetensors or a damaged installation"
            )
            raise RuntimeError(message)


def _pinned() -> dict[str, dict[str, str]]:
    pinned: dict[str, dict[str, str]] = json.loads(HASHES.read_text())
    return pinned


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=True) + "\n")
