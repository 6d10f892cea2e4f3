# SPDX-License-Identifier: Apache-2.0
"""The tiny pair: the same bytes on every run, loadable, and trained by the script that is shipped with it."""

from __future__ import annotations

import hashlib
import json
import math
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pytest_laguna.engine.tiny_pair import build, corpus, model, quiet, shape, tokenizer, train
from tests.runner import runner


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny") / "pair"
    build.build(directory)
    return directory


def test_a_process_of_its_own_builds_the_same_bytes(pair: Path, tmp_path: Path) -> None:
    built = runner().tiny_pair(tmp_path / "again", interpreter=Path(sys.executable))
    assert build.hashes(built.target.parent) == build.hashes(pair)
    assert built.prompts["word-chain"].startswith("nova\noscar\n")


def test_a_changed_missing_or_additional_file_is_refused_by_name(pair: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(pair, copy)
    build.check(copy)
    weights = copy / "target" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(RuntimeError, match=r"target/model\.safetensors: SHA-256 is [0-9a-f]{64}, expected"):
        build.check(copy)
    weights.unlink()
    with pytest.raises(RuntimeError, match=r"target/model\.safetensors: SHA-256 is None, expected"):
        build.check(copy)
    shutil.copyfile(pair / "target" / "model.safetensors", weights)
    (copy / "draft" / "extra.json").write_text("{}")
    with pytest.raises(RuntimeError, match=r"draft/extra\.json: SHA-256 is [0-9a-f]{64}, expected None"):
        build.check(copy)


def test_nothing_is_overwritten(pair: Path) -> None:
    with pytest.raises(FileExistsError):
        build.build(pair)


def test_every_layer_has_all_its_weights_in_bfloat16(pair: Path) -> None:
    weights = load_file(pair / "target" / "model.safetensors")
    assert {value.dtype for value in weights.values()} == {torch.bfloat16}
    trained = load_file(Path(build.__file__).parent / "target.safetensors")
    assert not trained.keys() & quiet.quiet_weights().keys()
    names = [
        {name.removeprefix(f"model.layers.{layer}.") for name in weights if name.startswith(f"model.layers.{layer}.")}
        for layer in range(shape.LAYERS)
    ]
    assert len(names[0]) == 12
    assert all(layer == names[1] for layer in names[2:])
    assert names[1] >= {"mlp.experts.e_score_correction_bias", "mlp.shared_expert.up_proj.weight"}


def test_quiet_numbers_are_uniform_about_zero_and_hang_on_the_name_alone() -> None:
    numbers = quiet.uniform("a", 100, 100, 0.5)
    assert abs(float(numbers.mean())) < 0.02
    assert float(numbers.std()) == pytest.approx(0.5, rel=0.02)
    assert float(numbers.abs().max()) <= 0.5 * math.sqrt(3) * 1.0001
    assert torch.equal(numbers, quiet.uniform("a", 100, 100, 0.5))
    assert not torch.equal(numbers, quiet.uniform("b", 100, 100, 0.5))
    integers = struct.unpack("<3h", hashlib.shake_256(b"a").digest(6))
    wanted = [(integer + 0.5) * math.sqrt(3) / 2**15 for integer in integers]
    assert quiet.uniform("a", 1, 3, 1.0)[0].tolist() == pytest.approx(wanted, rel=1e-6)


def test_the_tokenizer_is_what_its_own_encoder_says(pair: Path) -> None:
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(pair / "target")
    for text in ["nova\noscar\n", "def f1(x):\n    return x + 1\n", "Ünï çødé → 日本", "\x00\x7f  \t"]:
        assert loaded(text)["input_ids"] == tokenizer.encode(text)
        assert loaded.decode(tokenizer.encode(text)) == text
    assert loaded.mask_token_id is None
    assert loaded.convert_tokens_to_ids("<mask>") == shape.MASK_TOKEN
    turns = [{"role": "user", "content": "hi"}]
    assert loaded.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, enable_thinking=False) == "hi"


