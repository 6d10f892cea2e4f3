# SPDX-License-Identifier: Apache-2.0
"""Requests and records are strict: each rule fires."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pydantic
import pytest

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.arm_record import (
    MOST_PROFILE_SAMPLES,
    Acceptance,
    Arm,
    ArmRecord,
    ArmRequest,
    Planted,
    ProfileReport,
    RankProcess,
    RankReport,
    token_digest,
)
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.verdict import UnusableEvidenceError
from tests.unit.engine import support


def test_the_four_arms_differ_in_speculation_graphs_and_flag() -> None:
    assert [(arm.value, arm.speculates, arm.graphs, arm.flag) for arm in Arm] == [
        ("q1", False, False, "0"),
        ("eager", True, False, "0"),
        ("graph-control", True, True, "0"),
        ("graph-candidate", True, True, "1"),
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"draft": None}, "draft None; expected one in every arm but q1"),
        ({"arm": Arm.Q1}, "arm q1: draft .*; expected one in every arm but q1"),
        ({"planted": Planted.WRONG_OFFSET}, "expected it in graph-candidate, which runs that code"),
        ({"tokens": 0}, "greater than or equal to 1"),
        ({"tensor_parallel_size": 0}, "greater than or equal to 1"),
        ({"prompt": ""}, "at least 1 character"),
        ({"lane": "tpu"}, "Input should be 'cpu'"),
        ({"arm": "graph"}, "Input should be 'q1'"),
        ({"planted": "wrong"}, "Input should be 'none'"),
        ({"retries": 1}, "Extra inputs are not permitted"),
        ({"profile_samples": -1}, "greater than or equal to 0"),
        ({"profile_samples": MOST_PROFILE_SAMPLES + 1}, "less than or equal to 512"),
        ({"profile_samples": 31, "arm": Arm.EAGER}, "arm eager: 31 profile samples; expected 0 without a graph"),
    ],
)
def test_a_request_that_means_nothing_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=reason):
        support.request(**changes)


def test_a_request_is_frozen() -> None:
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        support.request().tokens = 4  # type: ignore[misc]


@pytest.mark.parametrize("model", [support.request(), support.record()])
def test_what_is_written_is_read_back_the_same(model: ArmRequest | ArmRecord, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    files.write_new(path, files.canonical_json(model.canonical()))
    assert read_model(path, type(model)) == model


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("tokens", "3", "tokens: Input should be a valid integer"),
        ("tokens", 3.0, None),  # RFC 8785 writes 3.0 as 3: one number, one spelling
        ("collective_breaks", 0, "collective_breaks: Input should be a valid boolean"),
        ("prompt", None, "prompt: Input should be a valid string"),
        ("unknown", 1, "unknown: Extra inputs are not permitted"),
        ("schema", "pytest-laguna-arm-request-v0", "schema: Input should be 'pytest-laguna-arm-request-v1'"),
    ],
)
def test_a_request_file_is_read_strictly(field: str, value: object, reason: str | None, tmp_path: Path) -> None:
    content: Any = support.request().canonical()
    content[field] = value
    path = tmp_path / "request.json"
    path.write_bytes(files.canonical_json(content))
    if reason is None:
        assert read_model(path, ArmRequest) == support.request()
        return
    with pytest.raises(UnusableEvidenceError, match=reason):
        read_model(path, ArmRequest)


@pytest.mark.parametrize("field", sorted(ArmRecord.model_fields.keys() - {"file_schema"}))
def test_a_record_without_a_field_is_refused(field: str) -> None:
    values = dict(support.record())
    del values[field], values["file_schema"]
    with pytest.raises(pydantic.ValidationError, match=f"(?s){field}.*Field required"):
        ArmRecord(**values)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"token_ids": [5, 6, 8]}, "token_sha256: seen another digest; expected that of token_ids"),
        ({"ranks": []}, "at least 1 item"),
        ({"ranks": [support.record().ranks[0], support.record().ranks[0]]}, "expected each of the request's once"),
        ({"acceptance": None}, "acceptance None; expected one in every arm but q1"),
        (
            {"request": support.request(arm=Arm.Q1, draft=None)},
            "arm q1: acceptance .*; expected one in every arm but q1",
        ),
        ({"generation_seconds": 0.0}, "greater than 0"),
        ({"generation_seconds": float("nan")}, "greater than 0|finite"),
        ({"start_seconds": float("inf")}, "finite"),
        ({"cached_tokens": -1}, "greater than or equal to 0"),
        ({"cached_tokens": None}, "should be a valid integer"),
        ({"prompt_tokens": 0}, "greater than or equal to 1"),
        ({"text_sha256": "0" * 63}, "should match pattern"),
        ({"retries": 0}, "Extra inputs are not permitted"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=reason):
        support.record(**changes)


def ranks(**changes: Any) -> list[RankReport]:
    """Two ranks; the changes are the second's."""
    second = {"rank": 1, "tensor_parallel_rank": 1, "process": RankProcess(pid=8, start_ticks=100)} | changes
    return [support.rank_report(world_size=2), support.rank_report(**({"world_size": 2} | second))]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"world_size": 1}, r"rank 1: world size and tensor parallel rank \(1, 1\)"),
        ({"tensor_parallel_rank": 0}, r"rank 1: world size and tensor parallel rank \(2, 0\)"),
        ({"process": RankProcess(pid=7, start_ticks=100)}, "two ranks in one process"),
        ({"mapped": []}, "at least 1 item"),
    ],
)
def test_each_rank_proves_its_place_and_a_process_of_its_own(changes: dict[str, Any], reason: str) -> None:
    asked = support.request(tensor_parallel_size=2)
    assert len(support.record(request=asked, ranks=ranks()).ranks) == 2
    with pytest.raises(pydantic.ValidationError, match=reason):
        support.record(request=asked, ranks=ranks(**changes))


