# SPDX-License-Identifier: Apache-2.0
"""Settings of every test, and the choice of long tests for ``make test``.

What is imported while tests are collected, torch and vLLM among it, stays: no search for garbage looks at it. And what
a test starts hears what it is sent, though the tests themselves were started under nohup or in a script's background.
"""

from __future__ import annotations

import atexit
import gc
import random
import signal
from collections import defaultdict
from collections.abc import Generator

import pytest

atexit.register(gc.freeze)  # nor when the process ends

for heard, answer in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGTERM, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    if signal.getsignal(heard) is signal.SIG_IGN:
        signal.signal(heard, answer)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Such searches take much of the time that collecting does."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


LONG = ("engines", "sessions", "faults", "rules")
"""The markers of the long tests; each has a target of its own. The nearest to a test holds."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as kept the cases that ``make test`` has of a long test: as many as its marker says, always the same."""
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    for name, found in cases.items():
        marks = [mark for mark in map(found[0].get_closest_marker, LONG) if mark is not None]
        wanted = max((mark.kwargs.get("keep", 0) for mark in marks), default=0)
        for item in random.Random(name).sample(found, min(wanted, len(found))):  # noqa: S311 - a sample of tests
            item.add_marker(pytest.mark.kept)
