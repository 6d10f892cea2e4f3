# SPDX-License-Identifier: Apache-2.0
"""What a campaign asks of its packets and arms is what the requests of a good directory say."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_laguna.evidence.arms.arm_record import ArmRequest
from pytest_laguna.evidence.arms.parity import PacketRequest
from pytest_laguna.evidence.diagnostic.analysis import DiagnosticPlan
from pytest_laguna.evidence.events.analysis import EventPlan
from pytest_laguna.run import diagnostic
from pytest_laguna.run import events as event_diagnostic
from pytest_laguna.run.arms import Runs
from pytest_laguna.run.engine_run import Models
from tests import diagnostic_root, event_root


class Asked:
    """In the place of what runs: keeps what is asked for, in its order."""

    def __init__(self, cards: list[str], directory: Path | None = None) -> None:
        self.engine = types.SimpleNamespace(held=types.SimpleNamespace(cards=cards), directory=directory)
        self.requests: dict[str, Any] = {}

    def packet(self, card: str, request: PacketRequest) -> None:
        assert card == self.engine.held.cards[request.rank]
        self.requests[f"packets/{request.rank}/request.json"] = request.canonical()

    def arm(self, name: str, request: ArmRequest) -> None:
        self.requests[f"arms/{name}/request.json"] = request.canonical()


def pair(request: dict[str, Any]) -> Models:
    """Of an arm with a draft."""
    return Models(Path(request["target"]), Path(request["draft"]), request["prompt"])


def requests(tree: dict[str, Any], of: str) -> dict[str, Any]:
    return {path: value for path, value in tree.items() if path.startswith(of) and path.endswith("/request.json")}


def test_the_exact_diagnostic_asks_for_packets_and_then_for_the_four_arms(tmp_path: Path) -> None:
    tree = diagnostic_root.good()
    asked = Asked(diagnostic_root.CARDS, tmp_path)
    plan = DiagnosticPlan.model_validate(tree["plan.json"])
    diagnostic._run_all(cast("Runs", asked), plan, pair(tree["arms/eager/request.json"]))
    expected = requests(tree, "arms/")
    assert [*asked.requests] == [*requests(tree, "packets/"), *expected]
    assert {path: asked.requests[path] for path in expected} == expected


@pytest.mark.parametrize("fitness", [False, True])
def test_an_event_profile_asks_for_the_arms_of_its_plan(fitness: bool) -> None:
    tree = event_root.good(fitness=fitness)
    asked = Asked(diagnostic_root.CARDS)
    plan = EventPlan.model_validate(tree["plan.json"])
    event_diagnostic._run_all(cast("Runs", asked), plan, pair(tree["arms/graph-event/request.json"]))
    assert [*asked.requests.items()] == [*requests(tree, "arms/").items()]
