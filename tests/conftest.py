# SPDX-License-Identifier: Apache-2.0
"""What is imported while tests are collected, torch and vLLM among it, stays: no search for garbage looks at it."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Generator

import pytest

atexit.register(gc.freeze)  # nor when the process ends


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Such searches take much of the time that collecting does."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
