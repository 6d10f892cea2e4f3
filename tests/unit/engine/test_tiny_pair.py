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

from pytest_laguna.engine.tiny_pair import build, corpus, grow, prompts, quiet, shape, tokenizer
from tests.runner import runner
from tools.tiny_pair import excerpts, model, pin, simulation, suite, train

SHIPPED = Path(build.__file__).parent
FULL, QUICK = shape.Size(), shape.Size(layers=shape.QUICK_LAYERS)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny") / "pair"
    build.build(directory, FULL)
    return directory


def test_a_process_of_its_own_builds_the_same_bytes(pair: Path, tmp_path: Path) -> None:
    built = runner().tiny_pair(tmp_path / "again", interpreter=Path(sys.executable))
    assert build.hashes(built.target.parent) == build.hashes(pair)
    assert built.prompts == prompts.gate_2_prompts()


def test_a_changed_missing_or_additional_file_is_refused_by_name(pair: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(pair, copy)
    build.check(copy, FULL)
    weights = copy / "target" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(RuntimeError, match=r"target/model\.safetensors: seen SHA-256 [0-9a-f]{64}; expected"):
        build.check(copy, FULL)
    weights.unlink()
    with pytest.raises(RuntimeError, match=r"target/model\.safetensors: seen SHA-256 None; expected"):
        build.check(copy, FULL)
    shutil.copyfile(pair / "target" / "model.safetensors", weights)
    (copy / "draft" / "extra.json").write_text("{}")
    with pytest.raises(RuntimeError, match=r"draft/extra\.json: seen SHA-256 [0-9a-f]{64}; expected None"):
        build.check(copy, FULL)


def test_damaged_shipped_numbers_are_refused_by_name(tmp_path: Path) -> None:
    for name in build.SHIPPED:
        shutil.copyfile(SHIPPED / name, tmp_path / name)
    build.require_shipped(tmp_path)
    (tmp_path / "draft.safetensors").write_bytes((SHIPPED / "draft.safetensors").read_bytes() + b" ")
    with pytest.raises(RuntimeError, match=r"draft\.safetensors: seen SHA-256 [0-9a-f]{64}; expected"):
        build.require_shipped(tmp_path)
    (tmp_path / "draft.safetensors").unlink()
    with pytest.raises(RuntimeError, match=r"draft\.safetensors: seen SHA-256 None; expected"):
        build.require_shipped(tmp_path)


def test_what_is_shipped_is_small() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.iterdir() if path.is_file()) < 10_000_000


def test_nothing_is_overwritten(pair: Path) -> None:
    with pytest.raises(FileExistsError):
        build.build(pair, FULL)


@pytest.mark.parametrize("size", pin.PINNED, ids=str)
def test_every_pinned_size_is_built_to_its_hashes(size: shape.Size, tmp_path: Path) -> None:
    assert build.is_pinned(size)
    digest = build.build(tmp_path / "pair", size)
    assert digest == hashlib.sha256(json.dumps(build.hashes(tmp_path / "pair"), sort_keys=True).encode()).hexdigest()


def test_a_size_that_is_not_pinned_is_built_and_says_so(tmp_path: Path) -> None:
    seen = [
        subprocess.run(
            [sys.executable, "-m", "pytest_laguna.engine.tiny_pair", tmp_path / name, "--layers", "8"],
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for name in ("once", "twice")
    ]
    assert seen[0] == seen[1]
    said = json.loads(seen[0])
    assert (said["size"], said["pinned"]) == ("layers=8 tensor_parallel_size=1", False)
    assert said["sha256"] == build.check(tmp_path / "once", shape.Size(8))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--layers", "10"], "layers: seen 10; expected a multiple of 4, 8 or more"),
        (["--layers", "4"], "layers: seen 4; expected a multiple of 4, 8 or more"),
        (["--tensor-parallel-size", "3"], "tensor_parallel_size: seen 3; expected 1, 2 or 4"),
    ],
)
def test_another_size_is_refused(arguments: list[str], reason: str, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "pytest_laguna.engine.tiny_pair", str(tmp_path / "pair"), *arguments]
    seen = subprocess.run(argv, capture_output=True, check=False, text=True)
    assert seen.returncode == 2
    assert seen.stderr.splitlines()[-1].endswith(reason)
    assert not (tmp_path / "pair").exists()


def test_the_launcher_builds_the_size_that_it_is_asked_for(tmp_path: Path) -> None:
    built = runner().tiny_pair(
        tmp_path / "quick", interpreter=Path(sys.executable), layers=shape.QUICK_LAYERS, tensor_parallel_size=2
    )
    config = json.loads((built.target / "config.json").read_text())
    assert (config["num_hidden_layers"], config["num_key_value_heads"]) == (shape.QUICK_LAYERS, 4)


