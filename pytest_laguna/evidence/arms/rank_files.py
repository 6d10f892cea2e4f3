# SPDX-License-Identifier: Apache-2.0
"""The names by which whoever starts an engine and the engine's ranks find each other's files."""

from __future__ import annotations

VARIABLE = "LAGUNA_RANK_STATES"
"""The directory in which each rank of a server leaves its states: part of the leg's evidence."""
PIPES = "LAGUNA_RANK_PIPES"
"""The directory of the ranks' pipes: outside the evidence, which is regular files however a leg ends."""

STACKS = "LAGUNA_RANK_STACKS"
"""The directory in which each rank of an arm writes where it is before the arm is ended: the arm's own."""
STACKS_BEFORE = "LAGUNA_RANK_STACKS_BEFORE"
"""When that will be, in seconds of the host's monotonic clock."""


def state_name(rank: int, moment: str) -> str:
    """The file of a rank's state; a moment is one of ``RankState.moment``."""
    return f"rank-{rank}-{moment}.json"


def pipe_name(rank: int) -> str:
    """The pipe whose opening asks a rank for its state after the suite."""
    return f"rank-{rank}.ask"


def stack_name(rank: int) -> str:
    """The file in which a rank writes where it is."""
    return f"rank-{rank}-stack.txt"
