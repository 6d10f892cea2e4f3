# SPDX-License-Identifier: Apache-2.0
"""The machine's side of a device gate: one changed fact of a good record, and what the whole attempt comes to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.analysis.machine.lease import Session, judge_machine, judge_processes, judge_records
from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.journal import Event
from pytest_laguna.evidence.machine import leased_cards
from pytest_laguna.evidence.machine.card_masks import showing
from pytest_laguna.evidence.machine.host import HostAudit, HostLimits, HostState, KernelLog, difference
from pytest_laguna.evidence.machine.idle import IdleRecord, IdleRequirement, SeenProcess
from pytest_laguna.evidence.machine.leased_cards import LeaseTerms
from pytest_laguna.evidence.machine.placement import BlockDevice, Place, StorageRule
from pytest_laguna.evidence.machine.reader import MachineEvidence, read_machine
from pytest_laguna.evidence.reading import Missing, present
from pytest_laguna.evidence.schemas import AttemptStart, read_model
from pytest_laguna.evidence.values import Lane
from pytest_laguna.machine.cards import Card
from pytest_laguna.verdict import Verdict
from pytest_laguna.verify.verification import derive_analysis, verify_attempt
from tests.caught_first import caught_first
from tests.mutants.test_process_rules import FOUND, GOOD
from tests.sealed import LOOKS, build, good_events, idle_record, write_idle, write_lease

PLACE = Place(
    purpose="evidence",
    path="/fast/sealed",
    real="/fast/sealed",
    file_system="ext4",
    source="/dev/nvme0n1p2",
    device="259:2",
    hardware=[BlockDevice(path="/devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1/nvme0n1p2", removable=False)],
)
PLACES = [PLACE, PLACE.model_copy(update={"purpose": "temporary"})]
OTHER_CARD = leased_cards.LeasedCard(ordinal=0, identity="cpu-slot-0", name="core 0 of another", memory_bytes=1)
NETWORK = PLACE.model_copy(update={"purpose": "target", "file_system": "nfs4", "source": "server:/models"})
TERMS = LeaseTerms(card="core 0", storage=StorageRule(file_systems=["ext4"], drivers=["nvme"]))

IDLE = IdleRequirement(snapshots=2, seconds=0.5, memory_bytes=0, foreign_workers=False)
HOST = HostLimits(memory_available_bytes=1000, foreign_holders=False)

ABSENT = Missing(Verdict.NOT_PROVEN, "there is none")
Change = Callable[[MachineEvidence], MachineEvidence]

LEASE, BEFORE, AFTER = leased_cards.LEASE, leased_cards.IDLE_BEFORE, leased_cards.IDLE_AFTER
PROCESS, HOST_AUDIT = "arms/q1/process.json", "arms/q1/host.json"
LEFT = {"leftovers": [FOUND]}
HOLDER = SeenProcess(pid=9, start_ticks=3, command="miner", carries_token=False, seen_by="LAGUNA_CPU_CARDS")


_LATER = ("2026-07-25T00:02:00.000000+00:00", "2026-07-25T00:02:01.000000+00:00")
SESSION = Session("cpu", ["0"], LOOKS[0], ("2026-07-25T00:00:02.000000+00:00", _LATER[0]), _LATER[1])


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
    write_lease(tmp_path, idle_record("before"))
    write_idle(tmp_path, idle_record("after", looks=_LATER))
    read = dataclasses.replace(read_machine(tmp_path), processes={PROCESS: GOOD}, audits={HOST_AUDIT: _audit(1000)})
    return _with_lease(places=PLACES)(read)


def _held(evidence: MachineEvidence) -> MachineEvidence:
    after = present(evidence.after)
    first, second = after.snapshots
    card = second.cards[0].model_copy(update={"holders": [HOLDER]})
    looks = [first, second.model_copy(update={"cards": [card]})]
    return dataclasses.replace(evidence, after=after.model_copy(update={"snapshots": looks}))


def _with(**changed: Any) -> Change:
    return lambda e: dataclasses.replace(e, **changed)


def _with_lease(**changed: object) -> Change:
    return lambda e: dataclasses.replace(e, lease=present(e.lease).model_copy(update=changed))


def _before(**changed: object) -> Change:
    """With other words in the looks before."""
    return lambda e: dataclasses.replace(e, before=present(e.before).model_copy(update=changed))


def test_the_good_evidence_has_nothing_against_it(good: MachineEvidence) -> None:
    for terms in (TERMS, LeaseTerms(), None):
        assert judge_machine(good, IDLE, HOST, SESSION, terms) == []
    assert judge_machine(_with_lease(places=[])(good), IDLE, HOST, SESSION, LeaseTerms()) == []
    for named in ("CPU-slot-0", "cpu-slot"):
        assert judge_machine(good, IDLE, HOST, dataclasses.replace(SESSION, cards=[named])) == []
    for opened in (SESSION.opened, None):
        assert judge_machine(good, IDLE, HOST, Session("cpu", ["0"], opened, None, None)) == []


def _dated(look: int, utc: str, phase: str) -> Change:
    """With one look of a phase at another time."""

    def change(evidence: MachineEvidence) -> MachineEvidence:
        record = getattr(evidence, phase)
        looks = list(record.snapshots)
        looks[look] = looks[look].model_copy(update={"utc": utc})
        return dataclasses.replace(evidence, **{phase: record.model_copy(update={"snapshots": looks})})

    return change


def _other_card(evidence: MachineEvidence) -> MachineEvidence:
    """Every record of another card: they agree with each other."""
    text = {name: getattr(evidence, name).model_dump_json(by_alias=True) for name in ("lease", "before", "after")}
    text = {name: found.replace("cpu-slot-0", "cpu-slot-9") for name, found in text.items()}
    text = {name: found.replace('"ordinal":0', '"ordinal":9') for name, found in text.items()}
    records = {name: type(getattr(evidence, name)).model_validate_json(found) for name, found in text.items()}
    return dataclasses.replace(evidence, **records)


def _other_lane(evidence: MachineEvidence) -> MachineEvidence:
    records = {
        name: getattr(evidence, name).model_copy(update={"lane": "cuda"}) for name in ("lease", "before", "after")
    }
    return dataclasses.replace(evidence, **records)


MUTANTS: list[tuple[str, str, Change, Verdict, str, str]] = [
    ("lease-recorded", "no lease", _with(lease=ABSENT), Verdict.NOT_PROVEN, LEASE, "seen none; expected a lease"),
    (
        "lease-recorded",
        "no look before",
        _with(before=ABSENT),
        Verdict.NOT_PROVEN,
        BEFORE,
        "seen none; expected the state of the cards before the lease",
    ),
    (
        "lease-recorded",
        "no look after",
        _with(after=ABSENT),
        Verdict.NOT_PROVEN,
        AFTER,
        "seen none; expected the state of the cards after the lease",
    ),
    (
        "lease-recorded",
        "another lease",
        _before(token="f" * 32),
        Verdict.VOID,
        BEFORE,
        "seen token, cards, lane and phase",
    ),
    (
        "lease-recorded",
        "looks of another lane",
        _before(lane="cuda"),
        Verdict.VOID,
        BEFORE,
        "seen token, cards, lane and phase",
    ),
    (
        "lease-recorded",
        "the look before as the look after",
        lambda e: dataclasses.replace(e, after=e.before),
        Verdict.VOID,
        AFTER,
        "seen token, cards, lane and phase",
    ),
    (
        "lease-of-this-session",
        "everything of another lane",
        _other_lane,
        Verdict.VOID,
        LEASE,
        "seen lane cuda; expected cpu",
    ),
    (
        "lease-of-this-session",
        "another card",
        _other_card,
        Verdict.VOID,
        LEASE,
        "seen cards ['9 (cpu-slot-9)']; expected those of --cards=0",
    ),
    (
        "shows-its-cards",
        "another card",
        _with_lease(environment={"LAGUNA_CPU_CARDS": "1"}),
        Verdict.VOID,
        LEASE,
        "seen environment {'LAGUNA_CPU_CARDS': '1'}; expected {'LAGUNA_CPU_CARDS': '0'}",
    ),
    (
        "shows-its-cards",
        "more",
        _with_lease(environment={"LAGUNA_CPU_CARDS": "0", "LD_PRELOAD": "x.so"}),
        Verdict.VOID,
        LEASE,
        "seen environment {'LAGUNA_CPU_CARDS': '0', 'LD_PRELOAD': 'x.so'}; expected",
    ),
    (
        "shows-its-cards",
        "another core",
        _with_lease(cores=[7]),
        Verdict.VOID,
        LEASE,
        "seen cores [7]; expected [0]",
    ),
    ("shows-its-cards", "every core", _with_lease(cores=[]), Verdict.VOID, LEASE, "seen cores []; expected [0]"),
    (
        "looks-around-the-tests",
        "the look before with its phase changed",
        lambda e: dataclasses.replace(e, after=present(e.before).model_copy(update={"phase": "after"})),
        Verdict.VOID,
        AFTER,
        f"seen a snapshot at {LOOKS[0]}; expected after the tests",
    ),
    *(
        (
            "looks-around-the-tests",
            name,
            _dated(look, utc, phase),
            Verdict.VOID,
            record,
            f"seen a snapshot at {utc}; expected",
        )
        for name, look, utc, phase, record in (
            ("before the attempt", 0, "2020-07-25T00:00:00.000000+00:00", "before", BEFORE),
            ("a look before that is among the tests", 1, "2026-07-25T00:00:02.000001+00:00", "before", BEFORE),
            ("a look after that is among the tests", 0, "2026-07-25T00:01:59.999999+00:00", "after", AFTER),
            ("after the session", 1, "2026-07-25T00:02:01.000001+00:00", "after", AFTER),
        )
    ),
    (
        "card-named",
        "another kind",
        _with_lease(cards=[OTHER_CARD]),
        Verdict.VOID,
        LEASE,
        "seen card cpu-slot-0 named 'core 0 of another'; expected 'core 0'",
    ),
    (
        "storage-internal",
        "a model on the network",
        _with_lease(places=[*PLACES, NETWORK]),
        Verdict.VOID,
        LEASE,
        "target /fast/sealed lies on server:/models (nfs4, 259:2); expected one of ext4",
    ),
    (
        "storage-internal",
        "evidence whose place is not recorded",
        _with_lease(places=PLACES[1:]),
        Verdict.NOT_PROVEN,
        LEASE,
        "seen no place of evidence; expected one",
    ),
    ("no-holder", "held", _held, Verdict.VOID, AFTER, ""),
    (
        "nothing-left",
        "left behind",
        _with(processes={PROCESS: GOOD.model_copy(update=LEFT)}),
        Verdict.FAIL,
        PROCESS,
        "left behind: pid 7",
    ),
    (
        "memory-free",
        "host out of limits",
        _with(audits={HOST_AUDIT: _audit(999)}),
        Verdict.VOID,
        HOST_AUDIT,
        "memory: seen 999 bytes",
    ),
]
"""The last three are of cards, processes and hosts, which have theirs elsewhere: it matters that they are asked."""


@caught_first("rule name change verdict record reason", MUTANTS)
def test_one_fact_is_found(  # noqa: PLR0913, PLR0917 - a row of the table
    rule: str, change: Change, verdict: Verdict, record: str, reason: str, good: MachineEvidence
) -> list[str]:
    ((found, text),) = judge_machine(change(good), IDLE, HOST, SESSION, TERMS)
    assert found is verdict
    assert text.startswith(f"{record}: {rule}: {reason}")
    return [text.split(": ")[1]]


def _event(kind: str, second: int) -> Event:
    time = f"2026-07-25T00:00:{second:02}.000000+00:00"
    return Event.model_validate({"sequence": second, "previous": "0" * 64, "time": time, "kind": kind, "data": {}})


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([], (None, None, None)),
        (["session-started"], (0, None, None)),
        (["session-started", "session-finished"], (0, None, 1)),
        (["session-started", "test-started", "proof"], (0, (1, 1), None)),
        (["session-started", "recorded", "test-started", "phase", "phase", "problem"], (0, (2, 4), None)),
        (["session-started", "test-started", "phase", "problem", "session-finished", "problem"], (0, (1, 2), 4)),
    ],
)
def test_when_a_session_was_open_and_when_it_tested(
    kinds: list[str], expected: tuple[int | None, tuple[int, int] | None, int | None]
) -> None:
    """By the number of the event, which is its second."""
    asked: dict[str, Any] = {"lane": "xpu", "cards": ["3", "1"]}
    start = AttemptStart.model_construct(**asked)
    events = [_event(kind, second) for second, kind in enumerate(kinds)]
    times = [event.time for event in events]
    opened, tests, ended = expected
    assert Session.of(start, events) == Session(
        "xpu",
        ["3", "1"],
        None if opened is None else times[opened],
        None if tests is None else (times[tests[0]], times[tests[1]]),
        None if ended is None else times[ended],
    )


def test_the_cards_that_were_asked_for_are_told_with_commas(good: MachineEvidence) -> None:
    ((_, text),) = judge_machine(good, IDLE, HOST, dataclasses.replace(SESSION, cards=["1", "0"]))
    assert text.endswith("; expected those of --cards=1,0")


def test_a_card_that_is_called_a_core_has_cores_on_the_cpu_lane_alone(good: MachineEvidence) -> None:
    device = _other_lane(good)
    shown = showing("cuda", present(device.lease).cards)
    device = _with_lease(environment=shown, cores=[])(device)
    found = judge_machine(device, IDLE, HOST, dataclasses.replace(SESSION, lane="cuda"))
    assert [text for _, text in found if "shows-its-cards" in text] == []


@pytest.mark.parametrize(
    ("lane", "environment"),
    [
        ("cpu", {"LAGUNA_CPU_CARDS": "1,0"}),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "b,a", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        ("xpu", {"ZE_AFFINITY_MASK": "1,0", "ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1"}),
    ],
)
def test_what_each_lane_shows(lane: Lane, environment: dict[str, str]) -> None:
    cards = [Card(lane, 1, "b", "", 1), Card(lane, 0, "a", "", 1)]
    leased = [leased_cards.LeasedCard(ordinal=c.ordinal, identity=c.identity, name="", memory_bytes=1) for c in cards]
    assert showing(lane, cards) == showing(lane, leased) == environment


RECORDED = {"cards/lease.json": "a" * 64, "only/process.json": "b" * 64}


RECORD_MUTANTS = [
    ("records-as-written", f"{path} {seen}", path, found, seen)
    for path in RECORDED
    for found, seen in (("c" * 64, "replaced"), (None, "missing"))
]


@caught_first("rule name path found seen", RECORD_MUTANTS)
def test_a_record_that_is_not_as_it_was_written_is_found(path: str, found: str | None, seen: str) -> list[str]:
    assert judge_records(RECORDED, RECORDED.get) == []
    ((verdict, text),) = judge_records(RECORDED, (RECORDED | {path: found}).get)
    assert (verdict, text) == (Verdict.VOID, f"{path}: records-as-written: seen {seen}; expected the file as recorded")
    return [text.split(": ")[1]]


@pytest.mark.parametrize("gate", [1, 2])
@pytest.mark.parametrize("content", [b"{}", None])
def test_so_it_is_when_an_attempt_is_verified(gate: int, content: bytes | None, tmp_path: Path) -> None:
    events = [*good_events(gate), ("recorded", {"path": "only/note.json", "sha256": files.sha256_bytes(b"[]")})]

    def write(evidence: Path) -> None:
        (evidence / "only").mkdir(mode=0o700)
        if content is not None:
            files.write_new(evidence / "only" / "note.json", content)

    attempt = build(tmp_path, events, gate=gate, before_sealing=write)
    analysis = derive_analysis(attempt, read_model(attempt / root.ATTEMPT, AttemptStart))
    assert (analysis.verdict, analysis.reason.partition(":")[0]) == (Verdict.VOID, "only/note.json")


def test_cards_in_another_order_are_not_those_of_the_session(good: MachineEvidence) -> None:
    for cards in ([], ["0", "0"], ["1"], ["cpu-slot-1"], ["cpu-"], [""]):
        ((verdict, text),) = judge_machine(good, IDLE, HOST, dataclasses.replace(SESSION, cards=cards))
        assert verdict is Verdict.VOID
        assert text.startswith("lease.json: lease-of-this-session: seen cards ['0 (cpu-slot-0)']")


def test_a_damaged_file_makes_nothing_of_the_others_unread(tmp_path: Path) -> None:
    for place, content in (("a", b"{"), ("b", files.canonical_json(GOOD.model_copy(update=LEFT).canonical()))):
        (tmp_path / place).mkdir()
        (tmp_path / place / leased_cards.PROCESS).write_bytes(content)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / leased_cards.PROCESS).symlink_to(tmp_path / "nowhere")
    against = judge_processes(read_machine(tmp_path).processes)
    assert [(verdict, text.partition(": ")[0]) for verdict, text in against] == [
        (Verdict.VOID, "a/process.json"),
        (Verdict.VOID, "c/process.json"),
        (Verdict.FAIL, "b/process.json"),
    ]
    assert against[1][1].startswith("c/process.json: cannot be read (Too many levels of symbolic links); expected a")


def test_what_gate_1_runs_is_judged_too(tmp_path: Path) -> None:
    attempt = build(tmp_path, before_sealing=_leave)
    report = verify_attempt(attempt.parent.parent, 1, 1)
    assert report.verdict is Verdict.FAIL
    assert report.reason.startswith("only/process.json: nothing-left: left behind: pid 7")


def _delete(evidence: Path) -> None:
    (evidence / leased_cards.DIRECTORY / leased_cards.IDLE_AFTER).unlink()


def _hold(evidence: Path) -> None:
    path = evidence / leased_cards.DIRECTORY / leased_cards.IDLE_AFTER
    record = read_model(path, IdleRecord)
    card = record.snapshots[1].cards[0].model_copy(update={"memory_used_bytes": 5})
    looks = [record.snapshots[0], record.snapshots[1].model_copy(update={"cards": [card]})]
    path.unlink()
    files.write_new(path, files.canonical_json(record.model_copy(update={"snapshots": looks}).canonical()))


def _leave(evidence: Path) -> None:
    (evidence / "only").mkdir(mode=0o700)
    record = GOOD.model_copy(update=LEFT)
    files.write_new(evidence / "only" / leased_cards.PROCESS, files.canonical_json(record.canonical()))


def _garble(evidence: Path) -> None:
    (evidence / "only").mkdir(mode=0o700)
    files.write_new(evidence / "only" / leased_cards.HOST, b"{}")


DAMAGES: list[tuple[Callable[[Path], None], Verdict, str]] = [
    (_delete, Verdict.NOT_PROVEN, "idle-after.json: lease-recorded: seen none"),
    (_hold, Verdict.FAIL, "idle-after.json: memory-at-baseline: card cpu-slot-0: seen 5 bytes"),
    (_leave, Verdict.FAIL, "only/process.json: nothing-left: left behind: pid 7"),
    (_garble, Verdict.VOID, "only/host.json: before: Field required"),
]


@pytest.mark.parametrize(("damage", "verdict", "reason"), DAMAGES)
def test_the_attempt_comes_to_it_whatever_its_tests_say(
    damage: Callable[[Path], None], verdict: Verdict, reason: str, tmp_path: Path
) -> None:
    """The tests' journal is that of a passing session."""
    attempt = build(tmp_path, gate=2, before_sealing=damage)
    report = verify_attempt(attempt.parent.parent, 2, 1)
    assert report.verdict in {verdict, Verdict.VOID}  # it has no attempt of gate 1 before it
    analysis = derive_analysis(attempt, read_model(attempt / root.ATTEMPT, AttemptStart))
    assert analysis.verdict is verdict
    assert analysis.reason.startswith(reason)
