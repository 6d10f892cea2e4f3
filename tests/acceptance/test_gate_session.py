# SPDX-License-Identifier: Apache-2.0
"""Gate sessions as a user runs them: real pytest processes, their exit codes, messages and what they leave behind."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_laguna.evidence import files
from pytest_laguna.evidence.junit import read_junit
from pytest_laguna.evidence.machine.reader import read_machine
from pytest_laguna.evidence.reading import Missing
from pytest_laguna.machine import leases
from pytest_laguna.verdict import Verdict
from tests.demo import CAMPAIGN, CARD, PROVES, Project, last_line, writable
from tests.sealed import judged
from tests.unit.machine.fakes import sleeper

pytestmark = pytest.mark.sessions


@pytest.mark.sessions(keep=1)
def test_gate_1_passes_and_leaves_a_sealed_verified_root(project: Project) -> None:
    result = project.gate(1)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "gate 1: PASS: 2 clauses proven" in result.stdout
    assert "lane cpu, campaign digest" in result.stdout
    attempt = project.attempt()
    modes = {stat.S_IMODE(path.stat().st_mode) for path in attempt.rglob("*") if path.is_file()}
    assert modes == {0o400}
    assert stat.S_IMODE(attempt.stat().st_mode) == 0o500
    code, gates, _ = project.verify()
    stated = {
        "campaign": "demo",
        "lane": "cpu",
        "gate": 1,
        "attempt": 1,
        "verdict": "PASS",
        "reason": "2 clauses proven",
    }
    assert (code, gates) == (0, [stated | {"receipt": files.sha256_file(attempt / "receipt.json")}])
    assert f"receipt: {gates[0]['receipt']}; keep it elsewhere" in result.stdout
    receipt = json.loads((attempt / "receipt.json").read_bytes())
    assert receipt["_type"] == "https://in-toto.io/Statement/v1"
    assert {subject["name"] for subject in receipt["subject"]} >= {"junit.xml", "journal.jsonl", "analysis.json"}


@pytest.mark.sessions(keep=1)
def test_gate_2_opens_on_gate_1_and_names_its_receipt(project: Project) -> None:
    assert project.gate(1).returncode == 0
    assert project.gate(2).returncode == 0
    start = json.loads((project.attempt(2) / "attempt.json").read_bytes())
    assert start["previous"]["gate"] == 1
    assert start["cards"] == [str(CARD)]
    assert project.verify()[0] == 0


@pytest.mark.sessions(keep=1)
def test_gate_2_without_gate_1_is_refused_and_creates_nothing(project: Project) -> None:
    before = sorted(project.directory.rglob("*"))
    result = project.gate(2)
    assert result.returncode == 4
    assert "needs gate 1's PASS; there is no attempt" in last_line(result)
    assert [path for path in sorted(project.directory.rglob("*")) if "__pycache__" not in path.parts] == before


@pytest.mark.sessions(keep=1)
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("demo_candidate/__init__.py", "the candidate has changed since gate 1 passed"),
        ("checks/test_first.py", "the harness has changed since gate 1 passed"),
    ],
)
def test_gate_2_refuses_what_has_changed_since_gate_1(project: Project, changed: str, message: str) -> None:
    assert project.gate(1).returncode == 0
    with (project.directory / changed).open("a") as stream:
        stream.write("# another line\n")
    result = project.gate(2)
    assert result.returncode == 4
    assert message in last_line(result)


def test_gate_2_refuses_another_campaign_digest(project: Project) -> None:
    assert project.gate(1).returncode == 0
    project.campaign(CAMPAIGN.replace("A demonstration", "Another"))
    result = project.gate(2)
    assert (result.returncode, "the campaign has changed since" in last_line(result)) == (4, True)


@pytest.mark.sessions(keep=1)
def test_gate_2_needs_cards(project: Project) -> None:
    assert project.gate(1).returncode == 0
    result = project.pytest("--gate=2")
    assert (result.returncode, "gate 2: no --cards" in last_line(result)) == (4, True)
    assert not project.attempt(2).exists()


@pytest.mark.parametrize("error", ["MeasuredNegativeError", "NotProvenError", "UnusableEvidenceError"])
def test_what_is_raised_for_a_verdict_is_one_line_without_a_traceback(project: Project, error: str) -> None:
    project.tests(second=f"from pytest_laguna import verdict; raise verdict.{error}('because')")
    result = project.gate(1)
    assert result.stdout.count(f"\n{error}: because\n") == 1
    assert not re.search(r"test_first\.py:\d", result.stdout)


def test_what_nobody_planned_keeps_its_traceback(project: Project) -> None:
    project.tests(second="raise KeyError('because')")
    assert re.search(r"test_first\.py:\d", project.gate(1).stdout)


@pytest.mark.sessions(keep=3)
@pytest.mark.parametrize(
    ("body", "verdict", "reason"),
    [
        ("assert 1 == 2", "FAIL", "second: call: assert 1 == 2"),
        ("pytest.fail('broken')", "FAIL", "broken"),
        ("raise KeyError('x')", "VOID", "second: call: KeyError"),
        ("pytest.skip('no card')", "NOT_PROVEN", "Skipped: no card"),
        ("pytest.xfail('known')", "NOT_PROVEN", "known"),
        ("return", "NOT_PROVEN", "passed without a proof"),
        ("pytest.exit('enough', returncode=0)", "NOT_PROVEN", "ended early: setup of"),
        ("from pytest_laguna.verdict import MeasuredNegativeError as E; raise E('slower')", "STOP", "slower"),
        ("from pytest_laguna.verdict import UnusableEvidenceError as E; raise E('torn')", "VOID", "torn"),
        ("prove('x', value=float('nan'))", "VOID", "cannot be written as RFC 8785 JSON"),
        ("prove('x'); raise KeyboardInterrupt", "NOT_PROVEN", "pytest ended with exit status 2 (interrupted)"),
        (r"raise AssertionError('\ud800 \x1b[31m lone')", "FAIL", "lone"),
    ],
)
def test_what_a_test_does_decides_the_verdict(project: Project, body: str, verdict: str, reason: str) -> None:
    project.tests(second=body)
    result = project.gate(1)
    assert result.returncode == Verdict(verdict).exit_code, result.stdout + result.stderr
    assert f"gate 1: {verdict}: " in result.stdout
    code, gates, _ = project.verify()
    assert code == result.returncode
    assert gates[0]["verdict"] == verdict
    analysis = judged(project.attempt())
    assert reason in analysis.reason + str([(clause.reason, clause.detail) for clause in analysis.clauses])
    report = read_junit((project.attempt() / "junit.xml").read_bytes())
    assert report.properties["verdict"] == verdict
    assert project.gate(2).returncode == 4


@pytest.mark.sessions(keep=1)
@pytest.mark.parametrize("body", ["assert False", "prove('x'); assert 0"])
def test_a_failed_gate_closes_its_campaign_digest(project: Project, body: str) -> None:
    project.tests(second=body)
    assert project.gate(1).returncode == 21
    project.tests()
    result = project.gate(1)
    assert result.returncode == 4
    assert "attempt 0001 ended FAIL, which closes this campaign digest on lane cpu" in last_line(result)
    project.campaign(CAMPAIGN + '\n[[amendments]]\ndate = 2026-07-26\nreason = "the test was wrong"\n')
    assert project.gate(1).returncode == 0
    assert [gate["attempt"] for gate in project.verify()[1]] == [2]


@pytest.mark.parametrize("after", ["pytest.exit('enough')", "raise KeyboardInterrupt", "import os; os._exit(0)"])
def test_a_recorded_failure_closes_whatever_follows_it(project: Project, after: str) -> None:
    project.tests(first="assert False", second=after)
    assert project.gate(1).returncode == 23
    project.tests()
    result = project.gate(1)
    assert (result.returncode, "attempt 0001 ended FAIL, which closes" in last_line(result)) == (4, True)


def test_a_failure_whose_evidence_is_damaged_stays_closed(project: Project) -> None:
    project.tests(second="assert False")
    assert project.gate(1).returncode == 21
    with writable(project.attempt()):
        (project.attempt() / "junit.xml").write_text("")
    project.tests()
    result = project.gate(1)
    assert (result.returncode, "attempt 0001 ended FAIL, which closes" in last_line(result)) == (4, True)


@pytest.mark.sessions(keep=1)
def test_a_void_attempt_may_be_repeated_and_is_listed(project: Project) -> None:
    project.tests(second="raise KeyError('x')")
    assert project.gate(1).returncode == 22
    project.tests()
    assert project.gate(1).returncode == 0
    start = json.loads((project.attempt(1, 2) / "attempt.json").read_bytes())
    assert [(earlier["attempt"], earlier["verdict"]) for earlier in start["earlier"]] == [(1, "VOID")]


@pytest.mark.sessions(keep=1)
def test_a_passed_device_gate_is_not_measured_again(project: Project) -> None:
    assert [project.gate(1).returncode, project.gate(2).returncode] == [0, 0]
    result = project.gate(2)
    assert (result.returncode, "attempt 0001 ended PASS" in last_line(result)) == (4, True)


def test_a_missing_attempt_number_is_noticed(project: Project) -> None:
    project.tests(second="raise KeyError('x')")
    project.gate(1)
    project.gate(1)
    with writable(project.sealed):
        shutil.rmtree(project.attempt())
    code, gates, _ = project.verify()
    assert (code, "gate1/0001: missing" in gates[0]["reason"]) == (23, True)
    result = project.gate(1)
    assert (result.returncode, "have a gap" in last_line(result)) == (4, True)


# Wrong use


def test_an_unknown_gate(project: Project) -> None:
    result = project.pytest("--gate=4")
    assert (result.returncode, "no such gate; expected one of 1, 2, 3" in last_line(result)) == (4, True)


def test_a_gate_that_the_campaign_does_not_declare(project: Project) -> None:
    result = project.gate(3)
    assert (result.returncode, "declares gates [1, 2] only" in last_line(result)) == (4, True)


def test_a_bad_card_list(project: Project) -> None:
    result = project.gate(2, "--cards=0,0")
    assert (result.returncode, "--cards=0,0: card 0 is named twice" in last_line(result)) == (4, True)


def test_cards_do_not_belong_to_gate_1(project: Project) -> None:
    result = project.gate(1, "--cards=0")
    assert (result.returncode, "--cards belongs to gates 2 and 3" in last_line(result)) == (4, True)


@pytest.mark.parametrize(
    ("device", "message"), [("tpu", "no such lane"), ("cuda", "campaign demo has no such lane; it has cpu")]
)
def test_an_unknown_lane(project: Project, device: str, message: str) -> None:
    result = project.gate(1, f"--device={device}")
    assert (result.returncode, message in last_line(result)) == (4, True)


@pytest.mark.sessions(keep=1)
@pytest.mark.parametrize("arguments", [["-k", "first"], ["-n", "2"], ["checks/test_device.py"]])
def test_what_could_change_a_gate_is_refused(project: Project, arguments: list[str]) -> None:
    result = project.gate(1, *arguments)
    assert result.returncode == 4
    assert not project.sealed.exists()


def test_arguments_that_leave_a_gate_alone_are_taken(project: Project) -> None:
    result = project.gate(1, "-q", "-ra", "--tb=short", "--color=no", "-p", "no:cacheprovider", "checks/test_first.py")
    assert result.returncode == 0, result.stderr


@pytest.mark.sessions(keep=1)
@pytest.mark.parametrize("name", ["PYTEST_ADDOPTS", "PYTEST_PLUGINS"])
def test_arguments_from_the_environment_are_refused(project: Project, name: str) -> None:
    result = project.gate(1, **{name: "-q" if name == "PYTEST_ADDOPTS" else "demo_candidate"})
    assert (result.returncode, f"env -u {name}" in last_line(result)) == (4, True)


def test_addopts_are_held_to_the_same_list(project: Project) -> None:
    (project.directory / "pyproject.toml").write_text('[tool.pytest.ini_options]\naddopts = ["--maxfail=1"]\n')
    result = project.gate(1)
    assert (result.returncode, "--maxfail=1 (from addopts) is refused" in last_line(result)) == (4, True)


def test_pytest_timeout_does_not_decide_in_a_gate(project: Project) -> None:
    (project.directory / "pyproject.toml").write_text('[tool.pytest.ini_options]\ntimeout = "60"\n')
    result = project.gate(1)
    assert (result.returncode, "a gate sets its own deadlines; run with -p no:timeout" in last_line(result)) == (
        4,
        True,
    )
    assert project.gate(1, "-p", "no:timeout").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sealed-root="], "--sealed-root: empty; expected DIR"),
        (["--device=cpu", "--device=cpu"], "--device: seen 2 times; expected once"),
        (["--sealed-root=a\nb"], "expected a printable path"),
        ([f"--sealed-root={'x' * 300}"], "File name too long"),
        (["--junitxml=campaign.toml/x.xml"], "is not a directory that can be written to"),
        (["--junitxml=sealed/x.xml"], "inside the sealed root"),
        (["@more"], "@more (from the command line) is refused"),
    ],
)
def test_odd_values_are_refused_in_one_line(project: Project, arguments: list[str], message: str) -> None:
    (project.directory / "more").write_text("-x\n")
    result = project.gate(1, *arguments)
    assert (result.returncode, message in last_line(result)) == (4, True), result.stderr
    assert not project.sealed.exists()


def test_help_works_with_a_broken_campaign(project: Project) -> None:
    project.campaign("not toml [")
    result = project.pytest("--gate=1", "--help")
    assert result.returncode == 0
    assert "--sealed-root=DIR" in result.stdout


@pytest.mark.sessions(keep=1)
def test_gate_tests_are_left_out_of_an_ordinary_run(project: Project) -> None:
    result = project.pytest("checks")
    assert (result.returncode, "3 deselected" in result.stdout) == (5, True)


# The campaign and the tests


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CAMPAIGN + "surprise = 1\n", "clauses.2.surprise"),
        (CAMPAIGN.replace('lane = "cpu"', 'lane = "cpu"\nlane = "cpu"'), "Cannot overwrite a value"),
    ],
)
def test_a_wrong_campaign_file(project: Project, text: str, message: str) -> None:
    project.campaign(text)
    result = project.gate(1)
    assert result.returncode == 4
    assert message in last_line(result)
    assert not project.sealed.exists()


def test_a_missing_campaign_file(project: Project) -> None:
    (project.directory / "campaign.toml").unlink()
    result = project.gate(1)
    assert (result.returncode, "cannot be read (No such file" in last_line(result)) == (4, True)


def test_without_a_campaign_file_a_project_is_asked_for_one(project: Project) -> None:
    result = project.run([sys.executable, "-m", "pytest", "--gate=1"])
    path = project.directory / "campaigns" / "laguna-persistent-kv-views.toml"
    told = f"ERROR: --campaign: not given, and there is no {path}; name the campaign's file"
    assert (result.returncode, last_line(result)) == (4, told)


@pytest.mark.sessions(keep=1)
def test_a_clause_without_its_test(project: Project) -> None:
    project.campaign(CAMPAIGN.replace("::test_second", "::test_gone"))
    result = project.gate(1)
    assert (result.returncode, "clause second: " in last_line(result)) == (4, True)


def test_a_test_that_the_campaign_does_not_name(project: Project) -> None:
    project.campaign(CAMPAIGN.replace('second = "checks/test_first.py::test_second"\n', ""))
    result = project.gate(1)
    assert (result.returncode, "test_second: differs from the campaign's frozen list" in last_line(result)) == (4, True)


def test_a_test_file_that_cannot_be_collected(project: Project) -> None:
    (project.directory / "checks" / "test_first.py").write_text("import nothing_of_that_name\n")
    result = project.gate(1)
    assert (result.returncode, "cannot be collected" in last_line(result)) == (4, True)
    assert "nothing_of_that_name" in result.stdout
    assert not project.attempt().exists()


def test_a_candidate_that_is_not_installed(project: Project) -> None:
    project.campaign(CAMPAIGN.replace("demo_candidate", "no_such_package"))
    result = project.gate(1)
    assert (result.returncode, "package no_such_package: not installed" in last_line(result)) == (4, True)


def test_a_device_gate_whose_process_loads_a_runtime_is_void(project: Project) -> None:
    project.tests(only="import sys, types; sys.modules['triton'] = types.ModuleType('triton'); " + PROVES)
    assert project.gate(1).returncode == 0
    result = project.gate(2)
    assert (result.returncode, "triton was loaded in the pytest process" in result.stdout) == (22, True)


def test_a_device_gate_does_not_start_with_a_runtime_loaded(project: Project) -> None:
    loads = "import sys, types\nsys.modules['triton'] = types.ModuleType('triton')\n"
    (project.directory / "conftest.py").write_text(loads)
    assert project.gate(1).returncode == 0
    result = project.gate(2)
    assert (result.returncode, "triton is loaded in the pytest process" in last_line(result)) == (4, True)


@pytest.mark.parametrize(
    "body",
    [
        '(prove.directory.parent / "identity.json").unlink()',
        '(prove.directory.parent / "campaign.toml").write_text("")',
        "(prove.directory / 'link').symlink_to('/etc/passwd')",
    ],
)
def test_a_test_that_touches_the_evidence_of_others_makes_it_void(project: Project, body: str) -> None:
    project.tests(second=f"{PROVES}; {body}")
    result = project.gate(1)
    assert result.returncode in {22, 23}, result.stdout
    assert "gate 1: PASS" not in result.stdout
    assert project.verify()[0] == result.returncode


def test_a_process_that_a_test_leaves_running_makes_the_gate_void(project: Project) -> None:
    script = "sleep 5; echo late > late.txt; sleep 60"
    popen = f"subprocess.Popen(['sh', '-c', '{script}'], start_new_session=True, cwd=prove.directory)"
    body = f"{PROVES}; import subprocess; {popen}"
    project.tests(second=body)
    result = project.gate(1)
    assert (result.returncode, "was left running by a test: sh -c sleep 5" in result.stdout) == (22, True)
    assert project.verify()[0] == 22


@pytest.mark.sessions(keep=1)
def test_a_candidate_that_changes_while_the_gate_runs_is_void(project: Project) -> None:
    change = "import pathlib; pathlib.Path('demo_candidate/__init__.py').write_text('ANSWER = 43'); "
    project.tests(first=change + PROVES)
    result = project.gate(1)
    assert (result.returncode, "the candidate changed while the gate ran" in result.stdout) == (22, True)


def test_a_test_that_reads_the_terminal_gets_nothing(project: Project) -> None:
    project.tests(second="input()")
    result = project.gate(1, "-s")
    assert (result.returncode, "EOFError" in result.stdout) == (22, True)


def test_an_environment_that_is_not_text_is_recorded(project: Project) -> None:
    result = project.pytest("--gate=1", VLLM_X="\udcff")
    assert result.returncode == 0, result.stderr
    record = json.loads((project.attempt() / "evidence" / "identity.json").read_bytes())
    assert record["environment"]["recorded"]["VLLM_X"] == "\\udcff"


def test_a_passed_gate_says_how_to_go_on(project: Project) -> None:
    result = project.gate(1)
    [line] = [line for line in result.stdout.splitlines() if line.startswith("next: ")]
    arguments = [argument.replace("...", str(CARD)) for argument in line.split()[2:]]
    assert project.run([*project.command()[:3], *arguments]).returncode == 0


# Cards


@pytest.mark.sessions(keep=1)
def test_a_card_has_one_lease(project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = Project(tmp_path_factory.mktemp("other"))
    waits = "import pathlib, time\n    while not pathlib.Path('tried').exists(): time.sleep(0.05)\n    "
    project.tests(only=waits + PROVES)
    assert project.pytest("--gate=1", "--campaign=campaign.toml").returncode == 4  # the option is doubled
    assert [project.gate(1).returncode, other.gate(1).returncode] == [0, 0]
    holder = subprocess.Popen(
        project.command("--gate=2", f"--cards={CARD}"),
        cwd=project.directory,
        env=project.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while not project.attempt(2).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    result = other.gate(2)
    (project.directory / "tried").touch()
    assert (result.returncode, "busy (leased" in last_line(result)) == (4, True), result.stderr
    assert holder.wait(timeout=60) == 0
    assert other.gate(2).returncode == 0


def test_a_gate_refused_after_its_cards_were_leased_gives_them_back(project: Project) -> None:
    (project.directory / "checks" / "conftest.py").write_text(
        "def pytest_itemcollected(item): item.own_markers.clear()"
    )
    project.tests(first=PROVES)
    result = project.gate(1)
    assert (result.returncode, "expected one mark gate(1)" in last_line(result)) == (4, True)
    (project.directory / "checks" / "conftest.py").write_text(
        "def pytest_itemcollected(item):\n    if item.name == 'test_only': item.own_markers.clear()\n"
    )
    assert project.gate(1).returncode == 0
    result = project.gate(2)
    assert (result.returncode, "expected one mark gate(2)" in last_line(result)) == (4, True)
    [state] = [state for state in leases.states() if state.record.identity == f"cpu-slot-{CARD}"]
    assert (state.held, state.record.state) == (False, "released")


def test_an_unknown_card_is_refused_with_the_list(project: Project) -> None:
    assert project.gate(1).returncode == 0
    result = project.gate(2, "--cards=no-such-card")
    assert (result.returncode, "seen no-such-card; expected a card; choose from" in last_line(result)) == (4, True)


def test_a_device_gate_does_not_inherit_runtime_variables(project: Project) -> None:
    assert project.gate(1).returncode == 0
    result = project.gate(2, OMP_NUM_THREADS="3")
    assert (result.returncode, "env -u OMP_NUM_THREADS pytest" in last_line(result)) == (4, True)


ON_CARD = """
def look(factor):
    import os, torch
    cores = sorted(os.sched_getaffinity(0))
    return {"slots": os.environ["LAGUNA_CPU_CARDS"], "sum": float(torch.ones(3).sum()) * factor, "cores": len(cores)}

