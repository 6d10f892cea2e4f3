# SPDX-License-Identifier: Apache-2.0
"""The kernel's process table: descent, bearers of a lease's token, and signals that hit no other process.

A process bears a token in two places. The readable one is its environment, lost when a program overwrites it to change
its title, as vLLM's workers do. The other is a resource limit: the soft ``RLIMIT_RTTIME`` is a number so large (more
than 70,000 years of real-time scheduling) that it limits nothing, and its low bits are the token's first. Only the
process itself or root could change it; ``fork``, ``exec``, ``setsid``, ``chdir``, ``env -i`` and new titles do not.

The standard library without ``dataclasses`` and ``typing``: the supervisor loads it before every child.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Iterator

from pytest_laguna.machine import kernel

TOKEN_VARIABLE = "LAGUNA_LEASE"  # noqa: S105 - the name of a variable
TOKEN_DIGITS = 32
"""Lower-case hexadecimal digits of a token."""
COMMAND_LIMIT = 1000
"""Letters of a command in a report: many commands must fit into one packet."""

_TOKEN_ENTRY = f"{TOKEN_VARIABLE}=".encode()
_MARK_DIGITS = 12
_MARK_BASE = 1 << 61
_MARK_MASK = (1 << 4 * _MARK_DIGITS) - 1
_LIMIT_NAME = b"Max realtime timeout"
_ENDED = frozenset({"Z", "X", "x"})
_KERNEL_THREADS = 2
_MEMORY_FIELDS = (b"RssAnon:", b"VmSwap:")
_SHARED_FIELD = b"RssShmem:"


class Process:
    """One process, with its start in clock ticks since boot: a pid is used again, a pid with its start time is not."""

    __slots__ = ("parent", "pid", "start_ticks")

    def __init__(self, pid: int, parent: int, start_ticks: int) -> None:
        self.pid = pid
        self.parent = parent
        self.start_ticks = start_ticks

    def command(self) -> str:
        """Return the start of its command line, or its name in brackets without one; empty once it has ended."""
        line = _read(f"/proc/{self.pid}/cmdline").rstrip(b"\0")
        name = _read(f"/proc/{self.pid}/comm").rstrip(b"\n")
        return (line.replace(b"\0", b" ") or (b"[" + name + b"]" if name else b"")).decode(errors="replace")[
            :COMMAND_LIMIT
        ]

    def signal(self, number: int) -> None:
        """Send a signal to this process and to no later one of the same pid; nothing once it has ended.

        Without permission the process is left alone: it stays in the table and is reported as a survivor.
        """
        try:
            descriptor = kernel.open_process(self.pid)
        except ProcessLookupError:
            return
        try:
            if is_alive(self):
                kernel.send_signal(descriptor, number)
        except (ProcessLookupError, PermissionError):
            return
        finally:
            os.close(descriptor)


def live_processes() -> Iterator[Process]:
    """Yield every process with a live thread, even if its first thread has ended."""
    for name in os.listdir("/proc"):  # noqa: PTH208 - half the time of a Path for each of some thousand entries
        if name.isdecimal():
            process = find(int(name))
            if process is not None:
                yield process


def find(pid: int) -> Process | None:
    """Return the live process of this pid, or None."""
    # The name stands in parentheses and may itself hold any character: the fields begin after the last one.
    fields = _read(f"/proc/{pid}/stat").decode(errors="replace").rpartition(")")[2].split()
    if not fields:
        return None
    state, parent, threads, start_ticks = fields[0], int(fields[1]), int(fields[17]), int(fields[19])
    if state in _ENDED and threads <= 1:
        return None
    return Process(pid, parent, start_ticks)


def is_alive(process: Process) -> bool:
    """True if this very process has not ended."""
    now = find(process.pid)
    return now is not None and now.start_ticks == process.start_ticks


def descendants(root: int) -> list[Process]:
    """Live processes below a root, children before their own children."""
    children: dict[int, list[Process]] = {}
    for process in live_processes():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    pending = [root]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += [process.pid for process in below]
    return found


def own_children() -> list[int]:
    """This process's children, in one read; none on a kernel without ``CONFIG_PROC_CHILDREN``."""
    pid = os.getpid()
    return [int(word) for word in _read(f"/proc/{pid}/task/{pid}/children").split()]


def ancestors(pid: int) -> set[int]:
    """Pids of a process and of those above it."""
    found: set[int] = set()
    process = find(pid)
    while process is not None:
        found.add(process.pid)
        process = find(process.parent)
    return found


def set_mark(token: str) -> None:
    """Give this process and all later descendants the token's mark.

    Raises:
        OSError: this host caps ``RLIMIT_RTTIME`` below it.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    try:
        resource.setrlimit(resource.RLIMIT_RTTIME, (_MARK_BASE | _mark(token), hard))
    except ValueError as error:
        message = f"RLIMIT_RTTIME: seen a hard limit of {hard} us; expected none; raise it (ulimit -H -R unlimited)"
        raise OSError(message) from error


def bearers(token: str) -> list[Process]:
    """Live processes with a token in their limits or in their environment."""
    wanted_mark, wanted_entry = _mark(token), f"{TOKEN_VARIABLE}={token}".encode()
    return [
        process
        for process in live_processes()
        if process.parent != _KERNEL_THREADS
        and (_mark_of(process.pid) == wanted_mark or wanted_entry in _read(f"/proc/{process.pid}/environ").split(b"\0"))
    ]


def bears_token(process: Process) -> bool:
    """True if a process bears any lease's token: it descends from one started under a lease."""
    entries = _read(f"/proc/{process.pid}/environ").split(b"\0")
    return _mark_of(process.pid) is not None or any(entry.startswith(_TOKEN_ENTRY) for entry in entries)


def memory_bytes(processes: Iterable[Process]) -> int:
    """Bytes held that the kernel cannot drop: private memory with swap, and shared memory once.

    Resident sizes would count a page in each process that maps it, and mapped files, which cost nothing to drop.
    The largest shared part stands for all: processes that share memory map the same.
    """
    private, shared = 0, 0
    for process in processes:
        sizes = _sizes(process.pid)
        private += sum(sizes.get(name, 0) for name in _MEMORY_FIELDS)
        shared = max(shared, sizes.get(_SHARED_FIELD, 0))
    return private + shared


def _sizes(pid: int) -> dict[bytes, int]:
    lines = (line.split() for line in _read(f"/proc/{pid}/status").splitlines())
    return {words[0]: int(words[1]) * 1024 for words in lines if words[-1:] == [b"kB"]}


def _mark(token: str) -> int:
    return int(token[:_MARK_DIGITS], 16)


def _mark_of(pid: int) -> int | None:
    words = _read(f"/proc/{pid}/limits").partition(_LIMIT_NAME)[2].split()
    if not words or not words[0].isdigit() or not int(words[0]) & _MARK_BASE:
        return None
    return int(words[0]) & _MARK_MASK


def _read(path: str) -> bytes:
    """Return a file of /proc; empty if its process has ended or belongs to another user."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        parts = []
        while part := os.read(descriptor, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
