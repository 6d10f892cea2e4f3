# SPDX-License-Identifier: Apache-2.0
"""What the reader makes of a directory: contents, or why there are none, and never an exception for what lies there."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_laguna.evidence.arms.arm_record import Arm, ArmRecord, ArmRequest
from pytest_laguna.evidence.diagnostic.analysis import DiagnosticPlan
from pytest_laguna.evidence.diagnostic.reader import read_diagnostic
from pytest_laguna.evidence.reading import PLAN, Missing, present, read_config, read_run
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.verdict import NotProvenError, UnusableEvidenceError, Verdict
from tests import diagnostic_root as root


def test_a_whole_directory_comes_back(tmp_path: Path) -> None:
    tree = root.good()
    root.write(tree, tmp_path)
    evidence, plan = read_diagnostic(tmp_path), read_model(tmp_path / PLAN, DiagnosticPlan)
    assert plan.canonical() == tree["plan.json"]
    assert list(evidence.arms) == list(Arm)
    assert list(evidence.packets) == [0, 1]
    for arm, run in evidence.arms.items():
        assert present(run.record).canonical() == tree[f"arms/{arm}/record.json"]
        assert present(run.process).is_clean
    assert list(evidence.profiles[Arm.GRAPH_CONTROL]) == ["rank0.json", "rank1.json"]
    assert evidence.profiles[Arm.Q1] == {}
    assert evidence.unexpected == ()
    places = [place for place, _ in evidence.runs()]
    assert places == ["packets/0", "packets/1", *(f"arms/{arm}" for arm in Arm)]


def test_packets_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("10", "9", "0"):
        (tmp_path / "packets" / name).mkdir(parents=True)
    assert list(read_diagnostic(tmp_path).packets) == [0, 9, 10]


def test_a_directory_that_is_not_there_is_all_missing(tmp_path: Path) -> None:
    evidence = read_diagnostic(tmp_path / "nothing")
    assert evidence.identity == Missing(Verdict.NOT_PROVEN, "identity.json: there is none")
    assert (dict(evidence.packets), evidence.unexpected) == ({}, ())
    with pytest.raises(NotProvenError, match=r"^arms/q1/record\.json: there is none$"):
        present(evidence.arms[Arm.Q1].record)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not JSON"),
        (b"{}", "request: Field required"),
        (b"[1]", "Input should be an object"),
        (b'{"a": 1}', "not in canonical form"),
        (b"\xff", "not JSON"),
    ],
)
def test_a_file_of_another_form_says_where_and_why(content: bytes, reason: str, tmp_path: Path) -> None:
    root.write(root.good() | {"arms/q1/record.json": content}, tmp_path)
    with pytest.raises(UnusableEvidenceError) as caught:
        present(read_diagnostic(tmp_path).arms[Arm.Q1].record)
    assert str(caught.value).startswith("arms/q1/record.json: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nothing_is_read_through_a_link(tmp_path: Path) -> None:
    root.write(root.good(), tmp_path)
    path = tmp_path / "arms" / "q1" / "record.json"
    path.rename(tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    record = read_diagnostic(tmp_path).arms[Arm.Q1].record
    assert isinstance(record, Missing)
    assert record.verdict is Verdict.VOID
    assert record.reason.startswith("arms/q1/record.json: cannot be read")


def test_a_failure_stands_for_the_record(tmp_path: Path) -> None:
    tree = root.good() | {"arms/q1/failure.json": {"reason": "no memory"}}
    del tree["arms/q1/record.json"]
    root.write(tree, tmp_path)
    told = read_diagnostic(tmp_path).arms[Arm.Q1].record
    assert told == Missing(Verdict.NOT_PROVEN, "arms/q1: no record: no memory", told=True)


@pytest.mark.parametrize("content", [b"{", b'{"reason":1}', b'{"reason":"a","more":1}'])
def test_a_failure_of_another_form_is_void(content: bytes, tmp_path: Path) -> None:
    root.write(root.good() | {"arms/q1/failure.json": content}, tmp_path)
    record = read_diagnostic(tmp_path).arms[Arm.Q1].record
    assert isinstance(record, Missing)
    assert (record.verdict, record.told) == (Verdict.VOID, False)


def test_a_record_beside_a_failure_is_void(tmp_path: Path) -> None:
    root.write({"arms/q1/failure.json": {"reason": "no memory"}, "arms/q1/record.json": b"{}"}, tmp_path)
    record = read_run(tmp_path, "arms/q1", ArmRequest, ArmRecord).record
    assert record == Missing(Verdict.VOID, "arms/q1: a record and a failure (no memory); expected one of them")


def test_a_torn_failure_is_void_without_a_record_too(tmp_path: Path) -> None:
    root.write({"arms/q1/failure.json": b"{"}, tmp_path)
    record = read_run(tmp_path, "arms/q1", ArmRequest, ArmRecord).record
    assert isinstance(record, Missing)
    assert (record.verdict, record.reason.startswith("arms/q1/failure.json: not JSON")) == (Verdict.VOID, True)


def test_what_cannot_be_looked_at_is_unusable_and_not_missing(tmp_path: Path) -> None:
    place = "x" * 300
    with pytest.raises(UnusableEvidenceError, match=r"failure\.json: cannot be read \(File name too long\)"):
        present(read_run(tmp_path, place, ArmRequest, ArmRecord).record)


def test_what_nobody_planned_is_named_and_what_a_run_keeps_beside_is_not(tmp_path: Path) -> None:
    tree = root.good()
    for name in ("arms/q1/stdout.log", "packets/0/stderr.log", "arms/retry/record.json", "packets/01/x", "packets/x/y"):
        tree[name] = b""
    root.write(tree, tmp_path)
    assert read_diagnostic(tmp_path).unexpected == ("arms/retry", "packets/01", "packets/x")


def test_a_models_configuration_is_read_as_its_maker_wrote_it(tmp_path: Path) -> None:
    root.write(root.good() | {"target-config.json": b'{\n  "num_hidden_layers": 48\n}\n'}, tmp_path)
    assert present(read_diagnostic(tmp_path).target_config) == {"num_hidden_layers": 48}
    (tmp_path / "target-config.json").write_bytes(b"{")
    with pytest.raises(UnusableEvidenceError, match=r"^config\.json: not JSON"):
        read_config((tmp_path / "target-config.json").rename(tmp_path / "config.json"))
    (tmp_path / "target-config.json").write_bytes(b"[]")
    with pytest.raises(UnusableEvidenceError, match=r"^target-config\.json: not an object"):
        present(read_diagnostic(tmp_path).target_config)
