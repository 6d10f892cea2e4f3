# SPDX-License-Identifier: Apache-2.0
"""Real parity packets on the CPU lane: vLLM's own layers with both selectors, and every planted defect caught."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import pytest

from pytest_laguna.analysis.diagnostic.parity import CACHE, RULES, judge_packet
from pytest_laguna.engine import launch, packets
from pytest_laguna.evidence.arms import arm_settings
from pytest_laguna.evidence.arms.arm_record import Planted
from pytest_laguna.evidence.arms.parity import CALLS, AttentionKind, PacketRecord, PacketRequest
from pytest_laguna.evidence.machine.card_masks import showing
from pytest_laguna.evidence.machine.process import ProcessRecord
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.machine.cards_cpu import CpuCards
from pytest_laguna.run.arm_runner import ArmRunner
from pytest_laguna.verdict import Verdict
from tests.runner import runner

pytestmark = pytest.mark.engines

QUERIES = list(range(2, 9))
RANK = 1
CARDS = CpuCards(2)
CARD = CARDS.discover()[RANK]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> launch.TinyPair:
    directory = tmp_path_factory.mktemp("tiny") / "pair"
    return runner().tiny_pair(directory, interpreter=Path(sys.executable), layers=8)


def on_card(*slots: int) -> ArmRunner:
    cards = CARDS.discover()
    return dataclasses.replace(runner(), cards=showing("cpu", [cards[slot] for slot in slots]))


def request(pair: launch.TinyPair, planted: Planted = Planted.NONE) -> PacketRequest:
    return PacketRequest(
        lane="cpu", rank=RANK, target=str(pair.target), draft=str(pair.draft), queries=QUERIES, planted=planted
    )


def run(asked: PacketRequest, directory: Path, run: ArmRunner | None = None) -> PacketRecord:
    return launch.run_packet(
        asked, directory, interpreter=Path(sys.executable), deadline_seconds=2400.0, run=run or on_card(RANK)
    )


def test_both_selectors_give_the_same_bytes(pair: launch.TinyPair, tmp_path: Path) -> None:
    record = run(request(pair), tmp_path / "packet")
    assert judge_packet(record, "cpu", CARD.identity, QUERIES) == dict.fromkeys(RULES)
    assert read_model(tmp_path / "packet" / "process.json", ProcessRecord).is_clean

    assert record.platform.platform == "vllm.platforms.cpu.CpuPlatform"
    assert (record.platform.card, record.platform.visible_devices) == (CARD.identity, 1)
    assert record.versions["vllm"] == "0.32.0"
    assert record.environment[arm_settings.FLAG] == "0"
    assert record.cache == CACHE
    assert any(mapped.path.endswith("_C.abi3.so") or "torch_cpu" in mapped.path for mapped in record.mapped)

    calls = CALLS * len(QUERIES)
    assert [(case.kind, case.query) for case in record.cases] == [
        (kind, query) for kind in AttentionKind for query in QUERIES
    ]
    # Another case, another output: none of them is a constant.
    assert len({case.off.outputs[0] for case in record.cases}) == len(record.cases)
    assert len({case.off.cache for case in record.cases} | {record.cache_sha256}) == len(record.cases) + 1
    for kind in AttentionKind:
        stock, candidate = record.off.layers[kind], record.on.layers[kind]
        assert stock.state is None
        assert candidate.state is not None
        assert (candidate.state.builds, candidate.state.forward_hits, candidate.state.update_hits) == (1, calls, calls)
        assert (stock.attention.same_objects, stock.update.same_objects) == (1, 1)
        assert (candidate.attention.same_objects, candidate.update.same_objects) == (calls, calls)
        assert candidate.attention.value.offset - candidate.attention.key.offset == 128
    sliding, full = (record.off.layers[kind].window for kind in (AttentionKind.SLIDING, AttentionKind.FULL))
    assert (sliding, full) == ((511, 0), (-1, -1))


def test_a_defect_behind_the_contract_changes_the_bytes(pair: launch.TinyPair, tmp_path: Path) -> None:
    record = run(request(pair, Planted.UNCHECKED_WRONG_OFFSET), tmp_path / "packet")
    found = judge_packet(record, "cpu", CARD.identity, QUERIES)
    assert {rule for rule, finding in found.items() if finding} == {"answers-plan", "views-equal", "outputs-equal"}
    outputs = found["outputs-equal"]
    assert outputs is not None
    assert outputs[0] is Verdict.FAIL
    assert re.fullmatch(r"card 1: q2 full: seen [1-9]\d* differing bytes of the outputs; expected none", outputs[1])


def test_a_defect_before_the_contract_is_refused_by_it(pair: launch.TinyPair, tmp_path: Path) -> None:
    reason = rf"exit code 1 .*: {packets.FAILED}ContractError: model\.layers\.0\.self_attn\.attn: .*canonical_key"
    with pytest.raises(launch.ArmFailedError, match=reason):
        run(request(pair, Planted.WRONG_OFFSET), tmp_path / "packet")
    assert not (tmp_path / "packet" / "record.json").exists()
    assert "ContractError" in (tmp_path / "packet" / "record.traceback").read_text()


def test_a_process_that_sees_two_cards_is_refused(pair: launch.TinyPair, tmp_path: Path) -> None:
    reason = rf"packet 1 in .*: {packets.FAILED}RuntimeError: cpu: seen 2 cards in this process; expected one; start it"
    with pytest.raises(launch.ArmFailedError, match=reason):
        run(request(pair), tmp_path / "packet", on_card(0, 1))


def test_another_environment_is_refused(pair: launch.TinyPair, tmp_path: Path) -> None:
    other = dataclasses.replace(on_card(RANK), cards={"LAGUNA_CPU_CARDS": "1", "VLLM_BATCH_INVARIANT": "1"})
    reason = rf"{packets.FAILED}RuntimeError: VLLM_BATCH_INVARIANT: seen '1' in the environment; expected None"
    with pytest.raises(launch.ArmFailedError, match=reason):
        run(request(pair), tmp_path / "packet", other)
