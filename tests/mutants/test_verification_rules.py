# SPDX-License-Identifier: Apache-2.0
"""Every rule of verification has a mutant: a good sealed attempt with one fact changed, refused by that rule."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from pytest_laguna.evidence import root
from pytest_laguna.evidence.aa import rehearsal
from pytest_laguna.evidence.schemas import AttemptStart, Manifest, Previous, read_model
from pytest_laguna.identity.source import SOURCE_SUFFIXES, package_files
from pytest_laguna.verdict import JSON, NotProvenError, UnusableEvidenceError, Verdict
from pytest_laguna.verify import verification
from pytest_laguna.verify.verification import RULES, GateReport, look_back, verify_attempt, verify_gate, verify_root
from tests import sealed
from tests.caught_first import caught_first
from tests.demo import CAMPAIGN, writable
from tests.sealed import build, good_events, phase, reseal, restamp

SECOND = "checks/test_first.py::test_second"


def _verify(attempt: Path) -> GateReport:
    return verify_attempt(attempt.parent.parent, int(attempt.parent.name.removeprefix("gate")), int(attempt.name))


def _edit(name: str, old: bytes, new: bytes) -> Callable[[Path], None]:
    def edit(attempt: Path) -> None:
        with writable(attempt):
            content = (attempt / name).read_bytes()
            assert old in content
            (attempt / name).write_bytes(content.replace(old, new, 1))

    return edit


def _edit_and_restamp(name: str, old: bytes, new: bytes) -> Callable[[Path], None]:
    def edit(attempt: Path) -> None:
        _edit(name, old, new)(attempt)
        restamp(attempt, lambda manifest: manifest)

    return edit


def _unlink(name: str) -> Callable[[Path], None]:
    def unlink(attempt: Path) -> None:
        with writable(attempt):
            (attempt / name).unlink()

    return unlink


def _unlink_and_restamp(name: str) -> Callable[[Path], None]:
    def unlink(attempt: Path) -> None:
        _unlink(name)(attempt)
        restamp(attempt, lambda manifest: manifest)

    return unlink


def _add(name: str) -> Callable[[Path], None]:
    def add(attempt: Path) -> None:
        with writable(attempt):
            (attempt / name).write_bytes(b"")

    return add


def _link(name: str) -> Callable[[Path], None]:
    def link(attempt: Path) -> None:
        with writable(attempt):
            (attempt / name).rename(attempt.parent / "moved")
            (attempt / name).symlink_to(attempt.parent / "moved")

    return link


def _claim_pass(attempt: Path) -> None:
    """A failed session whose verdict object and everything behind it say PASS."""
    with writable(attempt):
        path = attempt / "analysis.json"
        path.write_bytes(path.read_bytes().replace(b"FAIL", b"PASS"))
    restamp(attempt, lambda manifest: manifest)


def _rehearsed(attempt: Path, gates: int) -> None:
    """In its place a passed attempt with the clause rehearsal, in whose evidence so many gates of one lie."""
    directory = attempt.parents[4]
    with writable(directory / "sealed"):
        shutil.rmtree(directory / "sealed")
    inner = directory / "inner"
    inner.mkdir()
    first = build(inner)
    if gates > 1:
        receipt = _verify(first).receipt
        assert receipt is not None
        build(inner, gate=2, previous=Previous(gate=1, attempt=1, receipt=receipt))

    def keep(evidence: Path) -> None:
        shutil.copytree(inner / "sealed", rehearsal.sealed_root(evidence, null=False))

    changed = CAMPAIGN.replace('first = "checks', 'rehearsal = "checks')
    with mock.patch.object(sealed, "CAMPAIGN", changed):
        assert build(directory, before_sealing=keep) == attempt


_NEVER_SEEN = {"attempt": 1, "receipt": None, "tree": None, "campaign": None, "verdict": "VOID"}

MUTANTS: list[tuple[str, Callable[[Path], None], str, str]] = [
    ("attempt-in-place", _unlink("attempt.json"), "NOT_PROVEN", "attempt.json: missing"),
    ("attempt-in-place", lambda attempt: reseal(attempt, lane="cuda"), "VOID", "attempt.json: states"),
    ("attempt-in-place", lambda attempt: reseal(attempt, campaign_name="other"), "VOID", "attempt.json: states"),
    ("receipt-present", _unlink("receipt.json"), "NOT_PROVEN", "receipt.json: missing; the session ended after"),
    ("manifest-holds", _edit("evidence/identity.json", b"demo", b"demO"), "VOID", "evidence/identity.json: changed"),
    ("manifest-holds", _edit("junit.xml", b"PASS", b"PASs"), "VOID", "junit.xml: changed"),
    ("manifest-holds", _unlink("journal.jsonl"), "VOID", "journal.jsonl: missing; the manifest lists it"),
    ("manifest-holds", _add("evidence/extra"), "VOID", "evidence/extra: extra"),
    ("manifest-holds", _link("junit.xml"), "VOID", "junit.xml: neither a regular file nor a directory"),
    (
        "manifest-bound",
        _edit("manifest.json", b"{", b"{ "),
        "VOID",
        "manifest.json: not the one that receipt.json names",
    ),
    ("manifest-bound", _unlink("manifest.json"), "VOID", "manifest.json: No such file"),
    ("manifest-bound", _edit("receipt.json", b"{", b"{ "), "VOID", "receipt.json: not in canonical form"),
    ("analysis-derives", _edit_and_restamp("analysis.json", b'"shown"', b'"SHOWN"'), "VOID", "analysis.json: does"),
    ("report-derives", _edit_and_restamp("junit.xml", b"demo cpu", b"DEMO cpu"), "VOID", "junit.xml: does not follow"),
    (
        "report-derives",
        _edit_and_restamp("junit.xml", b'tests="2"', b'tests="1"'),
        "VOID",
        "junit.xml: testsuite states",
    ),
    (
        "receipt-derives",
        _edit("receipt.json", b'"unexercised":[]', b'"unexercised":[["first","rule"]]'),
        "VOID",
        "receipt.json: does not follow",
    ),
    ("campaign-frozen", _edit_and_restamp("evidence/campaign.toml", b"A dem", b"B dem"), "VOID", "not the campaign"),
    ("campaign-frozen", _edit_and_restamp("evidence/campaign.toml", b"[", b"x["), "VOID", "evidence/campaign.toml: "),
    (
        "campaign-frozen",
        _edit_and_restamp("evidence/campaign.json", b"A dem", b"B dem"),
        "VOID",
        "campaign.json: not what",
    ),
    ("campaign-frozen", _unlink_and_restamp("evidence/campaign.json"), "VOID", "campaign.json: No such file"),
    (
        "campaign-frozen",
        lambda attempt: reseal(attempt, clauses=[["first", "checks/test_first.py::test_first"]]),
        "VOID",
        "attempt.json: its clauses are not those of evidence/campaign.toml",
    ),
    ("identity-recorded", lambda attempt: reseal(attempt, record="1" * 64), "VOID", "not the record that attempt.json"),
    (
        "identity-recorded",
        lambda attempt: reseal(
            attempt,
            identity={"campaign": _digest(attempt), "candidate": "1" * 64, "harness": "2" * 64},
        ),
        "VOID",
        "its candidate files do not give the digest",
    ),
    (
        "earlier-complete",
        lambda attempt: reseal(attempt, earlier=[_NEVER_SEEN]),
        "NOT_PROVEN",
        "lists earlier attempts [1]",
    ),
    (
        "previous-passed",
        lambda attempt: reseal(attempt, previous={"gate": 1, "attempt": 1, "receipt": "0" * 64}),
        "VOID",
        "names no attempt of gate 0",
    ),
    (
        "rehearsal-verifies",
        lambda attempt: _rehearsed(attempt, gates=1),
        "VOID",
        "clause rehearsal: proven, but gate 2 of the rehearsal has no attempt",
    ),
]


def test_a_rehearsal_is_verified_with_its_attempt(tmp_path: Path) -> None:
    attempt = build(tmp_path)
    _rehearsed(attempt, gates=2)
    assert _verify(attempt).verdict is Verdict.PASS
    inner = rehearsal.sealed_root(attempt / "evidence", null=False) / "demo" / "cpu" / "gate2" / "0001"
    with writable(attempt):
        (inner / "evidence" / "extra").write_text("")
    restamp(attempt, lambda manifest: manifest)
    report = _verify(attempt)
    assert (report.verdict, "proven, but gate 2 of the rehearsal is VOID: evidence/extra" in report.reason) == (
        Verdict.VOID,
        True,
    ), report.reason


def _start(attempt: Path) -> AttemptStart:
    return read_model(attempt / "attempt.json", AttemptStart)


def _digest(attempt: Path) -> str:
    return _start(attempt).identity.campaign


def test_every_rule_has_a_mutant() -> None:
    assert {rule for rule, *_ in MUTANTS} == set(RULES)


def _first_against(attempt: Path) -> str | None:
    """The first rule that has something to say."""
    under = verification._Attempt(verification._Lane(attempt.parent.parent), 1, int(attempt.name))
    for name, rule in RULES.items():
        try:
            rule(under)
        except (UnusableEvidenceError, NotProvenError, OSError):
            return name
    return None


@caught_first("rule mutate verdict reason", MUTANTS)
def test_the_mutant_is_caught_for_its_reason_by_its_rule_before_any_other(
    tmp_path: Path, mutate: Callable[[Path], None], verdict: str, reason: str
) -> list[str | None]:
    attempt = build(tmp_path)
    assert _first_against(attempt) is None
    mutate(attempt)
    report = _verify(attempt)
    assert report.verdict == verdict
    assert reason in report.reason
    return [_first_against(attempt)]


def test_a_failed_session_cannot_be_called_passed(tmp_path: Path) -> None:
    events = good_events()
    events[8] = phase(SECOND, "call", outcome="failed", cause="assertion", reason="no")
    attempt = build(tmp_path, events, exit_status=1)
    assert _verify(attempt).verdict is Verdict.FAIL
    _claim_pass(attempt)
    report = _verify(attempt)
    assert (report.verdict, "analysis.json: does not follow" in report.reason) == (Verdict.VOID, True)


def test_a_root_of_another_version_is_not_called_changed_without_saying_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict stays VOID: whether the other version's rules agree is for that version to say."""
    spoil = _edit_and_restamp("analysis.json", b'"shown"', b'"SHOWN"')
    (tmp_path / "other").mkdir()
    other = build(tmp_path / "other")
    spoil(other)
    report = _verify(other)
    assert (report.verdict, "another version of pytest_laguna sealed it (pytest_laguna/" in report.reason) == (
        Verdict.VOID,
        True,
    )
    own: dict[str, JSON] = {**package_files("pytest_laguna", SOURCE_SUFFIXES)}
    monkeypatch.setattr(sealed, "SOURCES", own)
    same = build(tmp_path)
    assert _verify(same).verdict is Verdict.PASS
    spoil(same)
    report = _verify(same)
    assert (report.verdict, "another version" in report.reason) == (Verdict.VOID, False)


