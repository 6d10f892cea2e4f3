# SPDX-License-Identifier: Apache-2.0
"""Gate 1 of the persistent-view campaign as a user runs it, on real vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.engines(keep=1), pytest.mark.timeout(3600)]

PROJECT = Path(__file__).parents[2]


def test_gate_1_of_the_first_campaign_passes_and_gate_2_stays_shut(tmp_path: Path) -> None:
    sealed = tmp_path / "sealed"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}

    def gate(number: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", f"--gate={number}", "--device=cpu", f"--sealed-root={sealed}"]
        return subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)

    before = gate(2)
    assert (before.returncode, sealed.exists()) == (4, False), before.stderr
    result = gate(1)
    assert result.returncode == 0, result.stdout + result.stderr
    attempt = sealed / "laguna-persistent-kv-views" / "cpu" / "gate1" / "0001"
    analysis = json.loads((attempt / "analysis.json").read_bytes())
    proofs = {clause["clause"]: clause["proofs"][0]["observed"] for clause in analysis["clauses"]}
    assert proofs["engine-parity"]["tokens"] == 272
    assert set(proofs["engine-plants"]["caught"]) == {
        "wrong-offset",
        "wrong-stride",
        "unchecked-wrong-offset",
        "unchecked-wrong-stride",
    }
    assert (attempt / "evidence" / "engine-parity" / "graph-candidate.json").exists()
