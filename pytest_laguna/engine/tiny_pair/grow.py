# SPDX-License-Identifier: Apache-2.0
"""Grows the trained weights to a model of a given size: quiet layers in the middle, every head once for each rank."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from . import shape
from .quiet import quiet_weights

Weights = dict[str, torch.Tensor]

_HEADS_IN_ROWS = tuple(f".self_attn.{name}_proj.weight" for name in "qkvg")
_HEADS_IN_COLUMNS = ".self_attn.o_proj.weight"
_FUSED_ROWS = ".self_attn.qkv_proj.weight"


def with_layers(trained: Mapping[str, torch.Tensor], layers: int) -> Weights:
    """The target with a number of layers: the trained ones, named as in 48 layers, around the quiet ones."""
    moved = layers - shape.LAYERS
    weights = quiet_weights(layers)
    for name, value in trained.items():
        weights[_moved(name, moved)] = value
    return weights


def _moved(name: str, by: int) -> str:
    """Name of a weight of the last four layers in a target of another depth; other names stay."""
    before, layers, rest = name.partition("model.layers.")
    if not layers:
        return name
    number, _, rest = rest.partition(".")
    layer = int(number)
    return f"{before}{layers}{layer if layer < shape.PERIOD else layer + by}.{rest}"


def with_heads(weights: Mapping[str, torch.Tensor], ranks: int) -> Weights:
    """The same function with every attention head repeated ``ranks`` times, the heads in order within each repetition.

    Each rank of a tensor-parallel group then holds all heads of one rank, and its part of the sum over ranks is one
    rank's output divided by their number. That number is a power of two, so bfloat16 loses no bit.
    """
    return {name: _with_heads(name, value, ranks) for name, value in weights.items()}


def _with_heads(name: str, value: torch.Tensor, ranks: int) -> torch.Tensor:
    if name.endswith(_HEADS_IN_ROWS):
        return value.repeat(ranks, 1)
    if name.endswith(_FUSED_ROWS):
        key_value = shape.KV_HEADS * shape.HEAD
        parts = torch.split(value, [len(value) - 2 * key_value, key_value, key_value])
        return torch.cat([part.repeat(ranks, 1) for part in parts])
    if name.endswith(_HEADS_IN_COLUMNS):
        return value.repeat(1, ranks) / ranks
    return value
