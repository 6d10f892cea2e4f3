# SPDX-License-Identifier: Apache-2.0
"""Inputs of vLLM's two FlashAttention kernels, and the torch operators they run, observed from outside."""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_laguna.evidence.arms.parity import KernelCalls, TensorGeometry

from .attention_watch import HandedViews

ATTENTION = "flash_attn_varlen_func"
UPDATE = "reshape_and_cache_flash"
CACHE_ARGUMENTS: Mapping[str, tuple[str, str]] = {ATTENTION: ("k", "v"), UPDATE: ("key_cache", "value_cache")}
"""Parameters for the layer's two aliases, by the name under which vLLM's backend calls a kernel on every lane."""


class HandedCalls(HandedViews):
    """Calls of one kernel for one layer, with the operators they run."""

    def __init__(self) -> None:
        super().__init__()
        self._geometry: tuple[TensorGeometry, TensorGeometry] | None = None
        self.operators: Counter[str] = Counter()

    def add(self, key: torch.Tensor, value: torch.Tensor) -> None:
        """Take the tensors of one call."""
        self._geometry = self._geometry or (geometry(key), geometry(value))
        super().add(key, value)

    def report(self) -> KernelCalls:
        """Summary of the calls; raises RuntimeError if there was none."""
        if self._geometry is None:
            raise RuntimeError("watched kernel: seen no call; expected attention to run through it")
        return KernelCalls(
            calls=self.calls,
            same_objects=self.same_objects,
            places=len(self.geometries),
            key=self._geometry[0],
            value=self._geometry[1],
            operators=dict(sorted(self.operators.items())),
        )


class KernelWatch:
    """Wraps both kernels from now on, for any implementation that looks them up at each call.

    Attributes:
        functions: the unwrapped kernels, by the name under which they are called.
    """

    def __init__(self, kernels: ModuleType) -> None:
        """Wrap the kernels in the module of vLLM's backend; raises RuntimeError if this platform lacks one."""
        self._layer: object = None
        self._handed: dict[tuple[object, str], HandedCalls] = {}
        self.functions = {name: _found(kernels, name) for name in CACHE_ARGUMENTS}
        for name, function in self.functions.items():
            setattr(kernels, name, self._watched(name, function))

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)

        def watched(*arguments: Any, **keywords: Any) -> Any:
            key, value = (signature.bind(*arguments, **keywords).arguments[part] for part in CACHE_ARGUMENTS[name])
            calls = self._handed.setdefault((self._layer, name), HandedCalls())
            calls.add(key, value)
            with _Counting(calls.operators):
                return function(*arguments, **keywords)

        return watched

    @contextlib.contextmanager
    def of(self, layer: object) -> Iterator[None]:
        """Count calls inside the block as this layer's."""
        self._layer = layer
        try:
            yield
        finally:
            self._layer = None

    def calls(self, layer: object, kernel: str) -> KernelCalls:
        """Calls of one kernel for a layer; raises RuntimeError if there was none."""
        return self._handed.get((layer, kernel), HandedCalls()).report()


def geometry(tensor: torch.Tensor) -> TensorGeometry:
    """Shape, strides, offset and dtype of a tensor in its storage."""
    return TensorGeometry(
        shape=list(tensor.shape), stride=list(tensor.stride()), offset=tensor.storage_offset(), dtype=str(tensor.dtype)
    )


def _found(kernels: ModuleType, name: str) -> Callable[..., Any]:
    function = getattr(kernels, name, None)
    if function is None:
        message = (
            f"{kernels.__name__}: seen no {name}, which vLLM imports for some platforms only; "
            "expected the lane's kernel"
        )
        raise RuntimeError(message)
    found: Callable[..., Any] = function
    return found


class _Counting(TorchDispatchMode):
    """Counts the operators in torch's dispatcher, by name, without changing their results."""

    def __init__(self, counted: Counter[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counted = counted

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        self._counted[function.name()] += 1
        return function(*arguments, **(keywords or {}))
