# SPDX-License-Identifier: Apache-2.0
"""The report of ``laguna doctor``: each lane's cards, engine and problems, and the leases, with remedies."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pydantic

from pytest_laguna.evidence.files import printable
from pytest_laguna.evidence.foreign_json import parse_foreign_json
from pytest_laguna.evidence.schemas import Schema
from pytest_laguna.evidence.values import Lane
from pytest_laguna.machine import leases
from pytest_laguna.machine.cards import Card
from pytest_laguna.machine.doctor_xpu import Check, XpuDoctor, XpuNeeds
from pytest_laguna.machine.errors import CardError, LeaseError
from pytest_laguna.machine.interpreter import UNLISTED, InterpreterError, ask, last_line, mend_unlisted
from pytest_laguna.machine.sources import card_source
from pytest_laguna.verdict import UnusableEvidenceError

DEADLINE_SECONDS = 180.0

_QUESTION = f"""
{UNLISTED}
import json, platform, torch, vllm
from vllm.platforms import current_platform
engine = dict(python=platform.python_version(), torch=torch.__version__, vllm=vllm.__version__)
print(json.dumps(dict(engine=engine | dict(device=current_platform.device_type), unlisted=unlisted())))
"""
"""Only an import tells a working engine from an installed one; it may create a device context, so it runs alone."""


class Problem(Schema):
    """One defect, ``seen X; expected Y`` on one line, and its remedy."""

    found: str
    mend: str


class Engine(Schema):
    """Versions and device type of a lane's interpreter, after it imported torch and vLLM."""

    python: str
    torch: str
    vllm: str
    device: str


class _Answer(Schema):
    engine: Engine
    unlisted: list[str]


class CardReport(Schema):
    """A card as listed; see ``Card``."""

    ordinal: int
    identity: str
    name: str
    memory_bytes: int


class LaneReport(Schema):
    """A lane on this host.

    Attributes:
        interpreter: the engine's Python.
        engine: None if it did not answer, and on the xpu lane, whose checks cover it.
        problems: reasons why the lane is not ready.
        checks: every prerequisite of the xpu lane, met or not.
    """

    lane: Lane
    interpreter: str
    cards: list[CardReport]
    engine: Engine | None
    problems: list[Problem]
    checks: list[Check] = pydantic.Field(default_factory=list)


class LeaseReport(Schema):
    """A card once leased on this machine; ``stale`` is quarantined until a sweep and an idle proof."""

    identity: str
    state: Literal["held", "released", "stale"]
    record: str


class DoctorReport(Schema):
    """The doctor's findings.

    Attributes:
        problems: of the leases; they keep every gate from its cards.
        remarks: stale leases, which the next gate clears itself, and stray files among the leases, which block nobody.
    """

    file_schema: Literal["pytest-laguna-doctor-v1"] = pydantic.Field("pytest-laguna-doctor-v1", alias="schema")
    lanes: list[LaneReport]
    leases: list[LeaseReport]
    problems: list[Problem]
    remarks: list[Problem]

    def ready(self, lane: str) -> bool:
        """True if a gate can run on the lane."""
        found = [report for report in self.lanes if report.lane == lane]
        return bool(found) and not found[0].problems and not self.problems

    def to_json(self) -> str:
        """Return the report as one JSON object with a final line feed."""
        return json.dumps(self.canonical(), indent=2) + "\n"

    def to_text(self) -> str:
        """Return the report for people, with a final line feed."""
        lines = []
        for report in self.lanes:
            lines.append(f"{report.lane}: {'ready' if self.ready(report.lane) else 'not ready'}")
            lines += [f"  card {card.ordinal} = {card.identity} ({card.name})" for card in report.cards]
            if report.engine is not None:
                engine = report.engine
                lines.append(f"  Python {engine.python}, torch {engine.torch}, vLLM {engine.vllm} on {engine.device}")
            lines += [f"  {check.name}: {check.found}" for check in report.checks if check.mend is None]
            lines += _mending(report.problems)
            lines += ["  - leases: seen problems; expected none; see below"] * bool(self.problems)
        current = [lease for lease in self.leases if lease.state != "released"]
        lines.append("leases:" if current else "leases: none")
        lines += [f"  {lease.identity}: {lease.state}: {lease.record}" for lease in current]
        lines += _mending([*self.problems, *self.remarks])
        return "".join(f"{line}\n" for line in lines)


def _mending(problems: list[Problem]) -> list[str]:
    return [line for problem in problems for line in (f"  - {problem.found}", f"    fix: {problem.mend}")]