@pytest.mark.parametrize("part", [b'classname="', b"<testsuites>", b'<property name="nonce"'])
def test_every_part_of_the_report_but_its_sentences_is_compared(tmp_path: Path, part: bytes) -> None:
    attempt = build(tmp_path)
    changed = {b'classname="': b'classname="other.', b"<testsuites>": b"<testsuites >"}.get(part, part + b' other=""')
    same = changed == b"<testsuites >"  # the same element
    _edit_and_restamp("junit.xml", part, changed)(attempt)
    assert _verify(attempt).verdict is (Verdict.PASS if same else Verdict.VOID)


def test_a_reason_in_other_words_is_no_other_evidence(tmp_path: Path) -> None:
    """Sealed sentences stand in the report alone, and another version may render them otherwise."""
    events = good_events()
    events[8] = phase(SECOND, "call", outcome="failed", cause="assertion", reason="no", detail="line 1")
    attempt = build(tmp_path, events, exit_status=1)
    for name in ("analysis.json", "receipt.json"):
        assert b'"reason"' not in (attempt / name).read_bytes()
    for _ in range((attempt / "junit.xml").read_bytes().count(b"call: no")):
        _edit_and_restamp("junit.xml", b"call: no", b"call: never")(attempt)
    assert _verify(attempt).verdict is Verdict.FAIL
    _edit_and_restamp("junit.xml", b"line 1", b"line 2")(attempt)
    assert _verify(attempt).verdict is Verdict.VOID


