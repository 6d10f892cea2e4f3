# SPDX-License-Identifier: Apache-2.0
"""The machine's side of a device gate: one changed fact of a good record, and what the whole attempt comes to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_laguna.analysis.lease import judge_machine
from pytest_laguna.evidence import files, leased_cards, root
from pytest_laguna.evidence.host import HostAudit, HostLimits, HostState, KernelLog, difference
from pytest_laguna.evidence.idle import IdleRequirement, SeenProcess
from pytest_laguna.evidence.machine import MachineEvidence, read_machine
from pytest_laguna.verdict import Verdict
from pytest_laguna.verification import verify_attempt
from tests.mutants.test_process_rules import FOUND, GOOD
from tests.sealed import build, idle_record, write_lease

IDLE = IdleRequirement(snapshots=2, seconds=0.5, memory_bytes=0, foreign_workers=False)
HOST = HostLimits(memory_available_bytes=1000, foreign_holders=False)

HOLDER = SeenProcess(pid=9, start_ticks=3, command="miner", carries_token=False, seen_by="LAGUNA_CPU_CARDS")


def _audit(memory: int) -> HostAudit:
    state = HostState(
        utc="2026-07-25T00:00:00.000000+00:00",
        boot_id="b",
        temperatures_celsius={},
        throttle_counts={},
        kernel_log=KernelLog(state="absent", reason="", last=None, complete=False, lines=[]),
        memory_available_bytes=memory,
        load=(0.0, 0.0, 0.0),
        cards=[],
    )
    after = state.model_copy(update={"utc": "2026-07-25T00:00:01.000000+00:00"})
    return HostAudit(before=state, after=after, difference=difference(state, after))


@pytest.fixture
def good(tmp_path: Path) -> MachineEvidence:
    write_lease(tmp_path)
    processes, audits = {"arms/q1/process.json": GOOD}, {"arms/q1/host.json": _audit(1000)}
    return dataclasses.replace(read_machine(tmp_path), processes=processes, audits=audits)


def _held(evidence: MachineEvidence) -> MachineEvidence:
    assert evidence.after is not None
    first, second = evidence.after.snapshots
    card = second.cards[0].model_copy(update={"holders": [HOLDER]})
    looks = [first, second.model_copy(update={"cards": [card]})]
    return dataclasses.replace(evidence, after=evidence.after.model_copy(update={"snapshots": looks}))


def _of_another_lease(evidence: MachineEvidence) -> MachineEvidence:
    assert evidence.before is not None
    return dataclasses.replace(evidence, before=evidence.before.model_copy(update={"token": "f" * 32}))


MUTANTS: dict[str, tuple[Callable[[MachineEvidence], MachineEvidence], Verdict, str]] = {
    "no lease": (lambda e: dataclasses.replace(e, lease=None), Verdict.NOT_PROVEN, "no lease is recorded"),
    "no look before": (
        lambda e: dataclasses.replace(e, before=None),
        Verdict.NOT_PROVEN,
        "idle-before.json: missing; whether the cards were idle before the lease is not proven",
    ),
    "no look after": (
        lambda e: dataclasses.replace(e, after=None),
        Verdict.NOT_PROVEN,
        "idle-after.json: missing; whether the cards were idle after the lease is not proven",
    ),
    "another lease": (_of_another_lease, Verdict.VOID, "idle-before.json: of another lease"),
    "the look before as the look after": (
        lambda e: dataclasses.replace(e, after=e.before),
        Verdict.VOID,
        "idle-after.json: of another lease, other cards or another phase than after",
    ),
    "held": (_held, Verdict.VOID, "idle-after.json: no-holder: "),
    "left behind": (
        lambda e: dataclasses.replace(
            e, processes={"arms/q1/process.json": GOOD.model_copy(update={"leftovers": [FOUND]})}
        ),
        Verdict.FAIL,
        "arms/q1/process.json: nothing-left: left behind: pid 7",
    ),
    "host out of limits": (
        lambda e: dataclasses.replace(e, audits={"arms/q1/host.json": _audit(999)}),
        Verdict.VOID,
        "arms/q1/host.json: memory-free: 999 bytes",
    ),
}


def test_the_good_evidence_has_nothing_against_it(good: MachineEvidence) -> None:
    assert judge_machine(good, IDLE, HOST) == []


@pytest.mark.parametrize("name", MUTANTS)
def test_one_fact_is_found(name: str, good: MachineEvidence) -> None:
    change, verdict, reason = MUTANTS[name]
    ((found, text),) = judge_machine(change(good), IDLE, HOST)
    assert found is verdict
    assert text.startswith(reason)


def _delete(evidence: Path) -> None:
    (evidence / leased_cards.DIRECTORY / leased_cards.IDLE_AFTER).unlink()


def _hold(evidence: Path) -> None:
    path = evidence / leased_cards.DIRECTORY / leased_cards.IDLE_AFTER
    record = idle_record("after")
    card = record.snapshots[1].cards[0].model_copy(update={"memory_used_bytes": 5})
    looks = [record.snapshots[0], record.snapshots[1].model_copy(update={"cards": [card]})]
    path.unlink()
    files.write_new(path, files.canonical_json(record.model_copy(update={"snapshots": looks}).canonical()))


def _leave(evidence: Path) -> None:
    (evidence / "only").mkdir(mode=0o700)
    record = GOOD.model_copy(update={"leftovers": [FOUND]})
    files.write_new(evidence / "only" / leased_cards.PROCESS, files.canonical_json(record.canonical()))


def _garble(evidence: Path) -> None:
    (evidence / "only").mkdir(mode=0o700)
    files.write_new(evidence / "only" / leased_cards.HOST, b"{}")


@pytest.mark.parametrize(
    ("damage", "verdict", "reason"),
    [
        (_delete, Verdict.NOT_PROVEN, "idle-after.json: missing"),
        (_hold, Verdict.FAIL, "idle-after.json: memory-at-baseline: card cpu-slot-0 uses 5 bytes"),
        (_leave, Verdict.FAIL, "only/process.json: nothing-left: left behind: pid 7"),
        (_garble, Verdict.VOID, "host.json: before: Field required"),
    ],
)
def test_the_attempt_comes_to_it_whatever_its_tests_say(
    damage: Callable[[Path], None], verdict: Verdict, reason: str, tmp_path: Path
) -> None:
    """The tests' journal is that of a passing session."""
    attempt = build(tmp_path, gate=2, before_sealing=damage)
    report = verify_attempt(attempt.parent.parent, 2, 1)
    assert report.verdict in {verdict, Verdict.VOID}  # it has no attempt of gate 1 before it
    analysis = files.read_canonical_json(attempt / root.ANALYSIS)
    assert isinstance(analysis, dict)
    assert analysis["verdict"] == verdict
    assert str(analysis["reason"]).startswith(reason)
