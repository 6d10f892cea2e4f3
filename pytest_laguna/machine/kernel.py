# SPDX-License-Identifier: Apache-2.0
"""Linux calls that the standard library lacks, or leaves out of a Python that was built on old kernel headers.

Signals go through pidfds because a pid may belong to another process by the time that it is used (Linux 5.3 or newer).
The standard library and nothing of this project: the supervisor loads it before every child.
"""

from __future__ import annotations

import ctypes
import os

_LIBC = ctypes.CDLL(None, use_errno=True)

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SYS_PIDFD_SEND_SIGNAL = 424
_SYS_PIDFD_OPEN = 434
"""The same number on every architecture that Python 3.11 supports."""


def become_subreaper() -> None:
    """Have every orphaned descendant of this process become its child."""
    _checked(_LIBC.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), *_zeros(3)), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send this process a signal when the thread that forked it ends; it outlives an exec."""
    _checked(_LIBC.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal_number), *_zeros(3)), "prctl(PR_SET_PDEATHSIG)")


def open_process(pid: int) -> int:
    """A descriptor that means this one process for ever, and is readable once it has ended; closed on exec.

    Raises:
        ProcessLookupError: there is no such process.
    """
    return _checked(_LIBC.syscall(ctypes.c_long(_SYS_PIDFD_OPEN), ctypes.c_int(pid), ctypes.c_uint(0)), "pidfd_open")


def send_signal(descriptor: int, signal_number: int) -> None:
    """Signal the process of a descriptor made by ``open_process``.

    Raises:
        ProcessLookupError: it has ended.
        PermissionError: it belongs to somebody else.
    """
    call = ctypes.c_long(_SYS_PIDFD_SEND_SIGNAL)
    arguments = (ctypes.c_int(descriptor), ctypes.c_int(signal_number), None, ctypes.c_uint(0))
    _checked(_LIBC.syscall(call, *arguments), "pidfd_send_signal")


def _zeros(count: int) -> tuple[ctypes.c_ulong, ...]:
    return (ctypes.c_ulong(0),) * count


def _checked(result: int, call: str) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result
