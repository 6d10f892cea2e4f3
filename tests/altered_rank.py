# SPDX-License-Identifier: Apache-2.0
"""An arm of which one rank does what no rank should: ``altered_rank.py HOW REQUEST.json RECORD.json``.

The alteration is in what vLLM's rank 1 samples with, and in nothing that the arm records with.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from pytest_laguna.engine import arm
from pytest_laguna.engine.compat import sampled_tokens

RANK, STEP = 1, 5
"""Which rank, and at which of its steps."""


def spins(_output: Any) -> None:
    """Never comes back."""
    while True:
        pass


def dies(_output: Any) -> None:
    """As the kernel ends it that is out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def changes(output: Any) -> None:
    """Its token is another one than the other ranks'."""
    output.sampled_token_ids[0, 0] += 1


class Altered(sampled_tokens.SampledTokens):
    """What the arm gives each rank when its generation begins; the ranks are forks, and have it too."""

    how: Callable[[Any], None]

    def __init__(self, worker: Any, step: Callable[[], None]) -> None:
        super().__init__(worker, step)
        if worker.rank == RANK:
            self._alter(worker.model_runner)

    def _alter(self, runner: Any) -> None:
        sample, steps = runner._sample, iter(range(1, 10_000))

        def altered(*arguments: Any, **keywords: Any) -> Any:
            output = sample(*arguments, **keywords)
            if next(steps) == STEP:
                type(self).how(output)
            return output

        runner._sample = altered


if __name__ == "__main__":
    Altered.how = {"spins": spins, "dies": dies, "changes": changes}[sys.argv[1]]
    sampled_tokens.SampledTokens = Altered  # type: ignore[misc]
    sys.exit(arm.main(sys.argv[2:]))
