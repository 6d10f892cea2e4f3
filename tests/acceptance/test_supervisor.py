# SPDX-License-Identifier: Apache-2.0
"""Whatever a child does and whoever dies, nothing of it is left: real processes, watched from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pydantic
import pytest

from pytest_laguna.evidence.machine.process import ProcessRecord, Reason
from pytest_laguna.machine import descent, process
from pytest_laguna.machine.command import Command, Ladder, new_token
from pytest_laguna.machine.process import ProcessError, SupervisedProcess, run
from pytest_laguna.machine.sweep import sweep
from tests.supervised import child
from tests.supervised.observer import ROOT, Owner, wait_without_bearers, watch
from tests.supervised.owner import command

pytestmark = pytest.mark.faults(keep=2)

PATIENCE = 60.0
"""Seconds that an end may take on a machine that is busy with other things; the benchmark measures what it takes."""

HARD_TO_END = [
    "plain",
    "new-session",
    "double-fork",
    "ignores-signals",
    "retitled",
    "stuck-at-start",
    "forks-for-ever",
]

OF_THE_C_LIBRARY = 1 << 31 | 1 << 32
"""Signals 32 and 33 in a mask: the library lets no program change them, so what a host set stays."""

FREEZER = Path("/sys/fs/cgroup/freezer")


def program(directory: Path, *argv: str, **changes: object) -> Command:
    """A command that runs any program."""
    return command("plain", directory, 5.0, argv=argv, **changes)


def change_supervisor(monkeypatch: pytest.MonkeyPatch, statements: str) -> None:
    """Have supervisors that are started from now on run statements first."""
    statements = f"from pytest_laguna.machine import descent; {statements}; from pytest_laguna"
    monkeypatch.setattr(process, "_PROGRAM", process._PROGRAM.replace("from pytest_laguna", statements, 1))


@pytest.fixture
def token() -> Iterator[str]:
    """A token of which no bearer may outlive the test; whoever does is killed and fails it."""
    made = new_token()
    yield made
    assert sweep(made, seconds=PATIENCE).found == []


@pytest.mark.parametrize("kind", HARD_TO_END)
def test_nothing_is_left_of_a_controller_that_is_killed(kind: str, tmp_path: Path) -> None:
    with Owner(kind, tmp_path) as owner:
        owner.heard("starting")
        supervisor_pid = int(owner.heard("running")[0])
        with watch(tmp_path, kind, supervisor_pid, owner.process.pid) as watched:
            owner.process.kill()
            assert watched.wait_until_gone(PATIENCE) == []
        assert wait_without_bearers(owner.token, PATIENCE) == []


@pytest.mark.parametrize("milliseconds", [0, 3, 10, 30, 100])
def test_nothing_is_left_of_a_controller_that_is_killed_while_it_starts_a_child(
    milliseconds: int, tmp_path: Path
) -> None:
    with Owner("double-fork", tmp_path) as owner:
        owner.heard("starting")
        time.sleep(milliseconds / 1000)
        owner.process.kill()
        owner.process.wait()
        assert wait_without_bearers(owner.token, PATIENCE) == []


@pytest.mark.parametrize("kind", HARD_TO_END)
def test_a_live_controller_sweeps_when_its_supervisor_is_killed(kind: str, tmp_path: Path, token: str) -> None:
    with SupervisedProcess(command(kind, tmp_path), token) as started, watch(tmp_path, kind) as watched:
        os.kill(started.supervisor_pid, signal.SIGKILL)
        # Nobody asks for the result: the controller is busy with something else.
        assert watched.wait_until_gone(PATIENCE) == []
        record = started.wait()
    assert record.reason is Reason.SUPERVISOR_LOST
    assert record.exit_code is None
    assert record.survivors == []
    assert not record.is_clean
    if kind in {"double-fork", "retitled"}:  # the daemon has no parent that the kernel would have it die with
        assert any("child.py" in found.command for found in record.leftovers)
        assert "swept: pid" in str(record)


def test_the_next_start_sweeps_what_two_deaths_left(tmp_path: Path) -> None:
    with Owner("retitled", tmp_path) as owner:
        owner.heard("starting")
        supervisor_pid = int(owner.heard("running")[0])
        with watch(tmp_path, "retitled") as watched:
            os.kill(supervisor_pid, signal.SIGSTOP)  # so that it cannot do its work between the two
            owner.process.kill()
            os.kill(supervisor_pid, signal.SIGKILL)
            # The kernel ends the direct child with its supervisor, and the daemon is there to be swept.
            assert len(watched.wait_until_gone(3.0)) == 1
            swept = sweep(owner.token, seconds=PATIENCE)
            assert watched.wait_until_gone(PATIENCE) == []
    assert [found.command for found in swept.found if "retitled" in found.command]
    assert swept.survivors == []
    assert sweep(owner.token, seconds=PATIENCE).found == []


@pytest.mark.parametrize("who", ["controller", "child"])
def test_nothing_waits_for_leftovers_to_settle_once_the_controller_wants_an_end(who: str, tmp_path: Path) -> None:
    with Owner("leaves-a-daemon", tmp_path, ladder_seconds=0.1, settle_seconds=600.0) as owner:
        owner.heard("starting")
        supervisor_pid = int(owner.heard("running")[0])
        with watch(tmp_path, "leaves-a-daemon", supervisor_pid) as watched:
            assert len(watched.wait_until_gone(0.5)) == 2
            owner.process.send_signal(signal.SIGKILL if who == "controller" else signal.SIGINT)
            assert watched.wait_until_gone(PATIENCE) == []


def test_without_a_supervisor_a_daemon_does_survive_and_is_seen(tmp_path: Path) -> None:
    token = new_token()
    files = tmp_path / "pids"
    files.mkdir()
    argv = [sys.executable, child.__file__, "double-fork", str(files)]
    with (
        subprocess.Popen(argv, start_new_session=True, env={descent.TOKEN_VARIABLE: token}) as bare,
        watch(tmp_path, "double-fork") as watched,
    ):
        os.killpg(bare.pid, signal.SIGKILL)
        bare.wait()
        left = watched.wait_until_gone(1.0)
        assert len(left) == 1
        assert left != [bare.pid]
        assert len(wait_without_bearers(token, 0.1)) == 1
        assert [found.pid for found in sweep(token, seconds=PATIENCE).found] == left
        assert watched.wait_until_gone(PATIENCE) == []


def test_a_clean_child(tmp_path: Path, token: str) -> None:
    record = run(program(tmp_path, "/bin/sh", "-c", "echo out; echo err >&2"), token)
    assert record.is_clean
    assert record.reason is Reason.EXITED
    assert (record.exit_code, record.last_signal, record.peak_memory_bytes) == (0, None, None)
    assert ((tmp_path / "stdout.log").read_text(), (tmp_path / "stderr.log").read_text()) == ("out\n", "err\n")
    assert ProcessRecord.model_validate_json(record.model_dump_json()) == record


@pytest.mark.parametrize(
    ("script", "exit_code", "words"), [("exit 3", 3, "exit code 3"), ("kill -9 $$", -9, "SIGKILL")]
)
def test_a_child_that_fails(script: str, exit_code: int, words: str, tmp_path: Path, token: str) -> None:
    record = run(program(tmp_path, "/bin/sh", "-c", script), token)
    assert (record.reason, record.exit_code, record.is_clean) == (Reason.EXITED, exit_code, False)
    assert str(record).startswith(f"exited, {words} after ")


def test_a_child_that_dies_at_once_and_leaves_a_daemon(tmp_path: Path, token: str) -> None:
    started = time.monotonic()
    record = run(command("leaves-a-daemon", tmp_path, 0.2), token)
    assert time.monotonic() - started < PATIENCE
    assert (record.reason, record.exit_code, record.survivors) == (Reason.EXITED, 7, [])
    assert len(record.leftovers) == 1
    assert "leaves-a-daemon" in record.leftovers[0].command
    assert record.leftovers[0].pid == int(next((tmp_path / "pids").glob("[0-9]*")).name)
    assert record.leftovers[0].start_ticks > 0
    assert record.last_signal == signal.SIGKILL
    assert not record.is_clean


def test_what_ends_by_itself_in_the_time_to_settle_is_no_leftover(tmp_path: Path, token: str) -> None:
    record = run(command("leaves-a-slow-grandchild", tmp_path, settle_seconds=PATIENCE), token)
    assert record.is_clean
    assert 0.3 <= record.wall_seconds < PATIENCE


@pytest.mark.parametrize(
    ("kind", "left", "last_signal"),
    [
        ("dies-before-its-sleeper", 0, signal.SIGINT),
        ("leaves-a-daemon", 1, signal.SIGKILL),
        ("leaves-a-sleeper", 1, signal.SIGINT),
    ],
)
def test_without_the_time_to_settle_a_leftover_is_what_does_not_end_when_it_is_asked_to(
    kind: str, left: int, last_signal: signal.Signals, tmp_path: Path, token: str
) -> None:
    """As the processes of a server that was killed, which its leg stops at once; what ended well leaves nothing."""
    with SupervisedProcess(command(kind, tmp_path, 0.3, settle_seconds=600.0), token) as started:
        while descent.find(started.pid) is not None:
            time.sleep(0.01)
        record = started.stop()
    assert (record.reason, len(record.leftovers), record.survivors) == (Reason.EXITED, left, [])
    assert record.last_signal == last_signal
    assert not record.is_clean


def test_a_signal_to_the_supervisor_cuts_no_time_short(tmp_path: Path, token: str) -> None:
    """It may be the leftover's own."""
    child = command("dies-before-its-sleeper", tmp_path, 0.3, settle_seconds=600.0)
    with SupervisedProcess(child, token) as started:
        while descent.find(started.pid) is not None:
            time.sleep(0.01)
        os.kill(started.supervisor_pid, signal.SIGTERM)
        record = started.wait()
    assert (record.reason, len(record.leftovers)) == (Reason.EXITED, 1)