PROFILED = ProfileReport(samples=31, taken=31, sha256=support.DIGEST)


@pytest.mark.parametrize(
    ("asked", "profile"), [(31, None), (0, PROFILED), (31, ProfileReport(samples=30, taken=0, sha256=None))]
)
def test_a_profile_is_the_one_that_was_asked_for(asked: int, profile: ProfileReport | None) -> None:
    request = support.request(profile_samples=31)
    assert support.record(request=request, ranks=[support.rank_report(profile=PROFILED)]).ranks[0].profile == PROFILED
    seen = profile.samples if profile else 0
    with pytest.raises(pydantic.ValidationError, match=f"a profile of {seen} samples; expected {asked}"):
        support.record(request=support.request(profile_samples=asked), ranks=[support.rank_report(profile=profile)])


@pytest.mark.parametrize(
    ("taken", "sha256"), [(32, support.DIGEST), (31, None), (30, support.DIGEST), (0, support.DIGEST)]
)
def test_a_profile_is_written_with_its_last_sample_or_never(taken: int, sha256: str | None) -> None:
    assert ProfileReport(samples=31, taken=30, sha256=None).taken == 30
    with pytest.raises(pydantic.ValidationError, match="expected one after the last sample"):
        ProfileReport(samples=31, taken=taken, sha256=sha256)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"accepted": 4}, "expected counts that fall"),
        ({"accepted_per_position": [1, 2, 0], "accepted": 3}, "expected counts that fall"),
        ({"drafts": 0}, "expected counts that fall"),
        ({"draft_tokens": 1}, "expected counts that fall"),
    ],
)
def test_acceptance_must_add_up(changes: dict[str, Any], reason: str) -> None:
    values: dict[str, Any] = {"drafts": 2, "draft_tokens": 6, "accepted": 3, "accepted_per_position": [2, 1, 0]}
    Acceptance(**values)
    with pytest.raises(pydantic.ValidationError, match=reason):
        Acceptance(**(values | changes))


def test_the_token_digest_is_over_the_compact_list() -> None:
    assert token_digest([1, 22]) == files.sha256_bytes(b"[1,22]")
    assert token_digest([1, 22]) != token_digest([12, 2])


def test_evidence_and_launcher_need_neither_torch_nor_vllm() -> None:
    program = (
        "import json, sys; import pytest_laguna.evidence.arms.arm_record, pytest_laguna.engine.launch; "
        "print(json.dumps([name for name in ('torch', 'vllm', 'transformers', 'laguna_kv') if name in sys.modules]))"
    )
    seen = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert json.loads(seen.stdout) == []
