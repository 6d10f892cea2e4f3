# SPDX-License-Identifier: Apache-2.0
"""The names by which a leg and the ranks of its server find each other's files."""

from __future__ import annotations

VARIABLE = "LAGUNA_RANK_STATES"
"""The directory in which each rank of a server leaves its states: part of the leg's evidence."""
PIPES = "LAGUNA_RANK_PIPES"
"""The directory of the ranks' pipes: outside the evidence, which is regular files however a leg ends."""


def state_name(rank: int, moment: str) -> str:
    """The file of a rank's state; a moment is one of ``RankState.moment``."""
    return f"rank-{rank}-{moment}.json"


def pipe_name(rank: int) -> str:
    """The pipe whose opening asks a rank for its state after the suite."""
    return f"rank-{rank}.ask"