@pytest.mark.parametrize("kind", ["plain", "double-fork", "ignores-signals", "stuck-at-start"])
def test_the_deadline_ends_it(kind: str, tmp_path: Path, token: str) -> None:
    record = run(command(kind, tmp_path, 0.3, deadline_seconds=1.0), token)
    assert record.reason is Reason.DEADLINE
    assert record.wall_seconds >= 1.0
    assert (record.leftovers, record.survivors) == ([], [])
    assert record.last_signal == (signal.SIGINT if kind == "plain" else signal.SIGKILL)
    assert record.exit_code == (-signal.SIGINT if kind in {"plain", "double-fork"} else -signal.SIGKILL)


def test_the_ladder_goes_down_rung_by_rung(tmp_path: Path, token: str) -> None:
    with SupervisedProcess(command("notes-signals", tmp_path, 0.5), token) as started, watch(tmp_path, "notes-signals"):
        record = started.stop()
    assert (tmp_path / "pids" / "signals").read_text().split() == ["SIGINT", "SIGTERM"]
    assert (record.reason, record.last_signal, record.exit_code) == (Reason.STOPPED, signal.SIGKILL, -signal.SIGKILL)
    assert record.wall_seconds >= 1.0


def test_stopping_twice_gives_the_same_record(tmp_path: Path, token: str) -> None:
    with SupervisedProcess(command("plain", tmp_path), token) as started:
        assert started.stop() is started.stop() is started.wait()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_in_the_block_stops_the_child(error: type[BaseException], tmp_path: Path, token: str) -> None:
    with pytest.raises(error), SupervisedProcess(command("double-fork", tmp_path, 0.2), token) as started:
        raise error
    assert started.wait().reason is Reason.STOPPED


