# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of a leg's server, of its rank and of its supervisor, in each phase of a leg.

The crossover's own legs run under a real lease and real supervisors. Each server is the small one with its rank as a
process of its own; in B2 one of the three is killed, and what follows from that is awaited before anything goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.endpoint import leg, ranks, sockets
from pytest_laguna.endpoint.client import Client
from pytest_laguna.evidence.endpoint import reader
from pytest_laguna.experiments.endpoint import EXPERIMENT
from pytest_laguna.experiments.experiment import derive_from_files, read_attempted
from pytest_laguna.machine import descent, leases
from pytest_laguna.run.arm_runner import RunningProgram
from pytest_laguna.verdict import Verdict
from tests import leased
from tests.acceptance.test_endpoint_bad_input import CAMPAIGN_READ, CLOSED, LEGS, MISSING, Gate
from tests.diagnostic_project import ROOT

pytestmark = pytest.mark.faults

BEFORE: dict[str, tuple[object, str, int]] = {
    "ready": (sockets, "find_listener", 1),
    "before the suite": (leg._Leg, "_scrape", 1),
    "between rows": (Client, "ask", 2),
    "after the last row": (leg._Leg, "_scrape", 2),
    "before the last states": (ranks.Ranks, "served", 1),
}
"""Phases of B2 that end with the controller's call of this function for the so many-th time."""
MODES = {"captured": "ranked-never-ready", "in a row": "ranked-hang", "stopped": "ranked-slow"}


class KilledGate(Gate):
    """A crossover in whose B2 one process is killed in a phase."""

    def __init__(self, directory: Path, phase: str, victim: str, monkeypatch: pytest.MonkeyPatch) -> None:
        modes = dict.fromkeys(LEGS, "ranked") | {"03-B2": MODES.get(phase, "ranked")}
        super().__init__(directory, modes, monkeypatch)
        self.held = leased.lease(directory / "leases", self.attempt, CAMPAIGN_READ.lanes["cpu"].idle)
        self.runner = dataclasses.replace(self.runner, token=self.held.lease.token)
        self.phase, self.victim = phase, victim
        self.server: RunningProgram | None = None
        self.killer: threading.Thread | None = None
        self.has_killed = False
        self.place = self.endpoint / reader.LEGS / "03-B2"
        if phase in BEFORE:
            where, name, number = BEFORE[phase]
            monkeypatch.setattr(where, name, self._counted(getattr(where, name), number))

    def _counted(self, original: Callable[..., Any], number: int) -> Callable[..., Any]:
        calls = itertools.count(1)

        def counted(*arguments: Any, **keywords: Any) -> Any:
            if self.server is None or next(calls) != number:
                return original(*arguments, **keywords)
            self.kill(self.server)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ranks, "ANSWER_SECONDS", 0.3)  # for a rank of which nobody is there to answer
                return original(*arguments, **keywords)

        return counted

    @contextlib.contextmanager
    def _start(self, *arguments: Any) -> Iterator[RunningProgram]:
        with super()._start(*arguments) as server:
            if arguments[2].name != "03-B2":
                yield server
                return
            awaited = {
                "in a row": Path(arguments[1]["LAGUNA_RANK_PIPES"]) / "hanging",
                "stopped": Path(arguments[1]["LAGUNA_RANK_PIPES"]) / "stopping",
            }
            if self.phase == "starts":
                self.kill(server)
            elif self.phase == "captured":
                wait_for((self.place / "ranks" / "rank-0-captured.json").exists)
                self.kill(server)
            elif self.phase in awaited:
                killing = (server, awaited[self.phase])
                self.killer = threading.Thread(target=self._kill_later, args=killing, daemon=True)
                self.killer.start()
            self.server = server
            try:
                yield server
            finally:
                self.server = None

    def carry_out(self) -> None:
        super().carry_out()
        if self.killer is not None:
            self.killer.join(PATIENCE)
        assert self.has_killed, f"nobody was killed: the leg never came to its phase, {self.phase}"

    def _kill_later(self, server: RunningProgram, path: Path) -> None:
        wait_for(path.exists)
        self.kill(server)

    def kill(self, server: RunningProgram) -> None:
        """Each of the three takes the others along; but for one that ends anyway, all have ended on return."""
        pids = {"controller": os.getpid(), "server": server.pid, "supervisor": server.supervised.supervisor_pid}
        state = self.place / "ranks" / "rank-0-captured.json"
        if state.exists():
            pids["rank"] = json.loads(state.read_bytes())["pid"]
        assert descent.find(pids[self.victim]) is not None
        os.kill(pids[self.victim], signal.SIGKILL)
        self.has_killed = True
        ends = [pid for name, pid in pids.items() if name in {"server", "rank"}]
        if self.phase == "stopped":
            return
        if self.victim == "supervisor":
            wait_for(lambda: not any(map(descent.find, ends)))
        else:  # and are collected, so that nothing of them is to be seen any more
            wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ends))

    def plain(self, reason: str) -> str:
        said = re.sub(r"\{'original_status': 0, (.*), 'idle_status': 0\}", r"{..., \1, ...}", super().plain(reason))
        # A broken answer comes with the server's end, and the leg's word to stop it right after.
        return said.replace("its server: stopped", "its server: exited") if self.phase == "in a row" else said


