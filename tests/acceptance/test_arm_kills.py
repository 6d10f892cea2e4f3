# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of an arm's program, of one of its two ranks and of its supervisor, in each phase of an arm.

The exact diagnostic is carried out as a gate does it, under a real lease, real supervisors and real looks at cards and
host, and then sealed and judged; ``tests.arm_program`` has the real programs of the engine run with a small engine.
What one with real ranks says of the same kills stands in ``test_diagnostic_cpu.py``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.attempt.attempt import Attempt, Precondition
from pytest_laguna.attempt.options import GateOptions
from pytest_laguna.attempt.precondition import Gate
from pytest_laguna.campaign import parse_campaign
from pytest_laguna.engine import launch
from pytest_laguna.evidence import files, reading, root
from pytest_laguna.evidence.arms.arm_record import Arm
from pytest_laguna.evidence.arms.engine_identity import DiagnosticIdentity, ModelFiles
from pytest_laguna.evidence.diagnostic.analysis import DIRECTORY, NOTICE
from pytest_laguna.evidence.journal import read_journal
from pytest_laguna.evidence.schemas import Analysis, Identity, read_model
from pytest_laguna.machine import descent
from pytest_laguna.run import diagnostic
from pytest_laguna.run.arm_runner import ArmRunner
from pytest_laguna.run.engine_run import EngineRun, Models
from pytest_laguna.verdict import Verdict
from tests import arm_program, diagnostic_root, leased
from tests.diagnostic_project import ROOT, small_campaign
from tests.runner import bytecode
from tests.sealed import SOURCES, phase

pytestmark = pytest.mark.faults

BOUNDS = {"settle_seconds": "60.0", "interrupt_seconds": "1.0", "terminate_seconds": "1.0", "kill_seconds": "5.0"}
CAMPAIGN = small_campaign(
    decides='"exactness"\ninterpreter = "engine/bin/python"',
    layers=str(diagnostic_root.LAYERS),
    samples=str(diagnostic_root.SAMPLES),
    completion_tokens="272",
    seconds="0.05",
    deadline_seconds="1200.0",
    **BOUNDS,
)