def test_the_memory_limit_counts_the_tree_and_not_a_process(tmp_path: Path, token: str) -> None:
    record = run(command("grows", tmp_path, memory_limit_bytes=150 << 20), token)
    assert record.reason is Reason.MEMORY
    assert record.peak_memory_bytes is not None
    assert 150 << 20 < record.peak_memory_bytes < 400 << 20


def test_memory_below_the_limit_is_recorded(tmp_path: Path, token: str) -> None:
    with (
        SupervisedProcess(command("grows", tmp_path, memory_limit_bytes=1 << 30), token) as started,
        watch(tmp_path, "grows"),
    ):
        time.sleep(1.5)
        record = started.stop()
    assert record.reason is Reason.STOPPED
    assert record.peak_memory_bytes is not None
    assert 192 << 20 < record.peak_memory_bytes < 400 << 20


@pytest.mark.parametrize("kind", ["plain", "double-fork", "stuck-at-start"])
def test_an_interrupt_while_the_child_runs(kind: str, tmp_path: Path) -> None:
    with Owner(kind, tmp_path, ladder_seconds=0.3) as owner:
        owner.heard("starting")
        supervisor_pid = int(owner.heard("running")[0])
        with watch(tmp_path, kind, supervisor_pid) as watched:
            owner.process.send_signal(signal.SIGINT)
            assert watched.wait_until_gone(PATIENCE) == []
        owner.heard("interrupted")
        assert ProcessRecord.model_validate_json(owner.last_line()).reason is Reason.STOPPED
        assert wait_without_bearers(owner.token, 0) == []


