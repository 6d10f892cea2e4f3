# SPDX-License-Identifier: Apache-2.0
"""What asks for an event profile: off by default, whole or not at all, and alone in its process."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_laguna.engine.event_settings import GRAPHS, ORDER, REPLAYS, ROOT, ROUNDS, settings_from
from pytest_laguna.engine.profile_directory import ProfileError

DIGEST = "e5" * 32
GOOD = {ROOT: "/profile", ORDER: DIGEST, GRAPHS: "1"}


def test_off_by_default() -> None:
    assert settings_from({GRAPHS: "1", "LAGUNA_LANE": "cpu"}) is None


def test_both_ask_for_the_one_profile_and_a_number_for_a_trial() -> None:
    assert settings_from(GOOD) == (Path("/profile"), DIGEST, 0, 0)
    assert settings_from(GOOD | {ROUNDS: "9"}) == (Path("/profile"), DIGEST, 9, 0)
    assert settings_from(GOOD | {REPLAYS: "40"}) == (Path("/profile"), DIGEST, 0, 40)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({ROOT: "/profile", GRAPHS: "1"}, f"{ORDER}: seen '/profile', None; expected both"),
        ({ORDER: DIGEST, GRAPHS: "1"}, f"{ROOT}, {ORDER}: seen None, "),
        ({ROUNDS: "9", GRAPHS: "1"}, f"expected both, or none with {ROUNDS}"),
        (GOOD | {ORDER: DIGEST[:-1]}, f"{ORDER}: seen 'e5.*expected the SHA-256"),
        (GOOD | {ORDER: DIGEST.upper()}, "expected the SHA-256"),
        (GOOD | {ROUNDS: "0"}, f"{ROUNDS}: seen '0'; expected 1 to 999"),
        ({REPLAYS: "9", GRAPHS: "1"}, f"expected both, or none with {ROUNDS} and {REPLAYS}"),
        (GOOD | {REPLAYS: "0"}, f"{REPLAYS}: seen '0'; expected 1 to 999"),
        (GOOD | {ROUNDS: "9", REPLAYS: "9"}, "expected at most one of them"),
        (GOOD | {ROUNDS: "1000"}, "expected 1 to 999"),
        (GOOD | {ROUNDS: "two"}, "expected 1 to 999"),
        (GOOD | {GRAPHS: "0"}, f"{GRAPHS}: seen '0'; expected '1' with {ROOT}"),
        ({ROOT: "/profile", ORDER: DIGEST}, f"{GRAPHS}: seen None; expected '1'"),
    ],
)
def test_a_part_of_it_is_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        settings_from(environment)


@pytest.mark.parametrize(
    "name",
    [
        "LAGUNA_REPLAY_PROFILE_ROOT",
        "LAGUNA_REPLAY_PROFILE_SAMPLES",
        "VLLM_XPU_LAGUNA_M8_EVIDENCE",
        "VLLM_XPU_LAGUNA_M8_EVIDENCE_ROOT",
        "VLLM_XPU_LAGUNA_REPLAY_TRACE_SESSION",
        "VLLM_XPU_LAGUNA_REPLAY_TRACE_UNITRACE",
        "VLLM_XPU_LAGUNA_M8_CAPTURE_ATTENTION_GRAPHS",
        "VLLM_TORCH_PROFILER_DIR",
        "KINETO_LOG_LEVEL",
        "ZET_ENABLE_API_TRACING_EXP",
        "ZE_ENABLE_TRACING_LAYER",
        "UNITRACE_Session",
        "PTI_ENABLE",
        "CUDA_INJECTION64_PATH",
        "NVTX_INJECTION64_PATH",
    ],
)
def test_another_instrument_is_refused(name: str) -> None:
    with pytest.raises(ProfileError, match=f"{name}: seen set beside {ROOT}; expected one instrument in a process"):
        settings_from(GOOD | {name: "1"})
