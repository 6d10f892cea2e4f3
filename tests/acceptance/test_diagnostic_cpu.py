# SPDX-License-Identifier: Apache-2.0
"""The exact diagnostic through ``pytest --gate=2`` on real vLLM: one whole run, and what bad input gets."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.arm_record import Arm, token_digest
from pytest_laguna.evidence.diagnostic.analysis import DIRECTORY
from pytest_laguna.experiments.diagnostic import EXPERIMENT
from pytest_laguna.experiments.experiment import derive_from_files, read_attempted
from pytest_laguna.machine import descent
from tests.acceptance.test_arm_kills import WHOLE_ARM
from tests.demo import laguna, writable
from tests.diagnostic_project import PROTOCOL, ROOT, DiagnosticProject, make_engine
from tests.sealed import judged, reseal

pytestmark = [pytest.mark.engines(keep=1), pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> DiagnosticProject:
    """One whole gate 2 on one card, whose engine has an interpreter of its own; others read it."""
    directory = tmp_path_factory.mktemp("passed")
    project = DiagnosticProject(directory, decides=f'"exactness"\ninterpreter = "{make_engine(directory)}"')
    assert project.gate(1).returncode == 0
    result = project.gate(2, f"--cards={','.join(project.cards)}")
    assert result.returncode == 0, result.stdout + result.stderr
    return project


def test_the_whole_diagnostic_passes_and_verifies(passed: DiagnosticProject) -> None:
    result = laguna("verify", str(passed.sealed), "--json")
    assert [gate["verdict"] for gate in json.loads(result.stdout)["gates"]] == ["PASS", "PASS"]
    identity = json.loads((passed.diagnostic / "identity.json").read_bytes())
    assert identity["engine"]["state"]["interpreter"] == f"{passed.directory}/engine/bin/python" != identity["python"]
    assert identity["engine"]["state"]["prefix"] == f"{passed.directory}/engine"


def test_a_real_arm_leaves_the_files_that_an_arm_of_the_small_engine_leaves(passed: DiagnosticProject) -> None:
    """By which the kills of ``test_arm_kills.py`` in each phase of an arm stand for those of a real one."""
    for arm in Arm:
        place = passed.diagnostic / "arms" / arm
        found = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
        assert found == WHOLE_ARM | ({"profile/rank0.json"} if arm.graphs else set()), arm


def test_analyze_gives_the_same_bytes_again(passed: DiagnosticProject, tmp_path: Path) -> None:
    out = tmp_path / "again.json"
    result = laguna("analyze", str(passed.diagnostic.parents[1]), "--out", str(out))
    assert result.returncode == 0, result.stdout + result.stderr
    assert out.read_bytes() == (passed.diagnostic / "analysis.json").read_bytes()
    assert "diagnostic only" in result.stdout
    assert result.stdout.startswith("PASS: 14 clauses proven (diagnostic only")
    inside = passed.diagnostic / "again.json"
    assert laguna("analyze", str(passed.diagnostic.parents[1]), "--out", str(inside)).returncode == 4
    assert not inside.exists()


def test_analyze_says_no_more_than_verification_does(passed: DiagnosticProject, tmp_path: Path) -> None:
    attempt = passed.diagnostic.parents[1]
    shutil.copytree(attempt, tmp_path / "alone")
    alone = laguna("analyze", str(tmp_path / "alone"), "--out", str(tmp_path / "alone.json"))
    assert (alone.returncode, "not tied to a sealed root" in alone.stdout) == (23, True), alone.stdout
    shutil.copytree(passed.sealed, tmp_path / "sealed")
    copied = tmp_path / "sealed" / attempt.relative_to(passed.sealed)
    with writable(copied):
        (copied / "receipt.json").unlink()
    unsealed = laguna("analyze", str(copied), "--out", str(tmp_path / "unsealed.json"))
    assert unsealed.returncode == 23
    assert unsealed.stdout.startswith("NOT_PROVEN: receipt.json: missing")
    again = (passed.diagnostic / "analysis.json").read_bytes()
    assert [(tmp_path / name).read_bytes() for name in ("alone.json", "unsealed.json")] == [again, again]


def _changed_tokens(copied: Path) -> None:
    """Another token in the candidate's record, with the digest that goes with it."""
    path = copied / "evidence" / DIRECTORY / "arms" / "graph-candidate" / "record.json"
    record = json.loads(path.read_bytes())
    tokens = [7, *record["token_ids"][1:]]
    path.write_bytes(files.canonical_json(record | {"token_ids": tokens, "token_sha256": token_digest(tokens)}))