@pytest.mark.parametrize("milliseconds", [0, 3, 10, 20, 30])
def test_an_interrupt_while_the_child_is_started(milliseconds: int, tmp_path: Path) -> None:
    with Owner("ignores-signals", tmp_path, ladder_seconds=0.1) as owner:
        owner.heard("starting")
        time.sleep(milliseconds / 1000)
        owner.process.send_signal(signal.SIGINT)
        owner.process.wait()
        assert wait_without_bearers(owner.token, PATIENCE) == []


def test_a_second_interrupt_skips_the_ladder(tmp_path: Path) -> None:
    with Owner("notes-signals", tmp_path, ladder_seconds=600.0) as owner:
        owner.heard("starting")
        supervisor_pid = int(owner.heard("running")[0])
        with watch(tmp_path, "notes-signals", supervisor_pid) as watched:
            owner.process.send_signal(signal.SIGINT)
            while not (tmp_path / "pids" / "signals").exists():
                time.sleep(0.01)
            owner.process.send_signal(signal.SIGINT)
            assert watched.wait_until_gone(PATIENCE) == []
        owner.heard("interrupted")
        assert ProcessRecord.model_validate_json(owner.last_line()).reason is Reason.OWNER_GONE
    assert (tmp_path / "pids" / "signals").read_text() == "SIGINT\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_supervisor_stops_the_child(number: signal.Signals, tmp_path: Path, token: str) -> None:
    with SupervisedProcess(command("double-fork", tmp_path, 0.2), token) as started:
        os.kill(started.supervisor_pid, number)
        assert started.wait().reason is Reason.STOPPED


