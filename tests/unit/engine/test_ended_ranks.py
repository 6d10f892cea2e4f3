# SPDX-License-Identifier: Apache-2.0
"""A rank that has ended badly is named with how, wherever the error comes from."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys

from pytest_laguna.engine.arm import _ended_children


def test_the_ended_are_named_and_the_others_are_not() -> None:
    context = multiprocessing.get_context("fork")
    ends = {"rank-0": _kill_oneself, "rank-1": _fail, "rank-2": _end_well}
    children = [context.Process(target=target, name=name) for name, target in ends.items()]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert list(_ended_children()) == ["rank-0 ended by SIGKILL", "rank-1 ended with exit code 3"]


def test_one_of_an_engine_that_has_frozen_its_heap_is_named_too() -> None:
    code = (
        "import gc, multiprocessing, os; from pytest_laguna.engine import arm;"
        "child = multiprocessing.get_context('fork').Process(target=os.abort, name='rank-0'); child.start();"
        "gc.freeze(); child.join();"
        "print(*arm._ended_children())"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said == "rank-0 ended by SIGABRT\n"


def _kill_oneself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _fail() -> None:
    sys.exit(3)


def _end_well() -> None:
    pass
