# SPDX-License-Identifier: Apache-2.0
"""Takes a process out of the host's network for good: into a namespace of its own, in which there is loopback alone.

What is started later is in it too, so nothing that an arm runs can reach another host. It needs no privilege where the
kernel lets a user make namespaces; where it does not, the process stays as it was and nothing is claimed.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

from pytest_laguna.evidence.arm_record import NetworkIsolation

_NAMESPACE = Path("/proc/self/ns/net")
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
"""``CLONE_NEWUSER`` and ``CLONE_NEWNET``. Source: include/uapi/linux/sched.h."""
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 0x1
"""``SIOCGIFFLAGS``, ``SIOCSIFFLAGS``, ``IFF_UP``. Source: include/uapi/linux/sockios.h and if.h."""
_REQUEST = "16sH22x"
"""``struct ifreq`` with flags."""


def isolate() -> NetworkIsolation | None:
    """Leave the host's network; to be called before the process has a second thread.

    Returns:
        Where the process is now; None where the kernel did not let it leave.

    Raises:
        OSError: it left, and its loopback cannot be used: nothing could run.
    """
    left, user, group = _NAMESPACE.stat().st_ino, os.geteuid(), os.getegid()
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_USER | _NEW_NETWORK) != 0:
        return None
    # The same numbers inside as outside: files keep their owners.
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    _raise_loopback()
    return NetworkIsolation(
        namespace=_NAMESPACE.stat().st_ino, left=left, interfaces=[name for _, name in socket.if_nameindex()]
    )


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        name = b"lo"
        answer = fcntl.ioctl(control, _GET_FLAGS, struct.pack(_REQUEST, name, 0))
        _, flags = struct.unpack(_REQUEST, answer)
        fcntl.ioctl(control, _SET_FLAGS, struct.pack(_REQUEST, name, flags | _UP))
