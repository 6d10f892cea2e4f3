# SPDX-License-Identifier: Apache-2.0
"""A project whose gates 2 and 3 run the real engine on real vLLM, cut to a test's needs: few layers and samples."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

from pytest_laguna.evidence.diagnostic.analysis import DIRECTORY
from pytest_laguna.evidence.git import git
from tests.demo import CARD, FIRST, PROVES, Project
from tests.runner import keep_bytecode

ROOT = Path(__file__).parents[1]
QUICK = ROOT / "campaigns" / "laguna-persistent-kv-views-quick.toml"
PROTOCOL = ROOT / "campaigns" / "laguna-persistent-kv-views-quick-endpoint-cpu.toml"
GATES = [ROOT / "gates" / name for name in ("test_gate2_xpu.py", "test_gate3_endpoint.py")]

FIRST_CLAUSES = """\
[clauses.1]
first = "checks/test_first.py::test_first"
second = "checks/test_first.py::test_second"

"""


class DiagnosticProject(Project):
    """Its gate 1 proves nothing about the candidate; its gates 2 and 3 are the shipped ones."""

    timeout = 3600

    def __init__(self, directory: Path, *, cards: int = 1, **changed: str) -> None:
        super().__init__(directory)
        self.cards = [str(CARD + number) for number in range(cards)]
        (directory / "gates").mkdir()
        for gate in GATES:
            (directory / "gates" / gate.name).write_text(gate.read_text())
        keep_bytecode(directory)
        self.campaign(small_campaign(**changed))
        self._commit_protocol()
        (directory / "checks" / "test_first.py").write_text(FIRST.format(first=PROVES, second=PROVES))

    def _commit_protocol(self) -> None:
        """Gate 3 reads a protocol that git holds."""
        text = PROTOCOL.read_text().replace("laguna-persistent-kv-views-quick", "diagnostic-test")
        text = text.replace("ready_seconds = 300.0", "ready_seconds = 1800.0")
        (self.directory / PROTOCOL.name).write_text(text)
        (self.directory / ".gitignore").write_text("engine/\nsealed/\n")
        author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        for command in (["init", "-q"], ["add", "."], [*author, "commit", "-q", "-m", "The protocol"]):
            answer = git(self.directory, *command)
            assert answer is not None
            assert answer.returncode == 0, answer.stderr

    def attempt_of(self, gate: int) -> Path:
        """The first attempt of a gate, whether or not it is there yet."""
        return self.sealed / "diagnostic-test" / "cpu" / f"gate{gate}" / "0001"

    @property
    def diagnostic(self) -> Path:
        """The evidence of the newest attempt."""
        [*_, attempt] = sorted((self.sealed / "diagnostic-test" / "cpu" / "gate2").iterdir())
        return attempt / "evidence" / DIRECTORY


def make_engine(project: Path) -> str:
    """An environment of its own with everything that is installed here; each of its start files stands in a RECORD.

    Returns:
        Its interpreter, from the project.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(project / "engine")], check=True)
    (packages,) = (project / "engine").glob("lib/python3*/site-packages")
    packages.rmdir()
    packages.symlink_to(sysconfig.get_path("purelib"))
    return "engine/bin/python"


def small_campaign(**changed: str) -> str:
    """The quick campaign with fewer layers, tokens and samples; ``changed`` replaces the value of a key."""
    text = QUICK.read_text()
    text = re.sub(r"\[clauses\.1\].*?(?=\[clauses\.2\])", FIRST_CLAUSES, text, flags=re.DOTALL)
    text = re.sub(r"\[rehearsal\].*?(?=\[clauses\.1\])", "", text, flags=re.DOTALL)
    values = {"name": '"diagnostic-test"', "layers": "8", "samples": "4", "deadline_seconds": "2400.0"}
    values |= {"completion_tokens": "64"} | changed
    for key, value in values.items():
        text, found = re.subn(rf"(?<![\w-]){key} = (\"[^\"]*\"|[^,\n ]+)", f"{key} = {value}", text)
        assert found, key
    return text