def _rewritten(copied: Path) -> None:
    """The diagnosis, and all that is derived from it, as the changed record gives them."""
    content = derive_from_files(EXPERIMENT, read_attempted(copied)).content
    (copied / "evidence" / DIRECTORY / "analysis.json").write_bytes(content)


def test_changed_evidence_never_passes_however_much_is_rewritten(passed: DiagnosticProject, tmp_path: Path) -> None:
    shutil.copytree(passed.sealed, tmp_path / "sealed")
    copied = tmp_path / "sealed" / passed.diagnostic.parents[1].relative_to(passed.sealed)
    with writable(copied):
        _changed_tokens(copied)
    changed = "evidence/diagnostic/arms/graph-candidate/record.json"
    assert _verdicts(tmp_path / "sealed") == [("PASS", 0), ("VOID", changed)]
    reseal(copied)
    assert _verdicts(tmp_path / "sealed")[1] == ("VOID", "evidence/diagnostic/analysis.json")
    with writable(copied):
        _rewritten(copied)
    reseal(copied)
    assert _verdicts(tmp_path / "sealed")[1] == ("FAIL", "tokens-identical")


def test_a_failure_beside_an_analysis_makes_it_void(passed: DiagnosticProject, tmp_path: Path) -> None:
    shutil.copytree(passed.sealed, tmp_path / "sealed")
    copied = tmp_path / "sealed" / passed.diagnostic.parents[1].relative_to(passed.sealed)
    with writable(copied):
        failure = copied / "evidence" / DIRECTORY / "failure.json"
        failure.write_bytes(files.canonical_json({"reason": "the disk was full"}))
    reseal(copied)
    (_, gate) = json.loads(laguna("verify", str(tmp_path / "sealed"), "--json").stdout)["gates"]
    assert (gate["verdict"], "beside a failure.json (the disk was full)" in gate["reason"]) == ("VOID", True), gate


def _verdicts(sealed: Path) -> list[tuple[str, object]]:
    """Verdict of each gate, and the first words of the reason of gate 2."""
    gates = json.loads(laguna("verify", str(sealed), "--json").stdout)["gates"]
    return [(gates[0]["verdict"], 0), (gates[1]["verdict"], gates[1]["reason"].partition(":")[0])]


@pytest.mark.engines
def test_the_endpoint_crossover_passes_after_it(passed: DiagnosticProject, tmp_path: Path) -> None:
    """Four legs of 13 prompts on real servers."""
    result = passed.gate(3, f"--cards={','.join(passed.cards)}")
    assert result.returncode == 0, result.stdout + result.stderr
    attempt = passed.attempt_of(3)
    out = tmp_path / "again.json"
    again = laguna("analyze", str(attempt), "--out", str(out))
    assert again.returncode == 0, again.stdout + again.stderr
    assert out.read_bytes() == (attempt / "evidence" / "endpoint" / "analysis.json").read_bytes()
    analysis = json.loads(out.read_bytes())
    assert analysis["exactness"] == {
        "teacher": 52,
        "teacher_planned": 52,
        "cross_leg": 39,
        "cross_leg_planned": 39,
    }
    assert (analysis["label"], analysis["decides"]) == ("single block", "exactness")
    assert [gate["verdict"] for gate in json.loads(laguna("verify", str(passed.sealed), "--json").stdout)["gates"]] == [
        "PASS",
        "PASS",
        "PASS",
    ]


