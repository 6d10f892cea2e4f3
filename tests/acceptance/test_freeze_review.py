# SPDX-License-Identifier: Apache-2.0
"""Freezing and reviewing as a user does it, and what gate 2 of a device lane makes of it.

The device lane is one by name: its cards are the cpu lane's process slots, so that nothing but the name decides.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.git import git
from tests.demo import CAMPAIGN, CARD, Project, writable
from tests.sealed import reseal

pytestmark = pytest.mark.sessions

AUTHOR = ("-c", "user.name=Ada Lovelace", "-c", "user.email=ada@example.org")

CONFTEST = """\
from pytest_laguna.machine import cards_cpu, choice

class Slots(cards_cpu.CpuCards):
    lane = "cuda"

    def environment(self, cards):
        shown = ",".join(card.identity for card in cards)
        return {"CUDA_VISIBLE_DEVICES": shown, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

choice.card_source = lambda lane, requested: Slots(1000)
"""

RUNS = 'arm_runner(["/bin/true"], {}, prove.directory, 20.0)\n    prove("shown")'


class DeviceProject(Project):
    """The demonstration on lane cuda, committed."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.campaign(CAMPAIGN.replace('lane = "cpu"', 'lane = "cuda"').replace("[lanes.cpu", "[lanes.cuda"))
        (directory / "conftest.py").write_text(CONFTEST)
        self.tests(only=RUNS)
        device = directory / "checks" / "test_device.py"
        device.write_text(device.read_text().replace("(prove)", "(prove, arm_runner)"))
        (directory / ".gitignore").write_text("sealed/\n__pycache__/\n.pytest_cache/\n")
        self.git("init", "--quiet")
        self.commit()

    def git(self, *arguments: str) -> None:
        answer = git(self.directory, *arguments)
        assert answer is not None
        assert answer.returncode == 0, answer.stderr

    def commit(self) -> None:
        self.git("add", ".")
        self.git(*AUTHOR, "commit", "--quiet", "--message", "The campaign")

    def laguna(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run([sys.executable, "-m", "pytest_laguna.cli", *arguments])

    def frozen_and_reviewed(self) -> None:
        for arguments in (("freeze", "campaign.toml"), ("review", "campaign.toml", "--as", "Grace Hopper")):
            done = self.laguna(*arguments)
            assert done.returncode == 0, done.stdout + done.stderr

    def attempt(self, gate: int = 1, number: int = 1) -> Path:
        return self.sealed / "demo" / "cuda" / f"gate{gate}" / f"{number:04d}"


@pytest.fixture
def device(tmp_path: Path) -> DeviceProject:
    return DeviceProject(tmp_path)


def _ran(project: DeviceProject, number: int) -> bool:
    return (project.attempt(2, number) / root.EVIDENCE / "only" / "process.json").exists()


@pytest.mark.sessions(keep=1)
def test_a_device_gate_runs_what_somebody_else_reviewed(device: DeviceProject) -> None:
    """Without a review nothing runs and nothing is lost; with one the same gate passes at the next attempt."""
    assert device.gate(1).returncode == 0
    refused = device.gate(2)
    assert refused.returncode == 23, refused.stdout
    assert "gate 2: NOT_PROVEN: frozen-present: campaign: seen no frozen state" in refused.stdout
    assert not _ran(device, 1)
    device.frozen_and_reviewed()
    passed = device.gate(2)
    assert passed.returncode == 0, passed.stdout
    assert _ran(device, 2)
    code, gates, _ = device.verify()
    assert (code, [gate["verdict"] for gate in gates]) == (0, ["PASS", "PASS"])


def test_frozen_alone_is_not_reviewed(device: DeviceProject) -> None:
    assert device.laguna("freeze", "campaign.toml").returncode == 0
    assert device.gate(1).returncode == 0
    refused = device.gate(2)
    assert (refused.returncode, "review-present: campaign: seen no review" in refused.stdout) == (23, True), (
        refused.stdout
    )
    assert not _ran(device, 1)


@pytest.mark.sessions(keep=1)
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("campaign.toml", "frozen-current: campaign: seen changed since it was frozen"),
        ("demo_candidate/__init__.py", "frozen-current: candidate: seen changed since it was frozen"),
        ("checks/test_first.py", "frozen-current: harness: seen changed since it was frozen"),
    ],
)
def test_a_change_since_closes_the_device_gate_until_it_is_reviewed_again(
    device: DeviceProject, name: str, reason: str
) -> None:
    device.frozen_and_reviewed()
    path = device.directory / name
    path.write_text(path.read_text().replace("A demonstration", "Another") + "# changed\n")
    device.commit()
    assert device.gate(1).returncode == 0
    refused = device.gate(2)
    assert (refused.returncode, reason in refused.stdout) == (23, True), refused.stdout
    assert not _ran(device, 1)
    device.frozen_and_reviewed()
    assert device.gate(2).returncode == 0


def test_a_change_after_gate_1_closes_the_later_gates(device: DeviceProject) -> None:
    device.frozen_and_reviewed()
    assert device.gate(1).returncode == 0
    (device.directory / "demo_candidate" / "__init__.py").write_text("ANSWER = 43\n")
    refused = device.gate(2)
    assert (refused.returncode, "the candidate has changed since gate 1 passed" in refused.stderr) == (4, True)


def test_a_review_that_is_none_is_no_review(device: DeviceProject) -> None:
    device.frozen_and_reviewed()
    (device.directory / "campaign.review.json").write_text('{"reviewer": "Grace Hopper"}')
    assert device.gate(1).returncode == 0
    refused = device.gate(2)
    assert (refused.returncode, "review.json: not in canonical form" in refused.stdout) == (23, True), refused.stdout
    assert not _ran(device, 1)


def test_a_review_taken_from_the_evidence_is_missed(device: DeviceProject) -> None:
    """Verification derives it from the kept copies."""
    device.frozen_and_reviewed()
    assert device.gate(1).returncode == 0
    assert device.gate(2).returncode == 0
    attempt = device.attempt(2)
    with writable(attempt):
        (attempt / root.EVIDENCE / "review" / "review.json").unlink()
    reseal(attempt)
    code, gates, _ = device.verify()
    assert (code, gates[1]["verdict"]) == (23, "NOT_PROVEN")
    assert gates[1]["reason"].startswith("review-present: ")


def test_the_cpu_lane_needs_no_review(project: Project) -> None:
    assert project.gate(1).returncode == 0
    assert project.gate(2).returncode == 0
    assert not (project.attempt(2) / root.EVIDENCE / "review").exists()


def test_the_command_says_what_it_wrote(device: DeviceProject) -> None:
    frozen = device.laguna("freeze", "campaign.toml")
    digest = files.digest_of(files.read_canonical_json(device.directory / "campaign.frozen.json"))
    assert frozen.stdout == f"campaign.frozen.json: frozen, digest {digest}; commit it\n"
    reviewed = device.laguna("review", "campaign.toml", "--as", "Grace Hopper")
    assert reviewed.stdout == f"campaign.review.json: reviewed by Grace Hopper, digest {digest}; commit it\n"
    review = json.loads((device.directory / "campaign.review.json").read_bytes())
    assert review == {"schema": "pytest-laguna-review-v1", "reviewer": "Grace Hopper", "frozen": digest}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("freeze", "none.toml"), 4, "laguna freeze: campaign none.toml: "),
        (("review", "campaign.toml"), 4, "laguna review: the following arguments are required: --as"),
        (("review", "campaign.toml", "--as", ""), 4, "laguna review: "),
        (("review", "campaign.toml", "--as", "Grace Hopper"), 23, "NOT_PROVEN: campaign.frozen.json: missing"),
    ],
)
def test_a_wrong_call_is_one_line(device: DeviceProject, arguments: tuple[str, ...], code: int, message: str) -> None:
    done = device.laguna(*arguments)
    said = done.stdout + done.stderr
    assert (done.returncode, said.startswith(message), said.count("\n")) == (code, True, 1), said


def test_the_author_and_a_dirty_tree_are_refused(device: DeviceProject) -> None:
    (device.directory / "new.py").write_text("")
    dirty = device.laguna("freeze", "campaign.toml")
    assert (dirty.returncode, dirty.stdout.startswith("NOT_PROVEN: new.py: seen uncommitted")) == (23, True)
    (device.directory / "new.py").unlink()
    assert device.laguna("freeze", "campaign.toml").returncode == 0
    own = device.laguna("review", "campaign.toml", "--as", "ada lovelace")
    assert (own.returncode, "expected a reviewer who did not" in own.stdout) == (23, True)
    assert not (device.directory / "campaign.review.json").exists()
    assert CARD