def _second(directory: Path) -> Path:
    """The attempt after the one that is there, which has looked back as a session does."""
    return build(directory, earlier=look_back(directory / "sealed" / "demo" / "cpu", 1))


def _failed(directory: Path, cause: str = "error") -> Path:
    events = good_events()
    events[8] = phase(SECOND, "call", outcome="failed", cause=cause, reason="no")
    return build(directory, events, exit_status=1)


def test_an_earlier_attempt_is_bound_by_the_next_one(tmp_path: Path) -> None:
    first = _failed(tmp_path)
    second = _second(tmp_path)
    assert _verify(second).verdict is Verdict.PASS
    with writable(first):
        (first / "receipt.json").unlink()
    report = _verify(second)
    assert (report.verdict, "gate1/0001/receipt.json: not the one" in report.reason) == (Verdict.VOID, True)
    with writable(first):
        shutil.rmtree(first)
    report = _verify(second)
    assert (report.verdict, "gate1/0001: missing" in report.reason) == (Verdict.NOT_PROVEN, True)


@pytest.mark.parametrize(
    "name", ["attempt.json", "journal.jsonl", "junit.xml", "analysis.json", "manifest.json", "evidence/identity.json"]
)
def test_an_edited_file_of_an_earlier_attempt_is_named(tmp_path: Path, name: str) -> None:
    first, second = _failed(tmp_path, "assertion"), _second(tmp_path)
    assert _verify(second).verdict is Verdict.PASS
    with writable(first):
        (first / name).write_bytes((first / name).read_bytes().replace(b"e", b"E", 1))
    report = _verify(second)
    assert report.verdict is Verdict.VOID
    assert "gate1/0001: was FAIL for attempt 2 but is VOID now: " in report.reason
    assert name in report.reason


