# SPDX-License-Identifier: Apache-2.0
"""A controller in a process of its own: ``python -m tests.supervised.owner KIND DIRECTORY TOKEN LADDER SETTLE``.

It says ``starting`` before the child is started, ``running PID`` with its supervisor's pid after, and ``interrupted``
when an interrupt ends it; then what became of the child, as JSON.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pytest_laguna.machine.command import Command, Ladder
from pytest_laguna.machine.process import SupervisedProcess
from tests.supervised import child


def command(kind: str, directory: Path, ladder_seconds: float = 30.0, **changes: object) -> Command:
    """A command that runs ``child.py`` in a directory; its interrupt and terminate rungs take the same time."""
    files = directory / "pids"
    files.mkdir()
    given: dict[str, object] = {
        "argv": (sys.executable, "-I", "-S", str(Path(child.__file__).resolve()), kind, str(files)),
        "environment": {"PATH": "/usr/bin:/bin"},
        "directory": directory,
        "deadline_seconds": 600.0,
        "ladder": Ladder(interrupt_seconds=ladder_seconds, terminate_seconds=ladder_seconds, kill_seconds=60.0),
        "settle_seconds": 0.2,
    }
    return Command.model_validate(given | changes)


def main(kind: str, directory: Path, token: str, ladder_seconds: float, settle_seconds: float) -> int:
    """Run one child to its end."""
    process = SupervisedProcess(command(kind, directory, ladder_seconds, settle_seconds=settle_seconds), token)
    print("starting", flush=True)
    try:
        with process:
            print("running", process.supervisor_pid, flush=True)
            record = process.wait()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        record = process.stop()  # raises when the interrupt came before there was anything to stop
    print(record.model_dump_json(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], float(sys.argv[4]), float(sys.argv[5])))
