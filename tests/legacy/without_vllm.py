# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: the candidate's contract where there is no vLLM whose classes it could extend.

The legacy Intel stack has its own torch and an older vLLM without breakable graphs. The contract itself needs torch and
one function of vLLM's: it is taken from the published wheel's own file, and what tests build caches with from theirs.
Any other name of vLLM's is not there.
"""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Collection
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VLLM_SOURCES = ROOT / "wheels" / "vllm-0.33.0"


def load(path: Path, names: Collection[str], module: str) -> types.ModuleType:
    """A module with some of a file's functions and constants, and none of the rest that it imports.

    Raises:
        LookupError: the file lacks one of them.
    """
    kept: list[ast.stmt] = []
    found = set()
    for node in ast.parse(path.read_text()).body:
        targets = [target.id for target in getattr(node, "targets", ()) if isinstance(target, ast.Name)]
        here = {getattr(node, "name", ""), *targets} & set(names)
        imports_torch = isinstance(node, ast.Import) and [alias.name for alias in node.names] == ["torch"]
        future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        if here or imports_torch or future:
            kept.append(node)
            found |= here
    if found != set(names):
        message = f"{path}: has no {', '.join(sorted(set(names) - found))}"
        raise LookupError(message)
    made = types.ModuleType(module)
    made.__file__ = str(path)
    exec(compile(ast.Module(kept, []), str(path), "exec"), vars(made))  # noqa: S102 - files of this checkout
    sys.modules[module] = made
    return made


VIEWS = "canonicalize_singleton_dim_strides"
for package in ("vllm", "vllm.utils", "gates"):
    sys.modules[package] = types.ModuleType(package)
torch_utils = load(VLLM_SOURCES / "vllm" / "utils" / "torch_utils.py", {VIEWS}, "vllm.utils.torch_utils")
compat = types.ModuleType("laguna_kv.compat")
vars(compat)[VIEWS] = vars(torch_utils)[VIEWS]
sys.modules[compat.__name__] = compat
support = load(ROOT / "gates" / "vllm_classes.py", {"HEAD_SIZE", "make_cache"}, "gates.vllm_classes")
vars(sys.modules["gates"])["vllm_classes"] = support

NATIVE = "native"
NEED_MORE = {
    "test_both_validators_say_the_same": "compares with the native check",
    "test_any_geometry_that_vllm_makes_is_recorded_as_the_incumbent_makes_it": "draws the native check as well",
    "test_a_native_check_that_stands_alone_is_refused": "is of the native check",
    "test_the_native_contract_takes_tensors_of_a_caches_rank_only": "is of the native check",
    "test_a_cycle_through_a_native_contract_is_collected": "is of the native check",
    "test_the_native_check_does_not_leak": "is of the native check",
    "test_nothing_can_be_swapped_under_a_native_contract": "is of the native check",
    "test_the_native_seam_is_made_of_a_pair_and_keeps_its_facts": "is of the native check",
    "test_native_is_never_replaced_by_python_in_silence": "hides a native check that is there",
    "test_torch_without_the_exchange_api_is_told_in_one_line": "runs a process of its own, with vLLM",
}
"""Tests that the legacy stack cannot run, and why: its torch lacks what the native check is made with."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs the native check; a name that is no test any more is an error."""
    names = {item.name.partition("[")[0] for item in items}
    gone = sorted(set(NEED_MORE) - names)
    if gone:
        raise pytest.UsageError(f"tests/legacy/without_vllm.py: {gone[0]} is no test; expected one to leave out")

    def needs_more(item: pytest.Item) -> bool:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        return item.name.partition("[")[0] in NEED_MORE or NATIVE in [str(value) for value in parameters.values()]

    left_out = [item for item in items if needs_more(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
