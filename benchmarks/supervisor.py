# SPDX-License-Identifier: Apache-2.0
"""Time until everything has ended after the death of a controller, supervisor or child.

``python -m benchmarks.supervisor``: every run starts a controller, its supervisor and a child that is hard to end, lets
one of them die, and watches every process from outside by its pidfd. The runs go through the cases in turn:

* ``owner killed``: SIGKILL of the controller, with each kind of child; also while it starts the child.
* ``supervisor killed``: SIGKILL of the supervisor, the controller lives and is busy with something else.
* ``both killed``: and a sweep by token, as the next start does it.
* ``interrupt``: Ctrl-C while the child is started, while it runs, and a second one while it is stopped.
* ``child dies``: at once, and leaves a daemon.

``median_ms`` and ``max_ms`` are over the runs in which the controller is killed: from the signal to the end of the last
process below it, its supervisor included. ``cases`` has the same for each case; there the time is from the last signal
that the case sends. ``start_overhead_ms`` is the difference of medians between a supervised ``/bin/true`` and a bare
one, both from start to collected exit, in turn.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_laguna.machine.command import Command, Ladder, new_token
from pytest_laguna.machine.process import SupervisedProcess, run
from pytest_laguna.machine.sweep import sweep
from tests.supervised.child import wait_for_files
from tests.supervised.observer import Owner, wait_without_bearers, watch
from tests.supervised.owner import command

BARS = {"survivors": 0, "median_ms": 100.0, "max_ms": 250.0, "start_overhead_ms": 40.0}
GIVEN_UP_SECONDS = 20.0
SWEEP_SECONDS = 5.0
START_REPEATS = 41
LONG_LADDER_SECONDS = 600.0
SHORT_LADDER_SECONDS = 0.05


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One run: how many processes were left, and the milliseconds until the last had ended."""

    survivors: int
    milliseconds: float


def owner_killed(kind: str, directory: Path) -> Outcome:
    """SIGKILL of a controller whose child runs."""
    with Owner(kind, directory) as owner:
        owner.heard("starting")
        with watch(directory, kind, int(owner.heard("running")[0])) as watched:
            started = time.perf_counter()
            owner.process.kill()
            left = watched.wait_until_gone(GIVEN_UP_SECONDS)
            elapsed = time.perf_counter() - started
        return _outcome(owner.token, len(left), elapsed)


def owner_killed_while_starting(directory: Path) -> Outcome:
    """SIGKILL of a controller somewhere between its supervisor's exec and its child's."""
    with Owner("double-fork", directory) as owner:
        owner.heard("starting")
        time.sleep(random.uniform(0, 0.04))  # noqa: S311 - no secret
        started = time.perf_counter()
        owner.process.kill()
        wait_without_bearers(owner.token, GIVEN_UP_SECONDS)
        return _outcome(owner.token, 0, time.perf_counter() - started)


def supervisor_killed(kind: str, directory: Path) -> Outcome:
    """SIGKILL of a supervisor whose controller does not wait for it."""
    token = new_token()
    with SupervisedProcess(command(kind, directory), token) as process, watch(directory, kind) as watched:
        started = time.perf_counter()
        os.kill(process.supervisor_pid, signal.SIGKILL)
        left = watched.wait_until_gone(GIVEN_UP_SECONDS)
        elapsed = time.perf_counter() - started
    return _outcome(token, len(left), elapsed)


def both_killed(kind: str, directory: Path) -> Outcome:
    """SIGKILL of both before the supervisor can act, then the sweep of the next start."""
    with Owner(kind, directory) as owner:
        owner.heard("starting")
        supervisor_pid = int(owner.heard("running")[0])
        with watch(directory, kind, supervisor_pid) as watched:
            os.kill(supervisor_pid, signal.SIGSTOP)
            owner.process.kill()
            os.kill(supervisor_pid, signal.SIGKILL)
            started = time.perf_counter()
            sweep(owner.token, seconds=SWEEP_SECONDS)
            left = watched.wait_until_gone(GIVEN_UP_SECONDS)
            elapsed = time.perf_counter() - started
        return _outcome(owner.token, len(left), elapsed)


