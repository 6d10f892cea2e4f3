# SPDX-License-Identifier: Apache-2.0
"""Watches a child's processes from outside, by descriptors that mean them for ever, and a controller beside them."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from pytest_laguna.machine import descent, kernel
from pytest_laguna.machine.command import new_token
from tests.supervised.child import KINDS, wait_for_files

ROOT = Path(__file__).resolve().parents[2]


class Watched:
    """Processes that were alive when this was made."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._descriptors = {kernel.open_process(pid): pid for pid in pids}

    def wait_until_gone(self, seconds: float) -> list[int]:
        """Wait until each has ended; the pids of those that have not."""
        poll = select.poll()
        for descriptor in self._descriptors:
            poll.register(descriptor, select.POLLIN)
        left, end = dict(self._descriptors), time.monotonic() + seconds
        while left and (rest := end - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(rest * 1000):
                poll.unregister(descriptor)
                del left[descriptor]
        return list(left.values())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)


def watch(directory: Path, kind: str, *others: int) -> Watched:
    """Wait until a child's processes have all reported, and watch them and ``others``."""
    files = directory / "pids"
    wait_for_files(files, KINDS[kind][1])
    return Watched([*(int(path.name) for path in files.iterdir() if path.name.isdecimal()), *others])


def wait_without_bearers(token: str, seconds: float) -> list[str]:
    """Wait until no process bears a token; the commands of those that still do."""
    end = time.monotonic() + seconds
    while (left := descent.bearers(token)) and time.monotonic() < end:
        time.sleep(0.005)
    return [process.command() for process in left]


class Owner:
    """A controller that runs in a process of its own, in a session of its own."""

    def __init__(self, kind: str, directory: Path, ladder_seconds: float = 30.0, settle_seconds: float = 0.2) -> None:
        self.token = new_token()
        argv = [sys.executable, "-m", "tests.supervised.owner", kind, str(directory), self.token]
        argv += [str(ladder_seconds), str(settle_seconds)]
        self.process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self.process.stdout is not None
        self._output = self.process.stdout

    def heard(self, word: str) -> list[str]:
        """The rest of the next line, which begins with a word."""
        first, *rest = self._output.readline().split()
        if first != word:
            message = f"controller: expected {word!r}, found {first!r}"
            raise AssertionError(message)
        return rest

    def last_line(self) -> str:
        """What it says last, once it has ended."""
        return self._output.read().splitlines()[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        self._output.close()