class ArmGate:
    """An attempt at gate 2 on two cards, whose programs run with a small engine."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.project, self.reached = directory, directory / "reached"
        self.campaign = parse_campaign(CAMPAIGN.encode(), "campaign.toml")
        (directory / "campaign.toml").write_text(CAMPAIGN)
        chosen = GateOptions(
            gate=2,
            campaign=directory / "campaign.toml",
            lane=None,
            cards=(str(leased.SLOT), str(leased.SLOT + 1)),
            sealed_root=directory / "sealed",
            junit=None,
        )
        gate = Gate(chosen, self.campaign, "cpu", self.campaign.gate_clauses(2))
        digest = files.digest_of(SOURCES)
        identity = Identity(campaign=self.campaign.digest, candidate=digest, harness=digest)
        record: dict[str, Any] = {"candidate": SOURCES, "harness": SOURCES}
        self.attempt = Attempt(gate, Precondition(identity, record, None, []), plugins=[], arguments=["--gate=2"])
        settings = self.campaign.lanes["cpu"]
        self.held = leased.lease(directory / "leases", self.attempt.directory, settings.idle)
        evidence = self.attempt.directory / root.EVIDENCE
        self.runner = ArmRunner(
            self.held.lease.token,
            self.held.environment(),
            self.held.cores(self.held.cards),
            settings.bounds,
            bytecode(),
            evidence,
            self.held,
            attempt=self.attempt,
        )
        self.diagnostic = evidence / DIRECTORY
        self._stand_in(monkeypatch)

    def _stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A pair with nothing but its configuration, and an engine that was looked at."""
        pair = Models(self.project / "target", self.project / "draft", launch.TINY_PAIR_PROMPTS["letters"])
        for folder, config in (pair.target, diagnostic_root.TARGET_CONFIG), (pair.draft, diagnostic_root.DRAFT_CONFIG):
            folder.mkdir()
            (folder / "config.json").write_bytes(files.canonical_json(config))
        good = DiagnosticIdentity.model_validate(diagnostic_root.identity())

        def identity(*_: object, frozen: ModelFiles, models_around: Mapping[str, Any], **__: object) -> Any:
            return good.model_copy(update={"models": frozen, "models_around": dict(models_around)})

        monkeypatch.setattr(EngineRun, "models", lambda *_: contextlib.nullcontext(pair))
        monkeypatch.setattr(EngineRun, "describe", lambda *_: good.engine)
        monkeypatch.setattr(EngineRun, "look_again", lambda *_: good.engine_after)
        monkeypatch.setattr(EngineRun, "identity", identity)

    def write_engine(self, place: str, phase: str) -> None:
        """The interpreter that the campaign names, and the good records of the small engine."""
        records = self.project / "records"
        records.mkdir()
        tree = diagnostic_root.build([card.identity for card in self.held.cards], diagnostic_root.SAMPLES)
        for path, value in tree.items():
            if path.endswith("/record.json"):
                (records / f"{Path(path).parent.name}.json").write_text(json.dumps(value))
        for arm in Arm:
            if arm.graphs:
                for rank in range(2):
                    value = diagnostic_root.profile(arm, rank)
                    (records / f"{arm}-profile-{rank}.json").write_bytes(files.canonical_json(value))
        stage = {"records": str(records), "place": place, "phase": phase, "reached": str(self.reached)}
        (self.project / "stage.json").write_text(json.dumps(stage))
        engine = self.project / "engine" / "bin" / "python"
        engine.parent.mkdir(parents=True)
        program = f"from tests.arm_program import main; main({str(self.project / 'stage.json')!r}, *sys.argv[1:])"
        engine.write_text(f"#!{sys.executable} -B\nimport sys; sys.path.insert(0, {str(ROOT)!r}); {program}\n")
        engine.chmod(0o700)

    def carry_out(self) -> Analysis:
        """What the session does, whose every test says that it has proven its clause."""
        verdict, reason = self.held.begin(self.attempt)
        assert verdict is Verdict.PASS, reason
        run = EngineRun(
            self.campaign, "cpu", self.held, self.runner, self.attempt, self.diagnostic, project=self.project
        )
        diagnostic.carry_out(run)
        for nodeid in self.campaign.gate_clauses(2).values():
            self.attempt.append("test-started", nodeid=nodeid)
            self.attempt.append("phase", **phase(nodeid, "setup")[1])
            self.attempt.append("proof", nodeid=nodeid, statement="shown", observed={})
            for when in ("call", "teardown"):
                self.attempt.append("phase", **phase(nodeid, when)[1])
        leased.require_nothing_left(self.held, self.attempt)
        analysis = self.attempt.finish(0)
        assert analysis is not None, self.attempt.broken
        return analysis

    def started(self) -> list[str]:
        """The arms whose programs were started, in their order."""
        return [arm for arm in Arm if (self.diagnostic / reading.ARMS / arm / "request.json").exists()]

    def require_journal(self, arm: Arm) -> None:
        """See that the journal is whole, and holds the end of an arm's process."""
        events = read_journal(
            self.attempt.directory / root.JOURNAL, files.sha256_file(self.attempt.directory / root.ATTEMPT)
        )
        assert [events[0].kind, events[-1].kind] == ["session-started", "session-finished"]
        recorded = [event.data["path"] for event in events if event.kind == "recorded"]
        assert f"diagnostic/arms/{arm}/process.json" in recorded

    def left(self, arm: Arm) -> set[str]:
        """The files of an arm."""
        place = self.diagnostic / reading.ARMS / arm
        return {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}

    def plain(self, reason: str) -> str:
        """A reason without durations and directories."""
        return re.sub(r"after \d+\.\d s", "after a while", reason.replace(str(self.diagnostic), "..."))


VICTIMS: Mapping[str, Callable[[dict[str, Any]], int]] = {
    "program": lambda who: int(who["program"]),
    "rank": lambda who: int(who["ranks"][1]),
    "supervisor": lambda who: parent(int(who["program"])),
}


def parent(pid: int) -> int:
    process = descent.find(pid)
    assert process is not None
    return process.parent


