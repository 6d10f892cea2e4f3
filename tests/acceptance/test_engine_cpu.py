# SPDX-License-Identifier: Apache-2.0
"""Real vLLM on the CPU lane: the four arms on the tiny pair, and every planted defect caught."""

from __future__ import annotations

import concurrent.futures
import hashlib
import stat
import sys
from pathlib import Path

import pytest

from pytest_laguna.engine import arms, launch
from pytest_laguna.evidence.arm_record import Arm, ArmRecord, ArmRequest, Planted
from tests.runner import runner

TOKENS = 40
INTERPRETER = Path(sys.executable)
LAYERS = 48
VERIFIED = 8


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> launch.TinyPair:
    directory = tmp_path_factory.mktemp("tiny") / "pair"
    return runner().tiny_pair(directory, interpreter=INTERPRETER)


def request(pair: launch.TinyPair, arm: Arm, planted: Planted = Planted.NONE) -> ArmRequest:
    return ArmRequest(
        arm=arm,
        lane="cpu",
        target=str(pair.target),
        draft=str(pair.draft) if arm.speculates else None,
        # Whole, partial and no acceptance all occur with this one.
        prompt=pair.prompts["digits"],
        tokens=TOKENS,
        tensor_parallel_size=1,
        collective_breaks=False,
        planted=planted,
        profile_samples=0,
    )


def run(asked: ArmRequest, directory: Path) -> ArmRecord:
    return runner().arm(asked, directory, interpreter=INTERPRETER)


def run_all(requests: dict[str, ArmRequest], directory: Path) -> dict[str, ArmRecord]:
    """Two arms at a time: each has one thread."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        running = {name: pool.submit(run, asked, directory / name) for name, asked in requests.items()}
        return {name: future.result() for name, future in running.items()}


@pytest.mark.timeout(600)
def test_the_arms_agree_and_a_defect_behind_the_contract_does_not(pair: launch.TinyPair, tmp_path: Path) -> None:
    requests = {arm.value: request(pair, arm) for arm in Arm}
    behind = (Planted.UNCHECKED_WRONG_OFFSET, Planted.UNCHECKED_WRONG_STRIDE)
    requests |= {planted.value: request(pair, Arm.GRAPH_CANDIDATE, planted) for planted in behind}
    records = run_all(requests, tmp_path)
    q1, eager, control, candidate = (records[arm.value] for arm in Arm)

    for record in (q1, eager, control, candidate):
        assert len(record.token_ids) == TOKENS
        assert (record.finish_reason, record.cached_tokens) == ("length", 0)
        assert (record.token_sha256, record.text_sha256) == (q1.token_sha256, q1.text_sha256)
        assert record.prompt_tokens == len(pair.prompts["digits"])
        assert record.versions["vllm"] == "0.32.0"
        [rank] = record.ranks
        assert rank.model_runner == "vllm.v1.worker.cpu_model_runner.CPUModelRunner"
        assert rank.candidate["model_runner"] == "V1"
        assert rank.attention.layers == LAYERS

    check_topology(q1, eager, control, candidate)
    check_acceptance(eager, control, candidate)
    check_views(control, candidate)
    assert candidate.ranks[0].attention == control.ranks[0].attention
    # Without a draft each pass has one row and not eight: the same tokens from other calls.
    assert q1.ranks[0].attention.calls == LAYERS * TOKENS

    for planted in behind:
        betrayed = records[planted.value]
        assert betrayed.request.planted is planted
        assert betrayed.ranks[0].attention.sha256 != control.ranks[0].attention.sha256
        assert betrayed.token_sha256 != control.token_sha256


def check_topology(q1: ArmRecord, eager: ArmRecord, control: ArmRecord, candidate: ArmRecord) -> None:
    """Upstream's topology: a break at each attention, in the target and in the draft."""
    assert q1.ranks[0].graphs == eager.ranks[0].graphs == []
    order = ",".join(["graph", "attention"] * LAYERS + ["graph"])
    target, draft = control.ranks[0].graphs
    assert (target.model, target.graphs, target.breaks) == ("target", LAYERS + 1, LAYERS)
    assert target.kinds == {"graph": LAYERS + 1, "attention": LAYERS}
    assert target.order_sha256 == hashlib.sha256(order.encode()).hexdigest()
    assert f"num_tokens={VERIFIED}" in target.descriptor
    assert (draft.model, draft.graphs, draft.breaks) == ("draft", 3, 2)
    assert candidate.ranks[0].graphs == control.ranks[0].graphs


def check_acceptance(eager: ArmRecord, control: ArmRecord, candidate: ArmRecord) -> None:
    """Drafts are accepted, some whole and some in part; an equality of tokens alone would not show that."""
    acceptance = control.acceptance
    assert acceptance is not None
    assert acceptance.accepted > acceptance.drafts
    assert 0 < acceptance.accepted_per_position[-1] < acceptance.accepted_per_position[0]
    assert acceptance == candidate.acceptance == eager.acceptance


def check_views(control: ArmRecord, candidate: ArmRecord) -> None:
    """The candidate's views are built once a layer and used by every call; the control runs vLLM's own classes."""
    stock, proof = control.ranks[0].candidate, candidate.ranks[0].candidate
    assert (stock["flag"], proof["flag"]) == (False, True)
    assert stock["implementations"] == ["vllm.v1.attention.backends.flash_attn.FlashAttentionImpl"]
    assert stock["builds"] == stock["forward_hits"] == 0
    assert proof["implementations"] == ["laguna_kv.backend.LagunaFlashAttentionImpl"]
    assert (proof["lane"], proof["validator"]) == ("cpu", "native")
    assert proof["builds"] == proof["target_layers_with_state"] == LAYERS
    assert proof["draft_layers_with_state"] == proof["invalidations"] == 0
    assert proof["forward_hits"] == candidate.ranks[0].attention.calls
    # One warm-up, one capture, one prefill: a replay writes the cache inside its graphs and runs no Python for it.
    assert proof["update_hits"] == 3 * LAYERS
    assert (control.environment[arms.FLAG], candidate.environment[arms.FLAG]) == ("0", "1")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("planted", "field"),
    [
        (Planted.WRONG_OFFSET, r"canonical_key\.data_ptr"),
        (Planted.WRONG_STRIDE, r"canonical_key\.stride: expected \(32768, 512, 256, 1\), seen \(32768, 513, 256, 1\)"),
    ],
)
def test_a_defect_before_the_contract_is_refused_by_it(
    pair: launch.TinyPair, planted: Planted, field: str, tmp_path: Path
) -> None:
    directory = tmp_path / "arm"
    reason = rf"exit code 1 .*: {arms.FAILED}ContractError: model\.layers\.0\.self_attn\.attn: .*{field}"
    with pytest.raises(launch.ArmFailedError, match=reason):
        run(request(pair, Arm.GRAPH_CANDIDATE, planted), directory)
    assert not (directory / "record.json").exists()
    assert "ContractError" in (directory / "record.traceback").read_text()


@pytest.mark.timeout(120)
def test_an_arm_that_cannot_run_says_why_in_one_line(pair: launch.TinyPair, tmp_path: Path) -> None:
    directory = tmp_path / "arm"
    with pytest.raises(launch.ArmFailedError, match=rf"exit code 1 .*: {arms.FAILED}.*/nowhere"):
        run(request(pair, Arm.Q1).model_copy(update={"target": "/nowhere"}), directory)
    assert not (directory / "record.json").exists()
    assert stat.S_IMODE((directory / "request.json").stat().st_mode) == 0o600
