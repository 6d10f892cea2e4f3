# SPDX-License-Identifier: Apache-2.0
"""Inputs and outputs of the target's attention, observed outside its implementation."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

KERNEL = "flash_attn_varlen_func"
"""Name under which vLLM's FlashAttention backend calls its kernel, on every lane."""


class HandedViews:
    """Key and value tensors of one layer's kernel calls.

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
        """Take the tensors of one call."""
        if self._first is None:
            self._first = (key, value)
        self.calls += 1
        self.same_objects += key is self._first[0] and value is self._first[1]
        self.geometries.add(_geometry(key) + _geometry(value))


class Signatures:
    """Arguments of one layer's kernel calls.

    Attributes:
        calls: of the kernel.
        tensors: distinct sets of tensor arguments, in the form of ``signed``.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.calls = 0
        self.tensors: set[str] = set()

    @property
    def sha256(self) -> str:
        """SHA-256 over all arguments of all calls so far, in order."""
        return self._digest.hexdigest()

    def add(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        """Take the arguments of one call."""
        named = {str(place): value for place, value in enumerate(arguments)} | dict(keywords)
        ordered = sorted(named.items())
        self._digest.update(repr([(name, signed(value)) for name, value in ordered]).encode())
        self.tensors.add(repr([(name, signed(value)) for name, value in ordered if isinstance(value, torch.Tensor)]))
        self.calls += 1


def signed(value: Any) -> Any:
    """Part of an argument that is equal in every process with the same work: all but address and content."""
    if isinstance(value, torch.Tensor):
        place = (value.storage_offset(), value.device.type)
        return "tensor", tuple(value.shape), value.stride(), str(value.dtype), *place
    if isinstance(value, tuple | list):
        return [signed(part) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return f"{type(value).__module__}.{type(value).__qualname__}"


class AttentionWatch:
    """Digests attention outputs in the order of the calls, and records each layer's kernel arguments.

    Attributes:
        calls: outputs in the digest.
        layers: watched layers.
        handed: by layer, if its kernel was called.
        signatures: likewise.
    """

    def __init__(self, layers: Mapping[str, Any], kernels: Any) -> None:
        """Watch vLLM's attention layers from now on, whatever their implementation.

        Args:
            layers: vLLM's layers by name.
            kernels: module in which the implementation looks its kernel up.
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
        """SHA-256 over the bytes of all outputs so far."""
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

        # On the object, not on its class: a break looks the method up at every replay.
        implementation.forward = watched

    def add(self, output: torch.Tensor, tokens: int) -> None:
        """Digest the first ``tokens`` rows of an output; attention never writes the rows that pad a graph's batch."""
        rows = output[:tokens].contiguous().view(torch.uint8).cpu()
        self._digest.update(rows.numpy().tobytes())
        self.calls += 1


def _geometry(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()
