# SPDX-License-Identifier: Apache-2.0
"""Widens a model without changing its function: every width grows, and all new numbers are zero.

A residual stream of ``width`` times the hidden size holds the old one in front and zeros behind. Its mean square is
``width`` times smaller, so a norm multiplies it by a further root of ``width``, and the norm's weight is divided by
that root: a power of two, which costs no bit in bfloat16. Only the order of sums differs, and the epsilon of the norms
of queries and keys, which share the configuration's one with the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from . import shape

Weights = dict[str, torch.Tensor]

_HEAD_NORMS = ("q_norm.weight", "k_norm.weight")
_WRITE_HIDDEN = ("o_proj.weight", "down_proj.weight")
_INNER_ROWS = ("gate_proj.weight", "up_proj.weight")


def with_width(weights: Mapping[str, torch.Tensor], width: int) -> Weights:
    """A model with a wider residual stream and wider inner sizes; ``shape.WIDTHS`` lists the widths."""
    return {name: _widened(name, value, width) for name, value in weights.items()} if width > 1 else dict(weights)


def _widened(name: str, value: torch.Tensor, width: int) -> torch.Tensor:
    hidden, inner = width * shape.HIDDEN, shape.inner(width)
    if name.endswith(_HEAD_NORMS) or name.endswith("e_score_correction_bias"):
        return value
    if value.dim() == 1:
        return _padded(value / math.isqrt(width), hidden)
    if name == "fc.weight":  # the taps side by side
        taps = [_padded(tap, hidden, hidden) for tap in value.split(shape.HIDDEN, dim=1)]
        return torch.cat(taps, dim=1)
    rows, columns = value.shape
    if name.endswith(_WRITE_HIDDEN):
        return _padded(value, hidden, columns * inner if name.endswith("down_proj.weight") else columns)
    return _padded(value, rows * inner if name.endswith(_INNER_ROWS) else rows, hidden)


def _padded(value: torch.Tensor, *size: int) -> torch.Tensor:
    padded = torch.zeros(size, dtype=value.dtype)
    padded[tuple(slice(length) for length in value.shape)] = value
    return padded
