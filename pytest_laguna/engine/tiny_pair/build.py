# SPDX-License-Identifier: Apache-2.0
"""Write both models' folders from the shipped numbers, and see that every byte is as it was when they were shipped."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from .quiet import quiet_weights
from .shape import draft_config, target_config
from .tokenizer import tokenizer_config, tokenizer_json

_HERE = Path(__file__).parent
_HASHES = _HERE / "hashes.json"


def build(directory: Path) -> None:
    """Write the folders ``directory/target`` and ``directory/draft``, and their prompts ``directory/prompts.json``.

    Raises:
        FileExistsError: one of them exists.
        RuntimeError: a file's SHA-256 is not the shipped one; the file is named.
    """
    target, draft = directory / "target", directory / "draft"
    target.mkdir(parents=True)
    draft.mkdir()
    weights = load_file(_HERE / "target.safetensors") | quiet_weights()
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    _write_json(target / "config.json", target_config())
    _write_json(target / "generation_config.json", {"bos_token_id": 1, "pad_token_id": 0})
    _write_json(target / "tokenizer.json", tokenizer_json())
    _write_json(target / "tokenizer_config.json", tokenizer_config())
    save_file(load_file(_HERE / "draft.safetensors"), draft / "model.safetensors", metadata={"format": "pt"})
    _write_json(draft / "config.json", draft_config())
    shutil.copyfile(_HERE / "prompts.json", directory / "prompts.json")
    check(directory)


def check(directory: Path) -> None:
    """Compare what has been built with the shipped hashes.

    Raises:
        RuntimeError: a file is missing, is one too many, or has other bytes.
    """
    built, shipped = hashes(directory), json.loads(_HASHES.read_text())
    for name in sorted(built.keys() | shipped.keys()):
        if built.get(name) != shipped.get(name):
            message = (
                f"{directory / name}: SHA-256 is {built.get(name)}, expected {shipped.get(name)}; the pair is made of "
                "hashes and shipped numbers alone: look for another version of safetensors or a damaged installation"
            )
            raise RuntimeError(message)


def hashes(directory: Path) -> dict[str, str]:
    """SHA-256 of every file below a directory, by its path relative to it."""
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=True) + "\n")