@contextlib.contextmanager
def killed_when_reached(gate: ArmGate, victim: str) -> Iterator[None]:
    """Kill one of an arm's processes as soon as its program says that it is in its phase."""

    def kill() -> None:
        while not gate.reached.exists():
            time.sleep(0.005)
        os.kill(VICTIMS[victim](json.loads(gate.reached.read_text())), signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    yield
    killer.join(600.0)
    assert not killer.is_alive(), "the arm never came to its phase"


ALWAYS = {"request.json", "stdout.log", "stderr.log", "process.json", "host.json"}
WHOLE_ARM = ALWAYS | {"record.json", "idle.json"}
"""What an arm leaves that ended well, besides its profile."""
STACKS = {"rank-0-stack.txt", "rank-1-stack.txt"}
PHASES: dict[str, tuple[Arm, set[str]]] = {
    "starts": (Arm.Q1, set()),
    "loads": (Arm.Q1, STACKS),
    "captures": (Arm.GRAPH_CONTROL, STACKS),
    "resets": (Arm.Q1, STACKS),
    "generates": (Arm.Q1, STACKS),
    "profiles": (Arm.GRAPH_CONTROL, STACKS | {"profile/rank0.json"}),
    "reports": (Arm.Q1, STACKS),
    "ends": (Arm.Q1, {"record.json"}),
}
"""In which arm a phase is looked at, and what the arm itself has written in it; a real one has the same files."""
WHOLE = ("ends", "rank")
"""The record is written and the arm goes down: its program ends well without the rank."""
KEPT = {("loads", "supervisor"), ("generates", "program"), ("profiles", "rank")}
"""Cases of ``make test``: each victim once."""
CASES = [
    pytest.param(*case, marks=[pytest.mark.kept] if case in KEPT else [])
    for case in itertools.product(PHASES, VICTIMS)
    if case not in {("starts", "rank"), WHOLE}
]
"""A program that starts has no ranks yet."""


LOST = "proven-empty: supervisor-lost: not proven that all its processes have ended; expected proof"


def expected(phase: str, victim: str) -> str:
    """The gate's reason."""
    arm, _ = PHASES[phase]
    if victim == "supervisor":
        return f"diagnostic/arms/{arm}/process.json: {LOST}"
    after = list(Arm)[list(Arm).index(arm) + 1]
    missing = (
        f"identity-exact: models-unchanged: {after}: seen no check of the models around it; expected one; arms/{arm}: "
    )
    if (phase, victim) == ("ends", "program"):
        return f"{missing}ended-by-itself: exited, SIGKILL after a while"
    if victim == "program":
        ended = "exited, SIGKILL after a while: nothing on standard error"
    elif phase == "loads":
        both = "VllmWorker-0 ended by SIGKILL; VllmWorker-1 ended by SIGKILL"
        ended = f"exited, exit code 1 after a while: laguna-arm failed: Exception: {arm_program.BROKEN_START}; {both}"
    else:
        said = f"RuntimeError: {arm_program.BROKEN}; VllmWorker-1 ended by SIGKILL"
        ended = f"exited, exit code 1 after a while: laguna-arm failed: {said}"
    return f"{missing}no record: arm {arm} in .../arms/{arm}: {ended}"


@pytest.mark.parametrize(("phase", "victim"), CASES)
def test_an_arm_is_named_with_what_was_killed_in_it_and_no_other_runs(
    phase: str, victim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm, written = PHASES[phase]
    gate = ArmGate(tmp_path, monkeypatch)
    gate.write_engine(arm, phase)
    with killed_when_reached(gate, victim):
        analysis = gate.carry_out()
    told = f"{expected(phase, victim)} ({NOTICE})"
    assert (analysis.verdict, gate.plain(analysis.reason)) == (Verdict.NOT_PROVEN, told)
    assert gate.started() == list(Arm)[: list(Arm).index(arm) + 1]
    failure = set() if (phase, victim) == ("ends", "supervisor") else {"failure.json"}  # there the record stands
    traceback = {"record.traceback"} if victim == "rank" else set()
    assert gate.left(arm) == ALWAYS | written | failure | traceback
    if victim == "supervisor" and failure:
        said = read_model(gate.diagnostic / reading.ARMS / arm / reading.FAILURE, reading.Failure).reason
        assert gate.plain(said).startswith(f"arm {arm} in .../arms/{arm}: supervisor-lost, exit unknown after a while")
        assert said.endswith("; not proven that all its processes have ended")
    gate.require_journal(arm)


PACKETS = {
    "program": "identity-exact: models-unchanged: q1: seen no check of the models around it; expected one; "
    "packets/1: no record: packet 1 in .../packets/1: exited, SIGKILL after a while: nothing on standard error",
    "supervisor": f"diagnostic/packets/1/process.json: {LOST}",
}


@pytest.mark.parametrize("victim", PACKETS)
def test_a_packet_is_named_with_what_was_killed_in_it_and_no_arm_runs(
    victim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = ArmGate(tmp_path, monkeypatch)
    gate.write_engine("1", "compares")
    with killed_when_reached(gate, victim):
        analysis = gate.carry_out()
    assert (analysis.verdict, gate.plain(analysis.reason)) == (Verdict.NOT_PROVEN, f"{PACKETS[victim]} ({NOTICE})")
    assert gate.started() == []


@pytest.mark.kept
def test_a_rank_that_is_killed_when_all_is_written_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And by the rules that judge the real engine's files the small engine's are whole, for every arm and packet."""
    gate = ArmGate(tmp_path, monkeypatch)
    phase, victim = WHOLE
    gate.write_engine(PHASES[phase][0], phase)
    with killed_when_reached(gate, victim):
        analysis = gate.carry_out()
    assert (analysis.verdict, analysis.reason) == (Verdict.PASS, f"14 clauses proven ({NOTICE})")
    profiles = {"profile/rank0.json", "profile/rank1.json"}
    for arm in Arm:
        assert gate.left(arm) == WHOLE_ARM | (profiles if arm.graphs else set())
        gate.require_journal(arm)
