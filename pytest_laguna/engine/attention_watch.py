# SPDX-License-Identifier: Apache-2.0
"""Bitwise identity of attention: a running digest over the outputs of the layers that it watches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch


class AttentionWatch:
    """SHA-256 over the bytes of every output, in the order of the calls.

    Attributes:
        calls: outputs that went into the digest.
        layers: layers that are watched.
    """

    def __init__(self, layers: Iterable[Any]) -> None:
        """Watch vLLM's attention layers from now on, whatever implementation they have."""
        self._digest = hashlib.sha256()
        self.calls = 0
        self.layers = 0
        for layer in layers:
            self._watch(layer.impl)
            self.layers += 1

    @property
    def sha256(self) -> str:
        """The digest up to now."""
        return self._digest.hexdigest()

    def _watch(self, implementation: Any) -> None:
        forward = implementation.forward

        def watched(  # noqa: PLR0913, PLR0917 - vLLM's signature
            layer: Any, query: Any, key: Any, value: Any, kv_cache: Any, attn_metadata: Any, **keywords: Any
        ) -> Any:
            returned = forward(layer, query, key, value, kv_cache, attn_metadata, **keywords)
            self.add(keywords["output"], attn_metadata.num_actual_tokens)
            return returned

        # On the object and not on its class: a break looks the method up anew at every replay.
        implementation.forward = watched

    def add(self, output: torch.Tensor, tokens: int) -> None:
        """Take the first ``tokens`` rows of an output; attention never writes the rows that pad a graph's batch."""
        rows = output[:tokens].contiguous().view(torch.uint8).cpu()
        self._digest.update(rows.numpy().tobytes())
        self.calls += 1
