# SPDX-License-Identifier: Apache-2.0
"""What the target's attention is handed and what it gives, seen from outside whatever serves it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

KERNEL = "flash_attn_varlen_func"
"""The name under which vLLM's FlashAttention backend calls its kernel, on every lane."""


class HandedViews:
    """The key and value tensors with which the kernel was called for one layer.

    The first pair is kept alive, so that no later tensor can have its identity.

    Attributes:
        calls: of the kernel.
        same_objects: calls with the very tensors of the first.
        geometries: distinct addresses, shapes and strides, of key and value together.
    """

    def __init__(self) -> None:
        self._first: tuple[torch.Tensor, torch.Tensor] | None = None
        self.calls = 0
        self.same_objects = 0
        self.geometries: set[tuple[object, ...]] = set()

    def add(self, key: torch.Tensor, value: torch.Tensor) -> None:
        """Take one call's tensors."""
        if self._first is None:
            self._first = (key, value)
        self.calls += 1
        self.same_objects += key is self._first[0] and value is self._first[1]
        self.geometries.add(_geometry(key) + _geometry(value))


class Signatures:
    """With what arguments the kernel was called for one layer.

    Attributes:
        calls: of the kernel.
        tensors: the different sets of tensor arguments, as ``signed`` tells them.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.calls = 0
        self.tensors: set[str] = set()

    @property
    def sha256(self) -> str:
        """Over all arguments of all calls up to now, in the order of the calls."""
        return self._digest.hexdigest()

    def add(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        """Take one call's arguments."""
        named = {str(place): value for place, value in enumerate(arguments)} | dict(keywords)
        ordered = sorted(named.items())
        self._digest.update(repr([(name, signed(value)) for name, value in ordered]).encode())
        self.tensors.add(repr([(name, signed(value)) for name, value in ordered if isinstance(value, torch.Tensor)]))
        self.calls += 1


def signed(value: Any) -> Any:
    """What of an argument is the same in every process that does the same: all but its address and contents."""
    if isinstance(value, torch.Tensor):
        place = (value.storage_offset(), value.device.type)
        return "tensor", tuple(value.shape), value.stride(), str(value.dtype), *place
    if isinstance(value, tuple | list):
        return [signed(part) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return f"{type(value).__module__}.{type(value).__qualname__}"


class AttentionWatch:
    """SHA-256 over the bytes of every output, in the order of the calls, and what each layer's kernel is handed.

    Attributes:
        calls: outputs that went into the digest.
        layers: layers that are watched.
        handed: by layer, for those whose kernel was called.
        signatures: likewise.
    """

    def __init__(self, layers: Mapping[str, Any], kernels: Any) -> None:
        """Watch vLLM's attention layers from now on, whatever implementation they have.

        Args:
            layers: vLLM's layers by name.
            kernels: the module in which their implementation looks its kernel up.
        """
        self._digest = hashlib.sha256()
        self._current: str | None = None
        self.calls = 0
        self.layers = 0
        self.handed: dict[str, HandedViews] = {}
        self.signatures: dict[str, Signatures] = {}
        self._watch_kernel(kernels)
        for name, layer in layers.items():
            self._watch(name, layer.impl)
            self.layers += 1

    @property
    def sha256(self) -> str:
        """The digest up to now."""
        return self._digest.hexdigest()

    def _watch_kernel(self, kernels: Any) -> None:
        kernel = getattr(kernels, KERNEL)

        def watched(*arguments: Any, **keywords: Any) -> Any:
            if self._current is not None:
                self.handed.setdefault(self._current, HandedViews()).add(keywords["k"], keywords["v"])
                self.signatures.setdefault(self._current, Signatures()).add(arguments, keywords)
            return kernel(*arguments, **keywords)

        setattr(kernels, KERNEL, watched)

    def _watch(self, name: str, implementation: Any) -> None:
        forward = implementation.forward

        def watched(  # noqa: PLR0913, PLR0917 - vLLM's signature
            layer: Any, query: Any, key: Any, value: Any, kv_cache: Any, attn_metadata: Any, **keywords: Any
        ) -> Any:
            self._current = name
            try:
                returned = forward(layer, query, key, value, kv_cache, attn_metadata, **keywords)
            finally:
                self._current = None
            self.add(keywords["output"], attn_metadata.num_actual_tokens)
            return returned

        # On the object and not on its class: a break looks the method up anew at every replay.
        implementation.forward = watched

    def add(self, output: torch.Tensor, tokens: int) -> None:
        """Take the first ``tokens`` rows of an output; attention never writes the rows that pad a graph's batch."""
        rows = output[:tokens].contiguous().view(torch.uint8).cpu()
        self._digest.update(rows.numpy().tobytes())
        self.calls += 1


def _geometry(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()
