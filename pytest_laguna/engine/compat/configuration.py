# SPDX-License-Identifier: Apache-2.0
"""Forms of Laguna's ``config.json`` for different vLLM versions; imports neither torch nor vLLM.

vLLM 0.32.0 and 0.33.0 leave Laguna's configuration to transformers, which keys ``rope_parameters`` by layer type since
5.17. vLLM 0.26.0 has a class of its own, which would read the first layer type as one of the parameters.
"""

from __future__ import annotations

from typing import Any

from pytest_laguna.evidence.arms.arm_settings import PAIR_VERSIONS as VERSIONS

_OLDER = frozenset({"0.26.0"})


def has_older_form(version: str) -> bool:
    """True if a version reads the older form; raises ValueError for an unknown version."""
    if version not in VERSIONS:
        raise ValueError(f"vLLM {version}: seen no known form of config.json; expected one of {', '.join(VERSIONS)}")
    return version in _OLDER


def older_form(config: dict[str, Any], *, draft: bool) -> dict[str, Any]:
    """Convert a configuration to the form of vLLM 0.26.0.

    Args:
        config: in the newer form.
        draft: True for the DFlash draft's. vLLM 0.26.0 recognises it by its architecture alone and ignores
            ``mlp_layer_types``: if there were experts, it would give the draft's second layer some.
    """
    newer = {"rope_parameters", "mlp_layer_types"}
    full, sliding = (config["rope_parameters"][kind] for kind in ("full_attention", "sliding_attention"))
    dense = [layer for layer, kind in enumerate(config["mlp_layer_types"]) if kind == "dense"]
    kept = {name: value for name, value in config.items() if name not in newer}
    older = {
        "rope_theta": full["rope_theta"],
        "partial_rotary_factor": full["partial_rotary_factor"],
        "swa_rope_parameters": sliding,
        "mlp_only_layers": dense,
        "qkv_bias": config["attention_bias"],
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
    }
    of_draft = {"architectures": ["DFlashLagunaForCausalLM"], "num_experts": 0} if draft else {}
    return kept | older | of_draft
