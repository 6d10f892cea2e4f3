# SPDX-License-Identifier: Apache-2.0
"""Which versions go together on an XPU, and what is said of those that do not."""

from __future__ import annotations

import pytest

from pytest_laguna.evidence.machine.xpu_stack import IPEX, KERNELS, STACKS, TORCH, VLLM, Stack, misfit


def installed(stack: Stack) -> dict[str, str]:
    names = {TORCH: f"{stack.torch}+xpu", VLLM: f"{stack.vllm}+xpu"}
    if stack.kernels:
        names["vllm_xpu_kernels"] = stack.kernels
    if stack.ipex:
        names["intel_extension_for_pytorch"] = f"{stack.ipex}+xpu"
    return names


@pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack.vllm)
def test_every_row_fits_itself_and_names_its_source(stack: Stack) -> None:
    assert misfit(installed(stack)) is None
    assert stack.source
    assert (stack.kernels is None) != (stack.ipex is None)


def test_no_release_stands_twice() -> None:
    assert len({stack.vllm for stack in STACKS}) == len(STACKS)


NEW = STACKS[0]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({TORCH: f"{NEW.torch}+cpu"}, f"torch {NEW.torch}+cpu does not go with vllm {NEW.vllm}+xpu; expected {NEW}"),
        ({TORCH: NEW.torch}, f"torch {NEW.torch} does not go with"),
        ({TORCH: "2.8.0+xpu"}, "torch 2.8.0+xpu does not go with"),
        ({"vllm_xpu_kernels": "0.1.3"}, f"vllm-xpu-kernels 0.1.3 does not go with vllm {NEW.vllm}+xpu; expected {NEW}"),
        ({"vllm_xpu_kernels": None}, "vllm-xpu-kernels absent does not go with"),
        ({TORCH: None}, "torch absent does not go with"),
        ({VLLM: None}, "vllm is not installed; expected one of 0.33.0, 0.32.0, "),
        ({VLLM: "0.1.0"}, "vllm 0.1.0: its matching packages are unknown; expected one of"),
        ({IPEX: "2.8.10+xpu"}, "intel-extension-for-pytorch 2.8.10+xpu does not go with"),
    ],
)
def test_a_mixture_is_refused_with_what_would_fit(changed: dict[str, str | None], reason: str) -> None:
    mixed = {name: version for name, version in (installed(NEW) | changed).items() if version is not None}
    found = misfit(mixed)
    assert found is not None
    assert found.startswith(reason)
    assert "\n" not in found


def test_what_goes_together_is_told_in_names_that_pip_takes() -> None:
    assert str(NEW) == f"torch {NEW.torch}+xpu, {KERNELS} {NEW.kernels}"
