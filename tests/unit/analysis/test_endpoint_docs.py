# SPDX-License-Identifier: Apache-2.0
"""The documentation lists the rules of the endpoint crossover, all of them, in their clauses and in their order."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_laguna.analysis.endpoint.clauses import CLAUSES

DOCUMENT = Path(__file__).parents[3] / "docs" / "crossover.md"


def test_every_rule_is_documented_in_its_clause() -> None:
    listed = re.findall(r"^\| ([a-z0-9-]+) \| `([a-z0-9-]+)` \| \S", DOCUMENT.read_text(), re.MULTILINE)
    assert listed == [(clause, rule) for clause, rules in CLAUSES.items() for rule in rules]
