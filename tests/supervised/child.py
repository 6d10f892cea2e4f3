# SPDX-License-Identifier: Apache-2.0
"""A child that is hard to end: ``child.py KIND DIRECTORY``. Each of its processes leaves a file named after its pid.

It runs as a script under ``-I -S``: nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path


def ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def overwrite_environment() -> None:
    """Write zeros over the environment that /proc shows, as a program does that gives itself a long title."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    ctypes.memset(start, 0, end - start)


def report(directory: Path) -> None:
    (directory / f"{os.getpid()}.new").touch()
    (directory / f"{os.getpid()}.new").rename(directory / str(os.getpid()))


def live(directory: Path) -> None:
    report(directory)
    while True:
        time.sleep(3600)


def fork(body: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        body()
        os._exit(0)
    return pid


def daemonise(directory: Path) -> None:
    """Fork twice with a new session between, leave the directory and ignore what can be ignored."""

    def middle() -> None:
        os.setsid()
        os.chdir("/")
        ignore_signals()
        fork(lambda: live(directory))

    os.waitpid(fork(middle), 0)


def plain(directory: Path) -> None:
    fork(lambda: live(directory))
    live(directory)


def new_session(directory: Path) -> None:
    def grandchild() -> None:
        os.setsid()
        live(directory)

    fork(grandchild)
    live(directory)


def double_fork(directory: Path) -> None:
    daemonise(directory)
    live(directory)


def ignores_signals(directory: Path) -> None:
    ignore_signals()
    plain(directory)


def retitled(directory: Path) -> None:
    overwrite_environment()
    daemonise(directory)
    live(directory)


def stuck_at_start(directory: Path) -> None:
    report(directory)
    os.kill(os.getpid(), signal.SIGSTOP)


def leaves_a_daemon(directory: Path) -> None:
    daemonise(directory)
    wait_for_files(directory, 1)
    sys.exit(7)


def leaves_a_slow_grandchild(_directory: Path) -> None:
    """End at once; the grandchild ends by itself a little later, as Python's resource tracker does."""
    fork(lambda: time.sleep(0.3))


def leaves_a_sleeper(_directory: Path) -> None:
    """End at once; the grandchild would not, and minds every signal."""

    def sleep() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        time.sleep(3600)

    fork(sleep)


def dies_before_its_sleeper(directory: Path) -> None:
    leaves_a_sleeper(directory)
    os.kill(os.getpid(), signal.SIGKILL)


CHAIN_SECONDS = 90.0


def forks_for_ever(directory: Path) -> None:
    """Each process lives for a moment and is followed by another in a session of its own.

    The chain ends by itself: one that a failed test let go would take a core from everything that runs after it.
    """
    end = time.monotonic() + CHAIN_SECONDS

    def link() -> None:
        while time.monotonic() < end:
            if os.fork() != 0:
                os._exit(0)
            os.setsid()
            time.sleep(0.005)

    fork(link)
    live(directory)


def grows(directory: Path) -> None:
    """Two processes that each hold 96 MiB."""
    held = []

    def hold() -> None:
        held.append(b"x" * (96 << 20))
        live(directory)

    fork(hold)
    hold()


def notes_signals(directory: Path) -> None:
    """Write down each signal that it gets, and go on."""

    def note(number: int, _frame: object) -> None:
        with (directory / "signals").open("a", encoding="utf-8") as stream:
            stream.write(f"{signal.Signals(number).name}\n")

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    live(directory)


def wait_for_files(directory: Path, count: int) -> None:
    while sum(name.isdecimal() for name in os.listdir(directory)) < count:  # noqa: PTH208 - names are enough
        time.sleep(0.002)


KINDS: dict[str, tuple[Callable[[Path], None], int]] = {
    "plain": (plain, 2),
    "new-session": (new_session, 2),
    "double-fork": (double_fork, 2),
    "ignores-signals": (ignores_signals, 2),
    "retitled": (retitled, 2),
    "stuck-at-start": (stuck_at_start, 1),
    "leaves-a-daemon": (leaves_a_daemon, 1),
    "leaves-a-slow-grandchild": (leaves_a_slow_grandchild, 0),
    "leaves-a-sleeper": (leaves_a_sleeper, 0),
    "dies-before-its-sleeper": (dies_before_its_sleeper, 0),
    "forks-for-ever": (forks_for_ever, 1),
    "grows": (grows, 2),
    "notes-signals": (notes_signals, 1),
}
"""What each kind does, and how many of its processes leave a file."""


if __name__ == "__main__":
    KINDS[sys.argv[1]][0](Path(sys.argv[2]))
