# SPDX-License-Identifier: Apache-2.0
"""Listener of a port, and peers of a server's processes, from the kernel's tables.

An answer on a port proves nothing: the server may be another's, or two may share the port. The kernel's table names the
socket's inode; ``/proc`` names the processes with that inode open.
"""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import os
import socket
import struct
from collections.abc import Collection, Iterator
from pathlib import Path

from pytest_laguna.evidence.endpoint.leg import Listener, SocketLook
from pytest_laguna.verdict import UnusableEvidenceError

_PROC = Path("/proc")
_PROTOCOLS = ("tcp", "tcp6", "udp", "udp6", "udplite", "udplite6", "raw", "raw6")
_LISTEN = "0A"
"""``TCP_LISTEN`` in the kernel's table. Source: include/net/tcp_states.h."""
_SOCKET = "socket:["


@dataclasses.dataclass(frozen=True, slots=True)
class NetworkSocket:
    """One row of the kernel's table.

    Attributes:
        protocol: such as ``tcp`` or ``udp6``.
        local: address and port.
        remote: address and port; unspecified and 0 without a peer.
        listening: True if it waits for connections.
        inode: of the socket.
    """

    protocol: str
    local: tuple[str, int]
    remote: tuple[str, int]
    listening: bool
    inode: int

    @property
    def is_foreign(self) -> bool:
        """True if the peer is, or could be, another host."""
        address, port = self.remote
        if port or not ipaddress.ip_address(address).is_unspecified:
            return not _is_loopback(address) and address != self.local[0]
        return not _is_loopback(self.local[0])

    def __str__(self) -> str:
        (here, port), (there, other_port) = self.local, self.remote
        other_end = "listening" if self.listening else f"{there}:{other_port}"
        return f"{self.protocol} {here}:{port} -> {other_end}"


def network_sockets(pids: Collection[int]) -> dict[int, NetworkSocket]:
    """Every network socket in the network namespaces of processes, by its inode.

    All processes are asked: one may have ended, or live in a namespace of its own.
    """
    return {found.inode: found for pid in pids for protocol in _PROTOCOLS for found in _table(pid, protocol)}


def find_listener(port: int, pids: Collection[int]) -> Listener:
    """The one socket that listens on a port; some process of ours must have it open.

    Args:
        port: TCP.
        pids: processes of the server.

    Raises:
        UnusableEvidenceError: nobody listens, several sockets share the port, or another's process has it.
    """
    opened = _opened(pids, f"port {port}")
    there = [found for found in network_sockets(opened).values() if found.listening and found.local[1] == port]
    if len(there) != 1:
        message = f"port {port}: seen {len(there)} listening sockets; expected one, the server's; free the port"
        raise UnusableEvidenceError(message)
    [found] = there
    holders = sorted(pid for pid, inodes in opened.items() if found.inode in inodes)
    if not holders:
        message = f"port {port}: seen socket {found.inode} in no process of the server {sorted(opened)}; expected ours"
        raise UnusableEvidenceError(message)
    return Listener(address=f"{found.local[0]}:{port}", inode=found.inode, holders=holders)


def look(moment: str, pids: Collection[int], listener: Listener) -> SocketLook:
    """Snapshot of the network sockets that processes have open.

    Args:
        moment: name of the snapshot, for the record.
        pids: processes of the server.
        listener: of the server; a snapshot without it missed the server.

    Raises:
        UnusableEvidenceError: no process exists, one cannot be inspected, or none has the listener.
    """
    where = f"sockets at {moment}"
    opened = _opened(pids, where)
    table = network_sockets(opened)
    ours = [table[inode] for inode in sorted(frozenset().union(*opened.values())) if inode in table]
    if not any(found.inode == listener.inode and found.listening for found in ours):
        message = f"{where}: seen {len(ours)}, not {listener.address} (inode {listener.inode}); expected the listener"
        raise UnusableEvidenceError(message)
    return SocketLook(
        moment=moment,
        processes=len(opened),
        local=[str(found) for found in ours if not found.is_foreign],
        foreign=[str(found) for found in ours if found.is_foreign],
    )


def free_port() -> int:
    """A TCP port of the loopback address, free at this moment."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def refuse_taken(port: int) -> None:
    """Refuse a port in use by raising UnusableEvidenceError."""
    with socket.socket() as tried:
        # As the server does: a connection that only lingers is no obstacle.
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError as error:
            message = f"port {port}: seen in use ({error.strerror}); expected it free; end what listens there"
            raise UnusableEvidenceError(message) from error


def _is_loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def _opened(pids: Collection[int], where: str) -> dict[int, frozenset[int]]:
    """Inodes of the sockets open in each process, by pid; processes that have ended are left out."""
    opened = {}
    for pid in pids:
        try:
            opened[pid] = frozenset(_inodes(pid))
        except FileNotFoundError:
            continue
        except OSError as error:
            message = f"{where}: seen process {pid} closed to us ({error.strerror}); expected a process of ours"
            raise UnusableEvidenceError(message) from error
    if not opened:
        raise UnusableEvidenceError(f"{where}: seen none of the processes {sorted(pids)}; expected the server's")
    return opened


def _inodes(pid: int) -> Iterator[int]:
    for entry in os.scandir(_PROC / str(pid) / "fd"):
        with contextlib.suppress(FileNotFoundError):  # closed in this moment
            target = os.readlink(entry.path)  # noqa: PTH115 - what it names is no path
            if target.startswith(_SOCKET):
                yield int(target[len(_SOCKET) : -1])


def _table(pid: int, protocol: str) -> Iterator[NetworkSocket]:
    try:
        lines = (_PROC / str(pid) / "net" / protocol).read_text(encoding="ascii").splitlines()[1:]
    except OSError:  # a kernel without this protocol, or the process has ended
        return
    for line in lines:
        words = line.split()
        yield NetworkSocket(
            protocol=protocol,
            local=_address(words[1]),
            remote=_address(words[2]),
            listening=protocol.startswith("tcp") and words[3] == _LISTEN,
            inode=int(words[9]),
        )


def _address(text: str) -> tuple[str, int]:
    """Address and port from the kernel's table: hexadecimal words of 32 bits in the host's byte order, and a port."""
    digits, _, port = text.partition(":")
    words = [int(digits[start : start + 8], 16) for start in range(0, len(digits), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return socket.inet_ntop(family, packed), int(port, 16)
