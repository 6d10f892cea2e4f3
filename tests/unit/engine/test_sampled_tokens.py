# SPDX-License-Identifier: Apache-2.0
"""What a rank samples is remembered from vLLM's own answers, and each of those is asked no more than once.

Run on vLLM 0.32.0, and by ``test_compat_other_vllm`` on the others that the project reads.
"""

from __future__ import annotations

import ast
import importlib.util
import threading
import types
import warnings
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's imports warn
    from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, AsyncModelRunnerOutput, ModelRunnerOutput

from pytest_laguna.engine.compat.sampled_tokens import SampledTokens


def answer(*tokens: int) -> ModelRunnerOutput:
    return ModelRunnerOutput(req_ids=["0"], req_id_to_index={"0": 0}, sampled_token_ids=[list(tokens)])


class Asynchronous(AsyncModelRunnerOutput):
    """One whose tokens come later, and may be asked for once."""

    def __init__(self, output: ModelRunnerOutput) -> None:
        self._output: ModelRunnerOutput | None = output

    def get_output(self) -> ModelRunnerOutput:
        assert self._output is not None, "asked twice"
        output, self._output = self._output, None
        return output

    def get_kv_connector_output(self) -> None:
        """In 0.33.0 an answer says this too."""


def worker(*answers: object) -> Any:
    due = iter(answers)
    return types.SimpleNamespace(model_runner=types.SimpleNamespace(sample_tokens=lambda _grammar: next(due)))


def test_the_tokens_of_every_step_are_kept_though_the_scheduler_cuts_its_lists() -> None:
    steps: list[str] = []
    observed = worker(answer(5), EMPTY_MODEL_RUNNER_OUTPUT, answer(6, 7, 8))
    sampled = SampledTokens(observed, lambda: steps.append("step"))
    for _ in range(3):
        for tokens in observed.model_runner.sample_tokens(None).sampled_token_ids:
            tokens.clear()
    assert sampled.token_ids() == [5, 6, 7, 8]
    assert steps == ["step"] * 3


def test_an_asynchronous_answer_is_asked_by_the_executor_or_in_the_end() -> None:
    observed = worker(Asynchronous(answer(1)), answer(2), Asynchronous(answer(3, 4)))
    sampled = SampledTokens(observed, lambda: None)
    first, _, last = (observed.model_runner.sample_tokens(None) for _ in range(3))
    given = last.get_output()
    assert given.sampled_token_ids == [[3, 4]]
    given.sampled_token_ids[0].clear()
    assert sampled.token_ids() == [1, 2, 3, 4]
    assert first.get_output().sampled_token_ids == [[1]]
    assert sampled.token_ids() == [1, 2, 3, 4]


def test_a_step_that_failed_before_it_sampled_gives_none_and_its_own_error_is_told() -> None:
    observed = worker(answer(5), None)
    sampled = SampledTokens(observed, lambda: None)
    observed.model_runner.sample_tokens(None)
    assert observed.model_runner.sample_tokens(None) is None
    assert sampled.token_ids() == [5]


def test_nobody_waits_for_the_device_before_the_end() -> None:
    pending = Asynchronous(answer(1))
    observed = worker(pending)
    SampledTokens(observed, lambda: None)
    observed.model_runner.sample_tokens(None)
    assert pending._output is not None


def test_two_threads_that_ask_at_once_are_given_the_same() -> None:
    class Slow(Asynchronous):
        def get_output(self) -> ModelRunnerOutput:
            asked.set()
            assert go_on.wait(5)
            return super().get_output()

    asked, go_on = threading.Event(), threading.Event()
    observed = worker(Slow(answer(9)))
    sampled = SampledTokens(observed, lambda: None)
    given = observed.model_runner.sample_tokens(None)
    thread = threading.Thread(target=given.get_output)
    thread.start()
    assert asked.wait(5)
    threading.Timer(0.05, go_on.set).start()
    assert sampled.token_ids() == [9]
    thread.join()


def method(module: str, owner: str, name: str) -> str:
    """Its text, read and not imported: a runner for devices needs one."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    parsed = ast.parse(Path(spec.origin).read_text())
    [found] = [node for node in parsed.body if isinstance(node, ast.ClassDef) and node.name == owner]
    [told] = [node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == name]
    return ast.unparse(told)


@pytest.mark.parametrize(
    ("module", "owner", "name", "says"),
    [
        ("vllm.v1.worker.gpu_worker", "Worker", "sample_tokens", "self.model_runner.sample_tokens("),
        ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner", "sample_tokens", "return async_output"),
        ("vllm.v1.worker.gpu.model_runner", "GPUModelRunner", "sample_tokens", "AsyncOutput("),
        ("vllm.v1.worker.gpu_model_runner", "AsyncGPUModelRunnerOutput", "get_output", ".sampled_token_ids = "),
        ("vllm.v1.worker.gpu.async_utils", "AsyncOutput", "get_output", ".sampled_token_ids = "),
    ],
)
def test_both_runners_of_this_vllm_answer_so(module: str, owner: str, name: str, says: str) -> None:
    assert says in method(module, owner, name)
