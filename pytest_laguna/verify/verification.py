# SPDX-License-Identifier: Apache-2.0
"""Offline verification: derives every verdict again from the raw files, and believes no file about itself.

Needs neither torch nor vLLM and writes nothing, so it works on a read-only copy, as another user, on another machine.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_laguna.analysis.clauses import Evidence, judge, judge_session
from pytest_laguna.analysis.endpoint.analyse import CANDIDATE_RAN, NULL_RULES
from pytest_laguna.analysis.findings import Finding
from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.aa import rehearsal
from pytest_laguna.evidence.experiments import files_behind
from pytest_laguna.evidence.journal import Event, journal_head, read_journal
from pytest_laguna.evidence.junit import SIZE_LIMIT, Case, read_junit, without_sentences, write_junit
from pytest_laguna.evidence.schema_v1 import same_content
from pytest_laguna.evidence.schemas import (
    Analysis,
    AttemptStart,
    Earlier,
    Manifest,
    read_model,
    receipt_statement,
)
from pytest_laguna.experiments.experiment import Derived, campaign_copy, derive, read_attempted
from pytest_laguna.identity.source import SOURCE_SUFFIXES, package_files
from pytest_laguna.verdict import JSON, NotProvenError, UnusableEvidenceError, Verdict
from pytest_laguna.verify.raw import judge_raw

_LEVELS = ("campaign", "lane", "gate1..3")
_PACKAGE = "pytest_laguna"


@dataclasses.dataclass(frozen=True, slots=True)
class GateReport:
    """Result of the verification of one attempt.

    Attributes:
        attempt: the attempt's number; 0 when the gate has none that can be named.
        reason: one line; for PASS, a count of proven clauses.
        receipt: digest of the receipt, or None.
        tree: digest of the list of all files; None if they cannot be listed.
        start: ``attempt.json``, if readable.
        analysis: the verdict object; None if a rule of verification has a finding.
    """

    campaign: str
    lane: str
    gate: int
    attempt: int
    verdict: Verdict
    reason: str
    receipt: str | None = None
    tree: str | None = None
    start: AttemptStart | None = None
    analysis: Analysis | None = None

    def to_json(self) -> dict[str, JSON]:
        """The public part, as ``laguna verify --json`` prints it."""
        names = ("campaign", "lane", "gate", "attempt", "verdict", "reason", "receipt")
        return {name: getattr(self, name) for name in names}


def verify_root(sealed_root: Path) -> list[GateReport]:
    """Verify the newest attempt of every gate under a sealed root, and with it all before it, in path order.

    An entry that does not belong into a root, or that cannot be read, is VOID.

    Raises:
        OSError: the root itself cannot be read.
    """
    return list(_walk(sealed_root, _entries(sealed_root), ()))


def hold_to(reports: Sequence[GateReport], expected: Collection[str]) -> list[GateReport]:
    """Compare reports with receipt digests kept elsewhere, out of reach of anybody who rewrites a root.

    A receipt vouches for its own attempt, for the earlier ones of that gate and for those that opened it. What passes
    and is vouched for by none of the expected receipts is NOT_PROVEN.

    Args:
        reports: as ``verify_root`` gives them.
        expected: SHA-256 of ``receipt.json`` of newest attempts, 64 hexadecimal digits each.

    Returns:
        The same reports, and before them one that is VOID for each digest that no newest attempt has.
    """
    vouched = set(expected)
    for report in sorted(reports, key=lambda report: -report.gate):
        if report.receipt in vouched and report.start is not None and report.start.previous is not None:
            vouched.add(report.start.previous.receipt)
    missing = sorted(set(expected) - {report.receipt for report in reports})
    return [_unmet(digest) for digest in missing] + [
        report if report.verdict is not Verdict.PASS or report.receipt in vouched else _unvouched(report)
        for report in reports
    ]


def _unmet(digest: str) -> GateReport:
    reason = f"receipt {digest}: expected of a gate's newest attempt, and none has it; the root is not the one it is of"
    return GateReport("-", "-", 0, 0, Verdict.VOID, reason)


def _unvouched(report: GateReport) -> GateReport:
    reason = f"its receipt {report.receipt} is not expected, nor vouched for by one that is; name it with --expect"
    return dataclasses.replace(report, verdict=Verdict.NOT_PROVEN, reason=reason)


def _walk(parent: Path, entries: list[os.DirEntry[str]], place: tuple[str, ...]) -> Iterator[GateReport]:
    """Go down to the gates; ``place`` is campaign and lane as far as ``parent`` is below them."""
    lane = _Lane(parent)
    for entry in entries:
        here = (*place, entry.name)
        is_gate = len(here) == len(_LEVELS)
        try:
            if not entry.is_dir(follow_symlinks=False) or (is_gate and entry.name not in root.GATES):
                yield _void(here, f"does not belong into a sealed root; expected directories {'/'.join(_LEVELS)}")
            elif is_gate:
                yield lane.newest(root.GATES.index(entry.name) + 1)
            elif below := _entries(Path(entry)):
                yield from _walk(Path(entry), below, here)
            else:
                # A first gate 1 makes these directories before its attempt, and may be refused in between.
                told = "holds no attempt; a first gate 1 starts there, was refused, or something was taken away"
                yield dataclasses.replace(_void(here, told), verdict=Verdict.NOT_PROVEN)
        except OSError as error:
            yield _void(here, f"cannot be read ({error.strerror}); expected a directory of a sealed root")


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    return sorted(os.scandir(directory), key=lambda entry: entry.name)


def _void(place: tuple[str, ...], defect: str) -> GateReport:
    campaign, lane = (*place, place[-1])[:2]
    return GateReport(campaign, lane, 0, 0, Verdict.VOID, f"{'/'.join(place)}: {defect}")


def verify_gate(lane_directory: Path, gate: int) -> GateReport:
    """Verify the newest attempt of a gate, and with it all before it.

    Args:
        lane_directory: ``<sealed-root>/<campaign>/<lane>``.
        gate: 1, 2 or 3.
    """
    return _Lane(lane_directory).newest(gate)


def verify_attempt(lane_directory: Path, gate: int, number: int) -> GateReport:
    """Verify one attempt from its raw files, with the earlier ones and the opener of its gate.

    Never raises for what it finds: every defect becomes VOID or NOT_PROVEN with a reason that names the file.
    """
    return _Lane(lane_directory).attempt(gate, number)


class _Lane:
    """The attempts of a campaign's lane, each verified once however many later ones rest on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._reports: dict[tuple[int, int], GateReport] = {}

    def newest(self, gate: int) -> GateReport:
        """Return the report of the newest attempt of a gate."""
        campaign, lane = self.directory.parent.name, self.directory.name
        try:
            numbers = root.attempt_numbers(self.directory / f"gate{gate}")
        except UnusableEvidenceError as error:
            return GateReport(campaign, lane, gate, 0, Verdict.VOID, str(error))
        if not numbers:
            return GateReport(campaign, lane, gate, 0, Verdict.NOT_PROVEN, f"gate {gate} has no attempt")
        return self.attempt(gate, numbers[-1])

    def attempt(self, gate: int, number: int) -> GateReport:
        """Return the report of one attempt, verified at most once."""
        if (gate, number) not in self._reports:
            self._reports[gate, number] = _verify(_Attempt(self, gate, number))
        return self._reports[gate, number]


