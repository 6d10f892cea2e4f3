# SPDX-License-Identifier: Apache-2.0
"""A candidate that a user added: a campaign, a package and tests, through all three gates on real vLLM."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna import cli
from pytest_laguna.campaign import read_campaign
from tests import other_verifier
from tests.demo import CARD, Project
from tests.runner import keep_bytecode

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "prefill-split"


class OwnProject(Project):
    """The example, copied."""

    timeout = 3600

    def __init__(self, directory: Path) -> None:
        shutil.copytree(EXAMPLE, directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "sealed"))
        self.directory = directory
        self.sealed = directory / "sealed"

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "pytest", "--campaign=campaign.toml", *arguments]

    def gate(self, number: int, *arguments: str, **variables: str) -> Any:
        cards = [f"--cards={CARD}"] if number > 1 else []
        return self.pytest(f"--gate={number}", *cards, *arguments, **variables)


@pytest.fixture
def own(tmp_path: Path) -> OwnProject:
    return OwnProject(tmp_path)


def test_the_campaign_holds_the_digest_of_its_preregistration() -> None:
    campaign = read_campaign(EXAMPLE / "campaign.toml")
    text = (EXAMPLE / "preregistration.txt").read_bytes()
    assert campaign.preregistration.sha256 == hashlib.sha256(text).hexdigest()


def test_nothing_of_it_is_in_the_product() -> None:
    for package in ("pytest_laguna", "src", "gates"):
        for file in (ROOT / package).rglob("*.py"):
            assert "prefill_split" not in file.read_text().lower()
    assert "prefill" not in json.dumps(tomllib.loads((ROOT / "pyproject.toml").read_text()))


@pytest.mark.engines
def test_it_goes_through_all_three_gates(own: OwnProject) -> None:
    for number in (1, 2, 3):
        done = own.gate(number)
        assert done.returncode == 0, done.stdout + done.stderr
        if number > 1:
            assert "of 5:00" in done.stdout, "no line tells of the arms"
    code, gates, _ = own.verify()
    assert (code, [gate["verdict"] for gate in gates]) == (0, ["PASS"] * 3)
    assert [verdict for _, _, verdict, *_ in other_verifier.verify_root(own.sealed)] == ["PASS"] * 3


@pytest.mark.engines
def test_a_token_that_differs_fails_gate_2_and_closes_the_campaign(own: OwnProject) -> None:
    """The candidate is broken: it leaves out the last token of the prompt."""
    keep_bytecode(own.directory)
    arm = own.directory / "prefill_split" / "arm.py"
    broken = arm.read_text().replace(
        'engine.generate([request["prompt"]]',
        'engine.generate([request["prompt"][: -20 * int(environment["PREFILL_SPLIT"]) or None]]',
    )
    arm.write_text(broken)
    assert own.gate(1).returncode == 0
    done = own.gate(2)
    assert done.returncode == 21, done.stdout + done.stderr
    assert "FAIL        tokens-identical" in done.stdout or "FAIL        treatment-active" in done.stdout
    again = own.gate(2)
    assert again.returncode == 4
    assert cli.main(["verify", str(own.sealed)]) == 21