def fails():
    raise OSError("no such device")

def dies():
    import os
    os.kill(os.getpid(), 11)
"""


def _device_test(project: Project, body: str, *fixtures: str) -> None:
    project.tests(only=body)
    path = project.directory / "checks" / "test_device.py"
    path.write_text(
        path.read_text().replace("test_only(prove)", f"test_only({', '.join(('prove', *fixtures))})") + ON_CARD
    )


def test_a_device_gates_test_calls_a_function_on_each_card(project: Project) -> None:
    body = """values = [card_process(card, look, 2) for card in cards.cards]
    import sys
    assert "torch" not in sys.modules
    prove("seen", values=values)"""
    _device_test(project, body, "cards", "card_process")
    assert project.gate(1).returncode == 0
    result = project.gate(2, f"--cards={CARD},{CARD + 100}")
    assert result.returncode == 0, result.stdout
    analysis = json.loads((project.attempt(2) / "analysis.json").read_bytes())
    values = analysis["clauses"][0]["proofs"][0]["observed"]["values"]
    assert values == [{"slots": str(card), "sum": 6, "cores": 1} for card in (CARD, CARD + 100)]


@pytest.mark.parametrize(
    ("function", "code", "error", "reason"),
    [
        ("fails", 22, "CardProcessError", "fails: OSError: no such device"),
        ("dies", 23, "CardProcessEndedError", "dies: exited, SIGSEGV"),
    ],
)
def test_a_card_process_that_fails_says_why(
    project: Project, function: str, code: int, error: str, reason: str
) -> None:
    _device_test(project, f"card_process(cards.cards[0], {function})", "cards", "card_process")
    assert project.gate(1).returncode == 0
    result = project.gate(2)
    assert (result.returncode, f"{error}: card cpu-slot-{CARD}, {reason}" in result.stdout) == (code, True)


def test_a_device_gate_killed_in_an_arm_leaves_no_process_and_no_lease(project: Project) -> None:
    body = """import sys
    place = prove.directory / "program"
    place.mkdir()
    arm_runner(["/bin/sh", "-c", "echo here; setsid sleep 77 & sleep 77"], {}, place, 60.0)"""
    _device_test(project, body, "arm_runner")
    assert project.gate(1).returncode == 0
    process = subprocess.Popen(
        project.command("--gate=2", f"--cards={CARD}"),
        cwd=project.directory,
        env=project.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    output = project.attempt(2) / "evidence" / "only" / "program" / "stdout.log"
    deadline = time.monotonic() + 60
    while not (output.exists() and output.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while _sleepers():
        assert time.monotonic() < deadline, _sleepers()
        time.sleep(0.05)
    code, gates, _ = project.verify()
    assert (code, [gate["verdict"] for gate in gates]) == (23, ["PASS", "NOT_PROVEN"])
    project.tests()
    result = project.gate(1)
    assert result.returncode == 0, result.stderr
    assert project.gate(2).returncode == 0, "the stale lease is swept and the card is free again"


@pytest.mark.sessions(keep=1)
def test_a_device_gate_records_its_lease_and_that_the_cards_were_idle(project: Project) -> None:
    body = """place = prove.directory / "program"
    place.mkdir()
    arm_runner(["/bin/sh", "-c", "echo $HOME; mkdir -p $HOME/kept"], {}, place, 60.0)
    prove("ran")"""
    _device_test(project, body, "arm_runner")
    assert project.gate(1).returncode == 0
    result = project.gate(2, LAGUNA_CPU_CARDS=str(CARD))
    assert result.returncode == 0, result.stdout
    machine = read_machine(project.attempt(2) / "evidence")
    assert not isinstance(machine.lease, Missing)
    assert machine.lease.inherited_masks == {"LAGUNA_CPU_CARDS": str(CARD)}
    assert machine.lease.environment == {"LAGUNA_CPU_CARDS": str(CARD)}
    assert [card.identity for card in machine.lease.cards] == [f"cpu-slot-{CARD}"]
    assert (isinstance(machine.before, Missing), isinstance(machine.after, Missing)) == (False, False)
    assert list(machine.audits) == ["only/program/host.json"]
    assert sorted(path.name for path in (project.attempt(2) / "evidence" / "only" / "program").iterdir()) == [
        "host.json",
        "process.json",
        "stderr.log",
        "stdout.log",
    ]


def test_who_holds_a_card_after_the_gate_makes_its_evidence_unusable(project: Project) -> None:
    body = """import pathlib, time
    pathlib.Path("running").touch()
    while not pathlib.Path("held").exists(): time.sleep(0.05)
    prove("shown")"""
    project.tests(only=body)
    assert project.gate(1).returncode == 0
    with subprocess.Popen(
        project.command("--gate=2", f"--cards={CARD}"),
        cwd=project.directory,
        env=project.environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as gate:
        deadline = time.monotonic() + 60
        while not (project.directory / "running").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with sleeper(LAGUNA_CPU_CARDS=str(CARD)) as stranger:
            (project.directory / "held").touch()
            output, _ = gate.communicate(timeout=60)
            assert stranger.poll() is None, "a stranger's process is not ours to kill"
    assert gate.returncode == 22, output
    assert f"no-holder: process {stranger.pid}" in output or f"holder {stranger.pid}" in output, output
    assert project.gate(2).returncode == 0, "VOID may be attempted again, and the card is swept and free"


def _sleepers() -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cmdline").read_bytes() == b"sleep\x0077\x00":
                found.append(process.name)
        except OSError:
            continue
    return found


def test_a_helper_that_no_digest_covers_is_refused(project: Project) -> None:
    (project.directory / "helpers").mkdir()
    (project.directory / "helpers" / "shared.py").write_text("")
    project.tests(second="import helpers.shared; " + PROVES)
    result = project.gate(1)
    assert (result.returncode, "helpers/shared.py) was loaded by a test" in result.stdout) == (22, True)
    path = project.directory / "checks" / "test_first.py"
    path.write_text("import helpers.shared\n" + path.read_text())
    result = project.gate(1)
    assert (result.returncode, "no digest covers it" in last_line(result)) == (4, True)


def test_a_helper_from_elsewhere_is_refused(project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "outside.py").write_text("")
    project.tests(second="import outside; " + PROVES)
    result = project.gate(1, PYTHONPATH=f"{project.directory}:{elsewhere}")
    assert (result.returncode, "outside.py) was loaded by a test" in result.stdout) == (22, True), result.stdout


def test_gate_2_refuses_other_settings_of_pytest(project: Project) -> None:
    assert project.gate(1).returncode == 0
    with (project.directory / "pyproject.toml").open("a") as stream:
        stream.write('usefixtures = ["x"]\n')
    result = project.gate(2)
    assert (result.returncode, "the harness has changed since gate 1 passed" in last_line(result)) == (4, True)


# The sealed root


def test_a_root_behind_a_symbolic_link(project: Project) -> None:
    (project.directory / "real").mkdir(mode=0o700)
    (project.directory / "link").symlink_to("real")
    result = project.gate(1, "--sealed-root=link")
    assert (result.returncode, "behind a symbolic link" in last_line(result)) == (4, True)
    assert list((project.directory / "real").iterdir()) == []


@pytest.mark.parametrize("part", ["demo", "demo/cpu", "demo/cpu/gate1"])
def test_a_link_below_the_root_is_refused(project: Project, part: str) -> None:
    (project.directory / "elsewhere").mkdir(mode=0o700)
    link = project.sealed / part
    link.parent.mkdir(parents=True, mode=0o700)
    for directory in (project.sealed, *link.parents):
        if directory.is_relative_to(project.sealed):
            directory.chmod(0o700)
    link.symlink_to(project.directory / "elsewhere")
    result = project.gate(1)
    assert (result.returncode, f"{part}: " in last_line(result)) == (4, True), result.stderr
    assert list((project.directory / "elsewhere").iterdir()) == []


def test_a_root_with_open_modes(project: Project) -> None:
    project.sealed.mkdir(mode=0o755)
    project.sealed.chmod(0o755)
    result = project.gate(1)
    assert (result.returncode, "mode 0755 lets others in; expected 0700" in last_line(result)) == (4, True)


def test_a_root_of_another_user(project: Project) -> None:
    foreign = project.sealed if os.geteuid() == 0 else Path("/")
    if os.geteuid() == 0:
        project.sealed.mkdir(mode=0o700)
        os.chown(project.sealed, 12345, -1)
    result = project.gate(1, f"--sealed-root={foreign}")
    assert (result.returncode, "owned by user" in last_line(result)) == (4, True)


def test_a_root_that_is_a_file(project: Project) -> None:
    project.sealed.write_text("")
    result = project.gate(1)
    assert (result.returncode, "not a directory" in last_line(result)) == (4, True)


def test_a_root_in_a_checkout_must_be_ignored(project: Project) -> None:
    subprocess.run(["/usr/bin/env", "git", "init", "-q", str(project.directory)], check=True)
    result = project.gate(1)
    assert (result.returncode, "inside a git checkout that does not ignore it" in last_line(result)) == (4, True)
    (project.directory / ".gitignore").write_text("sealed/\n")
    assert project.gate(1).returncode == 0


@pytest.mark.sessions(keep=1)
def test_two_sessions_do_not_share_a_lane(project: Project) -> None:
    lane = project.sealed / "demo" / "cpu"
    lane.mkdir(parents=True, mode=0o700)
    for directory in (project.sealed, lane.parent):
        directory.chmod(0o700)
    descriptor = os.open(lane, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        result = project.gate(1)
    finally:
        os.close(descriptor)
    assert (result.returncode, "another gate session runs there" in last_line(result)) == (4, True)
    assert not project.attempt().exists()


def test_racing_sessions_leave_one_attempt_each_or_a_refusal(project: Project) -> None:
    project.tests(second="import time; time.sleep(1); " + PROVES)
    racers = [
        subprocess.Popen(
            project.command("--gate=1"),
            cwd=project.directory,
            env=project.environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(3)
    ]
    codes = sorted(racer.wait(timeout=120) for racer in racers)
    assert codes.count(0) >= 1
    assert set(codes) <= {0, 4}
    assert len(list((project.sealed / "demo" / "cpu" / "gate1").iterdir())) == codes.count(0)
    assert project.verify()[0] == 0


@pytest.mark.sessions(keep=1)
def test_a_half_written_root_does_not_open_the_next_gate(project: Project) -> None:
    assert project.gate(1).returncode == 0
    with writable(project.attempt()):
        (project.attempt() / "receipt.json").unlink()
    code, gates, _ = project.verify()
    assert (code, gates[0]["verdict"]) == (23, "NOT_PROVEN")
    assert "receipt.json: missing; the session ended after its last test" in gates[0]["reason"]
    result = project.gate(2)
    assert (result.returncode, "its newest attempt is NOT_PROVEN" in last_line(result)) == (4, True)


def test_verify_needs_a_root(project: Project) -> None:
    code, _, message = project.verify()
    assert (code, "expected a sealed root" in message) == (4, True), message
    project.sealed.mkdir()
    code, [told], _ = project.verify()
    assert (code, told["verdict"], "holds no attempt" in told["reason"]) == (23, "NOT_PROVEN", True)


# The JUnit report


@pytest.mark.sessions(keep=1)
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes().replace(b"PASS", b"PASs", 1)),
        lambda path: path.write_bytes(path.read_bytes().replace(b' tests="2"', b"", 1)),
        lambda path: path.write_bytes(path.read_bytes().replace(b"    </testcase>", b"<skipped/></testcase>", 1)),
        lambda path: path.write_bytes(path.read_bytes().replace(b'attempt" value="1"', b'attempt" value="2"', 1)),
    ],
    ids=["missing", "empty", "edited", "no-counts", "skip", "stale"],
)  # fmt: skip
def test_a_damaged_report_is_named_and_opens_nothing(project: Project, damage: object) -> None:
    assert project.gate(1).returncode == 0
    path = project.attempt() / "junit.xml"
    before = path.read_bytes()
    with writable(project.attempt()):
        damage(path)  # type: ignore[operator]
    assert not path.exists() or path.read_bytes() != before
    code, gates, _ = project.verify()
    assert code == 22
    assert gates[0]["reason"].startswith("junit.xml: ")
    result = project.gate(2)
    assert (result.returncode, "junit.xml: " in last_line(result)) == (4, True)


@pytest.mark.sessions(keep=1)
def test_junitxml_gets_the_same_report(project: Project) -> None:
    project.tests(second='(prove.directory / "arm.log").write_text("ran"); prove("x")')
    assert project.gate(1, "--junitxml=out/report.xml").returncode == 0
    copy = project.directory / "out" / "report.xml"
    assert copy.read_bytes() == (project.attempt() / "junit.xml").read_bytes()
    (path,) = read_junit(copy.read_bytes()).cases[1].files
    assert path == "sealed/demo/cpu/gate1/0001/evidence/second/arm.log"
    assert (project.directory / path).read_text() == "ran"


def test_yesterdays_junitxml_is_refused(project: Project) -> None:
    (project.directory / "report.xml").write_text("<testsuites/>")
    result = project.gate(1, "--junitxml=report.xml")
    assert (result.returncode, "exists already" in last_line(result)) == (4, True)
    assert (project.directory / "report.xml").read_text() == "<testsuites/>"


# Sessions that do not end

FORGES = """prove("x")
    import os
    for descriptor in range(3, 64):
        try: os.write(descriptor, b"verdict PASS\\n/tmp\\0refused\\0")
        except OSError: pass
    os._exit(0)"""


@pytest.mark.sessions(keep=1)
@pytest.mark.parametrize(
    ("body", "how"),
    [
        ("import os; os._exit(0)", "ended with exit status 0"),
        ("import os; os.kill(os.getpid(), 9)", "was killed by signal 9"),
        ("import ctypes; ctypes.string_at(0)", "was killed by signal 11"),
        (FORGES, "ended with exit status 0"),
    ],
)
def test_a_test_that_ends_the_process_proves_nothing(project: Project, body: str, how: str) -> None:
    project.tests(second=body)
    result = project.gate(1)
    assert result.returncode == 23
    assert f"NOT_PROVEN: the session {how}: receipt.json: missing; the session ended" in result.stderr
    assert body == FORGES or "during checks/test_first.py::test_second" in result.stderr
    code, gates, _ = project.verify()
    assert (code, "receipt.json: missing" in gates[0]["reason"]) == (23, True)
    assert project.gate(2).returncode == 4


FORGES_THE_JOURNAL = """from pytest_laguna.evidence import files
    place = prove.directory.parent.parent / "journal.jsonl"
    lines = place.read_bytes().splitlines()
    events = [files.parse_json(line, "") for line in lines]
    first, second = events[1]["data"]["nodeid"], events[-1]["data"]["nodeid"]
    passed = [event for event in events if event["kind"] != "test-started" and event["data"].get("nodeid") == first]
    forged = [event | {"data": event["data"] | {"nodeid": second}} for event in passed[1:]]
    forged.append(events[0] | {"kind": "session-finished", "data": {"exit_status": 0}})
    for event in forged:
        link = {"sequence": len(lines), "previous": files.sha256_bytes(lines[-1])}
        lines.append(files.canonical_json(event | link))
    content = b"\\n".join([*lines, b""])
    REPLACE
    assert False, "the candidate is wrong"
