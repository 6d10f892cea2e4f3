# SPDX-License-Identifier: Apache-2.0
"""A runner for tests that start arms without a gate session around them, and what those with one share with it."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from pytest_laguna.campaign import Bounds
from pytest_laguna.machine.command import new_token
from pytest_laguna.run.arm_runner import ArmRunner

CONFTEST = """\
import dataclasses
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def arm_runner(arm_runner):
    return dataclasses.replace(arm_runner, bytecode=Path({bytecode!r}))
"""


def runner(
    *, deadline_seconds: float = 2400.0, settle_seconds: float = 30.0, interrupt_seconds: float = 1.0
) -> ArmRunner:
    """The bounds are a last net: what they end should long have ended by itself on the slowest machine."""
    bounds = Bounds(
        deadline_seconds=deadline_seconds,
        settle_seconds=settle_seconds,
        interrupt_seconds=interrupt_seconds,
        terminate_seconds=1.0,
        kill_seconds=5.0,
        memory_limit_bytes=6 * 2**30,
    )
    return ArmRunner(new_token(), {}, frozenset(), bounds, bytecode())


@functools.cache
def bytecode() -> Path:
    """One place for all runs of this test process: compiling vLLM takes longer than most of them."""
    directory = Path(tempfile.mkdtemp(prefix="laguna-bytecode-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def keep_bytecode(project: Path) -> None:
    """Have the gate sessions of a project use that place too; Python compares what lies there with its source.

    A session's own place, in which vLLM is compiled anew, is that of ``test_own_candidate`` and ``test_gate1_real``.
    """
    (project / "conftest.py").write_text(CONFTEST.format(bytecode=str(bytecode())))
