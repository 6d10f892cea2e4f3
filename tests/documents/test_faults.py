# SPDX-License-Identifier: Apache-2.0
"""Every fault in docs/faults.md has its test."""

from __future__ import annotations

import ast
import re

from tests.documents.commands import ROOT

ROWS = [line for line in (ROOT / "docs" / "faults.md").read_text().splitlines() if line.startswith("| ")][1:]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_each_names_tests_that_are_there() -> None:
    assert len(ROWS) > 20
    for row in ROWS:
        named = NAMED.findall(row)
        assert named, row
        for path, name in named:
            tree = ast.parse((ROOT / path).read_text())
            assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{path}::{name}"


def test_each_fault_test_is_listed() -> None:
    path = "tests/acceptance/test_faults.py"
    tree = ast.parse((ROOT / path).read_text())
    tests = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
    assert tests == {name for row in ROWS for where, name in NAMED.findall(row) if where == path}