"""


@pytest.mark.parametrize("replace", ["place.unlink(); place.write_bytes(content)", "place.write_bytes(content)"])
def test_a_journal_that_a_test_forges_is_put_back_and_closes(project: Project, replace: str) -> None:
    project.tests(second=FORGES_THE_JOURNAL.replace("REPLACE", replace))
    result = project.gate(1)
    assert (result.returncode, "journal.jsonl: replaced or changed by a test" in result.stdout) == (22, True), result
    assert project.verify()[0] == 22
    analysis = json.loads((project.attempt() / "analysis.json").read_bytes())
    assert [clause["verdict"] for clause in analysis["clauses"]] == ["PASS", "FAIL"]
    project.tests()
    result = project.gate(1)
    assert (result.returncode, "attempt 0001 ended FAIL, which closes" in last_line(result)) == (4, True)


# What runs on when the session has ended

STARTS = "subprocess.Popen(['sleep', '77'], start_new_session=True, stdout=-3, stderr=-3)"
AT_EXIT = f"import atexit, subprocess; atexit.register(lambda: {STARTS}); {PROVES}"
THREAD = f"""import subprocess, threading, time
    attempt = prove.directory.parent.parent
    def later():
        while not (attempt / "manifest.json").exists(): time.sleep(0.0005)
        {STARTS}
    threading.Thread(target=later, daemon=True).start()
    {PROVES}"""
CHAIN = f"""import atexit, subprocess, sys
    program = '''import os, time
end = time.monotonic() + 60
while time.monotonic() < end:
    if os.fork(): os._exit(0)
    time.sleep(0.002)
os.execvp("sleep", ["sleep", "77"])'''
    start = lambda: subprocess.Popen([sys.executable, "-S", "-c", program], start_new_session=True)
    atexit.register(start)
    {PROVES}"""


@pytest.mark.sessions(keep=1)
@pytest.mark.parametrize("body", [AT_EXIT, THREAD, CHAIN], ids=["at-exit", "thread", "chain"])
def test_what_starts_behind_the_receipt_is_ended_and_makes_the_attempt_void(project: Project, body: str) -> None:
    project.tests(second=body)
    result = project.gate(1)
    assert result.returncode == 22, result.stdout + result.stderr
    assert "was left running by the session: " in result.stderr
    assert _below(project) == []
    code, gates, _ = project.verify()
    assert (code, "left-running.json: extra" in gates[0]["reason"]) == (22, True)
    assert project.gate(2).returncode == 4
    project.tests()
    assert project.gate(1).returncode == 0


def test_a_session_that_is_killed_takes_what_its_tests_started_with_it(project: Project) -> None:
    project.tests(second=f"import os, subprocess; {STARTS}; os.kill(os.getpid(), 9)")
    result = project.gate(1)
    assert (result.returncode, "was killed by signal 9" in result.stderr) == (23, True)
    assert "was left running by the session: sleep 77" in result.stderr
    assert _below(project) == []
    assert b'"command":"sleep 77"' in (project.attempt() / "left-running.json").read_bytes()
    assert project.verify()[0] == 23
    project.tests()
    assert project.gate(1).returncode == 0


def test_what_is_left_behind_a_fail_leaves_it_one(project: Project) -> None:
    project.tests(second=f"{AT_EXIT}; assert False")
    result = project.gate(1)
    assert (result.returncode, project.verify()[0]) == (21, 21), result.stdout + result.stderr
    assert _below(project) == []


def _below(project: Project) -> list[str]:
    """The processes that work in the project's directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink() == project.directory:
                found.append((process / "cmdline").read_bytes().decode())
    return found