def _verify(attempt: _Attempt) -> GateReport:
    verdict, reason, analysis = Verdict.NOT_PROVEN, "", None
    try:
        for rule in RULES.values():
            rule(attempt)
        analysis = attempt.analysis
        verdict, reason = analysis.verdict, analysis.reason
    except NotProvenError as error:
        reason = str(error)
    except UnusableEvidenceError as error:
        verdict, reason = Verdict.VOID, str(error)
    except OSError as error:
        verdict, reason = Verdict.VOID, f"{Path(error.filename or attempt.directory).name}: {error.strerror}"
    return GateReport(
        campaign=attempt.campaign,
        lane=attempt.lane.directory.name,
        gate=attempt.gate,
        attempt=attempt.number,
        verdict=verdict,
        reason=reason,
        receipt=_receipt_digest(attempt.directory),
        tree=attempt.tree_if_listable(),
        start=attempt.start_if_readable(),
        analysis=analysis,
    )


class _Attempt:
    """An attempt under verification; each file is read once, when a rule first needs it."""

    def __init__(self, lane: _Lane, gate: int, number: int) -> None:
        self.lane = lane
        self.campaign = lane.directory.parent.name
        self.gate = gate
        self.number = number
        self.directory = root.attempt_directory(lane.directory / f"gate{gate}", number)

    @functools.cached_property
    def start(self) -> AttemptStart:
        return read_model(self.directory / root.ATTEMPT, AttemptStart)

    @functools.cached_property
    def manifest(self) -> Manifest:
        return read_model(self.directory / root.MANIFEST, Manifest)

    @functools.cached_property
    def tree(self) -> Manifest:
        return root.take_tree(self.directory)

    @property
    def found(self) -> Manifest:
        return root.sealed_part(self.tree)

    @functools.cached_property
    def analysis(self) -> Analysis:
        return derive_analysis(self.directory, self.start)

    def start_if_readable(self) -> AttemptStart | None:
        try:
            return self.start
        except UnusableEvidenceError:
            return None

    def tree_if_listable(self) -> str | None:
        try:
            return files.digest_of(self.tree.canonical())
        except UnusableEvidenceError:
            return None

    def require(self, name: str, *, follows: bool) -> None:
        """Raise if a file does not follow from the raw evidence."""
        if not follows:
            message = f"{name}: does not follow from the raw evidence; expected what the journal gives"
            raise UnusableEvidenceError(message + _sealed_by_other_rules(self.directory))


