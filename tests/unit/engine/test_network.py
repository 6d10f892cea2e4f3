# SPDX-License-Identifier: Apache-2.0
"""An arm that is told to leaves the host's network for good, or claims nothing: in child processes of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

CHILD = """
import json, os, socket, sys
from pathlib import Path
from pytest_laguna.engine import network
before = os.stat("/proc/self/ns/net").st_ino
{prepare}
isolation = network.isolate()
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname(), timeout=5)
try:
    socket.create_connection(("192.0.2.1", 9), timeout=0.2)
    outside = "reached"
except OSError as error:
    outside = type(error).__name__
Path(sys.argv[1]).write_text("mine")
print(json.dumps({{
    "isolation": isolation and isolation.canonical(),
    "before": before,
    "now": os.stat("/proc/self/ns/net").st_ino,
    "outside": outside,
    "owner": os.stat(sys.argv[1]).st_uid,
    "user": os.geteuid(),
}}))
"""

REFUSING = """
import ctypes, types
ctypes.CDLL = lambda *_arguments, **_named: types.SimpleNamespace(unshare=lambda _flags: -1)
"""


def child(path: Path, prepare: str = "") -> dict[str, Any]:
    argv = [sys.executable, "-c", CHILD.format(prepare=prepare), str(path)]
    seen = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert seen.returncode == 0, seen.stderr
    told: dict[str, Any] = json.loads(seen.stdout)
    return told


def test_an_isolated_process_has_loopback_alone_and_keeps_its_files(tmp_path: Path) -> None:
    told = child(tmp_path / "file")
    if told["isolation"] is None:  # this kernel lets no user make namespaces: nothing is claimed, nothing changed
        assert told["now"] == told["before"]
    else:
        assert told["isolation"] == {"namespace": told["now"], "left": told["before"], "interfaces": ["lo"]}
        assert told["now"] != told["before"]
        assert told["outside"] == "OSError", "unreachable at once, and not after a time"
    assert told["owner"] == told["user"]


def test_where_the_kernel_refuses_nothing_is_claimed(tmp_path: Path) -> None:
    told = child(tmp_path / "file", REFUSING)
    assert told["isolation"] is None
    assert told["now"] == told["before"]


WITHOUT_LOOPBACK = """
def fail():
    raise OSError("no loopback here")
network._raise_loopback = fail
"""


def test_a_namespace_that_would_have_no_loopback_is_not_entered(tmp_path: Path) -> None:
    """There is no way back, and nothing could run."""
    told = child(tmp_path / "file", WITHOUT_LOOPBACK)
    assert told["isolation"] is None
    assert told["now"] == told["before"]


PRIVILEGED = """
user = os.readlink("/proc/self/ns/user")
import atexit
atexit.register(lambda: Path(sys.argv[1] + ".user").write_text(str(user == os.readlink("/proc/self/ns/user"))))
"""


def test_who_may_leave_alone_keeps_what_else_it_may(tmp_path: Path) -> None:
    told = child(tmp_path / "file", PRIVILEGED)
    kept = (tmp_path / "file.user").read_text() == "True"
    assert kept == (told["isolation"] is None or _has_administration()), "a user namespace only where it is needed"


def _has_administration() -> bool:
    """CAP_SYS_ADMIN, bit 21 of the effective capabilities."""
    status = Path("/proc/self/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("CapEff:")]
    return bool(int(line.split()[1], 16) >> 21 & 1)