@pytest.mark.engines
def test_gate_3_refuses_a_protocol_that_was_changed_and_not_committed(
    passed: DiagnosticProject, tmp_path: Path
) -> None:
    project = DiagnosticProject.__new__(DiagnosticProject)
    shutil.copytree(passed.directory, tmp_path / "copy", symlinks=True)
    project.directory, project.sealed, project.cards = tmp_path / "copy", tmp_path / "copy" / "sealed", passed.cards
    shutil.rmtree(project.sealed / "diagnostic-test" / "cpu" / "gate3", ignore_errors=True)
    protocol = project.directory / PROTOCOL.name
    protocol.write_text(protocol.read_text().replace("rows_won = 10", "rows_won = 9"))
    result = project.gate(3, f"--cards={project.cards[0]}")
    assert (result.returncode, "not committed as it lies there" in result.stdout) == (23, True), result.stdout
    assert "evidence/endpoint/analysis.json: missing; protocol " in result.stdout, result.stdout
    assert (project.attempt_of(3) / "evidence" / "endpoint" / "failure.json").exists()


def _refused_before_any_arm(project: DiagnosticProject, code: int, reason: str) -> None:
    """Gate 2 ends before its first arm, and everything that it leaves names the reason once, in one line."""
    assert project.gate(1).returncode == 0
    result = project.gate(2, f"--cards={project.cards[0]}")
    assert result.returncode == code, result.stdout
    told = f"evidence/diagnostic/analysis.json: missing; {reason}"
    assert f"gate 2: NOT_PROVEN: {told}" in result.stdout, result.stdout
    assert "(diagnostic only: neither benchmark nor submission evidence)" in result.stdout
    assert "Traceback" not in result.stdout
    assert "engine_run.py:" not in result.stdout
    _, gates, _ = project.verify()
    assert told in gates[1]["reason"]
    failure = files.read_canonical_json(project.diagnostic / "failure.json")
    assert isinstance(failure, dict)
    assert str(failure["reason"]).startswith(reason)
    clauses = judged(project.diagnostic.parents[1]).clauses
    assert all(reason in clause.reason for clause in clauses), clauses
    assert [*(project.diagnostic / "arms").iterdir()] == []


@pytest.mark.engines
def test_a_prompt_that_the_pair_has_not_is_named(tmp_path: Path) -> None:
    project = DiagnosticProject(tmp_path, prompt='"no-such"')
    _refused_before_any_arm(project, 23, "lanes.cpu.engine.model: prompt 'no-such'; expected one of the pair's: ")


@pytest.mark.engines
def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    project = DiagnosticProject(tmp_path, decides='"exactness"\ninterpreter = "nowhere/python"')
    _refused_before_any_arm(project, 23, f"{tmp_path}/nowhere/python in ")


@pytest.mark.engines
def test_no_arm_runs_for_an_engine_that_is_not_the_frozen_one(tmp_path: Path) -> None:
    """Its interpreter finds another copy of the candidate first."""
    project = DiagnosticProject(tmp_path, decides='"exactness"\ninterpreter = "engine/bin/python"')
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "engine")], check=True)
    shutil.copytree(ROOT / "src" / "laguna_kv", tmp_path / "copy" / "laguna_kv")
    with (tmp_path / "copy" / "laguna_kv" / "settings.py").open("a") as stream:
        stream.write("# another copy\n")
    (packages,) = (tmp_path / "engine").glob("lib/python3*/site-packages")
    installed = sysconfig.get_paths()["purelib"]
    (packages / "engine.pth").write_text(f"{tmp_path / 'copy'}\nimport site; site.addsitedir({installed!r})\n")
    _refused_before_any_arm(project, 23, "before any arm: candidate-copy: ")


class Interference(NamedTuple):
    """What happens to a running gate, and how its reason begins then."""

    place: str
    act: Callable[[DiagnosticProject, Path], None]
    verdict: int
    reason: str
    cards: int = 1
    deadline_seconds: str = "2400.0"