def interrupted_while_starting(directory: Path) -> Outcome:
    """Ctrl-C somewhere between the supervisor's exec and the child's."""
    with Owner("ignores-signals", directory, SHORT_LADDER_SECONDS) as owner:
        owner.heard("starting")
        time.sleep(random.uniform(0, 0.04))  # noqa: S311 - no secret
        started = time.perf_counter()
        owner.process.send_signal(signal.SIGINT)
        owner.process.wait()
        return _outcome(owner.token, 0, time.perf_counter() - started)


def interrupted_while_running(kind: str, directory: Path) -> Outcome:
    """Ctrl-C while the child runs."""
    with Owner(kind, directory, SHORT_LADDER_SECONDS) as owner:
        owner.heard("starting")
        with watch(directory, kind, int(owner.heard("running")[0])) as watched:
            started = time.perf_counter()
            owner.process.send_signal(signal.SIGINT)
            left = watched.wait_until_gone(GIVEN_UP_SECONDS)
            elapsed = time.perf_counter() - started
        return _outcome(owner.token, len(left), elapsed)


def interrupted_while_stopping(directory: Path) -> Outcome:
    """A second Ctrl-C, early in a ladder that would take many minutes."""
    with Owner("notes-signals", directory, LONG_LADDER_SECONDS) as owner:
        owner.heard("starting")
        with watch(directory, "notes-signals", int(owner.heard("running")[0])) as watched:
            owner.process.send_signal(signal.SIGINT)
            while not (directory / "pids" / "signals").exists():
                time.sleep(0.002)
            started = time.perf_counter()
            owner.process.send_signal(signal.SIGINT)
            left = watched.wait_until_gone(GIVEN_UP_SECONDS)
            elapsed = time.perf_counter() - started
        return _outcome(owner.token, len(left), elapsed)


def child_dies(directory: Path) -> Outcome:
    """A child that ends at once and leaves a daemon that ignores every signal but one."""
    token = new_token()
    with SupervisedProcess(command("leaves-a-daemon", directory, SHORT_LADDER_SECONDS), token) as process:
        wait_for_files(directory / "pids", 1)
        started = time.perf_counter()
        record = process.wait()
        elapsed = time.perf_counter() - started
    return _outcome(token, len(record.survivors), elapsed)


def _outcome(token: str, left: int, seconds: float) -> Outcome:
    """Count who still bears the token as well, and clean up after a run that failed."""
    bearers = wait_without_bearers(token, SWEEP_SECONDS)
    if bearers:
        sweep(token, seconds=SWEEP_SECONDS)
    return Outcome(max(left, len(bearers)), seconds * 1000)


Case = Callable[[Path], Outcome]


def _cases() -> dict[str, Case]:
    def bound(case: Callable[[str, Path], Outcome], kind: str) -> Case:
        return lambda directory: case(kind, directory)

    kinds = ("plain", "new-session", "double-fork", "ignores-signals", "stuck-at-start", "retitled", "forks-for-ever")
    cases = {f"owner killed, {kind}": bound(owner_killed, kind) for kind in kinds}
    cases["owner killed, while starting"] = owner_killed_while_starting
    cases |= {
        f"supervisor killed, {kind}": bound(supervisor_killed, kind) for kind in ("double-fork", "retitled", "plain")
    }
    cases["both killed, retitled"] = bound(both_killed, "retitled")
    cases["child dies at once, daemon left"] = child_dies
    cases["interrupt, while starting"] = interrupted_while_starting
    cases["interrupt, running"] = bound(interrupted_while_running, "double-fork")
    cases["interrupt, while stopping"] = interrupted_while_stopping
    return cases


