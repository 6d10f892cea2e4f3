# SPDX-License-Identifier: Apache-2.0
"""A project whose gate 2 is the real event profile on real vLLM, small enough for a test: eight layers."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_laguna.evidence.events.analysis import DIRECTORY
from tests.demo import CARD, FIRST, PROVES, Project
from tests.diagnostic_project import FIRST_CLAUSES
from tests.runner import keep_bytecode

ROOT = Path(__file__).parents[1]
SHIPPED = ROOT / "campaigns" / "laguna-current-stream-events.toml"
FITNESS = ROOT / "campaigns" / "laguna-current-stream-events-fitness.toml"
GATE = ROOT / "gates" / "test_gate2_events.py"


class EventProject(Project):
    """Its gate 1 proves nothing about the profiler; its gate 2 is the shipped one."""

    timeout = 3600

    def __init__(self, directory: Path, campaign: Path = SHIPPED, **changed: str) -> None:
        super().__init__(directory)
        (directory / "gates").mkdir()
        (directory / "gates" / GATE.name).write_text(GATE.read_text())
        keep_bytecode(directory)
        self.campaign(small_campaign(campaign, **changed))
        (directory / "checks" / "test_first.py").write_text(FIRST.format(first=PROVES, second=PROVES))

    @property
    def newest(self) -> Path:
        """The newest attempt of gate 2."""
        [*_, attempt] = sorted((self.sealed / "event-test" / "cpu" / "gate2").iterdir())
        return attempt

    @property
    def events(self) -> Path:
        """Its evidence."""
        return self.newest / "evidence" / DIRECTORY

    def both_gates(self, *cards: int) -> None:
        """Gate 1, and gate 2 on cards, or on one; the latter's result is ``second``."""
        first = self.gate(1)
        assert first.returncode == 0, first.stdout + first.stderr
        self.second = self.gate(2, f"--cards={','.join(map(str, cards or (CARD,)))}", "--device=cpu")


def small_campaign(campaign: Path, **changed: str) -> str:
    """A shipped campaign on the cpu lane with fewer layers; ``changed`` replaces the value of a key."""
    text = campaign.read_text()
    text = re.sub(r"\[clauses\.1\].*?(?=\[clauses\.2\])", FIRST_CLAUSES, text, flags=re.DOTALL)
    text = re.sub(r"\[rehearsal\].*?(?=\[clauses\.1\])", "", text, flags=re.DOTALL)
    text = re.sub(r"\[lanes\.xpu\].*?(?=\[lanes\.cpu\])", "", text, flags=re.DOTALL)
    text = re.sub(r"\[lanes\.cuda\].*?(?=\n\[event_profile)", "", text, flags=re.DOTALL)
    values = {"name": '"event-test"', "lane": '"cpu"', "layers": "8", "deadline_seconds": "2400.0"} | changed
    for key, value in values.items():
        text, found = re.subn(rf"(?<![\w-]){key} = (\"[^\"]*\"|[^,\n ]+)", f"{key} = {value}", text)
        assert found, key
    return text
