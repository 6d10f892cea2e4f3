# SPDX-License-Identifier: Apache-2.0
"""The packet's vLLM classes in versions 0.26.0 and 0.33.0, each in a fresh process on that version's Python files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.other_vllm import VERSIONS, count_passed


@pytest.mark.parametrize("version", VERSIONS)
def test_packet_classes_on_another_vllm(version: str, tmp_path: Path) -> None:
    passed = count_passed(version, [Path(__file__).with_name("test_parity_packet.py")], tmp_path)
    assert passed >= 20  # all of the file, not a remnant of it