def _arm_process(place: Path) -> int:
    """Its files are there before its program is."""
    while True:
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"engine.arm\0{place}/request.json".encode() in (process / "cmdline").read_bytes():
                    return int(process.name)


def _kill_the_arm(project: DiagnosticProject, place: Path) -> None:
    del project
    os.kill(_arm_process(place), signal.SIGKILL)


def _signal_a_rank(number: signal.Signals, project: DiagnosticProject, place: Path) -> None:
    """The last of the ranks, as soon as it calls itself one."""
    arm, last = _arm_process(place), f"Worker_TP{len(project.cards) - 1}"
    while not (ranks := [child for child in descent.descendants(arm) if last in child.command()]):
        time.sleep(0.02)
    os.kill(ranks[0].pid, number)


_kill_a_rank = functools.partial(_signal_a_rank, signal.SIGKILL)
_stop_a_rank = functools.partial(_signal_a_rank, signal.SIGSTOP)


def _change_the_model(project: DiagnosticProject, place: Path) -> None:
    del project
    request = files.read_canonical_json(place / "request.json")
    assert isinstance(request, dict)
    with Path(str(request["target"]), "config.json").open("a") as stream:
        stream.write(" ")


def _leave_a_process(project: DiagnosticProject, place: Path) -> None:
    """What bears the lease's token is the lease's, wherever it comes from."""
    lease = files.read_canonical_json(place.parents[2] / "cards" / "lease.json")
    assert isinstance(lease, dict)
    environment = {"LAGUNA_LEASE": str(lease["token"]), "LAGUNA_CPU_CARDS": project.cards[0]}
    command = ["/bin/sh", "-c", "/bin/sleep 300 > /dev/null 2>&1 &"]
    subprocess.run(command, env=environment, check=True, start_new_session=True)


SHORT_LADDER = {"settle_seconds": "30.0", "interrupt_seconds": "1.0", "terminate_seconds": "1.0"}
"""What has to be killed need not be asked for as long as a server that ends in good order."""

INTERFERENCES = {
    "an arm that dies": Interference("arms/q1", _kill_the_arm, 23, "SIGKILL"),
    "a rank that dies": Interference("arms/q1", _kill_a_rank, 23, "VllmWorker-1 ended by SIGKILL", cards=2),
    "a rank that hangs": Interference(
        "arms/q1",
        _stop_a_rank,
        23,
        "rank 1 left no stack: it was stopped, had ended or had not begun; rank 0 waited in ",
        cards=2,
        deadline_seconds="240.0",
    ),
    "a model that changes": Interference("arms/q1", _change_the_model, 22, "config.json: changed since"),
    "a process on the card": Interference("arms/graph-candidate", _leave_a_process, 21, "left running: pid"),
}


@pytest.mark.engines
@pytest.mark.parametrize("name", INTERFERENCES)
def test_what_happens_to_a_running_diagnostic_is_named(name: str, tmp_path: Path) -> None:
    place, act, code, reason, cards, deadline_seconds = INTERFERENCES[name]
    project = DiagnosticProject(tmp_path, cards=cards, deadline_seconds=deadline_seconds, **SHORT_LADDER)
    assert project.gate(1).returncode == 0
    command = project.command("--gate=2", f"--cards={','.join(project.cards)}")
    with subprocess.Popen(
        command, cwd=project.directory, env=project.environment(), stdout=subprocess.PIPE, text=True
    ) as gate:
        directory = project.attempt_of(2) / "evidence" / DIRECTORY / place
        deadline = time.monotonic() + 3000
        while not (directory / "stderr.log").exists():
            assert time.monotonic() < deadline
            assert gate.poll() is None
            time.sleep(0.05)
        act(project, directory)
        output, _ = gate.communicate(timeout=3000)
    assert gate.returncode == code, output
    assert reason in output, output
    assert project.verify()[0] == code
