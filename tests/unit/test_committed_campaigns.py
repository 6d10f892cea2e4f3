# SPDX-License-Identifier: Apache-2.0
"""The campaigns in the checkout can run: their clauses are the marked tests of the gates, in order."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from pytest_laguna.campaign import read_campaign

PROJECT = Path(__file__).parents[2]
CAMPAIGNS = sorted((PROJECT / "campaigns").glob("*.toml"))


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
