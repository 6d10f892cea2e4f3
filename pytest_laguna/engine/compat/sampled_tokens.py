# SPDX-License-Identifier: Apache-2.0
"""What this rank samples. Names seen in vLLM 0.26.0, 0.32.0 and 0.33.0, in both of their model runners.

Every rank samples, from the same logits; the executor asks one of them for its answer, and of the others nobody learns
what it was. An answer is the tokens, or with asynchronous scheduling what gives them once they have come from the
device; it may be asked once, and on most ranks nobody does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class SampledTokens:
    """The tokens of every step from now on; nothing waits for the device before they are asked for."""

    def __init__(self, worker: Any, step: Callable[[], None]) -> None:
        """Look at what vLLM's worker answers with.

        Args:
            worker: vLLM's, with its model loaded.
            step: is called at each step, before its tokens are sampled.
        """
        self._steps: list[Callable[[], Any]] = []
        runner = worker.model_runner
        sample = runner.sample_tokens

        def watched(*arguments: Any, **keywords: Any) -> Any:
            step()
            answer = sample(*arguments, **keywords)
            self._take(answer)
            return answer

        # On the object and not on its class: vLLM looks the method up at each step.
        runner.sample_tokens = watched

    def _take(self, answer: Any) -> None:
        if hasattr(answer, "get_output"):
            answer.get_output = once = _Once(answer.get_output)
            self._steps.append(once.tokens)
        elif answer is not None:  # None: the step failed before it sampled, and the executor raises what it failed by
            tokens = _flat(answer)  # copied: the scheduler cuts its lists
            self._steps.append(lambda: tokens)

    def token_ids(self) -> list[int]:
        """All of them, in the order of their steps; to be asked for when the generation is over."""
        return [token for step in self._steps for token in step()]


class _Once:
    """An answer that is asked once, by whoever comes first, and given as often as it is wanted."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._given: tuple[Any, list[int]] | None = None

    def __call__(self) -> Any:
        """The answer, as the executor wants it."""
        return self._answer()[0]

    def tokens(self) -> list[int]:
        """Its tokens."""
        return self._answer()[1]

    def _answer(self) -> tuple[Any, list[int]]:
        with self._lock:
            if self._given is None:
                answer = self._ask()
                self._given = answer, _flat(answer)
            return self._given


def _flat(answer: Any) -> list[int]:
    """The tokens of an arm's only request."""
    return [int(token) for tokens in answer.sampled_token_ids for token in tokens]
