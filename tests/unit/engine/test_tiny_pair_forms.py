# SPDX-License-Identifier: Apache-2.0
"""The pair in the form of another vLLM version and in other widths: another file, the same function."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from pytest_laguna.engine.compat import configuration
from pytest_laguna.engine.tiny_pair import build, shape
from pytest_laguna.evidence.arms.arm_settings import PAIR_VERSIONS

OLDER = "0.26.0"
LAYERS = 8


def built(directory: Path, **size: Any) -> Path:
    build.build(directory, shape.Size(layers=LAYERS, **size))
    return directory


def config(pair: Path, model: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((pair / model / "config.json").read_text())
    return value


def test_the_older_form_says_the_same_in_the_older_words(tmp_path: Path) -> None:
    newer, older = built(tmp_path / "newer"), built(tmp_path / "older", vllm=OLDER)
    for model, architecture in (("target", "LagunaForCausalLM"), ("draft", "DFlashLagunaForCausalLM")):
        ours, theirs = config(older, model), config(newer, model)
        assert ours["architectures"] == [architecture]
        assert not {"rope_parameters", "mlp_layer_types"} & ours.keys()
        assert ours["rope_theta"] == theirs["rope_parameters"]["full_attention"]["rope_theta"]
        assert ours["partial_rotary_factor"] == theirs["rope_parameters"]["full_attention"]["partial_rotary_factor"]
        assert ours["swa_rope_parameters"] == theirs["rope_parameters"]["sliding_attention"]
        assert [index in ours["mlp_only_layers"] for index in range(ours["num_hidden_layers"])] == [
            kind == "dense" for kind in theirs["mlp_layer_types"]
        ]
        changed = {"architectures", "num_experts", "rope_parameters", "mlp_layer_types"}
        assert {name: value for name, value in theirs.items() if name not in changed}.items() <= ours.items()
        assert build.sha256(older / model / "model.safetensors") == build.sha256(newer / model / "model.safetensors")
    assert config(older, "draft")["num_experts"] == 0
    assert config(older, "target")["num_experts"] == shape.EXPERTS


def test_a_version_whose_form_is_not_known_is_refused() -> None:
    assert {version for version in PAIR_VERSIONS if configuration.has_older_form(version)} == {OLDER}
    with pytest.raises(ValueError, match=r"vLLM 0\.27\.0: seen no known form of config\.json; expected one of"):
        shape.Size(vllm="0.27.0")


@pytest.mark.parametrize("width", [0, 2, 8, 256])
def test_a_width_whose_root_is_no_power_of_two_is_refused(width: int) -> None:
    with pytest.raises(ValueError, match=f"width: seen {width}; expected one of 1, 4, 16, 64"):
        shape.Size(width=width)


def test_what_makes_it_another_pair_is_in_its_name() -> None:
    assert str(shape.Size(vllm="0.33.0")) == str(shape.Size()) == "layers=48 tensor_parallel_size=1"
    assert str(shape.Size(width=64, vllm=OLDER)) == "layers=48 tensor_parallel_size=1 width=64 vllm=0.26.0"


def test_a_wider_target_has_the_same_logits_up_to_the_order_of_sums(tmp_path: Path) -> None:
    from transformers import LagunaForCausalLM

    tokens = torch.tensor([[16 + (7 * index) % 200 for index in range(96)]])
    seen = []
    for width in (1, 4):
        target: torch.nn.Module = LagunaForCausalLM.from_pretrained(
            built(tmp_path / str(width), width=width) / "target", dtype=torch.float32
        )
        with torch.inference_mode():
            seen.append(target.eval()(tokens).logits)
    assert seen[0].abs().max() > 1
    assert torch.allclose(seen[0], seen[1], rtol=1e-4, atol=1e-3)
    assert torch.equal(seen[0].argmax(-1), seen[1].argmax(-1))


def test_the_draft_grows_with_its_target_and_every_new_number_is_zero(tmp_path: Path) -> None:
    narrow, wide = built(tmp_path / "narrow"), built(tmp_path / "wide", width=16)
    before = load_file(narrow / "draft" / "model.safetensors")
    after = load_file(wide / "draft" / "model.safetensors")
    assert before.keys() == after.keys()
    for name, value in before.items():
        scale = 4 if value.dim() == 1 and not name.endswith(("q_norm.weight", "k_norm.weight")) else 1
        assert torch.equal(after[name][after[name] != 0] * scale, value[value != 0]), name
    hidden = 16 * shape.HIDDEN
    assert after["fc.weight"].shape == (hidden, shape.TAPS * hidden)
    for tap, (one, other) in enumerate(
        zip(before["fc.weight"].split(shape.HIDDEN, 1), after["fc.weight"].split(hidden, 1), strict=True)
    ):
        assert torch.equal(one, other[: shape.HIDDEN, : shape.HIDDEN]), tap


def test_the_widest_of_48_layers_has_a_billion_parameters() -> None:
    config = shape.target_config(shape.Size(width=64))
    hidden, head = config["hidden_size"], config["head_dim"]
    attention = sum(
        2 * heads * head * hidden + 2 * config["num_key_value_heads"] * head * hidden
        for heads in config["num_attention_heads_per_layer"]
    )
    experts = 47 * 3 * hidden * (4 * config["moe_intermediate_size"] + config["shared_expert_intermediate_size"])
    assert attention + experts > 1e9


def test_the_program_takes_width_and_version(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "pytest_laguna.engine.tiny_pair", str(tmp_path / "pair"), "--layers", str(LAYERS)]
    said = json.loads(
        subprocess.run([*argv, "--width", "4", "--vllm", OLDER], capture_output=True, check=True, text=True).stdout
    )
    assert said["size"] == f"layers={LAYERS} tensor_parallel_size=1 width=4 vllm={OLDER}"
    assert said["pinned"] is False
    with safe_open(tmp_path / "pair" / "target" / "model.safetensors", "pt") as weights:
        assert weights.get_slice("lm_head.weight").get_shape() == [shape.VOCABULARY, 4 * shape.HIDDEN]
