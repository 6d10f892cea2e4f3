# SPDX-License-Identifier: Apache-2.0
"""Gate 1 of a device campaign rehearses it for real: sessions inside a session, on real vLLM, cut to a test's needs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pytest_laguna.evidence import files
from pytest_laguna.evidence.aa import rehearsal
from tests import other_verifier
from tests.demo import writable
from tests.diagnostic_project import PROTOCOL, ROOT, DiagnosticProject
from tests.sealed import judged, reseal

pytestmark = [pytest.mark.engines, pytest.mark.timeout(7500)]  # more than ten engine starts in one session

CLAUSES = """\
[rehearsal]
vllm = "0.32.0"
pair = "tiny-laguna"
prompt = "letters"
completion_tokens = 64
graphs = 9
breaks = 8
target_layers = 8

[rehearsal.bounds]
deadline_seconds = 2400.0
settle_seconds = 2.0
interrupt_seconds = 1.0
terminate_seconds = 1.0
kill_seconds = 5.0
memory_limit_bytes = 6_000_000_000

[rehearsal.gates]
opening = "checks/test_first.py"
cards = 1
layers = 8
{protocol}
seconds = 3600.0
starts = {starts}
effect_percent = 0.23

[clauses.1]
first = "checks/test_first.py::test_first"
second = "checks/test_first.py::test_second"
rehearsal = "gates/test_gate1_rehearsal.py::test_the_campaigns_gates_pass_on_the_cpu_lane"
null-exact = "gates/test_gate1_null.py::test_control_against_control_differs_in_nothing"
null-timing = "gates/test_gate1_null.py::test_the_timing_rules_are_measured_on_noise"

