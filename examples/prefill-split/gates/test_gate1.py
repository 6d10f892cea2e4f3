# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: D103, INP001, PLR2004, S101
"""Gate 1: the candidate's contract, on a CPU and without an engine."""

from __future__ import annotations

import pytest
from prefill_split import step_tokens

from pytest_laguna.fixtures import Prove


@pytest.mark.gate(1)
@pytest.mark.clause("flag-strict")
def test_the_flag_is_strict_and_off_by_default(prove: Prove) -> None:
    assert step_tokens({}) == step_tokens({"PREFILL_SPLIT": "0"}) == 512
    refused = ["", "2", "true", " 1", "1 "]
    for value in refused:
        with pytest.raises(ValueError, match="expected 0 or 1"):
            step_tokens({"PREFILL_SPLIT": value})
    prove("unset is off, and every other value than 0 and 1 is refused", refused=refused)


@pytest.mark.gate(1)
@pytest.mark.clause("narrower")
def test_the_treatment_is_the_narrower_step(prove: Prove) -> None:
    control, treatment = step_tokens({"PREFILL_SPLIT": "0"}), step_tokens({"PREFILL_SPLIT": "1"})
    assert treatment < control
    prove("the treatment splits what the control does at once", control=control, treatment=treatment)