SLOW_WATCHER = """
import os, sys, time
from pathlib import Path
from pytest_laguna.gate import watch
from pytest_laguna.verdict import Verdict

said = []

def verify(directory):
    os.write(1, b"verifying\\n")
    time.sleep(1)
    return Verdict.PASS, "good"

code = watch.run_watched(said.append, verify)
if code is None:
    said[0].attempt(Path("/nowhere"))
    os._exit(0)
sys.exit(code)
"""


@pytest.mark.sessions(keep=1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_request_to_stop_while_the_watcher_verifies_changes_nothing(number: signal.Signals) -> None:
    command = [sys.executable, "-c", SLOW_WATCHER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == "verifying\n"
        for _ in range(5):
            watcher.send_signal(number)
            time.sleep(0.05)
        _, errors = watcher.communicate(timeout=30)
    assert (watcher.returncode, errors) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_so_do_those_that_come_after_its_last_word(number: signal.Signals) -> None:
    ends = SLOW_WATCHER.replace("sys.exit(code)", 'os.write(1, b"said\\n"); time.sleep(1); sys.exit(code)')
    command = [sys.executable, "-c", ends]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout is not None
        assert [watcher.stdout.readline() for _ in range(2)] == ["verifying\n", "said\n"]
        watcher.send_signal(number)
        _, errors = watcher.communicate(timeout=30)
    assert (watcher.returncode, errors) == (0, "")


def _start_and_wait_for_test(
    project: Project, body: str = "import time; time.sleep(60)", *, ignored: str = ""
) -> subprocess.Popen[str]:
    """A gate in its second test, started to ignore signals as a shell names them."""
    project.tests(second=f"{body}; {PROVES}")
    starts = ["/bin/sh", "-c", f"trap '' {ignored}; exec \"$@\"", "sh"] if ignored else []
    process = subprocess.Popen(
        [*starts, *project.command("--gate=1")],
        cwd=project.directory,
        env=project.environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    journal = project.attempt() / "journal.jsonl"
    deadline = time.monotonic() + 60
    while not (journal.exists() and journal.read_bytes().count(b'"test-started"') == 2):
        assert time.monotonic() < deadline, "the session did not reach its second test"
        time.sleep(0.05)
    return process


@pytest.mark.sessions(keep=1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_stop_ends_with_a_receipt(project: Project, number: signal.Signals) -> None:
    process = _start_and_wait_for_test(project)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 23, output
    assert "gate 1: NOT_PROVEN: pytest ended with exit status 2 (interrupted)" in output
    assert (project.attempt() / "receipt.json").exists()


WAITS = """exec("import pathlib, time\\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)")"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_request_to_stop_that_a_session_was_started_to_ignore_is_ignored(
    project: Project, number: signal.Signals
) -> None:
    """As nohup does with SIGHUP, and a script's shell with SIGINT and SIGQUIT in its background."""
    process = _start_and_wait_for_test(project, WAITS, ignored=number.name.removeprefix("SIG"))
    process.send_signal(number)
    time.sleep(0.5)
    (project.directory / "go").touch()
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, output + errors


def test_a_session_in_the_background_of_a_script_can_be_stopped(project: Project) -> None:
    process = _start_and_wait_for_test(project, ignored="INT QUIT")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 23, output
    assert "gate 1: NOT_PROVEN: pytest ended with exit status 2 (interrupted)" in output
    assert (project.attempt() / "receipt.json").exists()


IMPATIENT = """\
import os, signal, threading, time

def press():
    while True:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.02)

threading.Thread(target=press, daemon=True).start()
time.sleep(60)
"""

HANGS_AT_ITS_END = """\
import os, signal, threading, time, pytest

@pytest.fixture(scope="session", autouse=True)
def hangs():
    yield
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    time.sleep(60)
"""


IS_INTERRUPTED_AT_THE_END = """\
import os, signal, time, pytest

class Slow:
    def pytest_sessionfinish(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

@pytest.fixture(autouse=True)
def slow(request):
    if not request.config.pluginmanager.has_plugin("slow"):
        request.config.pluginmanager.register(Slow(), "slow")
"""


def test_who_presses_again_and_again_loses_no_receipt(project: Project) -> None:
    project.tests(second=f"exec({IMPATIENT!r}, {{}})")
    done = project.gate(1)
    assert done.returncode == 23, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "gate 1: NOT_PROVEN: pytest ended with exit status 2 (interrupted)" in done.stdout
    assert (project.attempt() / "receipt.json").exists()


@pytest.mark.parametrize(
    ("second", "ends"),
    [("raise KeyboardInterrupt", HANGS_AT_ITS_END), (PROVES, IS_INTERRUPTED_AT_THE_END)],
    ids=["hangs after an interrupt", "when all tests are over"],
)
def test_an_interrupt_while_it_ends_proves_nothing_and_loses_no_receipt(
    project: Project, second: str, ends: str
) -> None:
    project.tests(second=second)
    checks = project.directory / "checks" / "test_first.py"
    checks.write_text(checks.read_text() + ends)
    done = project.gate(1)
    assert done.returncode == 23, done.stdout + done.stderr
    assert "gate 1: NOT_PROVEN: pytest ended with exit status 2 (interrupted)" in done.stdout
    assert (project.attempt() / "receipt.json").exists()


@pytest.mark.sessions(keep=1)
def test_a_killed_session_leaves_no_process_and_its_journal(project: Project) -> None:
    process = _start_and_wait_for_test(project)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline, f"{children} outlived their watcher"
        time.sleep(0.05)
    code, gates, _ = project.verify()
    assert (code, "the session ended during checks/test_first.py::test_second" in gates[0]["reason"]) == (23, True)
    project.tests()
    assert project.gate(1).returncode == 0


def test_a_file_size_limit_during_the_session_is_not_proven(project: Project) -> None:
    project.tests(first="for n in range(50): prove('x' * 4096)")
    result = project.run(["/usr/bin/prlimit", "--fsize=65536", *project.command("--gate=1")])
    assert result.returncode == 23, result.stdout + result.stderr
    assert "gate 1: NOT_PROVEN: evidence cannot be written to" in result.stdout
    assert not (project.attempt() / "receipt.json").exists()
    assert (project.attempt() / "journal.jsonl").stat().st_size > 4096
    assert project.verify()[0] == 23


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root; the size limit test does not")
@pytest.mark.parametrize(("kilobytes", "code"), [(4, 4), (60, 23)])
def test_a_full_disk(project: Project, kilobytes: int, code: int) -> None:
    """With 4 kB the attempt cannot be opened; with 60 kB the journal runs full."""
    project.tests(first="for n in range(50): prove('x' * 4096)")
    mount = project.directory / "small"
    mount.mkdir(mode=0o700)
    script = f'mount -t tmpfs -o size={kilobytes}k,mode=0700 small small && exec "$@" --sealed-root=small'
    command = ["/usr/bin/unshare", "-m", "sh", "-c", script, "sh", *project.command("--gate=1")]
    result = project.run(command)
    assert result.returncode == code, result.stdout + result.stderr
    assert "No space left on device" in result.stdout + result.stderr
    assert "PASS" not in result.stdout
