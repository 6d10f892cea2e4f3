# SPDX-License-Identifier: Apache-2.0
"""The documentation lists the rules of the event profile, all of them and in the order of judgement."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_laguna.analysis.events.diagnosis import RULES

DOCUMENT = Path(__file__).parents[3] / "docs" / "event-profile.md"
ELSEWHERE = {"identity-exact", "host-within-limits"}


def test_every_rule_is_documented_in_its_clause() -> None:
    listed = re.findall(r"^\| ([a-z-]+) \| `([a-z0-9_-]+)` \| \S", DOCUMENT.read_text(), re.MULTILINE)
    assert listed == [(clause, name) for clause, rules in RULES.items() if clause not in ELSEWHERE for name in rules]
