# SPDX-License-Identifier: Apache-2.0
"""The campaigns in the checkout can run: their clauses are the marked tests of the gates, in order."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from pytest_laguna.campaign import read_campaign
from pytest_laguna.experiments.protocol import read_protocol

PROJECT = Path(__file__).parents[2]
FILES = sorted((PROJECT / "campaigns").glob("*.toml"))
PROTOCOLS = [path for path in FILES if "protocol" in tomllib.loads(path.read_text())["schema"]]
CAMPAIGNS = [path for path in FILES if path not in PROTOCOLS]


def _marked_tests(file: str) -> list[tuple[int, str, str]]:
    """Gate, clause and node id of each marked test of a file, in order."""
    found = []
    for node in ast.parse((PROJECT / file).read_text()).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        marks = {
            call.func.attr: call.args[0].value
            for call in node.decorator_list
            if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in {"gate", "clause"}
            and isinstance(call.args[0], ast.Constant)
        }
        if marks:
            found.append((int(str(marks["gate"])), str(marks["clause"]), f"{file}::{node.name}"))
    return found


def test_there_is_a_default_campaign() -> None:
    assert PROJECT / "campaigns" / "laguna-persistent-kv-views.toml" in CAMPAIGNS


@pytest.mark.parametrize("path", CAMPAIGNS, ids=lambda path: path.stem)
def test_every_clause_is_a_marked_test(path: Path) -> None:
    campaign = read_campaign(path)
    for gate in campaign.gates:
        listed = [(gate, clause, nodeid) for clause, nodeid in campaign.gate_clauses(gate).items()]
        files = dict.fromkeys(nodeid.partition("::")[0] for _, _, nodeid in listed)
        assert [test for file in files for test in _marked_tests(file)] == listed


@pytest.mark.parametrize("path", PROTOCOLS, ids=lambda path: path.stem)
def test_every_protocol_is_named_by_its_campaign(path: Path) -> None:
    [campaign] = [
        campaign for campaign in map(read_campaign, CAMPAIGNS) if campaign.name == read_protocol(path).campaign
    ]
    engines = [settings.engine for settings in campaign.lanes.values() if settings.engine is not None]
    assert path.name in [engine.protocol for engine in engines]
