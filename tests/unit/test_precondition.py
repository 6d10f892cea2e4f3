# SPDX-License-Identifier: Apache-2.0
"""A negative that any file of an attempt tells closes the campaign, whatever became of the other files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_laguna.attempt.precondition import find_earlier, left_behind
from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.machine import leased_cards
from pytest_laguna.evidence.schemas import Identity
from pytest_laguna.verdict import Verdict
from pytest_laguna.verify.verification import verify_attempt
from tests.demo import writable
from tests.mutants.test_process_rules import FOUND, GOOD
from tests.sealed import SOURCES, Events, _gate, build, good_events, phase

SECOND = "checks/test_first.py::test_second"


def _negative(when: str, cause: str) -> Events:
    """A good session but for one phase of its last test."""
    index = {"setup": 6, "call": 8, "teardown": 9}[when]
    events = good_events()
    return [*events[:index], phase(SECOND, when, outcome="failed", cause=cause, reason="why"), *events[index + 1 :]]


def _without(*names: str) -> Callable[[Path], None]:
    def damage(attempt: Path) -> None:
        for name in names:
            (attempt / name).unlink()

    return damage


def _torn(*names: str) -> Callable[[Path], None]:
    def damage(attempt: Path) -> None:
        for name in names:
            (attempt / name).write_bytes(b"{")

    return damage


def _again(directory: Path) -> list[int]:
    """The earlier attempts of which the next one would be the successor."""
    gate = _gate(directory, 1)
    sources = files.digest_of(SOURCES)
    identity = Identity(campaign=gate.campaign.digest, candidate=sources, harness=sources)
    return [earlier.attempt for earlier in find_earlier(gate, identity)]


@pytest.mark.parametrize(
    "damage",
    [
        _without(root.JOURNAL),
        _without(root.JOURNAL, root.ANALYSIS),
        _without(root.JOURNAL, root.RECEIPT),
        _without(root.ANALYSIS, root.RECEIPT),
        _torn(root.JOURNAL, root.ANALYSIS),
        _torn(root.ANALYSIS, root.RECEIPT),
    ],
    ids=["journal", "journal+analysis", "journal+receipt", "analysis+receipt", "torn-journal", "torn-analysis"],
)
@pytest.mark.parametrize(
    ("when", "cause", "ended"), [("call", "assertion", "FAIL"), ("call", "stop", "STOP"), ("setup", "stop", "STOP")]
)
def test_one_file_that_tells_of_a_negative_is_enough(
    tmp_path: Path, damage: Callable[[Path], None], when: str, cause: str, ended: str
) -> None:
    attempt = build(tmp_path, _negative(when, cause), exit_status=1)
    with writable(attempt):
        damage(attempt)
    assert not verify_attempt(attempt.parent.parent, 1, 1).verdict.closes
    with pytest.raises(pytest.UsageError, match=f"attempt 0001 ended {ended}, which closes this campaign digest"):
        _again(tmp_path)


@pytest.mark.parametrize("when", ["setup", "call", "teardown"])
def test_a_negative_beside_an_extra_file_stays_one(tmp_path: Path, when: str) -> None:
    attempt = build(tmp_path, _negative(when, "stop"), exit_status=1)
    with writable(attempt):
        (attempt / "extra").write_text("")
    with pytest.raises(pytest.UsageError, match="attempt 0001 ended STOP, which closes"):
        _again(tmp_path)


@pytest.mark.parametrize("found", ["leftovers", "survivors"])
def test_a_process_record_tells_of_a_negative_by_itself(tmp_path: Path, found: str) -> None:
    """The session was killed before it could write what the record means, and another record is torn."""

    def leave(evidence: Path) -> None:
        for place in ("first", "second"):
            (evidence / place).mkdir()
        record = GOOD.model_copy(update={found: [FOUND]})
        files.write_new(evidence / "second" / leased_cards.PROCESS, files.canonical_json(record.canonical()))
        (evidence / "first" / leased_cards.PROCESS).write_text("{")
        (evidence / "second" / leased_cards.HOST).write_text("{")

    attempt = build(tmp_path, before_sealing=leave)
    with writable(attempt):
        (attempt / root.RECEIPT).unlink()
        (attempt / root.ANALYSIS).unlink()
    [line] = left_behind(attempt / root.EVIDENCE)
    assert line.startswith("second/process.json: nothing-left: ")
    with pytest.raises(pytest.UsageError, match="attempt 0001 ended FAIL, which closes"):
        _again(tmp_path)


@pytest.mark.parametrize(("when", "cause"), [("call", "error"), ("setup", "assertion"), ("call", "not-proven")])
def test_what_is_no_negative_may_be_attempted_again(tmp_path: Path, when: str, cause: str) -> None:
    attempt = build(tmp_path, _negative(when, cause), exit_status=1)
    assert _again(tmp_path) == [1]
    with writable(attempt):
        (attempt / root.JOURNAL).unlink()
    assert _again(tmp_path) == [1]


def test_a_passed_gate_1_may_run_again(tmp_path: Path) -> None:
    attempt = build(tmp_path)
    assert verify_attempt(attempt.parent.parent, 1, 1).verdict is Verdict.PASS
    assert _again(tmp_path) == [1]