def test_a_lie_about_an_earlier_verdict_is_found(tmp_path: Path) -> None:
    _failed(tmp_path, "assertion")
    (seen,) = look_back(tmp_path / "sealed" / "demo" / "cpu", 1)
    second = build(tmp_path, earlier=[seen.model_copy(update={"verdict": Verdict.VOID})])
    assert "gate1/0001: was VOID for attempt 2 but is FAIL now" in _verify(second).reason


@pytest.mark.parametrize("name", ["attempt.json", "journal.jsonl", "evidence/identity.json"])
def test_an_earlier_attempt_without_a_receipt_is_bound_by_its_bytes(tmp_path: Path, name: str) -> None:
    first = _failed(tmp_path)
    with writable(first):
        (first / "receipt.json").unlink()
    second = _second(tmp_path)
    assert _verify(second).verdict is Verdict.PASS
    with writable(first):
        (first / name).write_bytes((first / name).read_bytes().replace(b"e", b"E", 1))
    report = _verify(second)
    assert (report.verdict, "gate1/0001: " in report.reason) == (Verdict.VOID, True)


def test_an_edit_under_a_void_attempt_is_found_too(tmp_path: Path) -> None:
    first = _failed(tmp_path)
    _add("evidence/extra")(first)
    second = _second(tmp_path)
    assert [earlier.verdict for earlier in _start(second).earlier] == [Verdict.VOID]
    assert _verify(second).verdict is Verdict.PASS
    with writable(first):
        (first / "evidence" / "extra").write_bytes(b"more")
    assert _verify(second).reason == "gate1/0001: its files are not those that attempt 2 saw"


