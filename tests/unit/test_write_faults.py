# SPDX-License-Identifier: Apache-2.0
"""A session whose writes fail: each write in turn, in each way, and what is left of the attempt."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.evidence import root
from pytest_laguna.verdict import Verdict
from pytest_laguna.verify.verification import verify_root
from tests.demo import writable
from tests.sealed import build

FAULTS = {
    "disk full": ("write", errno.ENOSPC),
    "no more names": ("link", errno.ENOSPC),
    "failed flush": ("fsync", errno.EIO),
    "read-only": ("open", errno.EROFS),
}


@contextlib.contextmanager
def failing(name: str, number: int, from_then_on: bool) -> Iterator[list[int]]:
    """Let the call of a function of ``os`` fail that has this number, or all from it on; the calls are listed.

    A write that fails has written a part: a full disk takes what still fits.
    """
    call, code = FAULTS[name]
    real: Callable[..., Any] = getattr(os, call)
    calls: list[int] = []

    def fail(*arguments: Any, **named: Any) -> Any:
        reads = call == "open" and not arguments[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if reads or (call == "write" and arguments[0] <= 2):
            return real(*arguments, **named)
        calls.append(len(calls))
        if len(calls) - 1 == number or (from_then_on and len(calls) > number):
            if call == "write":
                real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            raise OSError(code, os.strerror(code))
        return real(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, call, fail)
        yield calls


def _try(directory: Path) -> str:
    """Run a whole session; what it says where it gets no receipt."""
    try:
        build(directory)
    except (OSError, AssertionError) as error:  # before the attempt was open, or behind it
        return str(error)
    return ""


def _kinds(sealed: Path) -> list[str]:
    """The kinds of the events that are whole."""
    lines = [line for path in sealed.rglob(root.JOURNAL) for line in path.read_bytes().split(b"\n")[:-1]]
    return [json.loads(line)["kind"] for line in lines]


@pytest.mark.parametrize("from_then_on", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_session_that_cannot_write_never_passes_and_keeps_what_was_written(
    name: str, from_then_on: bool, tmp_path: Path
) -> None:
    build(tmp_path)
    sealed = tmp_path / "sealed"
    whole, kept = _kinds(sealed), [-1]
    for number in itertools.count():
        with writable(sealed):
            shutil.rmtree(sealed)
        with failing(name, number, from_then_on) as calls:
            told = _try(tmp_path)
        verdicts = {report.verdict for report in verify_root(sealed)} if sealed.exists() else set()
        if len(calls) <= number:
            break
        assert os.strerror(FAULTS[name][1]) in told
        assert verdicts <= {Verdict.NOT_PROVEN}, (number, verdicts)
        assert not [*sealed.rglob(root.RECEIPT)], number
        kinds = _kinds(sealed)
        assert kinds == whole[: len(kinds)]
        assert len(kinds) >= kept[-1], "what an earlier fault leaves, a later one leaves too"
        kept.append(len(kinds))
    assert (told, verdicts) == ("", {Verdict.PASS})
    assert number >= 8
    assert kept[-1] == len(whole)
