# SPDX-License-Identifier: Apache-2.0
"""What holds for every test.

What is imported while tests are collected, torch and vLLM among it, stays: no search for garbage looks at it. And what
a test starts hears what it is sent, though the tests themselves were started under nohup or in a script's background.
"""

from __future__ import annotations

import atexit
import gc
import signal
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
