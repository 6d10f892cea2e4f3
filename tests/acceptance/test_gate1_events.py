# SPDX-License-Identifier: Apache-2.0
"""The event profile's own gate 1 as a session: every clause that needs no engine, on the simulated stream."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tests.diagnostic_project import FIRST_CLAUSES
from tests.event_project import ROOT, SHIPPED, EventProject, small_campaign

LADDER = "gates/test_gate1_events.py"
ENGINE = "engine-profiled"


def test_every_clause_that_needs_no_engine_is_proven(tmp_path: Path) -> None:
    clauses = {
        clause: nodeid
        for clause, nodeid in tomllib.loads(SHIPPED.read_text())["clauses"]["1"].items()
        if nodeid.startswith(LADDER) and clause != ENGINE
    }
    tests, mark, of_engine = (
        (ROOT / LADDER).read_text().partition(f'@pytest.mark.gate(1)\n@pytest.mark.clause("{ENGINE}")')
    )
    assert mark
    assert of_engine.count("def test_") == 1
    project = EventProject(tmp_path)
    (tmp_path / LADDER).write_text(tests)
    (tmp_path / "gates" / "event_fakes.py").write_text((ROOT / "gates" / "event_fakes.py").read_text())
    chosen = "\n".join(["[clauses.1]", *(f'{clause} = "{nodeid}"' for clause, nodeid in clauses.items()), "\n"])
    project.campaign(small_campaign(SHIPPED).replace(FIRST_CLAUSES, chosen))
    done = project.gate(1)
    assert done.returncode == 0, done.stdout + done.stderr
    code, gates, _ = project.verify()
    assert (code, [gate["verdict"] for gate in gates]) == (0, ["PASS"])
    for clause in clauses:
        assert re.search(rf"^PASS +{clause} ", done.stdout, re.MULTILINE), done.stdout