def test_an_edited_manifest_of_a_void_attempt_is_found(tmp_path: Path) -> None:
    """It was not the receipt's before, so that its verdict is the same."""
    first = _failed(tmp_path)
    _edit("manifest.json", b"{", b"{ ")(first)
    second = _second(tmp_path)
    assert _verify(second).verdict is Verdict.PASS
    _edit("manifest.json", b"{ ", b"{  ")(first)
    assert _verify(second).reason == "gate1/0001: its files are not those that attempt 2 saw"


def test_an_edit_of_an_earlier_attempt_of_the_gate_before_is_found(tmp_path: Path) -> None:
    first, second = _failed(tmp_path, "assertion"), _second(tmp_path)
    receipt = _verify(second).receipt
    assert receipt is not None
    device = build(tmp_path, gate=2, previous=Previous(gate=1, attempt=2, receipt=receipt))
    assert _verify(device).verdict is Verdict.PASS
    _edit("junit.xml", b"FAIL", b"FALL")(first)
    report = _verify(device)
    assert report.verdict is Verdict.VOID
    assert "gate1/0002: opened gate 2 but is VOID now: gate1/0001: was FAIL" in report.reason


def test_each_attempt_is_verified_once_however_many_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 12
    for _ in range(count):
        newest = _second(tmp_path)
    taken: list[str] = []
    take = root.take_tree

    def count_and_take(directory: Path) -> Manifest:
        taken.append(directory.name)
        return take(directory)

    monkeypatch.setattr(root, "take_tree", count_and_take)
    assert _verify(newest).verdict is Verdict.PASS
    assert sorted(taken) == [f"{number:04d}" for number in range(1, count + 1)]


def test_a_later_gate_falls_with_the_one_that_opened_it(tmp_path: Path) -> None:
    first = build(tmp_path)
    receipt = _verify(first).receipt
    assert receipt is not None
    second = build(tmp_path, gate=2, previous=Previous(gate=1, attempt=1, receipt=receipt))
    assert _verify(second).verdict is Verdict.PASS
    reseal(first, plugins=["another"])
    report = _verify(second)
    assert (report.verdict, "gate1/0001/receipt.json: not the receipt" in report.reason) == (Verdict.VOID, True)


def test_a_failed_gate_opens_nothing_even_when_it_is_named(tmp_path: Path) -> None:
    first = build(tmp_path, good_events()[:-1])
    receipt = _verify(first).receipt
    assert receipt is not None
    second = build(tmp_path, gate=2, previous=Previous(gate=1, attempt=1, receipt=receipt))
    report = _verify(second)
    assert (report.verdict, "opened gate 2 but is NOT_PROVEN now" in report.reason) == (Verdict.VOID, True)


def test_gate_2_must_name_gate_1(tmp_path: Path) -> None:
    attempt = build(tmp_path, gate=2)
    assert _verify(attempt).reason == "attempt.json: names no attempt of gate 1"


@pytest.mark.parametrize("where", ["stray", "demo/stray", "demo/cpu/stray", "demo/cpu/gate4"])
def test_what_does_not_belong_into_a_root_is_void(tmp_path: Path, where: str) -> None:
    build(tmp_path)
    (tmp_path / "sealed" / where).write_text("")
    worst = [report for report in verify_root(tmp_path / "sealed") if report.verdict is Verdict.VOID]
    assert len(worst) == 1
    assert where.rpartition("/")[2] in worst[0].reason


@pytest.mark.parametrize("name", ["copy of 0001", "0000", "1", "00001"])
def test_what_does_not_belong_among_attempts_is_void(tmp_path: Path, name: str) -> None:
    build(tmp_path)
    (tmp_path / "sealed" / "demo" / "cpu" / "gate1" / name).mkdir()
    (report,) = verify_root(tmp_path / "sealed")
    assert (report.verdict, f"{name}: not an attempt" in report.reason) == (Verdict.VOID, True)


@pytest.mark.parametrize("where", ["demo", "demo/cpu", "demo/cpu/gate1", "demo/cpu/gate1/0001"])
def test_a_link_in_place_of_a_directory_is_void(tmp_path: Path, where: str) -> None:
    build(tmp_path)
    with writable(tmp_path / "sealed"):
        (tmp_path / "sealed" / where).rename(tmp_path / "elsewhere")
    (tmp_path / "sealed" / where).symlink_to(tmp_path / "elsewhere")
    (report,) = verify_root(tmp_path / "sealed")
    assert report.verdict is Verdict.VOID
    assert where.rpartition("/")[2] in report.reason