def diagnose(
    interpreters: Mapping[Lane, Path], *, directory: Path | None = None, needs: XpuNeeds | None = None
) -> DoctorReport:
    """Examine lanes and leases; nothing is changed and no device context is created in this process.

    ``interpreters`` has the engine's Python of each lane to examine; ``needs`` are a campaign's demands on an XPU's
    host, None for those of every campaign.
    """
    found, problems, remarks = _leases(directory)
    asked = needs or XpuNeeds(settings=None, sealed_root=Path("sealed"), project=Path())
    engines = functools.cache(_ask)  # lanes may share an interpreter, which takes seconds to answer
    lanes = [
        _xpu_lane(XpuDoctor(interpreter, asked)) if lane == "xpu" else _lane(lane, interpreter, engines(interpreter))
        for lane, interpreter in interpreters.items()
    ]
    return DoctorReport(lanes=lanes, leases=found, problems=problems, remarks=remarks)


def _xpu_lane(doctor: XpuDoctor) -> LaneReport:
    checks = doctor.look()
    problems = [
        Problem(found=f"{check.name}: {check.found}", mend=check.mend) for check in checks if check.mend is not None
    ]
    try:
        cards = [_reported(card) for card in doctor.source.discover()]
    except (CardError, UnusableEvidenceError):  # a check reports it
        cards = []
    interpreter = str(doctor.interpreter)
    return LaneReport(lane="xpu", interpreter=interpreter, cards=cards, engine=None, problems=problems, checks=checks)


def _lane(lane: Lane, interpreter: Path, answer: _Answer | Problem) -> LaneReport:
    problems: list[Problem] = []
    cards: list[CardReport] = []
    try:
        cards = [_reported(card) for card in card_source(lane, ()).discover()]
        if not cards:
            problems.append(Problem(found=f"{lane}: seen no card; expected one", mend=_SEE_CARDS[lane]))
    except CardError as error:
        problems.append(Problem(found=error.found, mend=error.mend))
    engine = None
    if isinstance(answer, Problem):
        problems.append(Problem(found=f"{lane}: {answer.found}", mend=answer.mend.replace("LANE", lane)))
    else:
        engine = answer.engine
        if engine.device != lane:
            found = f"{lane}: seen vLLM {engine.vllm} of {interpreter} on {engine.device!r}; expected {lane!r}"
            problems.append(Problem(found=found, mend=f"{interpreter} -m pip install 'pytest-laguna[{lane}]'"))
        for found, mend in map(mend_unlisted, answer.unlisted):
            problems.append(Problem(found=f"{lane}: {found}", mend=mend))
    return LaneReport(lane=lane, interpreter=str(interpreter), cards=cards, engine=engine, problems=problems)


def _reported(card: Card) -> CardReport:
    return CardReport(ordinal=card.ordinal, identity=card.identity, name=card.name, memory_bytes=card.memory_bytes)


_SEE_CARDS: Mapping[Lane, str] = {"cpu": "nproc", "cuda": "nvidia-smi -L", "xpu": "xpu-smi discovery"}


def _ask(interpreter: Path) -> _Answer | Problem:
    try:
        done = ask(interpreter, _QUESTION, deadline_seconds=DEADLINE_SECONDS)
    except InterpreterError as error:
        return Problem(found=error.found, mend=error.mend)
    install = f"{interpreter} -m pip install 'pytest-laguna[LANE]'"
    if done.returncode != 0:
        found = f"{interpreter}: seen {last_line(done.stderr)}; expected its engine imported"
        return Problem(found=found, mend=install)
    try:
        answer = parse_foreign_json(last_line(done.stdout), str(interpreter))
        return _Answer.model_validate(answer, strict=True)
    except (UnusableEvidenceError, pydantic.ValidationError):
        return Problem(found=f"{interpreter}: seen {done.stdout!r}; expected its versions", mend=install)


def _leases(directory: Path | None) -> tuple[list[LeaseReport], list[Problem], list[Problem]]:
    try:
        states, defects = leases.states(directory), leases.defects(directory)
        strays = leases.strays(directory)
    except LeaseError as error:
        return [], [Problem(found=error.found, mend=error.mend)], []
    reports = []
    problems = [Problem(found=error.found, mend=error.mend) for error in defects]
    remarks = [
        Problem(found=f"{stray}: seen no card's name; expected one", mend="its owner or root may delete it")
        for stray in map(printable, map(str, strays))
    ]
    for state in states:
        record = state.record
        shown: Literal["held", "released", "stale"] = "held" if state.held else "stale" if state.stale else "released"
        reports.append(LeaseReport(identity=record.identity, state=shown, record=str(record)))
        if shown == "stale":
            found = f"card {record.identity} is quarantined: seen no release by its last owner; expected one"
            mend = f"start a gate on it: it ends the bearers of token {record.token} and proves the card idle first"
            remarks.append(Problem(found=found, mend=mend))
    return reports, problems, remarks
