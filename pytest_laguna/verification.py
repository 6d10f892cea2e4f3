# SPDX-License-Identifier: Apache-2.0
"""Offline verification: every verdict is derived again from the raw files; nothing that a file says of itself counts.

Needs neither torch nor vLLM and writes nothing, so it works on a read-only copy, as another user, on another machine.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator
from pathlib import Path

from pytest_laguna.analysis.clauses import judge
from pytest_laguna.campaign import CampaignError, parse_campaign
from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.journal import journal_head, read_journal
from pytest_laguna.evidence.junit import Case, read_junit, write_junit
from pytest_laguna.evidence.schemas import (
    Analysis,
    AttemptStart,
    Earlier,
    Manifest,
    read_model,
    receipt_statement,
)
from pytest_laguna.verdict import JSON, NotProvenError, UnusableEvidenceError, Verdict

_GATE_NAME = re.compile(r"gate([1-3])")


@dataclasses.dataclass(frozen=True, slots=True)
class GateReport:
    """What verification found of one attempt.

    Attributes:
        attempt: the attempt's number; 0 when the gate has none that can be named.
        reason: one line; for PASS what is proven.
        receipt: digest of the receipt; None when there is none.
        start: ``attempt.json``, when it could be read.
    """

    campaign: str
    lane: str
    gate: int
    attempt: int
    verdict: Verdict
    reason: str
    receipt: str | None = None
    start: AttemptStart | None = None

    def to_json(self) -> dict[str, JSON]:
        """The public part, as ``laguna verify --json`` prints it."""
        names = ("campaign", "lane", "gate", "attempt", "verdict", "reason")
        return {name: getattr(self, name) for name in names}


def verify_root(sealed_root: Path) -> list[GateReport]:
    """Verify the newest attempt of every gate under a sealed root, in path order.

    An earlier attempt is bound by the newest one's receipt. An entry that does not belong into a root is VOID.
    """
    return list(_walk(sealed_root))


def _walk(sealed_root: Path) -> Iterator[GateReport]:
    for campaign in _entries(sealed_root):
        for lane in _entries(campaign):
            for gate in _entries(lane):
                named = _GATE_NAME.fullmatch(gate.name)
                if named is None or not gate.is_dir():
                    relative = gate.relative_to(sealed_root)
                    reason = f"{relative}: does not belong into a sealed root; expected campaign/lane/gate1..3"
                    yield GateReport(campaign.name, lane.name, 0, 0, Verdict.VOID, reason)
                else:
                    yield verify_gate(lane, int(named[1]))


def _entries(directory: Path) -> list[Path]:
    if directory.is_symlink() or not directory.is_dir():
        return [directory]  # reported where a gate directory is expected
    return [Path(entry) for entry in sorted(os.scandir(directory), key=lambda entry: entry.name)]


def verify_gate(lane_directory: Path, gate: int) -> GateReport:
    """Verify the newest attempt of a gate.

    Args:
        lane_directory: ``<sealed-root>/<campaign>/<lane>``.
        gate: 1, 2 or 3.
    """
    gate_directory = lane_directory / f"gate{gate}"
    campaign, lane = lane_directory.parent.name, lane_directory.name
    try:
        numbers = root.attempt_numbers(gate_directory)
    except UnusableEvidenceError as error:
        return GateReport(campaign, lane, gate, 0, Verdict.VOID, str(error))
    if not numbers:
        return GateReport(campaign, lane, gate, 0, Verdict.NOT_PROVEN, f"gate {gate} has no attempt")
    return verify_attempt(lane_directory, gate, numbers[-1])


def verify_attempt(lane_directory: Path, gate: int, number: int) -> GateReport:
    """Verify one attempt from its raw files, its predecessors included.

    Never raises for what it finds: every defect becomes VOID or NOT_PROVEN with a reason that names the file.
    """
    directory = root.attempt_directory(lane_directory / f"gate{gate}", number)
    campaign, lane = lane_directory.parent.name, lane_directory.name
    start, receipt = None, None
    try:
        start = _read_start(directory, campaign, lane, gate, number)
        receipt = _receipt_digest(directory)
        analysis = _verify_files(directory, start)
        _verify_earlier(lane_directory, start)
        _verify_previous(lane_directory, start)
        verdict, reason = analysis.verdict, analysis.reason
    except NotProvenError as error:
        verdict, reason = Verdict.NOT_PROVEN, str(error)
    except UnusableEvidenceError as error:
        verdict, reason = Verdict.VOID, str(error)
    return GateReport(campaign, lane, gate, number, verdict, reason, receipt, start)


def _read_start(directory: Path, campaign: str, lane: str, gate: int, number: int) -> AttemptStart:
    if not (directory / root.ATTEMPT).exists():
        raise NotProvenError("attempt.json: missing; the session ended before its first test")
    start = read_model(directory / root.ATTEMPT, AttemptStart)
    stated = (start.campaign_name, start.lane, start.gate, start.attempt)
    if stated != (campaign, lane, gate, number):
        message = f"attempt.json: states {stated}; it lies under {(campaign, lane, gate, number)}"
        raise UnusableEvidenceError(message)
    return start


def _receipt_digest(directory: Path) -> str | None:
    path = directory / root.RECEIPT
    return files.sha256_file(path) if path.is_file() and not path.is_symlink() else None


def _verify_files(directory: Path, start: AttemptStart) -> Analysis:
    """Compare every file with the manifest, then derive analysis, report and receipt again."""
    if not (directory / root.RECEIPT).exists():
        raise NotProvenError(f"receipt.json: missing; {last_words(directory)}")
    manifest = read_model(directory / root.MANIFEST, Manifest)
    changed = root.difference(manifest, root.take_manifest(directory))
    if changed is not None:
        raise UnusableEvidenceError(changed)
    analysis = derive_analysis(directory, start)
    _same(directory / root.ANALYSIS, files.canonical_json(analysis.canonical()))
    junit = derive_junit(start, analysis)
    read_junit(junit)
    _same(directory / root.JUNIT, junit)
    _same(directory / root.RECEIPT, derive_receipt(directory, start, analysis, manifest))
    _verify_campaign(directory, start)
    if files.sha256_file(directory / root.IDENTITY) != start.record:
        raise UnusableEvidenceError("evidence/identity.json: not the record that attempt.json names")
    return analysis


def _same(path: Path, derived: bytes) -> None:
    if files.read_bytes(path, limit=len(derived) + 1) != derived:
        message = f"{path.name}: does not follow from the raw evidence; expected what the journal gives"
        raise UnusableEvidenceError(message)


def _verify_campaign(directory: Path, start: AttemptStart) -> None:
    try:
        campaign = parse_campaign((directory / root.CAMPAIGN).read_bytes(), "evidence/campaign.toml")
    except (CampaignError, OSError) as error:
        raise UnusableEvidenceError(str(error)) from error
    if campaign.digest != start.identity.campaign:
        raise UnusableEvidenceError("evidence/campaign.toml: not the campaign that attempt.json names")
    if list(campaign.gate_clauses(start.gate).items()) != start.clauses:
        raise UnusableEvidenceError("attempt.json: its clauses are not those of evidence/campaign.toml")


def derive_analysis(directory: Path, start: AttemptStart) -> Analysis:
    """The verdict object from ``attempt.json`` and the journal."""
    first_previous = files.sha256_file(directory / root.ATTEMPT)
    return judge(start.clauses, read_journal(directory / root.JOURNAL, first_previous))


def derive_junit(start: AttemptStart, analysis: Analysis) -> bytes:
    """The JUnit report from the verdict object."""
    properties = {
        "campaign": start.campaign_name,
        "lane": start.lane,
        "gate": str(start.gate),
        "attempt": str(start.attempt),
        "nonce": start.nonce,
        "campaign_digest": start.identity.campaign,
        "verdict": analysis.verdict,
        "reason": analysis.reason,
    }
    cases = [
        Case(result.nodeid, result.clause, result.verdict, result.reason, result.detail, result.seconds)
        for result in analysis.clauses
    ]
    return write_junit(f"{start.campaign_name} {start.lane} gate {start.gate}", properties, cases)


def derive_receipt(directory: Path, start: AttemptStart, analysis: Analysis, manifest: Manifest) -> bytes:
    """The receipt's bytes from the other files of an attempt."""
    digests = {
        "manifest": files.sha256_file(directory / root.MANIFEST),
        "journal_head": journal_head(directory / root.JOURNAL),
    }
    return files.canonical_json(receipt_statement(start, analysis, manifest, digests))


