# SPDX-License-Identifier: Apache-2.0
"""Names of the files shared by the starter of an engine and the engine's ranks."""

from __future__ import annotations

VARIABLE = "LAGUNA_RANK_STATES"
"""Directory of the states of a server's ranks: part of the leg's evidence."""
PIPES = "LAGUNA_RANK_PIPES"
"""Directory of the ranks' pipes: outside the evidence, which is regular files however a leg ends."""

STACKS = "LAGUNA_RANK_STACKS"
"""Directory of the last stacks of an arm's ranks: the arm's own."""
STACKS_BEFORE = "LAGUNA_RANK_STACKS_BEFORE"
"""Latest time of the arm's end, in seconds of the host's monotonic clock."""


def state_name(rank: int, moment: str) -> str:
    """Name of the file of a rank's state; a moment is one of ``RankState.moment``."""
    return f"rank-{rank}-{moment}.json"


def pipe_name(rank: int) -> str:
    """Name of the pipe whose opening asks a rank for its state after the suite."""
    return f"rank-{rank}.ask"


def stack_name(rank: int) -> str:
    """Name of the file of a rank's last stack."""
    return f"rank-{rank}-stack.txt"
