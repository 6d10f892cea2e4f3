# SPDX-License-Identifier: Apache-2.0
"""What gate 3 may conclude from legs that cannot be used, and from cards that are not idle."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.analysis.endpoint import analyse_endpoint
from pytest_laguna.analysis.endpoint.clauses import judge_clauses
from pytest_laguna.analysis.machine.idle import judge_idle
from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.endpoint import reader
from pytest_laguna.evidence.machine.idle import IdleRecord, IdleRequirement, SeenProcess
from pytest_laguna.experiments.endpoint import EXPERIMENT
from pytest_laguna.experiments.experiment import derive_from_files, read_attempted
from pytest_laguna.run import endpoint as crossover
from pytest_laguna.verdict import Verdict
from tests import endpoint_legs as lab
from tests.mutants.test_endpoint_derivation import ran  # noqa: F401 - a fixture
from tests.sealed import idle_record
from tests.unit.test_crossover import Case, make  # noqa: F401 - a fixture

Leg = dict[str, Any]


def warm(legs: list[Leg]) -> None:
    legs[0]["counters_after"]["prefix_cache_hits"] = 16


def unseen(legs: list[Leg]) -> None:
    legs[0]["end"]["cleanup"]["idle_status"] = None


def unlooked(legs: list[Leg]) -> None:
    legs[1]["sockets"].pop()


def lying(legs: list[Leg]) -> None:
    legs[1]["counters_after"]["decode_count"] = 14


@pytest.mark.parametrize("change", [warm, unseen, unlooked, lying])
def test_two_legs_that_cannot_be_used_are_no_measured_negative(change: Callable[[list[Leg]], None]) -> None:
    """Nothing says no here: the pair is ahead by every rule of time, and the evidence of one leg is unusable."""
    legs = lab.legs(lab.metadata_starts())[:2]
    change(legs)
    judged = analyse_endpoint(lab.plan(), lab.records(legs), teacher=lab.TEACHER, campaign=lab.CAMPAIGN)
    found = judge_clauses(judged, {})
    closing = {clause: finding for clause, finding in found.items() if finding[0].closes}
    assert closing == {}


STRANGER = SeenProcess(pid=4711, start_ticks=99, command="python x.py", carries_token=False, seen_by="device node")
IDLE = IdleRequirement(snapshots=2, seconds=0.5, memory_bytes=0, foreign_workers=False)


def held_by_a_stranger(phase: Any) -> IdleRecord:
    record = idle_record(phase)
    looks = [
        look.model_copy(update={"cards": [card.model_copy(update={"holders": [STRANGER]}) for card in look.cards]})
        for look in record.snapshots
    ]
    return record.model_copy(update={"snapshots": looks})


@pytest.mark.parametrize("sequence", [1, 2, 3])
def test_no_leg_starts_while_a_stranger_holds_a_card(
    sequence: int,
    make: Callable[..., Case],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The looks are those that ``LeasedCards.take_idle`` gives of such a card: it raises nothing."""
    case = make()
    monkeypatch.setattr(crossover, "judge_idle", judge_idle)
    held = case.run.held
    held.idle = IDLE  # type: ignore[assignment]
    taken = []

    def take_idle(phase: Any, _: object) -> IdleRecord:
        taken.append(phase)
        busy = phase == "before" and taken.count("before") == sequence
        return held_by_a_stranger(phase) if busy else idle_record(phase)

    held.take_idle = take_idle  # type: ignore[method-assign]
    assert judge_idle(held_by_a_stranger("before"), IDLE)[0] is Verdict.NOT_PROVEN
    assert case.carry_out() == ["01-A1", "02-B1", "03-B2", "04-A2"][: sequence - 1]


def test_a_stranger_on_a_card_after_a_leg_breaks_no_contract_of_ours(
    make: Callable[..., Case],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a stranger did makes the evidence unusable (VOID), by ``analysis.idle``; a FAIL closes the campaign."""
    case = make()
    monkeypatch.setattr(crossover, "judge_idle", judge_idle)
    case.run.held.idle = IDLE  # type: ignore[assignment]
    case.run.held.take_idle = lambda phase, _: held_by_a_stranger(phase)  # type: ignore[method-assign]
    assert judge_idle(held_by_a_stranger("after"), IDLE)[0] is Verdict.VOID
    seen = case.legs._idle_after(1)
    legs = lab.legs(lab.metadata_starts())
    legs[0]["end"]["cleanup"]["idle_status"] = None if seen is None else int(not seen)
    judged = analyse_endpoint(lab.plan(), lab.records(legs), teacher=lab.TEACHER, campaign=lab.CAMPAIGN)
    assert not judge_clauses(judged, {})["legs-fresh"][0].closes


def write_idle(endpoint: Path, sequence: int, phase: Any, record: IdleRecord) -> None:
    files.write_new(reader.idle_file(endpoint, sequence, phase), files.canonical_json(record.canonical()))


def test_cards_that_an_ended_leg_left_busy_are_not_proven_idle(
    ran: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The second leg broke off, and its own process still held the card afterwards: its looks are there and say so."""
    shutil.copytree(ran, tmp_path / "0001")
    endpoint = tmp_path / "0001" / root.EVIDENCE / reader.DIRECTORY
    leg = reader.leg_directory(endpoint, 2, "B1")
    (leg / "leg.json").unlink()
    (leg / "failure.json").write_bytes(b'{"reason":"row 1 broke off"}')
    end = (leg / "end.json").read_bytes()
    (leg / "end.json").write_bytes(end.replace(b'"idle_status":0', b'"idle_status":1'))
    (endpoint / reader.PHASE_1).unlink()
    for phase in reader.PHASES:
        write_idle(endpoint, 1, phase, idle_record(phase))
    ours = STRANGER.model_copy(update={"carries_token": True})
    busy = held_by_a_stranger("after")
    looks = [
        look.model_copy(update={"cards": [card.model_copy(update={"holders": [ours]}) for card in look.cards]})
        for look in busy.snapshots
    ]
    write_idle(endpoint, 2, "before", idle_record("before"))
    write_idle(endpoint, 2, "after", busy.model_copy(update={"snapshots": looks}))
    clauses = derive_from_files(EXPERIMENT, read_attempted(tmp_path / "0001")).clauses
    assert clauses["cards-idle"] is not None
    assert clauses["cards-idle"][0] is Verdict.FAIL