def _verify_earlier(lane_directory: Path, start: AttemptStart) -> None:
    """The attempts before this one are all there, in their numbers, with the receipts that were seen."""
    stated = [earlier.attempt for earlier in start.earlier]
    if stated != list(range(1, start.attempt)):
        message = f"attempt {start.attempt} lists earlier attempts {stated}; a number is missing"
        raise NotProvenError(message)
    for earlier in start.earlier:
        directory = root.attempt_directory(lane_directory / f"gate{start.gate}", earlier.attempt)
        if not directory.is_dir():
            message = f"gate{start.gate}/{directory.name}: missing; attempt {start.attempt} lists it"
            raise NotProvenError(message)
        if _receipt_digest(directory) != earlier.receipt:
            message = f"gate{start.gate}/{directory.name}/receipt.json: not the one attempt {start.attempt} saw"
            raise UnusableEvidenceError(message)


def _verify_previous(lane_directory: Path, start: AttemptStart) -> None:
    """The attempt that opened this gate is there, still verifies as PASS, and is the one that was seen."""
    if start.gate == 1:
        return
    if start.previous is None or start.previous.gate != start.gate - 1:
        raise UnusableEvidenceError("attempt.json: names no attempt of the gate before")
    report = verify_attempt(lane_directory, start.previous.gate, start.previous.attempt)
    where = f"gate{report.gate}/{report.attempt:04d}"
    if report.receipt != start.previous.receipt:
        message = f"{where}/receipt.json: not the receipt that opened gate {start.gate}"
        raise UnusableEvidenceError(message)
    if report.verdict is not Verdict.PASS:
        message = f"{where}: opened gate {start.gate} but is {report.verdict} now: {report.reason}"
        raise UnusableEvidenceError(message)


def look_back(lane_directory: Path, gate: int) -> list[Earlier]:
    """All attempts of a gate with the verdict that verification gives them now.

    Raises:
        UnusableEvidenceError: the gate's directory holds something that is not an attempt.
    """
    found = []
    for number in root.attempt_numbers(lane_directory / f"gate{gate}"):
        report = verify_attempt(lane_directory, gate, number)
        digest = report.start.identity.campaign if report.start else None
        found.append(Earlier(attempt=number, receipt=report.receipt, campaign=digest, verdict=report.verdict))
    return found


def last_words(directory: Path) -> str:
    """Where a session without a receipt ended, from what its journal still tells."""
    try:
        first_previous = files.sha256_file(directory / root.ATTEMPT)
        events = read_journal(directory / root.JOURNAL, first_previous)
    except (UnusableEvidenceError, OSError) as error:
        return f"the session ended early and its journal cannot be read ({error})"
    started = [str(event.data.get("nodeid")) for event in events if event.kind == "test-started"]
    finished = any(event.kind == "session-finished" for event in events)
    if finished or not started:
        return "the session ended after its last test" if finished else "the session ended before its first test"
    return f"the session ended during {started[-1]}"
