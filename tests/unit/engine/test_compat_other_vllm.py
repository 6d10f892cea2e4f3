# SPDX-License-Identifier: Apache-2.0
"""What is changed on device lanes, on vLLM 0.26.0's and 0.33.0's own Python files, each in a fresh process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.other_vllm import VERSIONS, count_passed

HERE = Path(__file__).resolve().parent
FILES = ("test_collectives.py", "test_rendezvous.py", "test_sampled_tokens.py", "test_start_up.py")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_changes_on_another_vllm(version: str, tmp_path: Path) -> None:
    assert count_passed(version, [HERE / file for file in FILES], tmp_path) == 21
