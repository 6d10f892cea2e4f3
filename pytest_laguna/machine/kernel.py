# SPDX-License-Identifier: Apache-2.0
"""Linux calls missing from the standard library, or from a Python built on old kernel headers.

Signals go through pidfds because a pid may belong to another process by the time of its use (Linux 5.3 or newer).
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
    """Make every orphaned descendant of this process its child."""
    _checked(_LIBC.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), *_zeros(3)), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send this process a signal when its forking thread ends; it outlives an exec."""
    _checked(_LIBC.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal_number), *_zeros(3)), "prctl(PR_SET_PDEATHSIG)")


def open_process(pid: int) -> int:
    """Open a descriptor of this one process for ever, readable once it has ended; closed on exec.

    Raises:
        ProcessLookupError: there is no such process.
    """
    return _checked(_LIBC.syscall(ctypes.c_long(_SYS_PIDFD_OPEN), ctypes.c_int(pid), ctypes.c_uint(0)), "pidfd_open")


def send_signal(descriptor: int, signal_number: int) -> None:
    """Signal the process of a descriptor from ``open_process``.

    Raises:
        ProcessLookupError: it has ended.
        PermissionError: it belongs to another user.
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
