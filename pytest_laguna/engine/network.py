# SPDX-License-Identifier: Apache-2.0
"""Moves a process out of the host's network for good, into a namespace with nothing but loopback.

Later children are in it too, so nothing in an arm can reach another host. No privilege is needed if the kernel lets
users create namespaces; if it does not, the process stays as it was and no isolation is claimed.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

from pytest_laguna.evidence.arms.arm_record import NetworkIsolation

_NAMESPACE = Path("/proc/self/ns/net")
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
"""``CLONE_NEWUSER`` and ``CLONE_NEWNET``. Source: include/uapi/linux/sched.h."""
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 0x1
"""``SIOCGIFFLAGS``, ``SIOCSIFFLAGS``, ``IFF_UP``. Source: include/uapi/linux/sockios.h and if.h."""
_REQUEST = "16sH22x"
"""``struct ifreq`` with flags."""


def isolate() -> NetworkIsolation | None:
    """Leave the host's network; call it before the process has a second thread.

    Returns:
        The new namespace; None if the kernel does not let the process leave, or gives it no loopback. As there is no
        way back, a child tries first.

    Raises:
        OSError: the child succeeded, this process failed.
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
        except BaseException:  # noqa: BLE001 - the child must end here, whatever happened
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def _leave() -> None:
    """Enter a namespace with loopback alone; without privilege, inside a new user namespace.

    A privileged process keeps its user namespace, and so its rights over devices.
    """
    user, group = os.geteuid(), os.getegid()
    unshare = ctypes.CDLL(None, use_errno=True).unshare
    if unshare(_NEW_NETWORK) != 0:
        if unshare(_NEW_USER | _NEW_NETWORK) != 0:
            raise OSError(ctypes.get_errno(), "no network namespace")
        # The same ids inside as outside: files keep their owners.
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
