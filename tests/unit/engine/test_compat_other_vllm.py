# SPDX-License-Identifier: Apache-2.0
"""What is changed on device lanes, on vLLM 0.26.0's and 0.33.0's own Python files, each in a fresh process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.other_vllm import VERSIONS, count_passed

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("version", VERSIONS)
def test_the_changes_on_another_vllm(version: str, tmp_path: Path) -> None:
    assert count_passed(version, [HERE / "test_collectives.py", HERE / "test_rendezvous.py"], tmp_path) == 9
