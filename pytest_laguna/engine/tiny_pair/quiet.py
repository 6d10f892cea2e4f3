# SPDX-License-Identifier: Apache-2.0
"""The target's quiet layers: numbers from SHAKE-256, so that no random generator or CPU can change a byte."""

from __future__ import annotations

import hashlib
import math

import torch

from . import shape

_OUTPUT_SCALE = 0.03
"""Size of one quiet sublayer's output, relative to the rms of the trained residual stream at the insertion."""
_RESIDUAL_RMS = 10.8
_CORRECTION_BIAS_SCALE = 0.05
_GATE_SCALE = 0.1


def quiet_weights(layers: int = shape.LAYERS) -> dict[str, torch.Tensor]:
    """All weights of a target's quiet layers in bfloat16, by their name in its ``model.safetensors``."""
    trained = shape.trained_layers(layers)
    weights: dict[str, torch.Tensor] = {}
    for layer in range(layers):
        if layer not in trained:
            weights |= _layer(layer)
    return weights


def uniform(name: str, rows: int, columns: int, deviation: float) -> torch.Tensor:
    """Float32 numbers of shape [rows, columns], uniform about zero with the given standard deviation.

    The stream is SHAKE-256 over the name, read as little-endian signed 16-bit numbers; a number is (n + 1/2) times one
    float32 constant, which every IEEE 754 machine rounds alike.
    """
    stream = bytearray(hashlib.shake_256(name.encode()).digest(2 * rows * columns))
    numbers = torch.frombuffer(stream, dtype=torch.int16).to(torch.float32) + 0.5
    return (numbers * (math.sqrt(3.0) * deviation / 32768.0)).view(rows, columns)


def _layer(layer: int) -> dict[str, torch.Tensor]:
    prefix = f"model.layers.{layer}."
    output = _OUTPUT_SCALE * _RESIDUAL_RMS
    query = shape.heads(layer) * shape.HEAD
    key_value = shape.KV_HEADS * shape.HEAD
    weights: dict[str, torch.Tensor] = {}

    def add(name: str, rows: int, columns: int, scale: float = 1.0) -> None:
        full = f"{prefix}{name}.weight"
        weights[full] = uniform(full, rows, columns, scale / math.sqrt(columns)).to(torch.bfloat16)

    add("self_attn.q_proj", query, shape.HIDDEN)
    add("self_attn.k_proj", key_value, shape.HIDDEN)
    add("self_attn.v_proj", key_value, shape.HIDDEN)
    add("self_attn.o_proj", shape.HIDDEN, query, output)
    add("self_attn.g_proj", shape.heads(layer), shape.HIDDEN, _GATE_SCALE)
    add("mlp.gate", shape.EXPERTS, shape.HIDDEN)
    for expert in ["shared_expert", *(f"experts.{number}" for number in range(shape.EXPERTS))]:
        add(f"mlp.{expert}.gate_proj", shape.EXPERT_INTERMEDIATE, shape.HIDDEN)
        add(f"mlp.{expert}.up_proj", shape.EXPERT_INTERMEDIATE, shape.HIDDEN)
        add(f"mlp.{expert}.down_proj", shape.HIDDEN, shape.EXPERT_INTERMEDIATE, output)
    bias = f"{prefix}mlp.experts.e_score_correction_bias"
    weights[bias] = uniform(bias, 1, shape.EXPERTS, _CORRECTION_BIAS_SCALE)[0].to(torch.bfloat16)
    for name, size in (
        ("self_attn.q_norm", shape.HEAD),
        ("self_attn.k_norm", shape.HEAD),
        ("input_layernorm", shape.HIDDEN),
        ("post_attention_layernorm", shape.HIDDEN),
    ):
        weights[f"{prefix}{name}.weight"] = torch.ones(size, dtype=torch.bfloat16)
    return weights
