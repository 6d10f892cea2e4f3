# SPDX-License-Identifier: Apache-2.0
"""The documentation lists the rules of the exact diagnostic, all of them and in the order of judgement."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_laguna.analysis.diagnostic.diagnosis import EXACTNESS
from pytest_laguna.analysis.diagnostic.timing import GATES

DOCUMENT = Path(__file__).parents[3] / "docs" / "diagnostic.md"


def test_every_rule_is_documented_in_its_clause() -> None:
    listed = re.findall(r"^\| ([a-z-]+) \| `([a-z0-9_-]+)` \| \S", DOCUMENT.read_text(), re.MULTILINE)
    rules = [(clause, name) for clause, rules in EXACTNESS.items() for name in rules]
    assert listed == [*rules, ("timing", "compared"), *(("timing", name) for name in GATES)]
