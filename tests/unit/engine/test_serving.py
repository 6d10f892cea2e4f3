# SPDX-License-Identifier: Apache-2.0
"""A server's configuration is its arm's, but for the lengths."""

from __future__ import annotations

import dataclasses

import pytest

from pytest_laguna.engine import serving
from pytest_laguna.evidence.arms import arm_settings
from pytest_laguna.evidence.arms.arm_record import Arm
from tests.unit.engine.support import request

SERVED = serving.ServedArm(
    arm=Arm.GRAPH_CANDIDATE,
    lane="cpu",
    target="/models/target",
    draft="/models/draft",
    tensor_parallel_size=2,
    collective_breaks=True,
    max_model_tokens=1024,
)
ASKED = request(arm=Arm.GRAPH_CANDIDATE, tensor_parallel_size=2, collective_breaks=True)


def test_the_engine_arguments_are_the_arms_but_for_the_lengths_and_the_probe() -> None:
    served, arm = SERVED.engine_arguments(), arm_settings.engine_arguments(ASKED)
    assert served.pop("max_model_len") == served.pop("max_num_batched_tokens") == 1024
    assert arm["disable_log_stats"] is False
    for name in ("max_model_len", "max_num_batched_tokens", "worker_extension_cls", "disable_log_stats"):
        del arm[name]
    assert served == arm
    assert served["enable_prefix_caching"] is False


def test_the_variables_are_the_arms_with_an_engine_of_its_own() -> None:
    assert SERVED.variables() == arm_settings.environment(ASKED) | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}


def test_the_selector_is_all_that_the_two_legs_of_a_pair_differ_in() -> None:
    control = dataclasses.replace(SERVED, arm=Arm.GRAPH_CONTROL)
    assert control.engine_arguments() == SERVED.engine_arguments()
    different = SERVED.variables().items() ^ control.variables().items()
    assert different == {(arm_settings.FLAG, "0"), (arm_settings.FLAG, "1")}


def test_the_executor_backend_is_passed_through() -> None:
    chosen = dataclasses.replace(SERVED, executor_backend="ray").engine_arguments()
    assert chosen == SERVED.engine_arguments() | {"distributed_executor_backend": "ray"}
    assert "distributed_executor_backend" not in SERVED.engine_arguments()


def test_a_draft_is_served_where_the_arm_has_one_and_nowhere_else() -> None:
    q1 = dataclasses.replace(SERVED, arm=Arm.Q1, draft=None)
    assert "speculative_config" not in q1.engine_arguments()
    with pytest.raises(ValueError, match="expected one in every arm but q1"):
        dataclasses.replace(SERVED, draft=None).engine_arguments()
