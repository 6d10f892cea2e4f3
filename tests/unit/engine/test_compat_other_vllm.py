# SPDX-License-Identifier: Apache-2.0
"""What is changed on device lanes, and the packet's classes, on vLLM 0.26.0's and 0.33.0's own Python files.

Each version in a fresh process.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.other_vllm import VERSIONS, count_passed

HERE = Path(__file__).resolve().parent
FILES = {
    "test_collectives.py": 4,
    "test_parity_packet.py": 22,
    "test_rendezvous.py": 5,
    "test_sampled_tokens.py": 10,
    "test_start_up.py": 2,
}
"""And how many tests each has: all of them, not a remnant."""


@pytest.mark.parametrize("version", VERSIONS)
def test_the_engine_s_parts_on_another_vllm(version: str, tmp_path: Path) -> None:
    assert count_passed(version, [HERE / file for file in FILES], tmp_path) == sum(FILES.values())
