# SPDX-License-Identifier: Apache-2.0
"""The doctor asks this environment's real engine."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

from pytest_laguna.machine import doctor


def test_the_cpu_lane_of_this_environment_is_ready(tmp_path: Path) -> None:
    report = doctor.diagnose({"cpu": Path(sys.executable)}, directory=tmp_path / "leases")
    assert report.ready("cpu"), report.to_text()
    engine = report.lanes[0].engine
    assert engine is not None
    assert (engine.device, engine.torch) == ("cpu", importlib.metadata.version("torch"))
