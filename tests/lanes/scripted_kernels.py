# SPDX-License-Identifier: Apache-2.0
"""A published vllm-xpu-kernels wheel with its own Python, whose compiled operators are answered by reference kernels.

The operators' schemas are read from the wheel's binaries, so that a call which the real library would not take is not
taken here. The binaries themselves are not loaded: each stands in ``sys.modules`` as a module with its real file.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import types
from pathlib import Path
from typing import Any

import torch

from pytest_laguna.engine import reference_kernels

PACKAGE = "vllm_xpu_kernels"
NAMESPACES = {"_vllm_fa2_C": "_vllm_fa2_C", "_C": "_C", "_moe_C": "_moe_C", "_xpu_C": "_xpu_C"}


def schema(library: Path, operator: str) -> str:
    """An operator's schema, as a binary holds it.

    Raises:
        LookupError: the binary holds none, or several.
    """
    pattern = rb"(?<![\w:])" + re.escape(operator.encode()) + rb"\([^\x00]*?\) -> [^\x00]+"
    found: set[str] = {match.decode() for match in re.findall(pattern, library.read_bytes())}
    if len(found) != 1:
        message = f"{library}: {len(found)} schemas of {operator}; expected one"
        raise LookupError(message)
    return found.pop()


def install(folder: Path, *, compiled: bool = True) -> list[torch.library.Library]:
    """Make a wheel importable, and its operators callable; what is returned keeps them alive.

    Args:
        folder: of the package's files.
        compiled: whether attention was compiled for what it is asked; if not, it says so as the real one does.
    """
    spec = importlib.util.spec_from_file_location(
        PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None  # noqa: PT018
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    for name in NAMESPACES:
        module = types.ModuleType(f"{PACKAGE}.{name}")
        module.__file__ = str(folder / f"{name}.abi3.so")
        sys.modules[module.__name__] = module
        setattr(package, name, module)
    attention = torch.library.Library("_vllm_fa2_C", "DEF")
    attention.define(schema(folder / "_vllm_fa2_C.abi3.so", "varlen_fwd"))
    attention.impl("varlen_fwd", _varlen_fwd if compiled else _not_compiled, "CPU")
    cache = torch.library.Library("_C_cache_ops", "DEF")
    cache.define(schema(folder / "_C.abi3.so", "reshape_and_cache_flash"))
    cache.impl("reshape_and_cache_flash", reference_kernels.reshape_and_cache_flash, "CPU")
    memory = torch.library.Library("_C", "DEF")
    memory.define(schema(folder / "_C.abi3.so", "weak_ref_tensor"))
    memory.impl("weak_ref_tensor", lambda tensor: tensor, "CPU")
    spec.loader.exec_module(package)
    return [attention, cache, memory]


def _varlen_fwd(*arguments: Any) -> list[torch.Tensor]:
    names = [argument.name for argument in torch.ops._vllm_fa2_C.varlen_fwd.default._schema.arguments]
    given = dict(zip(names, arguments, strict=True))
    query = given["q"]
    out = torch.empty_like(query) if given["out"] is None else given["out"]
    reference_kernels.flash_attn_varlen_func(
        q=query,
        k=given["k"],
        v=given["v"],
        out=out,
        cu_seqlens_q=given["cu_seqlens_q"],
        max_seqlen_q=given["max_seqlen_q"],
        seqused_k=given["seqused_k"],
        max_seqlen_k=given["max_seqlen_k"],
        softmax_scale=given["softmax_scale"],
        causal=given["is_causal"],
        block_table=given["block_table"],
        window_size=(given["window_size_left"], given["window_size_right"]),
        softcap=given["softcap"],
    )
    return [out, torch.empty(0)]


def _not_compiled(*_arguments: Any) -> list[torch.Tensor]:
    raise RuntimeError("paged decode kernel is not compiled for head size 128")