def start_overhead_ms() -> dict[str, float]:
    """Milliseconds that a trivial child costs, bare and supervised, and their difference."""
    timings: dict[str, list[float]] = {"bare": [], "supervised": []}
    with tempfile.TemporaryDirectory(prefix="laguna-") as parent:
        for repeat in range(START_REPEATS):
            directory = Path(parent) / str(repeat)
            directory.mkdir()
            request, token = _trivial(directory), new_token()
            timings["bare"].append(_timed(subprocess.run, ["/bin/true"]))
            timings["supervised"].append(_timed(run, request, token))
    medians = {name: statistics.median(values) for name, values in timings.items()}
    return {
        "start_overhead_ms": medians["supervised"] - medians["bare"],
        "bare_ms": medians["bare"],
        "supervised_ms": medians["supervised"],
    }


def _trivial(directory: Path) -> Command:
    ladder = Ladder(interrupt_seconds=1, terminate_seconds=1, kill_seconds=1)
    return Command(
        argv=("/bin/true",),
        environment={},
        directory=directory,
        deadline_seconds=60,
        ladder=ladder,
        settle_seconds=1,
    )


def _timed(body: Callable[..., object], *arguments: object) -> float:
    started = time.perf_counter()
    body(*arguments)
    return (time.perf_counter() - started) * 1000


def measure(runs: int) -> dict[str, Any]:
    """Go through the cases in turn until there are enough runs."""
    cases = _cases()
    outcomes: dict[str, list[Outcome]] = {name: [] for name in cases}
    names = list(cases)
    for number in range(runs):
        name = names[number % len(names)]
        with tempfile.TemporaryDirectory(prefix="laguna-") as directory:
            outcomes[name].append(cases[name](Path(directory)))
    deaths = [outcome.milliseconds for name, found in outcomes.items() if name.startswith("owner") for outcome in found]
    return {
        "schema": "laguna-supervisor-benchmark-v1",
        "runs": runs,
        "survivors": sum(outcome.survivors for found in outcomes.values() for outcome in found),
        "median_ms": statistics.median(deaths),
        "max_ms": max(deaths),
        **start_overhead_ms(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "cases": {name: _summary(found) for name, found in outcomes.items() if found},
    }


def _summary(outcomes: list[Outcome]) -> dict[str, float]:
    times = [outcome.milliseconds for outcome in outcomes]
    return {
        "runs": len(outcomes),
        "survivors": sum(outcome.survivors for outcome in outcomes),
        "median_ms": statistics.median(times),
        "max_ms": max(times),
    }


def table(result: dict[str, Any]) -> str:
    """The result as text."""
    lines = [f"{'':34} {'runs':>5} {'survivors':>9} {'median ms':>9} {'max ms':>9}"]
    rows = result["cases"] | {"owner killed, all": {**result, "runs": "", "survivors": ""}}
    for name, row in rows.items():
        lines.append(f"{name:34} {row['runs']:>5} {row['survivors']:>9} {row['median_ms']:9.1f} {row['max_ms']:9.1f}")
    lines += ["", *(f"{name:34} {result[name]:>15.1f}  at most {bar:g}" for name, bar in BARS.items())]
    return "\n".join(lines)


def main() -> int:
    """Print the table, or the JSON document with ``--json``; exit code 1 when a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.supervisor", description="Ends of supervised children.")
    parser.add_argument("--runs", type=int, default=200, help="how many controllers and children are started (200)")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON document")
    arguments = parser.parse_args()
    if arguments.runs < 1:
        parser.error(f"--runs: expected 1 or more, found {arguments.runs}")
    result = measure(arguments.runs)
    print(json.dumps(result, indent=1) if arguments.json else table(result))
    missed = [f"{name}: {result[name]:g}, expected at most {bar:g}" for name, bar in BARS.items() if result[name] > bar]
    print(*missed, sep="\n", end="\n" if missed else "", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