def _sealed_by_other_rules(directory: Path) -> str:
    """Return a hint at another sealing version, whose rules may differ; empty if this version sealed the attempt."""
    try:
        record = files.read_canonical_json(directory / root.IDENTITY)
    except UnusableEvidenceError:
        return ""
    harness = record.get("harness") if isinstance(record, dict) else None
    sealed = {name: digest for name, digest in harness.items() if _is_own(name)} if isinstance(harness, dict) else {}
    own = package_files(_PACKAGE, SOURCE_SUFFIXES)
    other = next((name for name in sorted(own.keys() | sealed.keys()) if own.get(name) != sealed.get(name)), None)
    if other is None:
        return ""
    return f"; another version of {_PACKAGE} sealed it ({other} differs), whose verification may agree: use that one"


def _is_own(name: str) -> bool:
    return name.startswith(f"{_PACKAGE}/")


def _attempt_in_place(attempt: _Attempt) -> None:
    """Require an attempt in its place: the stated numbers are those of the path, and no link is on the way."""
    for directory in (attempt.directory.parent, attempt.directory):
        if directory.is_symlink():
            message = (
                f"{directory.relative_to(attempt.lane.directory)}: a link; expected a directory of the sealed root"
            )
            raise UnusableEvidenceError(message)
    if _missing(attempt.directory / root.ATTEMPT):
        raise NotProvenError("attempt.json: missing; the session ended before its first test")
    stated = (attempt.start.campaign_name, attempt.start.lane, attempt.start.gate, attempt.start.attempt)
    place = (attempt.campaign, attempt.lane.directory.name, attempt.gate, attempt.number)
    if stated != place:
        message = f"attempt.json: states {stated}; it lies under {place}"
        raise UnusableEvidenceError(message)


def _receipt_present(attempt: _Attempt) -> None:
    """Require a receipt: it is written last, so without it the session did not end."""
    if _missing(attempt.directory / root.RECEIPT):
        message = f"receipt.json: missing; {last_words(attempt.directory)}"
        raise NotProvenError(message)


def _manifest_bound(attempt: _Attempt) -> None:
    """Require the manifest of the receipt; otherwise a damaged manifest would blame a good file."""
    receipt = files.read_canonical_json(attempt.directory / root.RECEIPT)
    subject = {"name": root.MANIFEST, "digest": {"sha256": files.sha256_file(attempt.directory / root.MANIFEST)}}
    subjects = receipt.get("subject") if isinstance(receipt, dict) else None
    if not isinstance(subjects, list) or subject not in subjects:
        raise UnusableEvidenceError("manifest.json: not the one that receipt.json names")


