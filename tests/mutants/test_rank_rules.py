# SPDX-License-Identifier: Apache-2.0
"""A rank that hangs and one that samples other tokens are named, in every campaign that has arms."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.evidence.arms.rank_files import stack_name
from tests import diagnostic_root, event_root
from tests.caught_first import caught_first
from tests.diagnostic_root import Change, at, both, put, within, without

Sampled = Callable[[Any], None]

HEAD = "Timeout (0:00:55)!\nThread 0x00007f0000000001 (most recent call first):\n"
OTHER_THREAD = f'{HEAD}  File "/lib/python3.11/threading.py", line 975 in _bootstrap\n\n'
MAIN = 'Thread 0x00007f0000000000 (most recent call first):\n  File "{file}", line 7 in {function}\n'
END = '  File "/project/pytest_laguna/engine/arm.py", line 3 in <module>\n'


def stack(function: str, file: str) -> bytes:
    return (OTHER_THREAD + MAIN.format(function=function, file=file) + END).encode()


WAITED = stack("all_reduce", "/site-packages/torch/distributed/distributed_c10d.py")
SPUN = stack("_sample", "/site-packages/vllm/v1/worker/gpu_model_runner.py")
NO_RECORD = "arms/q1: no record: arm q1: deadline"


def hung(**stacks: bytes) -> Change:
    """The first arm was ended, and left nothing but what its ranks had to say."""
    rank = {"first": 0, "second": 1}
    return both(
        without("arms/q1/record.json"),
        put("arms/q1/failure.json", {"reason": "arm q1: deadline"}),
        at("arms/q1/process.json", "reason", "deadline"),
        *(put(f"arms/q1/{stack_name(rank[name])}", content) for name, content in stacks.items()),
    )


WAITS = "rank 0 waited in all_reduce (torch/distributed/distributed_c10d.py, line 7)"
HUNG: dict[str, tuple[Change, str, str]] = {
    "spins": (
        hung(first=WAITED, second=SPUN),
        "VOID",
        f"q1: rank 1 was in _sample (vllm/v1/worker/gpu_model_runner.py, line 7); {WAITS}",
    ),
    "stopped": (
        hung(first=WAITED, second=b""),
        "VOID",
        f"q1: rank 1 left no stack: it was stopped, had ended or had not begun; {WAITS}",
    ),
    "no file": (hung(first=WAITED), "VOID", "q1: rank 1 left no stack"),
    "all in one collective": (hung(first=WAITED, second=WAITED), "NOT_PROVEN", NO_RECORD),
    "torn": (hung(first=WAITED, second=SPUN[:-9]), "NOT_PROVEN", NO_RECORD),
    "not ASCII": (hung(first=WAITED, second=b"\xff" + SPUN), "NOT_PROVEN", NO_RECORD),
    "huge": (hung(first=WAITED, second=SPUN * 10_000), "NOT_PROVEN", NO_RECORD),
    "nothing said": (hung(), "NOT_PROVEN", NO_RECORD),
}


def sampled(rank: int, edit: Sampled) -> Change:
    return within("arms/q1/record.json", f"ranks|{rank}|sampled_token_ids", edit)


def another(ids: list[int]) -> None:
    ids[7] += 1


def one_more(ids: list[int]) -> None:
    ids.append(7)


def one_less(ids: list[int]) -> None:
    ids.pop()


TOKENS = 272
GIVEN, FIRST = ", as the arm gave", ", as rank 0 sampled"
SAMPLED: dict[str, tuple[Change, str, str]] = {
    "another token": (sampled(1, another), "q1 rank 1: seen ", GIVEN),
    "another token on all ranks": (both(sampled(0, another), sampled(1, another)), "q1 rank 0: seen ", GIVEN),
    "one less": (sampled(1, one_less), f"q1 rank 1: seen None sampled as token {TOKENS - 1}; expected ", GIVEN),
    "one more": (sampled(1, one_more), f"q1 rank 1: seen 7 sampled as token {TOKENS}; expected None", FIRST),
    "one more on the first": (
        sampled(0, one_more),
        f"q1 rank 1: seen None sampled as token {TOKENS}; expected 7",
        FIRST,
    ),
}

ANSWERED, ALIKE = "arms-fresh/ranks-answered", "tokens-identical/ranks-sampled-alike"

ROOTS: list[types.ModuleType] = [diagnostic_root, event_root]


def found(root: types.ModuleType, change: Change, directory: Path) -> dict[str, tuple[str, str]]:
    tree = root.good()
    change(tree)
    findings: dict[str, tuple[str, str]] = root.findings(root.judged(tree, directory))
    return findings


TOLD_FIRST = {f"{ANSWERED}-{name}": "identity-exact/engine-mapped" for name in HUNG}
"""Of an arm without a record, what it mapped is missed first; that is NOT_PROVEN, and the rank that hung is VOID."""


@pytest.mark.parametrize("root", ROOTS)
@caught_first("rule name change verdict reason", [(ANSWERED, name, *row) for name, row in HUNG.items()], TOLD_FIRST)
def test_a_rank_that_hung_is_named_where_that_can_be_told(
    change: Change, verdict: str, reason: str, root: types.ModuleType, tmp_path: Path
) -> list[str]:
    against = found(root, change, tmp_path)
    seen = against[ANSWERED]
    assert (seen[0], seen[1].startswith(reason)) == (verdict, True), seen
    assert "\n" not in seen[1]
    return [*against]


@pytest.mark.parametrize("root", ROOTS)
def test_what_ranks_of_an_arm_that_came_to_its_end_wrote_says_nothing(root: types.ModuleType, tmp_path: Path) -> None:
    late = put(f"arms/q1/{stack_name(0)}", WAITED)
    assert found(root, late, tmp_path) == {}


@pytest.mark.parametrize("root", ROOTS)
@caught_first("rule name change reason source", [(ALIKE, name, *row) for name, row in SAMPLED.items()])
def test_a_rank_that_sampled_other_tokens_is_named(
    change: Change, reason: str, source: str, root: types.ModuleType, tmp_path: Path
) -> list[str]:
    seen = found(root, change, tmp_path)
    [(verdict, told)] = seen.values()
    assert (verdict, told.startswith(reason), told.endswith(source)) == ("FAIL", True, True), told
    return [*seen]


@pytest.mark.parametrize("root", ROOTS)
def test_a_step_that_yielded_more_than_the_length_allows_is_equal_on_all_ranks(
    root: types.ModuleType, tmp_path: Path
) -> None:
    assert found(root, both(sampled(0, one_more), sampled(1, one_more)), tmp_path) == {}