"""


class RehearsedProject(DiagnosticProject):
    """A campaign of lane cuda with few layers, tokens and samples; its gates 2 and 3 never run on a card here."""

    timeout = 7200

    def __init__(self, directory: Path, *, gates: list[int], **changed: str) -> None:
        super().__init__(directory, layers="12")
        for name in ("test_gate1_rehearsal.py", "test_gate1_null.py"):
            (directory / "gates" / name).write_text((ROOT / "gates" / name).read_text())
        text = (directory / "campaign.toml").read_text().replace("lanes.cpu", "lanes.cuda")
        text = text.replace('lane = "cpu"', 'lane = "cuda"')
        protocol = f'protocol = "{PROTOCOL.name}"' if 3 in gates else ""
        clauses = CLAUSES.format(protocol=protocol, starts=4)
        text = re.sub(r"\[clauses\.1\].*?(?=\[clauses\.2\])", clauses, text, flags=re.DOTALL)
        if 3 not in gates:
            text = re.sub(r"\[clauses\.3\].*", "", text, flags=re.DOTALL)
            text = re.sub(r"\nprotocol = \"laguna.*?\"", "", text)
            text = text.replace("gates = [1, 2, 3]", "gates = [1, 2]")
        for key, value in changed.items():
            text = re.sub(rf"(?<![\w-]){key} = [^,\n ]+", f"{key} = {value}", text)
        self.campaign(text)

    def attempt(self, gate: int = 1, number: int = 1) -> Path:
        return self.sealed / "diagnostic-test" / "cuda" / f"gate{gate}" / f"{number:04d}"


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> RehearsedProject:
    """Gate 1 with gate 2 rehearsed, once with the candidate and once with a control in its slot; others read it."""
    project = RehearsedProject(tmp_path_factory.mktemp("rehearsed"), gates=[1, 2])
    result = project.gate(1, "--device=cuda")
    assert result.returncode == 0, result.stdout + result.stderr
    return project


def test_the_rehearsal_passes_and_says_what_it_shortened(passed: RehearsedProject) -> None:
    attempt = passed.attempt()
    analysis = json.loads((attempt / "analysis.json").read_bytes())
    proofs = {clause["clause"]: clause["proofs"][0]["observed"] for clause in analysis["clauses"]}
    assert set(proofs["rehearsal"]["receipts"]) == {"1", "2"}
    assert proofs["rehearsal"]["shortened"]["lane.engine.model.layers"] == {"lane": 12, "rehearsal": 8}
    assert proofs["null-timing"]["analysis"]["diagnostic"]["count"] == 2
    assert proofs["null-timing"]["analysis"]["lane"] == "cpu"
    assert analysis["figures"]["null.lane"] == "cpu"
    receipt = json.loads((attempt / "receipt.json").read_bytes())
    told = ["rehearsal", "lane.engine.model.layers", "shortened: 12 on the lane, 8 here"]
    assert told in receipt["predicate"]["unexercised"]
    code, gates, _ = passed.verify()
    assert (code, [gate["verdict"] for gate in gates]) == (0, ["PASS"])
    assert [verdict for _, _, verdict, *_ in other_verifier.verify_root(passed.sealed)] == ["PASS"]
    for null in (False, True):
        sealed = rehearsal.sealed_root(attempt / "evidence", null=null)
        assert (sealed / "diagnostic-test" / "cpu" / "gate2" / "0001" / "receipt.json").exists()


def test_control_against_control_is_judged_again_from_its_files(passed: RehearsedProject, tmp_path: Path) -> None:
    """A start whose tokens were changed with everything behind them: the written analysis does not follow any more."""
    import shutil

    shutil.copytree(passed.sealed, tmp_path / "sealed")
    copied = tmp_path / "sealed" / passed.attempt().relative_to(passed.sealed)
    record = rehearsal.start_directory(copied / "evidence" / rehearsal.STARTS_DIRECTORY, 1) / "record.json"
    with writable(copied):
        value = json.loads(record.read_bytes())
        value["cached_tokens"] = 16
        record.write_bytes(files.canonical_json(value))
    reseal(copied)
    other = RehearsedProject.__new__(RehearsedProject)
    other.sealed = tmp_path / "sealed"
    code, gates, _ = other.verify()
    assert (code, "null-starts/analysis.json: does not follow from the files beside it" in gates[0]["reason"]) == (
        22,
        True,
    ), gates


def _told(project: RehearsedProject) -> tuple[str, dict[str, str]]:
    """The reason of gate 1, and that of each clause."""
    analysis = judged(project.attempt())
    return analysis.reason, {clause.clause: clause.reason for clause in analysis.clauses}


def test_what_would_fail_on_the_card_fails_gate_1(tmp_path: Path) -> None:
    """More replays are wanted than a generation of this length has: the harness's own fault, before any card.

    The headline names rehearsed gate, clause, rule and fact, and nothing is built upon what failed.
    """
    project = RehearsedProject(tmp_path, gates=[1, 2], completion_tokens="16", samples="16")
    result = project.gate(1, "--device=cuda")
    assert result.returncode not in {0, 4}, result.stdout
    headline, reasons = _told(project)
    rule = (
        "sole-treatment: call: NotProvenError: arguments-equal: graph-control rank 0: signatures of 0 layers; expected"
    )
    found = f"gate 2 of the rehearsal is NOT_PROVEN: {rule} 8"
    assert headline.startswith(f"rehearsal: call: NotProvenError: {found}"), headline
    assert f"gate 1: NOT_PROVEN: {headline}" in result.stdout
    for clause in ("null-exact", "null-timing"):
        assert reasons[clause].startswith(f"call: NotProvenError: did not run: {found}"), reasons
    left = {path.name for path in (project.attempt() / "evidence").iterdir()}
    assert left.isdisjoint({rehearsal.NULL_DIRECTORY, rehearsal.STARTS_DIRECTORY})
    assert project.gate(2, "--device=cuda").returncode == 4


def test_a_session_that_gives_no_verdict_is_told_with_how_it_ended(tmp_path: Path) -> None:
    project = RehearsedProject(tmp_path, gates=[1, 2], seconds="0.5")
    result = project.gate(1, "--device=cuda")
    assert result.returncode == 23, result.stdout
    headline, _ = _told(project)
    assert headline.startswith("rehearsal: call: NotProvenError: gate 1 of the rehearsal "), headline
    assert re.search(r" \(deadline, .* after \d+\.\d s", headline), headline


def test_on_the_cpu_lane_nothing_runs_twice(tmp_path: Path) -> None:
    project = RehearsedProject(tmp_path, gates=[1, 2])
    text = (project.directory / "campaign.toml").read_text()
    project.campaign(text.replace("lanes.cuda", "lanes.cpu").replace('lane = "cuda"', 'lane = "cpu"'))
    result = project.gate(1)
    assert result.returncode == 0, result.stdout + result.stderr
    attempt = project.sealed / "diagnostic-test" / "cpu" / "gate1" / "0001"
    assert not list((attempt / "evidence").glob("rehearsed*/sealed"))
    text = (attempt / "analysis.json").read_text()
    assert "on the cpu lane the campaign's own gates 2 and 3 are the rehearsal" in text