def _manifest_holds(attempt: _Attempt) -> None:
    """Require every listed file, unchanged, and no other."""
    changed = root.difference(attempt.manifest, attempt.found)
    if changed is not None:
        raise UnusableEvidenceError(changed)


def _analysis_derives(attempt: _Attempt) -> None:
    """Require the verdict object of the journal and the raw files."""
    derived = files.canonical_json(attempt.analysis.canonical())
    attempt.require(root.ANALYSIS, follows=same_content(attempt.directory / root.ANALYSIS, derived))


def _report_derives(attempt: _Attempt) -> None:
    """Require a well-formed JUnit report with the content of the verdict object, in any words."""
    sealed = files.read_bytes(attempt.directory / root.JUNIT, limit=SIZE_LIMIT)
    read_junit(sealed)
    derived = derive_junit(attempt.directory, attempt.start, attempt.analysis)
    attempt.require(root.JUNIT, follows=without_sentences(sealed) == without_sentences(derived))


def _receipt_derives(attempt: _Attempt) -> None:
    """Require the receipt of all other files."""
    derived = derive_receipt(attempt.directory, attempt.start, attempt.analysis, attempt.manifest)
    attempt.require(root.RECEIPT, follows=same_content(attempt.directory / root.RECEIPT, derived))


def _campaign_frozen(attempt: _Attempt) -> None:
    """Require the frozen campaign, as it was written and as it was read, with its clauses."""
    campaign = campaign_copy(attempt.directory)
    if campaign.digest != attempt.start.identity.campaign:
        message = f"{root.CAMPAIGN}: not the campaign that attempt.json names"
        raise UnusableEvidenceError(message)
    if files.sha256_file(attempt.directory / root.CAMPAIGN_READ) != campaign.digest:
        message = f"{root.CAMPAIGN_READ}: not what {root.CAMPAIGN} says; expected its content with every default"
        raise UnusableEvidenceError(message)
    if list(campaign.gate_clauses(attempt.gate).items()) != attempt.start.clauses:
        message = f"attempt.json: its clauses are not those of {root.CAMPAIGN}"
        raise UnusableEvidenceError(message)


def _identity_recorded(attempt: _Attempt) -> None:
    """Require the identity record of before the first test, and its digests."""
    record = files.read_canonical_json(attempt.directory / root.IDENTITY)
    if files.digest_of(record) != attempt.start.record:
        message = f"{root.IDENTITY}: not the record that attempt.json names"
        raise UnusableEvidenceError(message)
    for name in ("candidate", "harness"):
        part = record.get(name) if isinstance(record, dict) else None
        if files.digest_of(part) != getattr(attempt.start.identity, name):
            message = f"{root.IDENTITY}: its {name} files do not give the digest that attempt.json names"
            raise UnusableEvidenceError(message)


def _earlier_complete(attempt: _Attempt) -> None:
    """Require all earlier attempts, in their numbers, unchanged."""
    stated = [earlier.attempt for earlier in attempt.start.earlier]
    if stated != list(range(1, attempt.number)):
        message = f"attempt.json: lists earlier attempts {stated}; expected every number below {attempt.number}"
        raise NotProvenError(message)
    for earlier in attempt.start.earlier:
        _earlier_unchanged(attempt, earlier)


def _earlier_unchanged(attempt: _Attempt, earlier: Earlier) -> None:
    """Require an earlier attempt with its recorded verdict and bytes."""
    directory = root.attempt_directory(attempt.directory.parent, earlier.attempt)
    where = f"gate{attempt.gate}/{directory.name}"
    if not directory.is_dir():
        message = f"{where}: missing; attempt {attempt.number} lists it"
        raise NotProvenError(message)
    report = attempt.lane.attempt(attempt.gate, earlier.attempt)
    if report.receipt != earlier.receipt:
        message = f"{where}/receipt.json: not the one that attempt {attempt.number} saw"
        raise UnusableEvidenceError(message)
    if report.verdict is not earlier.verdict:
        message = (
            f"{where}: was {earlier.verdict} for attempt {attempt.number} but is {report.verdict} now: {report.reason}"
        )
        raise UnusableEvidenceError(message)
    if report.tree != earlier.tree:
        message = f"{where}: its files are not those that attempt {attempt.number} saw"
        raise UnusableEvidenceError(message)