def test_a_link_named_like_a_gate_is_void_wherever_it_lies(tmp_path: Path) -> None:
    build(tmp_path)
    (tmp_path / "sealed" / "gate1").symlink_to(tmp_path / "sealed" / "demo" / "cpu" / "gate1")
    verdicts = {report.reason.partition(":")[0]: report.verdict for report in verify_root(tmp_path / "sealed")}
    assert verdicts == {"2 clauses proven": Verdict.PASS, "gate1": Verdict.VOID}


@pytest.mark.parametrize("where", ["gate1", "gate1/0001"])
def test_a_link_on_the_way_to_the_gate_before_is_void(tmp_path: Path, where: str) -> None:
    receipt = _verify(build(tmp_path)).receipt
    assert receipt is not None
    second = build(tmp_path, gate=2, previous=Previous(gate=1, attempt=1, receipt=receipt))
    lane = second.parent.parent
    with writable(lane):
        (lane / where).rename(tmp_path / "elsewhere")
    (lane / where).symlink_to(tmp_path / "elsewhere")
    report = verify_gate(lane, 2)
    assert (report.verdict, f"{where}: a link; expected a directory" in report.reason) == (Verdict.VOID, True)


def test_looking_at_a_gate_that_is_a_link_is_refused(tmp_path: Path) -> None:
    attempt = build(tmp_path)
    lane = attempt.parent.parent
    (lane / "gate2").symlink_to(attempt.parent)
    assert verify_gate(lane, 2).reason == "gate2: not a directory or a link to one; expected a directory with attempts"
    with pytest.raises(UnusableEvidenceError, match="gate2: not a directory"):
        look_back(lane, 2)


def test_verification_works_on_a_copy_with_other_modes(tmp_path: Path) -> None:
    build(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "sealed", copy)
    for path in copy.rglob("*"):
        path.chmod(0o777)
    assert [report.verdict for report in verify_root(copy)] == [Verdict.PASS]


def test_any_changed_byte_is_named(tmp_path: Path) -> None:
    """A sample of single-byte changes over every file: none verifies, and each names the file or what it broke."""
    attempt = build(tmp_path)
    generator = random.Random(7)  # noqa: S311 - a reproducible sample, not a secret
    with writable(attempt):
        for path in sorted(path for path in attempt.rglob("*") if path.is_file()):
            content = path.read_bytes()
            for _ in range(40):
                index = generator.randrange(len(content))
                changed = bytearray(content)
                changed[index] ^= 1 << generator.randrange(8)
                path.write_bytes(changed)
                report = _verify(attempt)
                assert report.verdict is not Verdict.PASS, (path.name, index)
                assert path.name in report.reason, (path.name, report.reason)
            path.write_bytes(content)
    assert _verify(attempt).verdict is Verdict.PASS


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "name",
    [
        root.ATTEMPT,
        root.JOURNAL,
        root.JUNIT,
        root.MANIFEST,
        root.ANALYSIS,
        root.RECEIPT,
        root.IDENTITY,
        root.CAMPAIGN,
        root.CAMPAIGN_READ,
    ],
)
def test_a_pipe_in_place_of_a_file_is_void_and_not_waited_for(tmp_path: Path, name: str) -> None:
    attempt = build(tmp_path)
    with writable(attempt):
        (attempt / name).unlink()
        os.mkfifo(attempt / name)
    report = _verify(attempt)
    assert report.verdict is Verdict.VOID
    assert name in report.reason
    assert "not a regular file" in report.reason or "neither a regular file" in report.reason


def test_the_demonstration_campaign_is_the_one_in_the_root(tmp_path: Path) -> None:
    attempt = build(tmp_path)
    assert (attempt / "evidence" / "campaign.toml").read_text() == CAMPAIGN
