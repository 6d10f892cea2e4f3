# SPDX-License-Identifier: Apache-2.0
"""Dimensions of the pair on one rank, and the ``config.json`` of each model."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from pytest_laguna.engine.compat import configuration

VOCABULARY = 288
HIDDEN = 64
HEAD = 128
KV_HEADS = 2
FULL_HEADS = 4
SLIDING_HEADS = 6
WINDOW = 64
EPSILON = 1e-6
MASK_TOKEN = 5

LAYERS = 48
QUICK_LAYERS = 12
"""For runs whose subject is not the model."""
PERIOD = 4
"""One layer that attends to the whole context, then three that slide."""
WIDTHS = (1, 4, 16, 64)
"""Powers of four: their roots are powers of two, which cost no bit in bfloat16."""
VLLM = "0.32.0"
"""Default version of vLLM for the pair."""
DENSE_INTERMEDIATE = 128
EXPERTS = 4
EXPERTS_PER_TOKEN = 2
EXPERT_INTERMEDIATE = 32
ROUTED_SCALING = 2.5

DRAFT_LAYERS = 2
DRAFT_INTERMEDIATE = 256
DRAFT_TOKENS = 7
TAPS = 5
"""Number of target layers after which the draft reads the residual stream."""

FULL_ROPE: dict[str, Any] = {"partial_rotary_factor": 0.5, "rope_theta": 500000.0, "rope_type": "default"}
SLIDING_ROPE: dict[str, Any] = {"partial_rotary_factor": 1.0, "rope_theta": 10000.0, "rope_type": "default"}


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """Size of a pair; its function is the same for every number of ranks.

    Attributes:
        layers: of the target, a multiple of four and at least eight.
        tensor_parallel_size: ranks of the pair, 1, 2 or 4; each holds two KV heads.
        width: factor on the hidden size, one of ``WIDTHS``; the sizes inside the MLPs grow by its root. With 48 layers
            and 64 the target has 1.1e9 parameters.
        vllm: version to read the pair.

    Raises:
        ValueError: another number, or a version with an unknown form of ``config.json``.
    """

    layers: int = LAYERS
    tensor_parallel_size: int = 1
    width: int = 1
    vllm: str = VLLM

    def __post_init__(self) -> None:
        if self.layers < 2 * PERIOD or self.layers % PERIOD:
            raise ValueError(f"layers: seen {self.layers}; expected a multiple of {PERIOD}, {2 * PERIOD} or more")
        if self.tensor_parallel_size not in {1, 2, 4}:
            raise ValueError(f"tensor_parallel_size: seen {self.tensor_parallel_size}; expected 1, 2 or 4")
        if self.width not in WIDTHS:
            raise ValueError(f"width: seen {self.width}; expected one of {', '.join(map(str, WIDTHS))}")
        configuration.has_older_form(self.vllm)

    def __str__(self) -> str:
        """Key of the pair among the pinned hashes; versions with the same form of configuration share it."""
        parts = [f"layers={self.layers}", f"tensor_parallel_size={self.tensor_parallel_size}"]
        parts += [f"width={self.width}"] if self.width > 1 else []
        parts += [f"vllm={self.vllm}"] if configuration.has_older_form(self.vllm) else []
        return " ".join(parts)


def inner(width: int) -> int:
    """Factor on the sizes inside the MLPs of a pair of that width."""
    return math.isqrt(width)


def trained_layers(layers: int = LAYERS) -> tuple[int, ...]:
    """The first and last four of a target's layers.

    Those between are quiet: random, and scaled to hardly disturb the residual stream.
    """
    return (*range(PERIOD), *range(layers - PERIOD, layers))


def tap_layers(layers: int = LAYERS) -> tuple[int, ...]:
    """Layers of a target followed by a tap for the draft: the second, the last but one, and some between."""
    first, last = 1, layers - 2
    return tuple(first + number * (last - first) // (TAPS - 1) for number in range(TAPS))


def is_full(layer: int) -> bool:
    """True if a layer of the target attends to the whole context."""
    return layer % PERIOD == 0


def heads(layer: int) -> int:
    """Query heads of a layer of the target."""
    return FULL_HEADS if is_full(layer) else SLIDING_HEADS


def is_dense(layer: int) -> bool:
    """True if a layer of the target has a dense MLP in place of experts."""
    return layer == 0


def target_config(size: Size) -> dict[str, Any]:
    """``config.json`` of the target, in the form of the size's vLLM version."""
    layers = range(size.layers)
    config = _config(
        size,
        layer_types=["full_attention" if is_full(layer) else "sliding_attention" for layer in layers],
        heads_per_layer=[heads(layer) for layer in layers],
        mlp_types=["dense" if is_dense(layer) else "sparse" for layer in layers],
        intermediate=DENSE_INTERMEDIATE,
    )
    return configuration.older_form(config, draft=False) if configuration.has_older_form(size.vllm) else config


def draft_config(size: Size) -> dict[str, Any]:
    """``config.json`` of the draft; its sliding layers make vLLM run the draft's block causally."""
    config = _config(
        size,
        layer_types=["sliding_attention"] * DRAFT_LAYERS,
        heads_per_layer=[SLIDING_HEADS] * DRAFT_LAYERS,
        mlp_types=["dense"] * DRAFT_LAYERS,
        intermediate=DRAFT_INTERMEDIATE,
    )
    config["draft_vocab_size"] = VOCABULARY
    config["dflash_config"] = {
        "target_layer_ids": list(tap_layers(size.layers)),
        "mask_token_id": MASK_TOKEN,
        "use_aux_hidden_state": True,
    }
    return configuration.older_form(config, draft=True) if configuration.has_older_form(size.vllm) else config


def _config(
    size: Size, *, layer_types: list[str], heads_per_layer: list[int], mlp_types: list[str], intermediate: int
) -> dict[str, Any]:
    """The form of transformers' ``LagunaConfig`` since 5.17."""
    ranks, wider = size.tensor_parallel_size, inner(size.width)
    return {
        "architectures": ["LagunaForCausalLM"],
        "model_type": "laguna",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "dtype": "bfloat16",
        "gating": True,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "hidden_size": size.width * HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": wider * intermediate,
        "layer_types": layer_types,
        "max_position_embeddings": 2048,
        "mlp_layer_types": mlp_types,
        "moe_apply_router_weight_on_input": False,
        "moe_intermediate_size": wider * EXPERT_INTERMEDIATE,
        "moe_routed_scaling_factor": ROUTED_SCALING,
        "moe_router_logit_softcapping": 0.0,
        "num_attention_heads": ranks * heads_per_layer[0],
        "num_attention_heads_per_layer": [ranks * heads for heads in heads_per_layer],
        "num_experts": EXPERTS,
        "num_experts_per_tok": EXPERTS_PER_TOKEN,
        "num_hidden_layers": len(layer_types),
        "num_key_value_heads": ranks * KV_HEADS,
        "output_router_logits": False,
        "rms_norm_eps": EPSILON / size.width,
        "rope_parameters": {"full_attention": FULL_ROPE, "sliding_attention": SLIDING_ROPE},
        "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": wider * EXPERT_INTERMEDIATE,
        "sliding_window": WINDOW,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": VOCABULARY,
    }