def _previous_passed(attempt: _Attempt) -> None:
    """Require the attempt of the previous gate, unchanged, and its PASS."""
    previous = attempt.start.previous
    if (previous.gate if previous else 0) != attempt.gate - 1:
        message = f"attempt.json: names no attempt of gate {attempt.gate - 1}"
        raise UnusableEvidenceError(message)
    if previous is None:
        return
    report = attempt.lane.attempt(previous.gate, previous.attempt)
    where = f"gate{report.gate}/{report.attempt:04d}"
    if report.receipt != previous.receipt:
        message = f"{where}/receipt.json: not the receipt that opened gate {attempt.gate}"
        raise UnusableEvidenceError(message)
    if report.verdict is not Verdict.PASS:
        message = f"{where}: opened gate {attempt.gate} but is {report.verdict} now: {report.reason}"
        raise UnusableEvidenceError(message)


def _rehearsal_verifies(attempt: _Attempt) -> None:
    """Require proven rehearsals to verify from their own raw files."""
    proven = {clause.clause for clause in attempt.analysis.clauses if clause.verdict is Verdict.PASS}
    campaign = campaign_copy(attempt.directory)
    for clause, null in ((rehearsal.REHEARSAL, False), (rehearsal.NULL_EXACT, True)):
        place = rehearsal.sealed_root(attempt.directory / root.EVIDENCE, null=null)
        if attempt.gate != 1 or clause not in proven or not place.exists():
            continue
        finding = rehearsal_finding(place, campaign.gates, null=null)
        if finding is not None:
            message = f"clause {clause}: proven, but {finding[1]}"
            raise UnusableEvidenceError(message)


def rehearsal_finding(sealed_root: Path, gates: Sequence[int], *, null: bool) -> Finding | None:
    """Return the finding on a rehearsal, or None if every gate passed.

    Args:
        sealed_root: the rehearsal's own.
        gates: that the campaign declares.
        null: whether a control filled the candidate's slot; then the last gate proves nothing of the candidate.
    """
    reports = {report.gate: report for report in verify_root(sealed_root)} if sealed_root.exists() else {}
    for gate in gates:
        report = reports.get(gate)
        if report is None:
            return Verdict.NOT_PROVEN, f"gate {gate} of the rehearsal has no attempt"
        reason = _beside_null(sealed_root, report) if null and gate == gates[-1] else report.reason
        if report.verdict is not Verdict.PASS and reason is not None:
            return report.verdict, f"gate {gate} of the rehearsal is {report.verdict}: {reason}"
    return None


def _beside_null(sealed_root: Path, report: GateReport) -> str | None:
    """Return the first finding other than those of every A/A run, or None."""
    if report.analysis is None or report.start is None:
        return report.reason
    gate = sealed_root / report.campaign / report.lane / f"gate{report.gate}"
    directory = root.attempt_directory(gate, report.attempt)
    of_session = judge_session(report.start.clauses, *_raw(directory, report.start))
    if of_session:
        return of_session[0][1]
    excused = _excused(derive(read_attempted(directory)))
    against = (clause for clause in report.analysis.clauses if clause.verdict is not Verdict.PASS)
    return next((clause.reason for clause in against if excused.get(clause.clause) != clause.verdict), None)


def _excused(derived: Derived[Any] | None) -> dict[str, Verdict]:
    """Return the verdicts of clauses with no finding other than those of every A/A run."""
    if derived is None:
        return {}
    excused = {}
    for clause, lines in derived.rules.items():
        finding = derived.clauses.get(clause)
        against = {rule for rule, verdict, _ in lines if verdict not in {None, Verdict.PASS}}
        if finding is not None and against and against <= {CANDIDATE_RAN, *NULL_RULES}:
            excused[clause] = finding[0]
    return excused


