# SPDX-License-Identifier: Apache-2.0
"""Who listens, and whom a process talks to, is asked of the kernel."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pytest_laguna.endpoint import sockets
from pytest_laguna.endpoint.sockets import NetworkSocket
from pytest_laguna.verdict import UnusableEvidenceError

OURS = {os.getpid()}


def listening(host: str = "127.0.0.1", family: socket.AddressFamily = socket.AF_INET, port: int = 0) -> socket.socket:
    opened = socket.socket(family)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    opened.bind((host, port))
    opened.listen()
    return opened


@pytest.fixture
def other_process() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid


def test_the_listener_is_the_one_socket_that_ours_have_open() -> None:
    with listening() as opened:
        port = opened.getsockname()[1]
        found = sockets.find_listener(port, OURS)
        assert (found.address, found.holders) == (f"127.0.0.1:{port}", [os.getpid()])
        assert found.inode == os.fstat(opened.fileno()).st_ino


def test_a_port_where_nobody_listens_has_no_listener() -> None:
    with pytest.raises(UnusableEvidenceError, match=r"port \d+: seen 0 listening sockets; expected one"):
        sockets.find_listener(sockets.free_port(), OURS)


def test_two_servers_that_share_a_port_are_refused() -> None:
    reason = r"port \d+: seen 2 listening sockets; expected one, the server's"
    with (
        listening() as first,
        listening(port=first.getsockname()[1]),
        pytest.raises(UnusableEvidenceError, match=reason),
    ):
        sockets.find_listener(first.getsockname()[1], OURS)


def test_a_listener_of_another_process_is_refused(other_process: int) -> None:
    reason = r"seen socket \d+ in no process of the server \[\d+\]"
    with listening() as opened, pytest.raises(UnusableEvidenceError, match=reason):
        sockets.find_listener(opened.getsockname()[1], {other_process})


def test_a_process_that_has_ended_is_left_out_and_none_at_all_is_refused() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    with listening() as here:
        listener = sockets.find_listener(here.getsockname()[1], OURS)
        assert sockets.look("ready", {ended.pid, *OURS}, listener).processes == 1
        with pytest.raises(UnusableEvidenceError, match=r"sockets at ready: seen none of the processes \[\d+\]"):
            sockets.look("ready", {ended.pid}, listener)


@pytest.fixture
def zombie() -> Iterator[int]:
    """A process that has ended and that nobody has collected: it is still listed, and has nothing."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    yield child
    os.waitpid(child, 0)


LISTEN = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"


def test_no_single_process_speaks_for_all(zombie: int) -> None:
    """The kernel's table is asked of each: that of an ended one, here the lowest pid, is empty."""
    assert sockets.network_sockets({zombie}) == {}
    command = [sys.executable, "-c", LISTEN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port, pids = int(server.stdout.readline()), [zombie, server.pid]
        listener = sockets.find_listener(port, pids)
        look = sockets.look("row", pids, listener)
        server.communicate("\n")
    assert listener.holders == [server.pid]
    assert look.local == [f"tcp 127.0.0.1:{port} -> listening"]


def test_a_look_that_does_not_see_the_servers_listener_is_refused(zombie: int) -> None:
    with listening() as here, listening() as other:
        listener = sockets.find_listener(here.getsockname()[1], OURS)
        reason = rf"sockets at row: seen 0, not 127\.0\.0\.1:{here.getsockname()[1]} \(inode \d+\)"
        with pytest.raises(UnusableEvidenceError, match=reason):
            sockets.look("row", {zombie}, listener)
        here.close()
        assert other.fileno() >= 0
        with pytest.raises(UnusableEvidenceError, match=r"seen [1-9]\d*, not .*; expected the listener"):
            sockets.look("row", OURS, listener)


def test_a_look_tells_what_stays_on_this_host_from_what_does_not() -> None:
    with (
        listening() as here,
        listening("::1", socket.AF_INET6) as here6,
        listening("0.0.0.0") as open_to_all,  # noqa: S104
        socket.create_connection(here.getsockname()) as connected,
        socket.socket(type=socket.SOCK_DGRAM) as away,
    ):
        away.connect(("192.0.2.1", 9))  # a datagram socket: nothing is sent
        look = sockets.look("row", OURS, sockets.find_listener(here.getsockname()[1], OURS))
        ports = [end.getsockname()[1] for end in (here, here6, connected, open_to_all, away)]
    assert f"tcp 127.0.0.1:{ports[0]} -> listening" in look.local
    assert f"tcp6 ::1:{ports[1]} -> listening" in look.local
    assert f"tcp 127.0.0.1:{ports[2]} -> 127.0.0.1:{ports[0]}" in look.local
    assert f"tcp 0.0.0.0:{ports[3]} -> listening" in look.foreign
    assert any(name.startswith("udp ") and name.endswith(f":{ports[4]} -> 192.0.2.1:9") for name in look.foreign)
    assert (look.moment, look.processes) == ("row", 1)


@pytest.mark.parametrize(
    ("local", "remote", "foreign"),
    [
        ("127.0.0.1", "0.0.0.0", False),  # noqa: S104
        ("::1", "::", False),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", False),
        ("10.0.0.5", "10.0.0.5", False),  # two ends of this host
        ("10.0.0.5", "10.0.0.6", True),
        ("127.0.0.1", "8.8.8.8", True),
        ("::", "::", True),
        ("::ffff:10.0.0.5", "::", True),
    ],
)
def test_an_address_is_foreign_when_another_host_is_or_could_be_there(
    local: str, remote: str, *, foreign: bool
) -> None:
    port = 0 if remote in {"0.0.0.0", "::"} else 80  # noqa: S104
    assert NetworkSocket("tcp", (local, 1), (remote, port), listening=False, inode=1).is_foreign is foreign


def test_a_taken_port_is_refused_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UnusableEvidenceError, match=rf"port {port}: seen in use \(Address already in use\)"):
            sockets.refuse_taken(port)
    sockets.refuse_taken(port)


def test_a_free_port_is_free() -> None:
    sockets.refuse_taken(sockets.free_port())
