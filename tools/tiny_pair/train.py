# SPDX-License-Identifier: Apache-2.0
"""Trains the shipped numbers: ``python -m tools.tiny_pair.train STAGE --target T --draft D``.

Stage ``target`` trains the eight layers that are not quiet, with noise on the residual stream in place of the quiet
ones, and writes T. Stage ``draft`` grows T to 48 and to 12 layers, taps their residual streams, trains the draft to
predict the grown target's tokens, and writes D. It also puts the trained mask embedding into T, because the draft
shares the target's embedding.

The shipped numbers are the output of both stages in turn. They are shipped because another CPU may round differently.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from pytest_laguna.engine.tiny_pair import shape
from pytest_laguna.engine.tiny_pair.grow import with_layers
from pytest_laguna.engine.tiny_pair.tokenizer import encode

from .excerpts import batch
from .model import Weights, draft_forward, target_forward

TARGET_STEPS = 1000
DRAFT_STEPS = 450
_LEARNING_RATE = 3e-3
_WARM_UP_STEPS = 20
_TRAINED = shape.trained_layers()
_DEPTHS = (shape.LAYERS, shape.QUICK_LAYERS)
"""The draft learns from targets of both depths."""
_DRAFT_SEQUENCES = 160
_UNTAUGHT = "378er"
"""The draft never learns to propose these bytes, so that after any text some drafts are accepted only in part."""
_SHORT_SEQUENCES, _LONG_SEQUENCES = (8, 128), (2, 896)
"""Sequences and their tokens: in one step of the target's training, and in one of its last steps."""
_LONG_FROM = 0.9
_MARGIN = 3.0
"""Taken off the right token's logit in training, so that the target learns to be surer than right."""
_FIRST_JUDGED_TOKEN = 32
"""The first tokens may not show the stream's parameters yet, so nobody could know the next one."""


def main(arguments: list[str]) -> None:
    """Train target or draft and report the loss on standard error."""
    parser = argparse.ArgumentParser(description="Train the tiny pair.")
    parser.add_argument("stage", choices=["target", "draft"])
    parser.add_argument("--target", type=Path, required=True, help="safetensors file of the trained target layers")
    parser.add_argument("--draft", type=Path, help="safetensors file of the draft to write")
    parser.add_argument("--steps", type=int, help="optimiser steps (default: those of the shipped numbers)")
    parser.add_argument("--sequences", type=int, default=_DRAFT_SEQUENCES, help="of the draft's training")
    options = parser.parse_args(arguments)
    torch.use_deterministic_algorithms(True)  # noqa: FBT003 - torch's own signature
    if options.stage == "target":
        weights = train_target(options.steps or TARGET_STEPS)
        _save(weights, options.target)
        return
    if options.draft is None:
        parser.error("the draft stage writes --draft; name it")
    target = load_file(options.target)
    draft, mask = train_draft(target, options.steps or DRAFT_STEPS, options.sequences)
    target["model.embed_tokens.weight"][shape.MASK_TOKEN] = mask.to(torch.bfloat16)
    _save(draft, options.draft)
    _save(target, options.target)


def train_target(steps: int) -> dict[str, torch.Tensor]:
    """Train the eight layers on fresh text; the last tenth of the steps sees long sequences.

    Returns:
        Float32 weights by their name in ``model.safetensors``.
    """
    weights = _initial_target()
    fixed = {name for name in weights if name.endswith("e_score_correction_bias")}
    text, noise = random.Random(2), torch.Generator().manual_seed(3)  # noqa: S311 - text, no secret
    last_of_first_group = shape.PERIOD - 1

    def disturb(layer: int, residual: torch.Tensor) -> torch.Tensor:
        if layer != last_of_first_group:
            return residual
        size = 0.15 * residual.detach().pow(2).mean(-1, keepdim=True).sqrt()
        return residual + torch.randn(residual.shape, generator=noise) * size

    def loss(step: int) -> torch.Tensor:
        sequences, tokens = _LONG_SEQUENCES if step >= steps * _LONG_FROM else _SHORT_SEQUENCES
        token_ids = torch.tensor(batch(text, sequences, tokens + 1))
        logits, _ = target_forward(weights, token_ids[:, :-1], layers=_TRAINED, disturb=disturb)
        logits, wanted = logits[:, _FIRST_JUDGED_TOKEN:], token_ids[:, _FIRST_JUDGED_TOKEN + 1 :]
        handicap = _MARGIN * functional.one_hot(wanted, shape.VOCABULARY)
        return functional.cross_entropy((logits - handicap).flatten(0, 1), wanted.flatten())

    _optimise([value for name, value in weights.items() if name not in fixed], loss, steps)
    return {name: value.detach() for name, value in weights.items()}


