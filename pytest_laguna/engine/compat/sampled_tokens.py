# SPDX-License-Identifier: Apache-2.0
"""Tokens sampled by this rank; names seen in vLLM 0.26.0, 0.32.0 and 0.33.0, in both of their model runners.

Every rank samples from the same logits, but the executor asks only one of them. The answer is the tokens, or with
asynchronous scheduling an object that yields them once they have come from the device. It may be asked once, and on
most ranks nobody does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class SampledTokens:
    """Collects the tokens of every step from now on, without waiting for the device before ``token_ids``."""

    def __init__(self, worker: Any, step: Callable[[], None]) -> None:
        """Wrap the worker's sampling.

        Args:
            worker: vLLM's, with its model loaded.
            step: called at each step, before its tokens are sampled.
        """
        self._steps: list[Callable[[], Any]] = []
        runner = worker.model_runner
        sample = runner.sample_tokens

        def watched(*arguments: Any, **keywords: Any) -> Any:
            step()
            answer = sample(*arguments, **keywords)
            self._take(answer)
            return answer

        # On the object, not on its class: vLLM looks the method up at each step.
        runner.sample_tokens = watched

    def _take(self, answer: Any) -> None:
        if hasattr(answer, "get_output"):
            answer.get_output = once = _Once(answer.get_output)
            self._steps.append(once.tokens)
        elif answer is not None:  # None: the step failed before sampling, and the executor raises its error
            tokens = _flat(answer)  # copied: the scheduler cuts its lists
            self._steps.append(lambda: tokens)

    def token_ids(self) -> list[int]:
        """All tokens in order; called after the generation."""
        return [token for step in self._steps for token in step()]


class _Once:
    """Asks for an answer once, whoever comes first, and then returns it as often as wanted."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._given: tuple[Any, list[int]] | None = None

    def __call__(self) -> Any:
        """The answer, in the executor's form."""
        return self._answer()[0]

    def tokens(self) -> list[int]:
        """Tokens of the answer."""
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