def test_what_survives_a_kill_is_reported(tmp_path: Path, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On any host: signals do not arrive, as with a process that is stuck in the kernel."""
    change_supervisor(monkeypatch, "descent.Process.signal = lambda *_: None; descent.own_children = lambda: []")
    ladder = Ladder(interrupt_seconds=0, terminate_seconds=0, kill_seconds=0.3)
    record = run(command("double-fork", tmp_path, deadline_seconds=1.0, ladder=ladder), token)
    assert record.reason is Reason.DEADLINE
    assert record.exit_code is None
    assert {found.pid for found in record.survivors} == {int(path.name) for path in (tmp_path / "pids").iterdir()}
    assert all("child.py double-fork" in found.command for found in record.survivors)
    assert not record.proven_empty
    assert "survived SIGKILL: pid" in str(record)
    # The daemon really is there; the direct child died with its supervisor.
    assert sweep(token, seconds=PATIENCE).found != []


@pytest.mark.skipif(not os.access(FREEZER / "tasks", os.W_OK), reason="needs root and a cgroup v1 freezer")
def test_a_process_that_the_kernel_holds_survives_the_kill_and_is_reported(tmp_path: Path, token: str) -> None:
    group = FREEZER / f"laguna-{os.getpid()}"
    group.mkdir()
    ladder = Ladder(interrupt_seconds=0, terminate_seconds=0, kill_seconds=0.5)
    with (
        SupervisedProcess(command("plain", tmp_path, ladder=ladder), token) as started,
        watch(tmp_path, "plain") as watched,
    ):
        (group / "cgroup.procs").write_text(str(started.pid))
        (group / "freezer.state").write_text("FROZEN")
        while (group / "freezer.state").read_text() != "FROZEN\n":
            time.sleep(0.01)
        record = started.stop()
        (group / "freezer.state").write_text("THAWED")
        assert watched.wait_until_gone(PATIENCE) == []
    group.rmdir()
    assert [found.pid for found in record.survivors] == [started.pid]


def test_a_supervisor_that_is_stuck_is_replaced_by_a_sweep(
    tmp_path: Path, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MARGIN_SECONDS", 0.5)
    ladder = Ladder(interrupt_seconds=0.1, terminate_seconds=0.1, kill_seconds=0.1)
    process_, kind = SupervisedProcess(command("double-fork", tmp_path, ladder=ladder), token), "double-fork"
    with process_ as started, watch(tmp_path, kind, started.supervisor_pid) as watched:
        os.kill(started.supervisor_pid, signal.SIGSTOP)
        record = started.stop()
        assert watched.wait_until_gone(PATIENCE) == []
    assert record.reason is Reason.SUPERVISOR_LOST


def test_a_supervisor_that_cannot_start_says_why(tmp_path: Path, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_PROGRAM", "raise SystemExit('no such luck')")
    with pytest.raises(ProcessError, match=r"/bin/true in .*: seen its supervisor ended at once: no such luck"):
        run(program(tmp_path, "/bin/true"), token)


def test_a_supervisor_that_is_killed_while_it_starts_is_named(
    tmp_path: Path, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_supervisor(monkeypatch, "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(ProcessError, match=r"its supervisor ended at once, by SIGKILL: nothing on standard error;"):
        run(program(tmp_path, "/bin/true"), token)


def test_what_a_supervisor_said_counts_though_it_never_read_our_word_to_stop(
    tmp_path: Path, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child ends by itself while we are about to end it: the kernel then answers first that the word was lost."""
    late = "s = supervisor.Supervisor; say = s._send; s._send = lambda *a: ('reason' in a[1] and sleep(1), say(*a))"
    change_supervisor(monkeypatch, f"from time import sleep; from pytest_laguna.machine import supervisor; {late}")
    with SupervisedProcess(program(tmp_path, "/bin/true"), token) as started:
        while descent.find(started.pid) is not None:
            time.sleep(0.01)
        time.sleep(0.3)  # the supervisor has made up its mind
        record = started.stop()
    assert (record.reason, record.exit_code, record.is_clean) == (Reason.EXITED, 0, True)


def test_a_supervisor_that_says_nothing_is_given_up(
    tmp_path: Path, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_PROGRAM", "import time; time.sleep(600)")
    monkeypatch.setattr(process, "START_SECONDS", 0.5)
    with pytest.raises(ProcessError, match=r"seen nothing from its supervisor for 0\.5 s"):
        run(program(tmp_path, "/bin/true"), token)


def test_an_interrupt_before_the_supervisor_runs(tmp_path: Path, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", interrupt)
    process_ = SupervisedProcess(program(tmp_path, "/bin/true"), token)
    with pytest.raises(KeyboardInterrupt), process_:
        pass
    with pytest.raises(ProcessError, match=r"/bin/true in .*: seen no usable result from its supervisor"):
        process_.stop()


def test_a_program_that_does_not_exist(tmp_path: Path, token: str) -> None:
    with pytest.raises(ProcessError, match=r"^/bin/nonesuch in .*: seen .*No such file or directory"):
        run(program(tmp_path, "/bin/nonesuch"), token)


def test_a_program_that_a_search_path_would_choose_is_refused(tmp_path: Path) -> None:
    with pytest.raises(pydantic.ValidationError, match=r"argv\[0\]: seen 'true'; expected an absolute path"):
        program(tmp_path, "true")


@pytest.mark.parametrize("changes", [{"deadline_seconds": 0.0}, {"deadline_seconds": float("inf")}, {"shell": True}])
def test_a_command_without_bounds_is_refused(changes: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(pydantic.ValidationError):
        program(tmp_path, "/bin/true", **changes)


@pytest.mark.parametrize("bad", ["", "g" * 32, "A" * 32, "0" * 31])
def test_a_token_that_is_none_is_refused(bad: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"token: seen .*; expected 32 lower-case hexadecimal digits"):
        SupervisedProcess(program(tmp_path, "/bin/true"), bad)
    with pytest.raises(ValueError, match=r"token: seen .*; expected 32 lower-case hexadecimal digits"):
        sweep(bad, seconds=1)


def test_a_tree_of_which_nothing_is_seen_is_not_proven_empty(
    tmp_path: Path, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a host that hides the processes of others."""
    change_supervisor(monkeypatch, "descent.live_processes = lambda: (); descent.own_children = lambda: []")
    ladder = Ladder(interrupt_seconds=0, terminate_seconds=0, kill_seconds=0.3)
    record = run(command("leaves-a-daemon", tmp_path, ladder=ladder), token)
    assert (record.leftovers, record.survivors, record.proven_empty) == ([], [], False)
    assert not record.is_clean
    assert str(record).endswith("not proven that all its processes have ended")
    assert len(sweep(token, seconds=PATIENCE).found) == 1


def test_words_that_are_not_ascii(tmp_path: Path, token: str) -> None:
    directory = tmp_path / "Größe 日本"
    directory.mkdir()
    record = run(program(directory, "/bin/sh", "-c", 'echo "$0 $A"', "naïve", environment={"A": "é\udcff"}), token)
    assert record.is_clean
    assert (directory / "stdout.log").read_bytes() == "naïve é".encode() + b"\xff\n"


def test_output_of_another_run_is_never_overwritten(tmp_path: Path, token: str) -> None:
    (tmp_path / "stdout.log").write_text("evidence")
    with pytest.raises(FileExistsError):
        run(program(tmp_path, "/bin/true"), token)
    assert (tmp_path / "stdout.log").read_text() == "evidence"


def test_the_child_gets_its_environment_and_nothing_else(
    tmp_path: Path, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_LEAKED", "1")
    run(program(tmp_path, "/usr/bin/env", environment={"A": "1", "LC_ALL": "C.UTF-8"}), token)
    assert sorted((tmp_path / "stdout.log").read_text().split()) == ["A=1", f"LAGUNA_LEASE={token}", "LC_ALL=C.UTF-8"]


def test_the_child_starts_with_nothing_of_its_supervisor_or_controller(tmp_path: Path, token: str) -> None:
    script = "ls /proc/self/fd; cut -d' ' -f4-6 /proc/$$/stat; echo $$ $PPID; pwd"
    record = run(program(tmp_path, "/bin/sh", "-c", script), token)
    assert record.is_clean
    *descriptors, identity, numbers, directory = (tmp_path / "stdout.log").read_text().splitlines()
    assert descriptors == ["0", "1", "2", "3"]  # the last is the listing itself
    pid, parent = numbers.split()
    assert identity.split() == [parent, pid, pid]  # a process group and a session of its own
    assert directory == str(tmp_path)


def test_the_child_blocks_and_ignores_no_signal_and_writes_private_files(tmp_path: Path, token: str) -> None:
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM])
    try:
        # Not through a shell, which would clear the mask itself.
        record = run(program(tmp_path, "/bin/cat", "/proc/self/status"), token)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
    assert record.is_clean
    status = dict(line.split(":\t", 1) for line in (tmp_path / "stdout.log").read_text().splitlines())
    ignored = int(status["SigIgn"], 16) & ~OF_THE_C_LIBRARY
    assert (status["SigBlk"], ignored, status["Umask"]) == ("0" * 16, 0, "0077")


@pytest.mark.parametrize(
    ("content", "last"), [("one\ntwo\ntorn", "two"), ("one\n", "one"), ("torn", None), ("", None), (None, None)]
)
def test_the_last_whole_line_of_the_journal(content: str | None, last: str | None, tmp_path: Path, token: str) -> None:
    journal = tmp_path / "journal.jsonl"
    if content is not None:
        journal.write_text(content)
    assert run(program(tmp_path, "/bin/true", journal=journal), token).last_journal_line == last


def test_a_controller_with_many_threads_and_children(tmp_path: Path) -> None:
    """Each run has its own supervisor and token; none ends another's child."""
    records: dict[int, ProcessRecord] = {}

    def one(number: int) -> None:
        directory = tmp_path / str(number)
        directory.mkdir()
        if number % 2:
            records[number] = run(program(directory, "/bin/sh", "-c", "sleep 1"), new_token())
        else:
            records[number] = run(command("double-fork", directory, 0.1, deadline_seconds=0.5), new_token())

    threads = [threading.Thread(target=one, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [records[number].reason for number in range(6)] == [Reason.DEADLINE, Reason.EXITED] * 3
    assert all(records[number].is_clean for number in (1, 3, 5))


FORKING_CONTROLLER = """
import os, sys, time
from pathlib import Path
from pytest_laguna.machine.process import SupervisedProcess
from tests.supervised.owner import command
with SupervisedProcess(command("plain", Path(sys.argv[1])), sys.argv[2]) as process:
    if os.fork() == 0:
        time.sleep(600)
    print(process.supervisor_pid, flush=True)
    time.sleep(600)
"""


def test_a_fork_of_the_controller_does_not_hide_its_death(tmp_path: Path, token: str) -> None:
    """It holds the controller's end of the connection, which therefore does not close."""
    argv = [sys.executable, "-c", FORKING_CONTROLLER, str(tmp_path), token]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as owner:
        assert owner.stdout is not None
        with watch(tmp_path, "plain", int(owner.stdout.readline())) as watched:
            owner.kill()
            assert watched.wait_until_gone(PATIENCE) == []
        os.killpg(owner.pid, signal.SIGKILL)
