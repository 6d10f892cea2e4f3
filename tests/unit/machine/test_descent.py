# SPDX-License-Identifier: Apache-2.0
"""The process table: who is alive, who descends from whom, who bears a token, and whom a signal hits."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.machine import descent
from pytest_laguna.machine.command import new_token
from pytest_laguna.machine.descent import Process
from pytest_laguna.machine.sweep import sweep

ROOT = Path(__file__).resolve().parents[3]
SLEEP = ["/bin/sleep", "600"]
MARKED = "from pytest_laguna.machine import descent; import os, sys; descent.set_mark(sys.argv[1]); "


@contextlib.contextmanager
def spawned(argv: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is killed with its session when the block ends, however it ends."""
    with subprocess.Popen(argv, start_new_session=True, **options) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with spawned(SLEEP, env={}) as process:
        yield process


def found(pid: int) -> Process:
    process = descent.find(pid)
    assert process is not None
    return process


def run_python(
    code: str, *arguments: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", code, *arguments]
    return subprocess.run(argv, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)


def wait_for_command(pid: int, beginning: str) -> None:
    while not found(pid).command().startswith(beginning):
        time.sleep(0.01)


def test_a_process_is_known_by_pid_and_start(sleeper: subprocess.Popen[bytes]) -> None:
    process = found(sleeper.pid)
    assert process.parent == os.getpid()
    assert process.start_ticks >= found(os.getpid()).start_ticks > 0
    wait_for_command(sleeper.pid, "/bin/sleep")
    assert process.command() == "/bin/sleep 600"
    assert descent.is_alive(process)


def test_a_signal_for_an_earlier_process_of_the_same_pid_is_not_sent(sleeper: subprocess.Popen[bytes]) -> None:
    process = found(sleeper.pid)
    earlier = Process(process.pid, process.parent, process.start_ticks - 1)
    assert not descent.is_alive(earlier)
    earlier.signal(signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):
        sleeper.wait(0.3)
    process.signal(signal.SIGKILL)
    assert sleeper.wait() == -signal.SIGKILL
    process.signal(signal.SIGKILL)  # it is gone: nothing happens


def test_a_zombie_has_ended(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{sleeper.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    assert descent.find(sleeper.pid) is None


HEADLESS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
time.sleep(0.1)
print("ready", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_first_thread_has_ended_is_alive() -> None:
    with spawned([sys.executable, "-c", HEADLESS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        status = Path(f"/proc/{process.pid}/stat")
        while status.read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
        assert found(process.pid).pid == process.pid
        found(process.pid).signal(signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("name", [") Z 1 1 (", "a b", "((("])
def test_a_name_that_looks_like_fields(name: str) -> None:
    code = "import sys; open('/proc/self/comm', 'w').write(sys.argv[1]); print('ready', flush=True); sys.stdin.read()"
    argv = [sys.executable, "-c", code, name]
    with spawned(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert Path(f"/proc/{process.pid}/comm").read_text() == f"{name}\n"
        assert found(process.pid).parent == os.getpid()


def test_no_process(sleeper: subprocess.Popen[bytes]) -> None:
    process = found(sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    assert descent.find(sleeper.pid) is None
    assert not descent.is_alive(process)
    assert not process.command()


def test_descendants_are_the_whole_tree_and_nothing_else(sleeper: subprocess.Popen[bytes]) -> None:
    script = "/bin/sh -c 'sleep 600 & sleep 600' & wait"
    with spawned(["/bin/sh", "-c", script]) as shell:
        while len(below := descent.descendants(shell.pid)) < 3:
            time.sleep(0.01)
        assert {process.pid for process in below}.isdisjoint({shell.pid, sleeper.pid, os.getpid()})
        assert below[0].parent == shell.pid
        assert {process.pid for process in below} < {process.pid for process in descent.descendants(os.getpid())}


def test_ancestors_include_the_process_itself(sleeper: subprocess.Popen[bytes]) -> None:
    assert {sleeper.pid, os.getpid(), os.getppid()} <= descent.ancestors(sleeper.pid)


def test_a_token_in_the_environment_is_found_whole() -> None:
    token = new_token()
    near = {
        f"X{descent.TOKEN_VARIABLE}": token,
        descent.TOKEN_VARIABLE: f"{token}0",
        "Y": f"{descent.TOKEN_VARIABLE}={token}",
    }
    with (
        spawned(SLEEP, env={descent.TOKEN_VARIABLE: token}) as bearer,
        spawned(SLEEP, env=near) as other,
    ):
        wait_for_command(bearer.pid, "/bin/sleep")
        wait_for_command(other.pid, "/bin/sleep")
        assert [process.pid for process in descent.bearers(token)] == [bearer.pid]


def test_a_mark_outlives_a_clean_environment_a_new_session_and_a_double_fork() -> None:
    token = new_token()
    code = MARKED + (
        "os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); os.chdir('/'); "
        "os.execve('/bin/sleep', ['sleep', '600'], {})"
    )
    subprocess.run([sys.executable, "-c", code, token], cwd=ROOT, check=True)
    while not (bearers := descent.bearers(token)) or bearers[0].command() != "sleep 600":
        time.sleep(0.01)
    assert len(bearers) == 1
    assert Path(f"/proc/{bearers[0].pid}/environ").read_bytes() == b""
    assert descent.bearers(new_token()) == []
    assert [process.pid for process in sweep(token, seconds=60).found] == [bearers[0].pid]
    assert descent.bearers(token) == []


@pytest.mark.parametrize(
    ("environment", "bears"), [({}, False), ({"LAGUNA_LEASE": "x"}, True), ({"NOT_LAGUNA_LEASE": "x"}, False)]
)
def test_whether_any_token_is_borne_is_known(environment: dict[str, str], bears: bool) -> None:
    with spawned(SLEEP, env=environment) as plain:
        assert descent.bears_token(found(plain.pid)) is bears
    code = MARKED + "os.execve('/bin/sleep', ['sleep', '600'], {})"
    with spawned([sys.executable, "-c", code, new_token()], cwd=ROOT) as marked:
        wait_for_command(marked.pid, "sleep")
        assert descent.bears_token(found(marked.pid))


def test_a_mark_limits_nothing_and_leaves_the_hard_limit_alone() -> None:
    code = MARKED + "import resource; print(*resource.getrlimit(resource.RLIMIT_RTTIME), resource.RLIM_INFINITY)"
    soft, hard, infinity = map(int, run_python(code, new_token()).stdout.split())
    assert soft > 2**60
    assert hard == infinity


def test_a_nested_mark_replaces_the_outer_one() -> None:
    outer, inner = "f" * 32, "0" * 32
    code = (
        MARKED + "descent.set_mark(sys.argv[2]); print([p.pid for p in descent.bearers(sys.argv[2])] == [os.getpid()])"
    )
    assert run_python(code, outer, inner).stdout == "True\n"


def test_a_host_that_caps_the_limit_is_refused() -> None:
    code = "import resource; resource.setrlimit(resource.RLIMIT_RTTIME, (1000, 1000)); " + MARKED
    line = run_python(code, new_token()).stderr.splitlines()[-1]
    assert line == (
        "OSError: RLIMIT_RTTIME: seen a hard limit of 1000 us; expected none; raise it (ulimit -H -R unlimited)"
    )


def test_a_sweep_spares_itself_and_those_above_it() -> None:
    token = new_token()
    code = "import sys; from pytest_laguna.machine.sweep import sweep; print(sweep(sys.argv[1], seconds=60).found)"
    script = f'"{sys.executable}" -c "{code}" {token}; echo alive'
    argv = ["/bin/sh", "-c", script]
    done = subprocess.run(
        argv, cwd=ROOT, env=os.environ | {descent.TOKEN_VARIABLE: token}, check=True, capture_output=True, text=True
    )
    assert done.stdout == "[]\nalive\n"


def test_memory_counts_what_cannot_be_dropped() -> None:
    code = (
        "import mmap, sys; held = b'x' * (64 << 20); shared = mmap.mmap(-1, 32 << 20); shared.write(bytes(32 << 20)); "
        "print('ready', flush=True); sys.stdin.read()"
    )
    with spawned([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        alone = found(process.pid)
        one, two = descent.memory_bytes([alone]), descent.memory_bytes([alone, alone])
    assert 96 << 20 <= one < 160 << 20
    assert two - one == one - (32 << 20)  # private memory counts in each, shared memory once
