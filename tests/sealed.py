# SPDX-License-Identifier: Apache-2.0
"""Builds sealed attempts in process from a list of journal events, so that a test can change one fact."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from pytest_laguna.attempt.attempt import Attempt, Precondition
from pytest_laguna.attempt.options import GateOptions
from pytest_laguna.attempt.precondition import Gate
from pytest_laguna.campaign import parse_campaign
from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.machine import leased_cards
from pytest_laguna.evidence.machine.idle import CardState, IdleRecord, MemoryPoint, Snapshot
from pytest_laguna.evidence.schemas import Analysis, AttemptStart, Earlier, Identity, Manifest, Previous, read_model
from pytest_laguna.verdict import JSON
from pytest_laguna.verify.verification import derive_analysis, derive_junit, derive_receipt
from tests.demo import CAMPAIGN, writable

SOURCES: dict[str, JSON] = {"demo_candidate/__init__.py": "0" * 64}

TOKEN = "0123456789abcdef" * 2

Events = list[tuple[Any, dict[str, Any]]]


def phase(nodeid: str, when: str, **changed: Any) -> tuple[str, dict[str, Any]]:
    data = {
        "nodeid": nodeid,
        "when": when,
        "outcome": "passed",
        "cause": "",
        "reason": "",
        "detail": "",
        "seconds": 0.5,
    }
    return "phase", data | changed


def good_events(gate: int = 1) -> Events:
    """What a passing session writes between its start and its end."""
    events: Events = []
    for nodeid in _gate(Path("/nowhere"), gate).clauses.values():
        events.append(("test-started", {"nodeid": nodeid}))
        events.append(phase(nodeid, "setup"))
        events.append(("proof", {"nodeid": nodeid, "statement": "shown", "observed": {"seen": 1}}))
        events += [phase(nodeid, "call"), phase(nodeid, "teardown")]
    return events


def _gate(directory: Path, gate: int) -> Gate:
    chosen = GateOptions(
        gate=gate,
        campaign=directory / "campaign.toml",
        lane=None,
        cards=("0",) if gate > 1 else (),
        sealed_root=directory / "sealed",
        junit=None,
    )
    campaign = parse_campaign(CAMPAIGN.encode(), "campaign.toml")
    return Gate(chosen, campaign, "cpu", campaign.gate_clauses(gate))


def build(  # noqa: PLR0913 - what may differ between two attempts
    directory: Path,
    events: Sequence[tuple[Any, dict[str, Any]]] | None = None,
    *,
    gate: int = 1,
    exit_status: int = 0,
    previous: Previous | None = None,
    earlier: list[Earlier] | None = None,
    before_sealing: Callable[[Path], None] = lambda _evidence: None,
) -> Path:
    """Write and seal an attempt of the demonstration campaign; returns its directory."""
    (directory / "campaign.toml").write_text(CAMPAIGN)
    settled = _gate(directory, gate)
    identity = Identity(
        campaign=settled.campaign.digest, candidate=files.digest_of(SOURCES), harness=files.digest_of(SOURCES)
    )
    record: dict[str, JSON] = {"candidate": SOURCES, "harness": SOURCES}
    precondition = Precondition(identity, record, previous, earlier or [])
    attempt = Attempt(settled, precondition, plugins=["pytest 9"], arguments=[f"--gate={gate}"])
    evidence = attempt.directory / root.EVIDENCE
    if gate > 1:
        write_lease(evidence, idle_record("before", looks=_looks_now()))
    for kind, data in good_events(gate) if events is None else events:
        attempt.append(kind, **data)
    if gate > 1:
        write_idle(evidence, idle_record("after", looks=_looks_now()))
    before_sealing(evidence)
    assert attempt.finish(exit_status) is not None, attempt.broken
    return attempt.directory


def judged(attempt: Path) -> Analysis:
    """The verdict object with its reasons, which no file holds."""
    return derive_analysis(attempt, read_model(attempt / root.ATTEMPT, AttemptStart))


LOOKS = ("2026-07-25T00:00:00.000000+00:00", "2026-07-25T00:00:01.000000+00:00")


def _looks_now() -> list[str]:
    """Two looks of this moment, as far apart as the demonstration's campaign asks for."""
    first = datetime.datetime.now(datetime.UTC)
    second = first + datetime.timedelta(seconds=0.1)
    time.sleep(0.11)  # the journal's next event is later than both
    return [look.isoformat(timespec="microseconds") for look in (first, second)]


