# SPDX-License-Identifier: Apache-2.0
"""Takes a process out of the host's network for good: into a namespace of its own, in which there is loopback alone.

What is started later is in it too, so nothing that an arm runs can reach another host. It needs no privilege where the
kernel lets a user make namespaces; where it lets nobody, the process stays as it was and nothing is claimed.
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
        Where the process is now; None where the kernel does not let it leave, or leaves it without a loopback: a child
        has tried before, since there is no way back.

    Raises:
        OSError: what the child could do failed.
    """
    if not _child_can():
        return None
    left = _NAMESPACE.stat().st_ino
    _leave()
    return NetworkIsolation(
        namespace=_NAMESPACE.stat().st_ino, left=left, interfaces=[name for _, name in socket.if_nameindex()]
    )


def _child_can() -> bool:
    child = os.fork()
    if not child:
        try:
            _leave()
        except BaseException:  # noqa: BLE001 - whatever it was, the child ends here
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def _leave() -> None:
    """Into a namespace with loopback alone: with privilege just that, without in a user namespace of its own.

    A privileged process keeps its user namespace, and so all that it may do with devices.
    """
    user, group = os.geteuid(), os.getegid()
    unshare = ctypes.CDLL(None, use_errno=True).unshare
    if unshare(_NEW_NETWORK) != 0:
        if unshare(_NEW_USER | _NEW_NETWORK) != 0:
            raise OSError(ctypes.get_errno(), "no network namespace")
        # The same numbers inside as outside: files keep their owners.
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    _raise_loopback()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), timeout=5):
        pass


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        name = b"lo"
        answer = fcntl.ioctl(control, _GET_FLAGS, struct.pack(_REQUEST, name, 0))
        _, flags = struct.unpack(_REQUEST, answer)
        if not flags & _UP:
            fcntl.ioctl(control, _SET_FLAGS, struct.pack(_REQUEST, name, flags | _UP))
