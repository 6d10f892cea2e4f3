# SPDX-License-Identifier: Apache-2.0
"""The machine's side of a device gate: one changed fact of a good record, and what the whole attempt comes to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.analysis.lease import Session, judge_machine, judge_processes, judge_records
from pytest_laguna.evidence import files, leased_cards, root
from pytest_laguna.evidence.card_masks import showing
from pytest_laguna.evidence.host import HostAudit, HostLimits, HostState, KernelLog, difference
from pytest_laguna.evidence.idle import IdleRecord, IdleRequirement, Lane, SeenProcess
from pytest_laguna.evidence.leased_cards import LeaseTerms
from pytest_laguna.evidence.machine import MachineEvidence, read_machine
from pytest_laguna.evidence.placement import BlockDevice, Place, StorageRule
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.machine.cards import Card
from pytest_laguna.verdict import Verdict
from pytest_laguna.verification import verify_attempt
from tests.mutants.test_process_rules import FOUND, GOOD
from tests.sealed import LOOKS, build, good_events, idle_record, write_idle, write_lease

IDLE = IdleRequirement(snapshots=2, seconds=0.5, memory_bytes=0, foreign_workers=False)
HOST = HostLimits(memory_available_bytes=1000, foreign_holders=False)

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


def _with_lease(**changed: object) -> Callable[[MachineEvidence], MachineEvidence]:
    return lambda e: dataclasses.replace(e, lease=e.lease and e.lease.model_copy(update=changed))


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
    "another card shown": (
        _with_lease(environment={"LAGUNA_CPU_CARDS": "1"}),
        Verdict.VOID,
        "lease.json: environment {'LAGUNA_CPU_CARDS': '1'}; expected {'LAGUNA_CPU_CARDS': '0'}, which",
    ),
    "more shown": (
        _with_lease(environment={"LAGUNA_CPU_CARDS": "0", "LD_PRELOAD": "x.so"}),
        Verdict.VOID,
        "lease.json: environment {'LAGUNA_CPU_CARDS': '0', 'LD_PRELOAD': 'x.so'}; expected",
    ),
    "another core": (_with_lease(cores=[7]), Verdict.VOID, "lease.json: cores [7]; expected [0], its cards'"),
    "every core": (_with_lease(cores=[]), Verdict.VOID, "lease.json: cores []; expected [0], its cards'"),
    "host out of limits": (
        lambda e: dataclasses.replace(e, audits={"arms/q1/host.json": _audit(999)}),
        Verdict.VOID,
        "arms/q1/host.json: memory-free: 999 bytes",
    ),
}


def test_the_good_evidence_has_nothing_against_it(good: MachineEvidence) -> None:
    assert judge_machine(good, IDLE, HOST, SESSION) == []
    for named in ("CPU-slot-0", "cpu-slot"):
        assert judge_machine(good, IDLE, HOST, dataclasses.replace(SESSION, cards=[named])) == []
    for opened in (SESSION.opened, None):
        assert judge_machine(good, IDLE, HOST, Session("cpu", ["0"], opened, None, None)) == []


@pytest.mark.parametrize("name", MUTANTS)
def test_one_fact_is_found(name: str, good: MachineEvidence) -> None:
    change, verdict, reason = MUTANTS[name]
    ((found, text),) = judge_machine(change(good), IDLE, HOST, SESSION)
    assert found is verdict
    assert text.startswith(reason)


def _dated(look: int, utc: str, phase: str) -> Callable[[MachineEvidence], MachineEvidence]:
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


IN_ITS_SESSION: dict[str, tuple[Callable[[MachineEvidence], MachineEvidence], str]] = {
    "looks of another lane": (
        lambda e: dataclasses.replace(e, before=e.before and e.before.model_copy(update={"lane": "cuda"})),
        "idle-before.json: of another lease",
    ),
    "everything of another lane": (_other_lane, "lease.json: of lane cuda; expected cpu"),
    "another card": (_other_card, "lease.json: of cards ['9 (cpu-slot-9)']; expected those of --cards=0"),
    "the look before with its phase changed": (
        lambda e: dataclasses.replace(e, after=e.before and e.before.model_copy(update={"phase": "after"})),
        f"idle-after.json: a look at {LOOKS[0]}; expected after the tests",
    ),
    "a look before the attempt": (
        _dated(0, "2020-07-25T00:00:00.000000+00:00", "before"),
        "idle-before.json: a look at 2020-",
    ),
    "a look before that is among the tests": (
        _dated(1, "2026-07-25T00:00:02.000001+00:00", "before"),
        "idle-before.json: a look at 2026-07-25T00:00:02.000001",
    ),
    "a look after that is among the tests": (
        _dated(0, "2026-07-25T00:01:59.999999+00:00", "after"),
        "idle-after.json: a look at 2026-07-25T00:01:59.999999",
    ),
    "a look after the session": (
        _dated(1, "2026-07-25T00:02:01.000001+00:00", "after"),
        "idle-after.json: a look at 2026-07-25T00:02:01.000001",
    ),
}


@pytest.mark.parametrize("name", IN_ITS_SESSION)
def test_a_lease_of_another_session_is_found(name: str, good: MachineEvidence) -> None:
    change, reason = IN_ITS_SESSION[name]
    ((verdict, text),) = judge_machine(change(good), IDLE, HOST, SESSION)
    assert verdict is Verdict.VOID
    assert text.startswith(reason)


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


@pytest.mark.parametrize(
    ("path", "found", "seen"), [(p, f, s) for p in RECORDED for f, s in (("c" * 64, "replaced"), (None, "missing"))]
)
def test_a_record_that_is_not_as_it_was_written_is_found(path: str, found: str | None, seen: str) -> None:
    assert judge_records(RECORDED, RECORDED.get) == []
    ((verdict, text),) = judge_records(RECORDED, (RECORDED | {path: found}).get)
    assert (verdict, text) == (Verdict.VOID, f"{path}: {seen}; expected what was recorded there")


@pytest.mark.parametrize("gate", [1, 2])
@pytest.mark.parametrize("content", [b"{}", None])
def test_so_it_is_when_an_attempt_is_verified(gate: int, content: bytes | None, tmp_path: Path) -> None:
    events = [*good_events(gate), ("recorded", {"path": "only/note.json", "sha256": files.sha256_bytes(b"[]")})]

    def write(evidence: Path) -> None:
        (evidence / "only").mkdir(mode=0o700)
        if content is not None:
            files.write_new(evidence / "only" / "note.json", content)

    attempt = build(tmp_path, events, gate=gate, before_sealing=write)
    analysis = files.read_canonical_json(attempt / root.ANALYSIS)
    assert isinstance(analysis, dict)
    assert (analysis["verdict"], str(analysis["reason"]).partition(":")[0]) == ("VOID", "only/note.json")


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
TERMS = LeaseTerms(card="core 0", storage=StorageRule(file_systems=["ext4"], drivers=["nvme"]))


def _placed(evidence: MachineEvidence, **changed: Any) -> MachineEvidence:
    assert evidence.lease is not None
    return dataclasses.replace(evidence, lease=evidence.lease.model_copy(update={"places": PLACES} | changed))


def _elsewhere(evidence: MachineEvidence) -> MachineEvidence:
    moved = PLACE.model_copy(update={"purpose": "target", "file_system": "nfs4", "source": "server:/models"})
    return _placed(evidence, places=[*PLACES, moved])


TERM_MUTANTS: dict[str, tuple[Callable[[MachineEvidence], MachineEvidence], Verdict, str]] = {
    "a model on the network": (
        _elsewhere,
        Verdict.VOID,
        "lease.json: storage-internal: target /fast/sealed lies on server:/models (nfs4, 259:2); expected one of ext4",
    ),
    "evidence whose place is not recorded": (
        lambda e: _placed(e, places=PLACES[1:]),
        Verdict.NOT_PROVEN,
        "lease.json: storage-internal: where evidence lies is not recorded",
    ),
}


@pytest.mark.parametrize("name", TERM_MUTANTS)
def test_disks_of_another_kind_are_found(name: str, good: MachineEvidence) -> None:
    change, verdict, reason = TERM_MUTANTS[name]
    ((found, text),) = judge_machine(change(good), IDLE, HOST, SESSION, TERMS)
    assert found is verdict
    assert text.startswith(reason)


def test_a_card_of_another_kind_is_found(good: MachineEvidence) -> None:
    terms = TERMS.model_copy(update={"card": "Intel(R) Arc(TM) Pro B70 Graphics"})
    ((verdict, text),) = judge_machine(_placed(good), IDLE, HOST, SESSION, terms)
    assert verdict is Verdict.VOID
    told = "lease.json: card-named: card cpu-slot-0 is 'core 0'; expected 'Intel(R) Arc(TM) Pro B70 Graphics'"
    assert text == told


def test_cards_and_disks_of_the_campaigns_kind_have_nothing_against_them(good: MachineEvidence) -> None:
    assert judge_machine(_placed(good), IDLE, HOST, SESSION, TERMS) == []
    assert judge_machine(good, IDLE, HOST, SESSION, LeaseTerms()) == []


RULED: dict[str, set[str]] = {
    "lease-recorded": {"no lease", "no look before", "no look after", "another lease", "looks of another lane"}
    | {"the look before as the look after"},
    "lease-of-this-session": {"everything of another lane", "another card"},
    "shows-its-cards": {"another card shown", "more shown", "another core", "every core"},
    "looks-around-the-tests": {
        "the look before with its phase changed",
        "a look before the attempt",
        "a look before that is among the tests",
        "a look after that is among the tests",
        "a look after the session",
    },
    "storage-internal": set(TERM_MUTANTS),
    "card-named": {"test_a_card_of_another_kind_is_found"},
    "records-as-written": {"test_a_record_that_is_not_as_it_was_written_is_found"},
}
"""By rule the mutants that it finds alone; the names of tests are of those that have no table."""

OF_OTHER_RULES = {"held", "left behind", "host out of limits"}
"""Of cards, processes and hosts, which have their mutants elsewhere: here it matters that they are asked."""


def test_every_rule_has_a_mutant() -> None:
    named = {name for names in RULED.values() for name in names}
    tables = {*MUTANTS, *IN_ITS_SESSION, *TERM_MUTANTS}
    assert tables - OF_OTHER_RULES == {name for name in named if not name.startswith("test_")}
    assert {name for name in named if name.startswith("test_")} <= globals().keys()


def test_cards_in_another_order_are_not_those_of_the_session(good: MachineEvidence) -> None:
    for cards in ([], ["0", "0"], ["1"], ["cpu-slot-1"], ["cpu-"], [""]):
        ((verdict, text),) = judge_machine(good, IDLE, HOST, dataclasses.replace(SESSION, cards=cards))
        assert verdict is Verdict.VOID
        assert text.startswith("lease.json: of cards ['0 (cpu-slot-0)']")


def test_a_damaged_file_makes_nothing_of_the_others_unread(tmp_path: Path) -> None:
    for place, content in (("a", b"{"), ("b", files.canonical_json(GOOD.model_copy(update=LEFT).canonical()))):
        (tmp_path / place).mkdir()
        (tmp_path / place / leased_cards.PROCESS).write_bytes(content)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / leased_cards.PROCESS).symlink_to(tmp_path / "nowhere")
    machine = read_machine(tmp_path)
    against = judge_processes(machine.processes, machine.damaged)
    assert [(verdict, text.partition(": ")[0]) for verdict, text in against] == [
        (Verdict.VOID, "a/process.json"),
        (Verdict.VOID, "c/process.json"),
        (Verdict.FAIL, "b/process.json"),
    ]
    assert against[1][1].startswith("c/process.json: cannot be read (Too many levels of symbolic links); expected a")


LEFT = {"leftovers": [FOUND]}


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
    record = GOOD.model_copy(update={"leftovers": [FOUND]})
    files.write_new(evidence / "only" / leased_cards.PROCESS, files.canonical_json(record.canonical()))


def _garble(evidence: Path) -> None:
    (evidence / "only").mkdir(mode=0o700)
    files.write_new(evidence / "only" / leased_cards.HOST, b"{}")


DAMAGES: list[tuple[Callable[[Path], None], Verdict, str]] = [
    (_delete, Verdict.NOT_PROVEN, "idle-after.json: missing"),
    (_hold, Verdict.FAIL, "idle-after.json: memory-at-baseline: card cpu-slot-0 uses 5 bytes"),
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
    analysis = files.read_canonical_json(attempt / root.ANALYSIS)
    assert isinstance(analysis, dict)
    assert analysis["verdict"] == verdict
    assert str(analysis["reason"]).startswith(reason)