def idle_record(phase: Literal["before", "after"], *, looks: Sequence[str] = LOOKS) -> IdleRecord:
    """Two looks at one idle slot."""
    state = CardState(identity="cpu-slot-0", ordinal=0, memory_used_bytes=0, utilisation_percent=None, holders=[])
    return IdleRecord(
        phase=phase,
        lane="cpu",
        token=TOKEN,
        cards=["cpu-slot-0"],
        settling=[MemoryPoint(seconds=0.0, used_bytes=[0])],
        snapshots=[Snapshot(utc=utc, cards=[state], observer=None, workers=[]) for utc in looks],
    )


def write_lease(evidence: Path, before: IdleRecord) -> None:
    """What a device gate records before its first test."""
    directory = evidence / leased_cards.DIRECTORY
    directory.mkdir(mode=0o700)
    lease = leased_cards.LeaseStart(
        lane="cpu",
        token=TOKEN,
        cards=[leased_cards.LeasedCard(ordinal=0, identity="cpu-slot-0", name="core 0", memory_bytes=1)],
        inherited_masks={},
        environment={"LAGUNA_CPU_CARDS": "0"},
        cores=[0],
        cleared=[],
    )
    files.write_new(directory / leased_cards.LEASE, files.canonical_json(lease.canonical()))
    write_idle(evidence, before)


def write_idle(evidence: Path, record: IdleRecord) -> None:
    """The looks at its cards before its first test or after its last."""
    name = {"before": leased_cards.IDLE_BEFORE, "after": leased_cards.IDLE_AFTER}[record.phase]
    files.write_new(evidence / leased_cards.DIRECTORY / name, files.canonical_json(record.canonical()))


def reseal(attempt: Path, **changed: Any) -> None:
    """Change fields of ``attempt.json`` and derive everything behind it again, as a forger of receipts would."""
    with writable(attempt):
        start = read_model(attempt / root.ATTEMPT, AttemptStart)
        start = AttemptStart.model_validate(start.model_dump(by_alias=True) | changed)
        content = files.canonical_json(start.canonical())
        _rechain(attempt, content)
        (attempt / root.ATTEMPT).write_bytes(content)
        analysis = derive_analysis(attempt, start)
        (attempt / root.ANALYSIS).write_bytes(files.canonical_json(analysis.canonical()))
        (attempt / root.JUNIT).write_bytes(derive_junit(attempt, start, analysis))
        restamp(attempt, lambda manifest: manifest)


def restamp(attempt: Path, change: Callable[[Manifest], Manifest]) -> None:
    """Take the manifest again, change it, and write the receipt that goes with it."""
    with writable(attempt):
        manifest = change(root.take_manifest(attempt))
        (attempt / root.MANIFEST).write_bytes(files.canonical_json(manifest.canonical()))
        start = read_model(attempt / root.ATTEMPT, AttemptStart)
        analysis = read_model(attempt / root.ANALYSIS, Analysis)
        (attempt / root.RECEIPT).write_bytes(derive_receipt(attempt, start, analysis, manifest))


def _rechain(attempt: Path, attempt_json: bytes) -> None:
    previous = files.sha256_bytes(attempt_json)
    lines = []
    for line in (attempt / root.JOURNAL).read_bytes().splitlines():
        event = files.parse_json(line, "journal")
        assert isinstance(event, dict)
        lines.append(files.canonical_json(event | {"previous": previous}))
        previous = files.sha256_bytes(lines[-1])
    (attempt / root.JOURNAL).write_bytes(b"\n".join(lines) + b"\n")
