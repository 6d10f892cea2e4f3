# SPDX-License-Identifier: Apache-2.0
"""Every vLLM name that a packet imports is bound on every platform, in all three versions; and the rule that says so.

The first published attempt died on an import of a name that vLLM's module has on some platforms only.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from pytest_laguna.engine.kernel_watch import CACHE_ARGUMENTS
from pytest_laguna.identity.vllm_names import conditional_imports

ROOT = Path(__file__).resolve().parents[3]
COMPAT = [
    ROOT / "pytest_laguna/engine/compat/attention_layers.py",
    ROOT / "src/laguna_kv/compat.py",
]
BACKEND = "vllm.v1.attention.backends.flash_attn"


def folder(version: str) -> Path:
    """Where a version's Python files are: 0.32.0 is the installed CPU build, whose files are the official ones."""
    if version != "0.32.0":
        return ROOT / "wheels" / f"vllm-{version}"
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parents[1]


VERSIONS = ["0.26.0", "0.32.0", "0.33.0"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("source", COMPAT, ids=lambda source: source.stem)
def test_every_name_is_bound_on_every_platform(source: Path, version: str) -> None:
    assert conditional_imports(source, folder(version)) == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kernel", CACHE_ARGUMENTS)
def test_the_published_import_is_found(kernel: str, version: str, tmp_path: Path) -> None:
    source = tmp_path / "packet.py"
    source.write_text(f"def run():\n    from {BACKEND} import FlashAttentionImpl, {kernel}\n")
    [finding] = conditional_imports(source, folder(version))
    assert finding.startswith(f"packet.py:2: {BACKEND} does not bind {kernel} on every platform in ")


def test_no_packet_module_imports_vllm_but_the_compatibility_module() -> None:
    for name in ("card_identity", "kernel_watch", "packets", "parity", "parity_packet", "program"):
        text = (ROOT / "pytest_laguna" / "engine" / f"{name}.py").read_text()
        assert "import vllm" not in text
        assert "from vllm" not in text


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A package that binds names in every way that the rule knows."""
    package = tmp_path / "vllm"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("from .names import always as exported\n")
    (package / "inner" / "__init__.py").write_text("")
    (package / "names.py").write_text(
        """
import os as system
import a.b
always: int = 1
declared: int
class Class: ...
async def coroutine(): ...
if system.name:
    both = 1
    first = 1
else:
    both = 2
try:
    import tried
    caught = 1
except ImportError:
    caught = None
with open("x"):
    within = 1
for each in []:
    looped = 1
if TYPE_CHECKING:
    from typing import typed
def __getattr__(name):
    if name == "served":
        return 1
"""
    )
    return tmp_path


@pytest.mark.parametrize(
    "name", ["always", "system", "a", "Class", "coroutine", "both", "caught", "within", "served", "exported"]
)
def test_what_is_always_bound_is_accepted(name: str, made: Path, tmp_path: Path) -> None:
    module = "vllm" if name == "exported" else "vllm.names"
    (tmp_path / "ours.py").write_text(f"from {module} import {name}\nimport vllm.inner\nfrom vllm import inner\n")
    assert conditional_imports(tmp_path / "ours.py", made) == []


@pytest.mark.parametrize("name", ["first", "tried", "looped", "typed", "declared", "absent", "b"])
def test_what_is_bound_sometimes_or_never_is_found(name: str, made: Path, tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text(f"import torch\nfrom vllm.names import always, {name}\n")
    [finding] = conditional_imports(tmp_path / "ours.py", made)
    assert finding.startswith(f"ours.py:2: vllm.names does not bind {name} on every platform")


@pytest.mark.parametrize("line", ["import vllm.absent", "from vllm.absent import name"])
def test_a_module_that_is_not_there_is_found(line: str, made: Path, tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text(f"{line}\n")
    [finding] = conditional_imports(tmp_path / "ours.py", made)
    assert finding.startswith("ours.py:1: vllm.absent is no module of the vLLM in ")


def test_a_folder_without_vllm_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text("")
    with pytest.raises(FileNotFoundError, match="seen no package vllm; expected one; run `make vllm-sources`"):
        conditional_imports(tmp_path / "ours.py", tmp_path)