PATIENCE = 600.0
"""Seconds after which a test gives up; all that it waits for takes less than one on a quiet machine."""


def wait_for(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


ENDED_EARLY = "server in .../legs/03-B2: ended before it was ready: "
REFUSED = "on port ...: no answer: [Errno 111] Connection refused"
REASONS = {
    "starts": f"{ENDED_EARLY}nothing on standard error",
    "captured": f"{ENDED_EARLY}nothing on standard error",
    "ready": "port ...: seen none of the processes [...]; expected the server's",
    "before the suite": f"metrics-before-suite.prom: GET /metrics {REFUSED}",
    "in a row": f"row 1 (two): seen 1 events, then broken off: {CLOSED}; expected a whole answer",
    "between rows": f"row 1 (two): POST /v1/chat/completions {REFUSED}",
    "after the last row": f"metrics-after-suite.prom: GET /metrics {REFUSED}",
    "before the last states": "rank-0.ask: nobody waits there; expected rank 0 of the server to wait to be asked",
}
"""What the leg itself meets, by the phase in which its server ended."""
KEPT = {"in a row"}
"""The phase that ``make test`` has too."""
DEAD = "EngineDeadError: EngineCore encountered an issue."
ENDS = {"server": "exited, SIGKILL after a while", "rank": "exited, exit code 1 after a while"}
"""What becomes of a server that is killed, and of one that ends since its rank was."""
LOST = "proven-empty: supervisor-lost: not proven that all its processes have ended; expected proof"
CASES = [
    pytest.param(*case, marks=[pytest.mark.kept] if case[0] in KEPT else [])
    for case in itertools.product(REASONS, (*ENDS, "supervisor"))
    if case != ("starts", "rank")
]
"""A server that starts has no rank yet."""


@pytest.mark.parametrize(("phase", "victim"), CASES)
def test_a_leg_is_named_with_what_was_killed_in_it_and_its_a2_runs(
    phase: str, victim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = KilledGate(tmp_path, phase, victim, monkeypatch)
    gate.carry_out()
    leased.require_nothing_left(gate.held)
    assert gate.started == LEGS
    evidence = reader.read_legs(gate.endpoint)
    assert ([*evidence.ended], len(evidence.legs)) == (["03-B2"], 3)
    met = REASONS[phase]
    if (phase, victim) == ("captured", "rank"):
        met = f"{ENDED_EARLY}{DEAD}"
    if victim != "supervisor":  # without one a server that has ended may still be seen
        assert gate.plain(gate.end("03-B2").reason).partition(": ")[2] == met
    verdict, reason = (
        (Verdict.NOT_PROVEN, LOST) if victim == "supervisor" else (Verdict.VOID, f"{met}; its server: {ENDS[victim]}")
    )
    assert gate.ended("03-B2") == (verdict, reason)
    of_gate, told = gate.clause("legs-in-order")
    assert (of_gate, gate.plain(told)) == (Verdict.NOT_PROVEN, f"{MISSING}; 03-B2: {reason}")


TOLD = "expected its end by a stop, without a kill"
NOBODY_KNOWS = "expected proof that no process is left"
STOPPED: dict[str, list[tuple[str, Verdict, str]]] = {
    "server": [
        (
            "cleanup-clean",
            Verdict.VOID,
            "cleanup: seen {..., 'stop_status': 1, 'worker_status': 0, ...}, no reason; expected zeros",
        ),
        (
            "server-ended",
            Verdict.VOID,
            "the server: seen stopped, SIGKILL after a while; " + TOLD,
        ),
    ],
    "rank": [],
    "supervisor": [
        (
            "cleanup-clean",
            Verdict.NOT_PROVEN,
            "cleanup: seen {..., 'stop_status': 1, 'worker_status': 1, ...}; " + NOBODY_KNOWS,
        ),
        ("server-ended", Verdict.NOT_PROVEN, LOST),
    ],
}
"""What speaks against a leg in whose last moments one was killed: all that it says of itself is written then."""


@pytest.mark.kept
@pytest.mark.parametrize("victim", STOPPED)
def test_a_leg_whose_server_is_killed_while_it_is_being_stopped_keeps_its_record(
    victim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that is killed then changes nothing: the server ends by itself when it was told to, and leaves nothing."""
    gate = KilledGate(tmp_path, "stopped", victim, monkeypatch)
    gate.carry_out()
    leased.require_nothing_left(gate.held)
    assert gate.started == LEGS
    evidence = reader.read_legs(gate.endpoint)
    assert (len(evidence.legs), evidence.ended) == (4, {})
    found = [
        (rule, verdict, gate.plain(reason))
        for rule in ("cleanup-clean", "server-ended")
        for verdict, where, reason in gate.found(rule)
        if verdict is not Verdict.PASS and where == "block 1 B2"
    ]
    assert found == STOPPED[victim]
    assert derive_from_files(EXPERIMENT, read_attempted(gate.attempt)).clauses["legs-in-order"] is None


CONTROLLER = """
import sys
from pathlib import Path
import pytest
from tests import leased
from tests.acceptance.test_leg_kills import KilledGate
leased.SLOT = int(sys.argv[3])
with pytest.MonkeyPatch.context() as patch:
    KilledGate(Path(sys.argv[1]), sys.argv[2], "controller", patch).carry_out()
"""


@pytest.mark.parametrize(
    "phase", [pytest.param(name, marks=[pytest.mark.kept] if name in KEPT else []) for name in (*REASONS, "stopped")]
)
def test_a_controller_that_is_killed_in_a_leg_leaves_no_process_and_the_lease_to_the_next(
    phase: str, tmp_path: Path
) -> None:
    argv = [sys.executable, "-c", CONTROLLER, str(tmp_path), phase, str(leased.SLOT)]
    ended = subprocess.run(argv, cwd=ROOT, check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    left = list(leases.states(tmp_path / "leases"))
    assert [(state.held, state.record.state) for state in left] == [(False, "held")] * 2
    wait_for(lambda: descent.bearers(left[0].record.token) == [])
    [legs] = tmp_path.glob(f"**/{reader.DIRECTORY}/{reader.LEGS}")
    assert sorted(leg.name for leg in legs.iterdir()) == LEGS[:3]
    assert (legs / "03-B2" / "stderr.log").exists()
    leased.require_nothing_left(leased.lease(tmp_path / "leases", tmp_path / "next", CAMPAIGN_READ.lanes["cpu"].idle))