def test_every_layer_has_all_its_weights_in_bfloat16(pair: Path) -> None:
    weights = load_file(pair / "target" / "model.safetensors")
    assert {value.dtype for value in weights.values()} == {torch.bfloat16}
    trained = load_file(SHIPPED / "target.safetensors")
    assert not trained.keys() & quiet.quiet_weights().keys()
    names = [
        {name.removeprefix(f"model.layers.{layer}.") for name in weights if name.startswith(f"model.layers.{layer}.")}
        for layer in range(shape.LAYERS)
    ]
    assert len(names[0]) == 12
    assert all(layer == names[1] for layer in names[2:])
    assert names[1] >= {"mlp.experts.e_score_correction_bias", "mlp.shared_expert.up_proj.weight"}


def test_a_quick_target_is_the_trained_layers_around_fewer_quiet_ones(tmp_path: Path) -> None:
    build.build(tmp_path / "quick", QUICK)
    quick = load_file(tmp_path / "quick" / "target" / "model.safetensors")
    trained = load_file(SHIPPED / "target.safetensors")
    layers = shape.QUICK_LAYERS
    assert {int(name.split(".")[2]) for name in quick if ".layers." in name} == set(range(layers))
    for there, here in ((0, 0), (3, 3), (44, 8), (47, 11)):
        name = "self_attn.q_proj.weight"
        assert torch.equal(trained[f"model.layers.{there}.{name}"], quick[f"model.layers.{here}.{name}"])
    assert shape.tap_layers(layers) == (1, 3, 5, 7, 10)
    assert shape.trained_layers(layers) == (0, 1, 2, 3, 8, 9, 10, 11)


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
    token_ids = torch.tensor(excerpts.batch(random.Random(77), 2, 100))  # noqa: S311 - text, no secret
    with torch.no_grad():
        wanted = reference(token_ids).logits
        seen, _ = model.target_forward(weights, token_ids)
    torch.testing.assert_close(seen, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("ranks", [2, 4])
def test_more_heads_compute_the_same_function(pair: Path, ranks: int, tmp_path: Path) -> None:
    """Judged by transformers, which knows nothing of how the heads were laid out."""
    from transformers import LagunaForCausalLM

    build.build(tmp_path / "pair", shape.Size(tensor_parallel_size=ranks))
    token_ids = torch.tensor(excerpts.batch(random.Random(78), 1, 60))  # noqa: S311 - text, no secret
    logits = []
    for directory in (pair, tmp_path / "pair"):
        model_of_size = LagunaForCausalLM.from_pretrained(directory / "target", dtype=torch.float32)
        with torch.no_grad():
            logits.append(model_of_size(token_ids).logits)
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ranks", [2, 4])
def test_each_rank_holds_all_heads_of_one_rank(ranks: int, tmp_path: Path) -> None:
    build.build(tmp_path / "one", QUICK)
    build.build(tmp_path / "more", shape.Size(shape.QUICK_LAYERS, ranks))
    one, more = (load_file(tmp_path / name / "target" / "model.safetensors") for name in ("one", "more"))
    draft, wide_draft = (load_file(tmp_path / name / "draft" / "model.safetensors") for name in ("one", "more"))
    for rank in range(ranks):
        for layer in range(shape.QUICK_LAYERS):
            prefix = f"model.layers.{layer}.self_attn."
            for letter in "qkvg":
                part = more[f"{prefix}{letter}_proj.weight"].chunk(ranks)[rank]
                assert torch.equal(part, one[f"{prefix}{letter}_proj.weight"])
            part = more[f"{prefix}o_proj.weight"].chunk(ranks, 1)[rank]
            assert torch.equal(part * ranks, one[f"{prefix}o_proj.weight"])
        for layer in range(shape.DRAFT_LAYERS):
            name = f"layers.{layer}.self_attn.qkv_proj.weight"
            heads = [shape.SLIDING_HEADS * shape.HEAD, shape.KV_HEADS * shape.HEAD, shape.KV_HEADS * shape.HEAD]
            rows = wide_draft[name].split([ranks * size for size in heads])
            assert torch.equal(torch.cat([part.chunk(ranks)[rank] for part in rows]), draft[name])


@pytest.mark.parametrize("size", [FULL, QUICK], ids=str)
def test_the_target_is_sure_and_its_drafts_are_accepted_in_part(size: shape.Size) -> None:
    """Each prompt of gate 2 and of the suite in plain torch; what vLLM makes of them is in measured.json."""
    target = grow.with_layers(load_file(SHIPPED / "target.safetensors"), size.layers)
    target = {name: value.float() for name, value in target.items()}
    draft = {name: value.float() for name, value in load_file(SHIPPED / "draft.safetensors").items()}
    for name, prompt in (prompts.GATE_2 | suite.SUITE).items():
        tokens = suite.GATE_2_TOKENS if name in prompts.GATE_2 else suite.SUITE_TOKENS
        decoding = simulation.decode_greedily(
            target, draft, size.layers, prompt.stream.token_ids(prompt.tokens), suite.continuation(prompt, tokens)
        )
        assert min(decoding.margins) > 1.5, name
        assert max(decoding.accepted) > min(decoding.accepted), name
        if name in prompts.GATE_2:
            assert 2 < decoding.accepted_per_cycle < 6, name
            assert len(decoding.accepted) >= 40, name


@pytest.mark.parametrize("stage", ["target", "draft"])
def test_the_first_steps_of_training_run_and_the_loss_falls(
    stage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, draft = tmp_path / "target.safetensors", tmp_path / "draft.safetensors"
    arguments = [stage, "--target", str(target), "--draft", str(draft), "--steps"]
    if stage == "draft":
        shutil.copyfile(SHIPPED / "target.safetensors", target)
        before = load_file(target)
    try:
        train.main([*arguments, "3", "--sequences", "4"])
    finally:
        torch.use_deterministic_algorithms(False)
    losses = [float(line.rpartition(" ")[2]) for line in capsys.readouterr().err.splitlines() if "loss" in line]
    assert losses[-1] < losses[0]
    if stage == "draft":
        assert load_file(draft).keys() == load_file(SHIPPED / "draft.safetensors").keys()
        changed = {name for name, value in load_file(target).items() if not torch.equal(value, before[name])}
        assert changed == {"model.embed_tokens.weight"}
    else:
        assert load_file(target).keys() == load_file(SHIPPED / "target.safetensors").keys()


def test_the_draft_stage_names_its_output() -> None:
    argv = [sys.executable, "-m", "tools.tiny_pair.train", "draft", "--target", "t"]
    seen = subprocess.run(argv, capture_output=True, check=False, text=True)
    assert seen.returncode == 2
    assert "the draft stage writes --draft; name it" in seen.stderr


def test_configurations_say_what_the_layers_are() -> None:
    target, draft = (json.loads(json.dumps(config(FULL))) for config in (shape.target_config, shape.draft_config))
    assert target["layer_types"].count("full_attention") == 12
    assert len(target["layer_types"]) == target["num_hidden_layers"] == 48
    assert target["num_key_value_heads"] == 2
    assert draft["dflash_config"]["target_layer_ids"] == [1, 12, 23, 34, 46]
    assert set(draft["layer_types"]) == {"sliding_attention"}
    wide = shape.target_config(shape.Size(tensor_parallel_size=4))
    assert (wide["num_key_value_heads"], wide["num_attention_heads_per_layer"][:2]) == (8, [16, 24])


def test_the_committed_suite_is_the_prompts() -> None:
    committed = json.loads(pin.SUITE.read_text())
    assert committed == suite.suite()
    rows = committed["prompts"]
    assert len({row["id"] for row in rows}) == len({row["text"] for row in rows}) == len(rows) == 13
    lengths = sorted(len(tokenizer.encode(row["text"])) for row in rows)
    assert lengths[-1] == committed["rollover_prompt_tokens"] > 4 * lengths[-2]
    assert lengths[-1] + committed["max_tokens"] <= 1024
    generated = [len(suite.continuation(prompt, committed["max_tokens"])) for prompt in suite.SUITE.values()]
    stopped = [tokens for tokens in generated if tokens < committed["max_tokens"]]
    assert len(stopped) == 2
    assert min(generated) >= 100


def test_a_prompt_goes_on_where_its_text_ends_and_stops_at_the_end() -> None:
    prompt = prompts.StreamStart(corpus.TextStream("numbered", 22), 4)
    assert prompt.text == "23: "
    assert suite.continuation(prompt, 50) == [*tokenizer.encode("whisky\n24: yard\n"), tokenizer.END_TOKEN]
    assert suite.continuation(prompt, 6) == tokenizer.encode("whisky")
    with pytest.raises(KeyError):
        tokenizer.decode([tokenizer.END_TOKEN])


def test_verifications_walk_over_what_was_accepted() -> None:
    wrong = [0] * 7
    proposed = [wrong, [3, 4, 9, 9, 9, 9, 9], wrong, wrong, [6, 7, 8, 9, 1, 1, 1], wrong, wrong, wrong]
    assert simulation._verifications(proposed, [1, 2, 3, 4, 5, 6, 7, 8]) == [0, 2, 3]