def train_draft(target: Weights, steps: int, sequences: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Train the draft on the grown target's own tokens.

    Args:
        target: the trained target layers, bfloat16.
        steps: optimiser steps.
        sequences: number of training sequences.

    Returns:
        The draft's float32 weights by name, and the embedding of the mask token, [hidden].
    """
    token_ids = torch.tensor(batch(random.Random(21), sequences, 256))  # noqa: S311 - text, no secret
    parts = torch.split(token_ids, math.ceil(sequences / len(_DEPTHS)))
    seen = [_taps_and_choices(target, layers, part) for layers, part in zip(_DEPTHS, parts, strict=True)]
    taps = torch.cat([tapped for tapped, _ in seen], 1)
    said = torch.cat([choices for _, choices in seen])
    labels = torch.cat([token_ids[:, :1], said[:, :-1]], 1)
    embeddings, head = (target[name].float() for name in ("model.embed_tokens.weight", "lm_head.weight"))
    weights, mask = _initial_draft()
    fixed = {name for name in weights if name.endswith(("input_layernorm.weight", "k_norm.weight"))}
    generator = torch.Generator().manual_seed(12)
    proposed = torch.arange(1, shape.DRAFT_TOKENS + 1)
    untaught = torch.tensor(encode(_UNTAUGHT))
    importance = torch.softmax(-(proposed - 1) / 5.0, 0)

    def loss(_step: int) -> torch.Tensor:
        rows = torch.randint(0, len(token_ids), (12,), generator=generator)
        last = token_ids.shape[1] - shape.DRAFT_TOKENS
        anchors = torch.randint(24, last, (12, 16), generator=generator)
        embedding = embeddings.index_copy(0, torch.tensor([shape.MASK_TOKEN]), mask[None])
        hidden = draft_forward(weights, embedding, token_ids[rows], [tap[rows] for tap in taps], anchors)
        logits = functional.linear(hidden, head)
        wanted = labels[rows].gather(1, (anchors[:, :, None] + proposed).flatten(1))
        losses = functional.cross_entropy(logits.flatten(0, 2), wanted.flatten(), reduction="none")
        taught = torch.isin(wanted, untaught, invert=True)
        return (losses.view(-1, shape.DRAFT_TOKENS) * taught.view(-1, shape.DRAFT_TOKENS) * importance).sum(-1).mean()

    _optimise([mask, *(value for name, value in weights.items() if name not in fixed)], loss, steps)
    return {name: value.detach() for name, value in weights.items()}, mask.detach()


def _taps_and_choices(target: Weights, layers: int, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Residual streams for the draft, [taps, sequences, tokens, hidden], and the most likely next tokens."""
    grown = {name: value.float() for name, value in with_layers(target, layers).items()}
    parts, choices = [], []
    with torch.no_grad():
        for rows in torch.split(token_ids, 4):
            logits, tapped = target_forward(grown, rows, layers=range(layers), taps=shape.tap_layers(layers))
            parts.append(torch.stack(tapped))
            choices.append(logits.argmax(-1))
    said = torch.cat(choices)
    right = said[:, _FIRST_JUDGED_TOKEN:-1] == token_ids[:, _FIRST_JUDGED_TOKEN + 1 :]
    _report(f"with {layers} layers the target says the next token in {right.float().mean():.4f} of all cases")
    return torch.cat(parts, 1), said


def _optimise(parameters: Iterable[torch.Tensor], loss_of: Callable[[int], torch.Tensor], steps: int) -> None:
    """Adam with warm-up and cosine decay."""
    trained = list(parameters)
    for parameter in trained:
        parameter.requires_grad_(True)  # noqa: FBT003 - torch's own signature
    optimiser = torch.optim.Adam(trained, lr=_LEARNING_RATE, betas=(0.9, 0.97), eps=1e-9, fused=True)
    for step in range(steps):
        decay = 0.5 * (1 + math.cos(math.pi * step / steps)) + 0.02
        for group in optimiser.param_groups:
            group["lr"] = _LEARNING_RATE * min(1.0, (step + 1) / _WARM_UP_STEPS) * decay
        loss = loss_of(step)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        if step % 20 == 0 or step == steps - 1:
            _report(f"step {step} of {steps}: loss {loss.item():.4f}")


def _initial_target() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    weights = {
        "model.embed_tokens.weight": torch.randn(shape.VOCABULARY, shape.HIDDEN, generator=generator) * 0.5,
        "model.norm.weight": torch.ones(shape.HIDDEN),
        "lm_head.weight": torch.randn(shape.VOCABULARY, shape.HIDDEN, generator=generator) * 0.02,
    }
    output = (2 * len(_TRAINED)) ** -0.5
    for layer in _TRAINED:
        prefix = f"model.layers.{layer}."
        query = shape.heads(layer) * shape.HEAD
        weights |= _attention(f"{prefix}self_attn.", query, output, generator)
        weights[f"{prefix}input_layernorm.weight"] = torch.ones(shape.HIDDEN)
        weights[f"{prefix}post_attention_layernorm.weight"] = torch.ones(shape.HIDDEN)
        if shape.is_dense(layer):
            weights |= _mlp(f"{prefix}mlp.", shape.DENSE_INTERMEDIATE, output, generator)
            continue
        bias = torch.randn(shape.EXPERTS, generator=generator) * 0.05
        weights[f"{prefix}mlp.experts.e_score_correction_bias"] = bias
        weights[f"{prefix}mlp.gate.weight"] = _random(shape.EXPERTS, shape.HIDDEN, 1.0, generator)
        for expert in ["shared_expert", *(f"experts.{number}" for number in range(shape.EXPERTS))]:
            weights |= _mlp(f"{prefix}mlp.{expert}.", shape.EXPERT_INTERMEDIATE, output, generator)
    return weights


def _initial_draft() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    weights = {
        "fc.weight": _random(shape.HIDDEN, shape.HIDDEN * shape.TAPS, 1.0, generator),
        "hidden_norm.weight": torch.ones(shape.HIDDEN),
        "norm.weight": torch.ones(shape.HIDDEN),
    }
    weights |= {f"aux_hidden_norms.{number}.weight": torch.ones(shape.HIDDEN) for number in range(shape.TAPS)}
    for layer in range(shape.DRAFT_LAYERS):
        prefix = f"layers.{layer}."
        query = shape.SLIDING_HEADS * shape.HEAD
        separate = _attention(f"{prefix}self_attn.", query, 0.5, generator)
        fused = [separate.pop(f"{prefix}self_attn.{name}_proj.weight") for name in ("q", "k", "v")]
        weights |= separate
        weights[f"{prefix}self_attn.qkv_proj.weight"] = torch.cat(fused)
        weights[f"{prefix}input_layernorm.weight"] = torch.ones(shape.HIDDEN)
        weights[f"{prefix}post_attention_layernorm.weight"] = torch.ones(shape.HIDDEN)
        weights |= _mlp(f"{prefix}mlp.", shape.DRAFT_INTERMEDIATE, 0.5, generator)
    return weights, torch.randn(shape.HIDDEN, generator=generator) * 0.5


def _random(rows: int, columns: int, scale: float, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(rows, columns, generator=generator) * (scale / math.sqrt(columns))


def _attention(prefix: str, query: int, output: float, generator: torch.Generator) -> dict[str, torch.Tensor]:
    key_value = shape.KV_HEADS * shape.HEAD
    return {
        f"{prefix}q_proj.weight": _random(query, shape.HIDDEN, 1.0, generator),
        f"{prefix}k_proj.weight": _random(key_value, shape.HIDDEN, 1.0, generator),
        f"{prefix}v_proj.weight": _random(key_value, shape.HIDDEN, 1.0, generator),
        f"{prefix}o_proj.weight": _random(shape.HIDDEN, query, output, generator),
        f"{prefix}g_proj.weight": _random(query // shape.HEAD, shape.HIDDEN, 0.1, generator),
        f"{prefix}q_norm.weight": torch.ones(shape.HEAD),
        f"{prefix}k_norm.weight": torch.ones(shape.HEAD),
    }


def _mlp(prefix: str, intermediate: int, output: float, generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {
        f"{prefix}gate_proj.weight": _random(intermediate, shape.HIDDEN, 1.0, generator),
        f"{prefix}up_proj.weight": _random(intermediate, shape.HIDDEN, 1.0, generator),
        f"{prefix}down_proj.weight": _random(shape.HIDDEN, intermediate, output, generator),
    }


def _save(weights: Weights, path: Path) -> None:
    save_file({name: value.to(torch.bfloat16).contiguous() for name, value in weights.items()}, path)


def _report(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
