# SPDX-License-Identifier: Apache-2.0
"""The topology that a configuration file gives: the published one for 48 layers, and refusals of what is not known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.analysis.arms.topology import expected_topology, target_layers
from pytest_laguna.verdict import UnusableEvidenceError
from tests import diagnostic_root as root
from tests.diagnostic_root import at

PUBLISHED = "e5b64443ef499d8bb8b138a94ad504effeaa6434a8884ae9f885aecf12d34e1b"


def config(**changes: Any) -> dict[str, Any]:
    return {"architectures": ["LagunaForCausalLM"], "num_hidden_layers": 48} | changes


@pytest.mark.parametrize("ranks", [2, 4])
def test_48_layers_with_collective_breaks_give_the_published_segments(ranks: int) -> None:
    topology = expected_topology(config(), ranks, collective_breaks=True)
    assert (topology.graphs, topology.breaks) == (146, 145)
    assert topology.counts == {"graph": 146, "attention": 48, "collective": 97}
    assert topology.order_sha256 == PUBLISHED
    first, each, last = ["graph", "collective", "graph", "attention"], ["graph", "collective"], ["graph"]
    assert topology.kinds == first + 47 * (2 * each + ["graph", "attention"]) + 2 * each + last


@pytest.mark.parametrize(("ranks", "breaks"), [(1, True), (1, False), (2, False), (4, False)])
def test_without_sums_that_break_there_is_attention_alone(ranks: int, breaks: bool) -> None:
    topology = expected_topology(config(), ranks, collective_breaks=breaks)
    assert (topology.graphs, topology.breaks, topology.counts) == (49, 48, {"graph": 49, "attention": 48})
    assert topology.kinds == 48 * ["graph", "attention"] + ["graph"]


@pytest.mark.parametrize("layers", [1, 2, 12, 1024])
def test_every_layer_adds_one_attention_and_two_sums(layers: int) -> None:
    topology = expected_topology(config(num_hidden_layers=layers), 2, collective_breaks=True)
    assert topology.counts["attention"] == target_layers(config(num_hidden_layers=layers)) == layers
    assert topology.counts["collective"] == 1 + 2 * layers
    assert topology.graphs == topology.breaks + 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, r"^config.json: seen architectures \['LlamaForCausalLM'\]; expected"),
        ({"architectures": None}, "architectures None"),
        ({"num_hidden_layers": 0}, r"^config.json: seen num_hidden_layers 0; expected a whole number from 1"),
        ({"num_hidden_layers": 1025}, "num_hidden_layers 1025; expected a whole number from 1 to 1024"),
        ({"num_hidden_layers": 10**15}, "num_hidden_layers 1000000000000000; expected a whole number from 1 to 1024"),
        ({"num_hidden_layers": True}, "num_hidden_layers True"),
        ({"num_hidden_layers": 48.0}, "num_hidden_layers 48.0"),
        ({"num_hidden_layers": None}, "num_hidden_layers None"),
    ],
)
def test_a_configuration_whose_graph_is_not_known_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnusableEvidenceError, match=reason):
        expected_topology(config(**changes), 2, collective_breaks=True)


WHOLE = f"146 graphs and 145 breaks (48 attention, 97 collective) in order {PUBLISHED}"


def told(change: root.Change, rule: str, directory: Path) -> str:
    tree = root.good()
    change(tree)
    return root.findings(root.judged(tree, directory))[f"topology-unchanged/{rule}"][1]


def test_a_plan_that_its_configuration_does_not_give_is_told_with_both(tmp_path: Path) -> None:
    assert told(at("plan.json", "target_layers", 47), "plan-derived", tmp_path) == (
        f"plan: seen {WHOLE} in 47 layers; expected {WHOLE} in 48, by the configuration"
    )


def test_a_rank_without_graphs_is_told_with_what_was_expected(tmp_path: Path) -> None:
    assert told(at("arms/graph-control/record.json", "ranks|0|graphs", []), "graphs-frozen", tmp_path) == (
        f"graph-control rank 0: seen captured no graph of the target; expected {WHOLE}"
    )
