# SPDX-License-Identifier: Apache-2.0
"""Real vLLM on the CPU lane: the four arms on the tiny pair, and every planted defect caught.

Eight layers show what 48 do; those are gate 1's, which ``test_gate1_real`` runs.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.engine import launch
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms import arm_settings
from pytest_laguna.evidence.arms.arm_record import Arm, ArmRecord, ArmRequest, Planted, RankReport
from pytest_laguna.evidence.arms.replay_profile import ReplayProfile
from pytest_laguna.evidence.machine.process import ProcessRecord
from pytest_laguna.evidence.schemas import read_model
from tests.runner import runner

pytestmark = pytest.mark.engines

TOKENS = 40
INTERPRETER = Path(sys.executable)
LAYERS = 8
VERIFIED = 8


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> launch.TinyPair:
    directory = tmp_path_factory.mktemp("tiny") / "pair"
    return runner().tiny_pair(directory, interpreter=INTERPRETER, layers=LAYERS)


def request(pair: launch.TinyPair, arm: Arm, planted: Planted = Planted.NONE, **changes: Any) -> ArmRequest:
    values: dict[str, Any] = {
        "arm": arm,
        "lane": "cpu",
        "target": str(pair.target),
        "draft": str(pair.draft) if arm.speculates else None,
        # Whole, partial and no acceptance all occur with this one.
        "prompt": pair.prompts["digits"],
        "tokens": TOKENS,
        "tensor_parallel_size": 1,
        "collective_breaks": False,
        "planted": planted,
        "profile_samples": 0,
    }
    return ArmRequest(**(values | changes))


def run(asked: ArmRequest, directory: Path) -> ArmRecord:
    return runner().arm(asked, directory, interpreter=INTERPRETER)


def run_all(requests: dict[str, ArmRequest], directory: Path) -> dict[str, ArmRecord]:
    """Two arms at a time: each has one thread."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        running = {name: pool.submit(run, asked, directory / name) for name, asked in requests.items()}
        return {name: future.result() for name, future in running.items()}


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
    check_kernel_and_allocations(control, candidate)
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
    assert (control.environment[arm_settings.FLAG], candidate.environment[arm_settings.FLAG]) == ("0", "1")


def check_kernel_and_allocations(control: ArmRecord, candidate: ArmRecord) -> None:
    """The kernel is handed the same, and a replay allocates as often, on every rank."""
    for stock, ours in zip(control.ranks, candidate.ranks, strict=True):
        assert stock.kernel_signatures == ours.kernel_signatures
        assert sorted(stock.kernel_signatures) == sorted(stock.kernel_views)
        assert stock.allocations == ours.allocations
        assert len(set(stock.allocations)) == 1 <= stock.allocations[0]
        native = [mapped.path for mapped in ours.mapped if "laguna_kv/_contract" in mapped.path]
        assert len(native) == 1
        assert native[0] not in {mapped.path for mapped in stock.mapped}


SAMPLES, RANKS = 5, 2
KINDS = [
    *("graph", "collective", "graph", "attention"),
    *(["graph", "collective", "graph", "collective", "graph", "attention"] * (LAYERS - 1)),
    *("graph", "collective", "graph", "collective", "graph"),
]


def test_both_graph_arms_on_two_ranks_break_at_collectives_and_are_profiled(tmp_path: Path) -> None:
    """Each rank captures the same order, times the same replays, and holds two KV heads of its own."""
    pair = runner().tiny_pair(tmp_path / "pair", interpreter=INTERPRETER, layers=LAYERS, tensor_parallel_size=RANKS)
    asked: dict[str, Any] = {
        "tensor_parallel_size": RANKS,
        "collective_breaks": True,
        "profile_samples": SAMPLES,
        "tokens": 64,
    }
    arms_of = (Arm.GRAPH_CONTROL, Arm.GRAPH_CANDIDATE)
    control, candidate = (run(request(pair, arm, **asked), tmp_path / arm.value) for arm in arms_of)

    assert (control.token_sha256, control.text_sha256) == (candidate.token_sha256, candidate.text_sha256)
    assert [rank.attention for rank in control.ranks] == [rank.attention for rank in candidate.ranks]
    assert control.acceptance == candidate.acceptance
    assert control.acceptance is not None
    assert control.acceptance.accepted > control.acceptance.drafts > SAMPLES
    check_kernel_and_allocations(control, candidate)
    order = hashlib.sha256(",".join(KINDS).encode()).hexdigest()
    for record in (control, candidate):
        assert {rank.process.pid for rank in record.ranks}.isdisjoint({os.getpid()})
        for rank in record.ranks:
            target = rank.graphs[0]
            assert (target.model, target.graphs, target.breaks) == (
                "target",
                3 * LAYERS + 2,
                3 * LAYERS + 1,
            )
            assert target.order_sha256 == order
            check_profile(record, rank, tmp_path / record.request.arm.value / "profile")

    # Upstream's topology has its collectives inside the graphs: a replay that did not wait for them gave other tokens.
    upstream = run(request(pair, Arm.GRAPH_CONTROL, **(asked | {"collective_breaks": False})), tmp_path / "upstream")
    assert upstream.token_sha256 == control.token_sha256
    for rank in upstream.ranks:
        assert rank.graphs[0].kinds == {"graph": LAYERS + 1, "attention": LAYERS}


