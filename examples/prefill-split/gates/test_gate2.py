# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: D103, INP001, S101
"""Gate 2: control and candidate, each one cold generation in a fresh process on the leased card."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from prefill_split import FLAG, step_tokens
from prefill_split.runs import TOKENS, run_arm

from pytest_laguna.campaign import Campaign
from pytest_laguna.fixtures import Prove
from pytest_laguna.run.arm_runner import ArmRunner

Arms = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def arms(arm_runner: ArmRunner, campaign: Campaign, tmp_path_factory: pytest.TempPathFactory) -> Arms:
    """Run control and candidate, in this order; return their records by flag value."""
    place = tmp_path_factory.mktemp("arms")
    pair = arm_runner.tiny_pair(place / "models", interpreter=Path(sys.executable), layers=12)
    values = (campaign.candidate.control, campaign.candidate.treatment)
    return {
        flag: run_arm(arm_runner, place / f"flag-{flag}", flag, pair.target, pair.prompts["letters"]) for flag in values
    }


@pytest.mark.gate(2)
@pytest.mark.clause("arms-fresh")
def test_each_arm_is_one_cold_generation_in_a_fresh_process(arms: Arms, prove: Prove) -> None:
    assert len({arm["pid"] for arm in arms.values()}) == len(arms)
    assert [len(arm["tokens"]) for arm in arms.values()] == [TOKENS] * len(arms)
    assert not any(arm["cached_tokens"] for arm in arms.values())
    prove("two processes, one generation each, no cached token", tokens=TOKENS)


@pytest.mark.gate(2)
@pytest.mark.clause("sole-treatment")
def test_the_flag_is_the_sole_treatment(arms: Arms, prove: Prove) -> None:
    control, candidate = (arm["environment"] for arm in arms.values())
    private = {name for name in control if "flag-0" in control[name] or name in {"TMPDIR", "VLLM_RPC_BASE_PATH"}}
    different = {name for name in control.keys() | candidate.keys() if control.get(name) != candidate.get(name)}
    assert different - private == {FLAG}
    prove("beside private directories, the environments differ in the flag alone", different=sorted(different))


@pytest.mark.gate(2)
@pytest.mark.clause("treatment-active")
def test_the_engine_ran_the_width_that_the_flag_asks_for(arms: Arms, prove: Prove) -> None:
    seen = {flag: arm["step_tokens"] for flag, arm in arms.items()}
    assert seen == {flag: step_tokens({FLAG: flag}) for flag in arms}
    prompt = {arm["prompt_tokens"] for arm in arms.values()}
    assert len(prompt) == 1
    assert min(seen.values()) < min(prompt) <= max(seen.values())
    prove("the prompt is one step in the control and several in the candidate", step_tokens=seen, prompt=min(prompt))


@pytest.mark.gate(2)
@pytest.mark.clause("tokens-identical")
def test_tokens_are_identical(arms: Arms, prove: Prove) -> None:
    control, candidate = (arm["tokens"] for arm in arms.values())
    assert control == candidate
    prove("every token of the candidate is the control's", tokens=len(control), first=control[:8])
