# SPDX-License-Identifier: Apache-2.0
"""``python -m tools.tiny_pair.measure PAIR OUT``: run the prompts in vLLM and measure the target's margins.

OUT gets a JSON list with an entry for each prompt of gate 2 and of the endpoint's suite; ``measured.json`` holds such
lists for several configurations, and docs/tiny-pair.md is made of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_laguna.engine.tiny_pair.prompts import GATE_2
from pytest_laguna.evidence.arms import arm_settings
from pytest_laguna.evidence.arms.arm_record import Arm, ArmRequest, Planted

from .suite import GATE_2_TOKENS, SUITE, SUITE_TOKENS, continuation

_MAX_MODEL_TOKENS = 1024
"""Of the endpoint, for its long prompt."""


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """One greedy generation.

    Attributes:
        prompt: name of the prompt.
        tokens: number of generated tokens.
        finish_reason: vLLM's.
        as_learnt: True if the tokens are the stream's own continuation.
        minimum_margin: least difference of the two highest logits, over all generated tokens.
        drafts: verifications; 0 without a draft.
        accepted: proposals accepted in them.
    """

    prompt: str
    tokens: int
    finish_reason: str
    as_learnt: bool
    minimum_margin: float
    drafts: int
    accepted: int


def main(arguments: list[str]) -> None:
    """Measure and write; raises FileExistsError if OUT exists."""
    parser = argparse.ArgumentParser(description="Run the tiny pair's prompts in vLLM on the cpu lane.")
    parser.add_argument("pair", type=Path, help="directory of the pair")
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--arm", type=Arm, choices=list(Arm), default=Arm.GRAPH_CONTROL)
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--prompt", action="append", dest="names", help="only this one; may be given several times")
    options = parser.parse_args(arguments)
    asked = request(options.pair.absolute(), options.arm, options.tensor_parallel_size)
    os.environ.update(arm_settings.environment(asked))
    rows = [dataclasses.asdict(measured) for measured in _measure(asked, options.names)]
    with options.out.open("x") as stream:
        json.dump(rows, stream, indent=1)


def request(pair: Path, arm: Arm, tensor_parallel_size: int) -> ArmRequest:
    """A request for the environment and the engine; its prompt and number of tokens are unused."""
    return ArmRequest(
        arm=arm,
        lane="cpu",
        target=str(pair / "target"),
        draft=str(pair / "draft") if arm.speculates else None,
        prompt="unused",
        tokens=1,
        tensor_parallel_size=tensor_parallel_size,
        collective_breaks=False,
        planted=Planted.NONE,
        profile_samples=0,
    )


def _measure(asked: ArmRequest, names: list[str] | None) -> Iterator[Measured]:
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - after the environment has been set

    lengths = {"max_model_len": _MAX_MODEL_TOKENS, "max_num_batched_tokens": _MAX_MODEL_TOKENS}
    # vLLM 0.32.0 also counts for each request, not only for the whole engine.
    counted = {"per_request_spec_decode_metrics": "summary"} if asked.arm.speculates else {}
    engine = LLM(**(arm_settings.engine_arguments(asked) | lengths | counted))
    for name, prompt in (GATE_2 | SUITE).items():
        if names is not None and name not in names:
            continue
        tokens = GATE_2_TOKENS if name in GATE_2 else SUITE_TOKENS
        sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=name in GATE_2, logprobs=2)
        [output] = engine.generate([prompt.text], sampling, use_tqdm=False)
        [completion] = output.outputs
        yield Measured(
            prompt=name,
            tokens=len(completion.token_ids),
            finish_reason=str(completion.finish_reason),
            as_learnt=list(completion.token_ids) == continuation(prompt, tokens),
            minimum_margin=min(_margin(of_token) for of_token in completion.logprobs or ()),
            drafts=sum(_histogram(completion.spec_decode_metrics)),
            accepted=sum(count * number for number, count in enumerate(_histogram(completion.spec_decode_metrics))),
        )


def _histogram(metrics: Any) -> list[int]:
    """Verifications by the number of accepted proposals."""
    return [] if metrics is None else list(metrics.histogram)


def _margin(of_token: dict[int, Any]) -> float:
    """Difference of the two highest log-probabilities, which is that of their logits."""
    highest, second, *_ = sorted((choice.logprob for choice in of_token.values()), reverse=True)
    return float(highest - second)


if __name__ == "__main__":
    main(sys.argv[1:])