def check_profile(record: ArmRecord, rank: RankReport, directory: Path) -> None:
    """The rank's file is its own, whole, and tells of the arm's own way to its views."""
    path = directory / f"rank{rank.rank}.json"
    assert rank.profile is not None
    assert (rank.profile.taken, rank.profile.sha256) == (SAMPLES, files.sha256_file(path))
    profile = read_model(path, ReplayProfile)
    assert (profile.rank, profile.world_size, profile.kinds) == (rank.rank, RANKS, KINDS)
    assert profile.descriptor == rank.graphs[0].descriptor
    persistent = LAYERS if record.request.arm is Arm.GRAPH_CANDIDATE else 0
    for sample in profile.samples:
        views = sample.views
        assert views is not None
        assert (views.forward_calls, views.update_calls, views.update_ns) == (LAYERS, 0, 0)
        assert (views.incumbent_calls, views.persistent_calls) == (LAYERS - persistent, persistent)
        assert (views.persistent_hits, views.persistent_builds) == (persistent, 0)
        attention = [time for time, kind in zip(sample.segment_ns, KINDS, strict=True) if kind == "attention"]
        assert 0 < views.forward_ns < sum(attention)
        assert all(sample.segment_ns)
        assert sum(sample.segment_ns) <= sample.loop_ns <= sample.host_ns
        assert sample.host_ns + sample.synchronize_ns <= sample.whole_ns
    # The replays that follow the last sample are watched, and no other pass is one: the prefill came before.
    assert rank.attention.calls == LAYERS * (record.acceptance.drafts - SAMPLES if record.acceptance else 0)


def test_a_generation_too_short_for_its_profile_says_how_far_it_came(pair: launch.TinyPair, tmp_path: Path) -> None:
    record = run(request(pair, Arm.GRAPH_CONTROL, tokens=8, profile_samples=31), tmp_path / "arm")
    [rank] = record.ranks
    assert rank.profile is not None
    assert 0 < rank.profile.taken < 31
    assert rank.profile.sha256 is None
    assert list((tmp_path / "arm" / "profile").iterdir()) == []
    assert (rank.attention.calls, rank.attention.layers, rank.kernel_views, rank.allocations) == (0, 0, {}, [])


def test_a_profile_directory_that_is_not_empty_ends_the_arm(pair: launch.TinyPair, tmp_path: Path) -> None:
    def run_in_a_used_directory(
        argv: Sequence[str], variables: Mapping[str, str], directory: Path, deadline_seconds: float
    ) -> ProcessRecord:
        (directory / "profile" / "rank0.json").touch(0o600)
        return runner()(argv, variables, directory, deadline_seconds)

    asked = request(pair, Arm.GRAPH_CONTROL, profile_samples=1)
    with pytest.raises(
        launch.ArmFailedError, match=rf"{arm_settings.FAILED}ProfileError: .*seen rank0\.json already there"
    ):
        launch.run_arm(
            asked, tmp_path / "arm", interpreter=INTERPRETER, deadline_seconds=2400, run=run_in_a_used_directory
        )


@pytest.mark.parametrize(
    ("planted", "field"),
    [
        (Planted.WRONG_OFFSET, r"canonical_key\.data_ptr"),
        (Planted.WRONG_STRIDE, r"canonical_key\.stride: seen \(32768, 513, 256, 1\); expected \(32768, 512, 256, 1\)"),
    ],
)
def test_a_defect_before_the_contract_is_refused_by_it(
    pair: launch.TinyPair, planted: Planted, field: str, tmp_path: Path
) -> None:
    directory = tmp_path / "arm"
    reason = rf"exit code 1 .*: {arm_settings.FAILED}ContractError: model\.layers\.0\.self_attn\.attn: .*{field}"
    with pytest.raises(launch.ArmFailedError, match=reason):
        run(request(pair, Arm.GRAPH_CANDIDATE, planted), directory)
    assert not (directory / "record.json").exists()
    assert "ContractError" in (directory / "record.traceback").read_text()


def test_an_arm_that_cannot_run_says_why_in_one_line(pair: launch.TinyPair, tmp_path: Path) -> None:
    directory = tmp_path / "arm"
    with pytest.raises(launch.ArmFailedError, match=rf"exit code 1 .*: {arm_settings.FAILED}.*/nowhere"):
        run(request(pair, Arm.Q1).model_copy(update={"target": "/nowhere"}), directory)
    assert not (directory / "record.json").exists()
    assert stat.S_IMODE((directory / "request.json").stat().st_mode) == 0o600