RULES: Mapping[str, Callable[[_Attempt], None]] = {
    "attempt-in-place": _attempt_in_place,
    "receipt-present": _receipt_present,
    "manifest-bound": _manifest_bound,
    "manifest-holds": _manifest_holds,
    "analysis-derives": _analysis_derives,
    "report-derives": _report_derives,
    "receipt-derives": _receipt_derives,
    "campaign-frozen": _campaign_frozen,
    "identity-recorded": _identity_recorded,
    "earlier-complete": _earlier_complete,
    "previous-passed": _previous_passed,
    "rehearsal-verifies": _rehearsal_verifies,
}
"""Each raises what it finds; the verdict of an attempt counts only when none has anything to say."""


def _missing(path: Path) -> bool:
    """Return True if no file has this name; raises OSError if that cannot be told."""
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    return False


def _receipt_digest(directory: Path) -> str | None:
    try:
        return files.sha256_file(directory / root.RECEIPT)
    except OSError:
        return None


def derive_analysis(directory: Path, start: AttemptStart) -> Analysis:
    """Derive the verdict object from ``attempt.json``, the journal and the raw files."""
    return judge(start.clauses, *_raw(directory, start))


def _raw(directory: Path, start: AttemptStart) -> tuple[Sequence[Event], Evidence]:
    """Return the journal and the findings from the raw files."""
    events = read_journal(directory / root.JOURNAL, files.sha256_file(directory / root.ATTEMPT))
    return events, judge_raw(directory, start, events)


def derive_junit(directory: Path, start: AttemptStart, analysis: Analysis) -> bytes:
    """Derive the JUnit report from the verdict object; paths of files are as seen from pytest's directory.

    Raises:
        UnusableEvidenceError: the attempt's files cannot be listed.
    """
    gate = Path(start.sealed_root) / start.campaign_name / start.lane / f"gate{start.gate}"
    place = root.attempt_directory(gate, start.attempt)
    properties = {
        "campaign": start.campaign_name,
        "lane": start.lane,
        "gate": str(start.gate),
        "attempt": str(start.attempt),
        "nonce": start.nonce,
        "campaign_digest": start.identity.campaign,
        "verdict": analysis.verdict,
        "reason": analysis.reason,
        "evidence": str(place),
    } | {f"figure.{name}": value for name, value in analysis.figures.items()}
    cases = clause_cases(analysis, root.file_names(directory), place)
    return write_junit(f"{start.campaign_name} {start.lane} gate {start.gate}", properties, cases)


def clause_cases(analysis: Analysis, paths: Collection[str], place: Path) -> Iterator[Case]:
    """Yield the clauses as cases of a report for machines.

    Args:
        analysis: the verdict object.
        paths: of the attempt's files, relative to its directory.
        place: the attempt's directory, as the report calls it.
    """
    for result in analysis.clauses:
        yield Case(
            nodeid=result.nodeid,
            clause=result.clause,
            verdict=result.verdict,
            reason=result.reason,
            detail=result.detail,
            seconds=result.seconds,
            files=tuple(str(place / path) for path in files_behind(paths, result.clause)),
        )


def derive_receipt(directory: Path, start: AttemptStart, analysis: Analysis, manifest: Manifest) -> bytes:
    """Derive the receipt's bytes from the other files of an attempt."""
    digests = {
        "manifest": files.sha256_file(directory / root.MANIFEST),
        "journal_head": journal_head(directory / root.JOURNAL),
    }
    return files.canonical_json(receipt_statement(start, analysis, manifest, digests))


def look_back(lane_directory: Path, gate: int) -> list[Earlier]:
    """Return all attempts of a gate with their present verdicts.

    Raises:
        UnusableEvidenceError: the gate's directory holds something that is not an attempt, or cannot be listed.
    """
    lane = _Lane(lane_directory)
    reports = [lane.attempt(gate, number) for number in root.attempt_numbers(lane_directory / f"gate{gate}")]
    return [
        Earlier(
            attempt=report.attempt,
            receipt=report.receipt,
            tree=report.tree,
            campaign=report.start.identity.campaign if report.start else None,
            verdict=report.verdict,
        )
        for report in reports
    ]


def last_words(directory: Path) -> str:
    """Return the place where a session without a receipt ended, from its journal."""
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
