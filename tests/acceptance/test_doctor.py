# SPDX-License-Identifier: Apache-2.0
"""The doctor asks this environment's real engine."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import sys
from pathlib import Path

import pytest

from pytest_laguna import cli
from pytest_laguna.campaign import read_campaign
from pytest_laguna.machine import doctor

pytestmark = pytest.mark.sessions

CAMPAIGN = Path(__file__).parents[2] / "campaigns" / "laguna-persistent-kv-views.toml"


@pytest.mark.sessions(keep=1)
def test_the_cpu_lane_of_this_environment_is_ready(tmp_path: Path) -> None:
    report = doctor.diagnose({"cpu": Path(sys.executable)}, directory=tmp_path / "leases")
    assert report.ready("cpu"), report.to_text()
    engine = report.lanes[0].engine
    assert engine is not None
    assert (engine.device, engine.torch) == ("cpu", importlib.metadata.version("torch"))


@pytest.mark.parametrize("place", [".", "campaigns", "/"])
def test_a_campaigns_paths_start_from_its_project_as_a_gates_do(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "campaigns").mkdir()
    campaign = Path(shutil.copy(CAMPAIGN, tmp_path / "campaigns"))
    lane = read_campaign(campaign).lanes["xpu"]
    assert lane.engine is not None
    assert lane.engine.interpreter is not None
    for test in {nodeid.partition("::")[0] for nodeid in read_campaign(campaign).nodeids}:
        (tmp_path / test).parent.mkdir(exist_ok=True)
        (tmp_path / test).touch()
    monkeypatch.chdir(tmp_path / place)
    cli.main(["doctor", "--device=xpu", f"--campaign={campaign}", "--json"])
    (report,) = json.loads(capsys.readouterr().out)["lanes"]
    assert report["interpreter"] == str(tmp_path / lane.engine.interpreter)
    found = {check["name"]: check["found"] for check in report["checks"]}
    assert found["target model"].startswith(f"seen {tmp_path / 'models' / 'Laguna-S-2.1-INT4'} without config.json; ")
    assert found["evidence storage"].startswith(f"evidence {tmp_path / 'sealed'} ")