def test_the_models_maths_is_transformers_laguna(pair: Path) -> None:
    from transformers import LagunaForCausalLM

    reference = LagunaForCausalLM.from_pretrained(pair / "target", dtype=torch.float32)
    weights = {name: value.float() for name, value in load_file(pair / "target" / "model.safetensors").items()}
    token_ids = corpus.batch(random.Random(77), 2, 100)  # noqa: S311 - text, no secret
    with torch.no_grad():
        wanted = reference(token_ids).logits
        seen, _ = model.target_forward(weights, token_ids)
    torch.testing.assert_close(seen, wanted, rtol=1e-3, atol=1e-3)


def test_the_target_has_learnt_the_corpus_and_the_draft_the_target(pair: Path) -> None:
    target = {name: value.float() for name, value in load_file(pair / "target" / "model.safetensors").items()}
    draft = {name: value.float() for name, value in load_file(pair / "draft" / "model.safetensors").items()}
    token_ids = corpus.batch(random.Random(99), 4, 160)  # noqa: S311 - text, no secret
    with torch.no_grad():
        logits, taps = model.target_forward(target, token_ids, taps=shape.TAPS)
        anchors = torch.arange(60, 150, 10).expand(4, -1)
        hidden = model.draft_forward(draft, target["model.embed_tokens.weight"], token_ids, taps, anchors)
        proposed = (hidden @ target["lm_head.weight"].T).argmax(-1)
    said = logits.argmax(-1)
    assert float((said[:, 48:-1] == token_ids[:, 49:]).float().mean()) > 0.9
    positions = anchors[:, :, None] + torch.arange(shape.DRAFT_TOKENS)
    wanted = said.gather(1, positions.flatten(1)).view(positions.shape)
    assert float((proposed == wanted).float().mean()) > 0.8


@pytest.mark.parametrize("stage", ["target", "draft"])
def test_the_first_steps_of_training_run_and_the_loss_falls(
    stage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, draft = tmp_path / "target.safetensors", tmp_path / "draft.safetensors"
    arguments = [stage, "--target", str(target), "--draft", str(draft), "--steps"]
    if stage == "draft":
        shutil.copyfile(Path(build.__file__).parent / "target.safetensors", target)
        before = load_file(target)
    try:
        train.main([*arguments, "3", "--sequences", "4"])
    finally:
        torch.use_deterministic_algorithms(False)
    losses = [float(line.rpartition(" ")[2]) for line in capsys.readouterr().err.splitlines() if "loss" in line]
    assert losses[-1] < losses[0]
    if stage == "draft":
        assert load_file(draft).keys() == load_file(Path(build.__file__).parent / "draft.safetensors").keys()
        changed = {name for name, value in load_file(target).items() if not torch.equal(value, before[name])}
        assert changed == {"model.embed_tokens.weight"}
    else:
        assert load_file(target).keys() == load_file(Path(build.__file__).parent / "target.safetensors").keys()


def test_the_draft_stage_names_its_output() -> None:
    argv = [sys.executable, "-m", "pytest_laguna.engine.tiny_pair.train", "draft", "--target", "t"]
    seen = subprocess.run(argv, capture_output=True, check=False, text=True)
    assert seen.returncode == 2
    assert "the draft stage writes --draft; name it" in seen.stderr


def test_configurations_say_what_the_layers_are() -> None:
    target, draft = json.loads(json.dumps(shape.target_config())), json.loads(json.dumps(shape.draft_config()))
    assert target["layer_types"].count("full_attention") == 12
    assert len(target["layer_types"]) == target["num_hidden_layers"] == 48
    assert target["num_key_value_heads"] == 2
    assert draft["dflash_config"]["target_layer_ids"] == [1, 11, 22, 33, 46]
    assert set(draft["layer_types"]) == {"sliding_attention"}
