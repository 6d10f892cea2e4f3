# SPDX-License-Identifier: Apache-2.0
"""What happens to a gate when the machine fails it: real sessions, signals and mounts. docs/faults.md lists it all."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.journal import read_journal
from pytest_laguna.evidence.junit import read_junit
from pytest_laguna.verdict import UnusableEvidenceError, Verdict
from pytest_laguna.verify.verification import verify_attempt, verify_root
from tests.acceptance.test_cli import LAGUNA, laguna
from tests.demo import CAMPAIGN, CARD, PROVES, Project, last_line, writable
from tests.sealed import build

pytestmark = pytest.mark.faults

DEVICE = """\
import pytest

@pytest.mark.gate(2)
@pytest.mark.clause("only")
def test_only(prove, arm_runner):
    {body}
    prove("shown")
"""

OWN_MOUNTS = ("/usr/bin/unshare", "--mount", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")))


@pytest.fixture(scope="module")
def own_mounts() -> tuple[str, ...]:
    """What runs a program with mounts of its own."""
    tried = subprocess.run([*OWN_MOUNTS, "mount", "--bind", "/tmp", "/tmp"], check=False, capture_output=True)  # noqa: S108
    if tried.returncode != 0:
        pytest.skip(f"this host lets no mount be made: {tried.stderr.decode().strip()}")
    return OWN_MOUNTS


def read_only(own_mounts: tuple[str, ...], directory: Path, *command: str | Path) -> list[str]:
    """A command that sees a directory mounted read-only."""
    script = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'
    return [*own_mounts, "sh", "-c", script, "sh", str(directory), *map(str, command)]


# Signals

LATER = """import os, threading, time
    attempt = prove.directory.parent.parent
    def kill():
        while not (attempt / "{name}").exists(): time.sleep(0.0002)
        os.kill(os.getpid(), 9)
    threading.Thread(target=kill, daemon=True).start()
    prove("shown")"""
HOOK = """import os
def pytest_{hook}({arguments}):
    if {when}: os.kill(os.getpid(), 9)
"""
PHASES = {
    "collection": (HOOK.format(hook="itemcollected", arguments="item", when="True"), ""),
    "setup": (HOOK.format(hook="runtest_setup", arguments="item", when="item.name == 'test_second'"), ""),
    "call": ("", "import os; os.kill(os.getpid(), 9)"),
    "teardown": (HOOK.format(hook="runtest_teardown", arguments="item", when="item.name == 'test_second'"), ""),
    "the session's end": (HOOK.format(hook="sessionfinish", arguments="session", when="True"), ""),
    "sealing": ("", LATER.format(name=root.ANALYSIS)),
}


@pytest.mark.faults(keep=1)
@pytest.mark.parametrize("phase", PHASES)
def test_a_controller_that_is_killed_proves_nothing_and_keeps_its_journal(phase: str, project: Project) -> None:
    conftest, second = PHASES[phase]
    (project.directory / "checks" / "conftest.py").write_text(conftest)
    project.tests(second=second or PROVES)
    result = project.gate(1)
    assert (result.returncode, "NOT_PROVEN: the session was killed by signal 9" in result.stderr) == (23, True), result
    if phase == "collection":
        assert not project.attempt().exists()
    else:
        events = read_journal(project.attempt() / root.JOURNAL, files.sha256_file(project.attempt() / root.ATTEMPT))
        assert "phase" in {event.kind for event in events}
        assert not (project.attempt() / root.RECEIPT).exists()
        assert project.verify()[0] == 23
    (project.directory / "checks" / "conftest.py").unlink()
    project.tests()
    assert project.gate(1).returncode == 0


def _device_test(project: Project, body: str) -> None:
    (project.directory / "checks" / "test_device.py").write_text(DEVICE.format(body=body))


@pytest.mark.faults(keep=1)
@pytest.mark.parametrize(
    ("program", "why"),
    [
        ('["/bin/sh", "-c", "sleep 1; kill -9 $PPID; sleep 79"]', "supervisor-lost"),
        ('[sys.executable, "-c", "held = [b\'x\' * 1_000_000 for _ in range(1000)]; input()"]', "memory"),
        ('["/bin/sh", "-c", "kill -9 $$"]', "exited"),
    ],
    ids=["supervisor", "memory", "program"],
)
def test_a_program_that_is_killed_is_named_and_nothing_of_it_is_left(program: str, why: str, project: Project) -> None:
    """What its end says of an arm is the rules' to judge; of a lost supervisor nobody can tell what else there was."""
    project.campaign(CAMPAIGN.replace("1_000_000_000", "200_000_000"))
    _device_test(project, f"import sys; ended = arm_runner({program}, {{}}, prove.directory, 30.0); print(ended)")
    assert project.gate(1).returncode == 0
    result = project.gate(2)
    record = json.loads((project.attempt(2) / "evidence" / "only" / "process.json").read_bytes())
    assert (record["reason"], record["survivors"]) == (why, []), record
    assert result.returncode == {"supervisor-lost": 23}.get(why, 0), result.stdout
    assert project.verify()[0] == result.returncode


WORKER = HOOK.format(hook="{hook}", arguments="", when='"PYTEST_XDIST_WORKER" in os.environ')
CRASHED, LOST = "worker 'gw0' crashed", "[gw0] node down: Not properly terminated"
NONE_LEFT = ("maximum crashed workers reached", "no tests ran in")
XDIST: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "session start": ("sessionstart", 5, (LOST, *NONE_LEFT)),
    "collection": ("collection", 5, (LOST, *NONE_LEFT)),
    "setup": ("runtest_setup", 1, (CRASHED, "1 failed")),
    "call": ("runtest_call", 1, (CRASHED, "1 failed")),
    "teardown": ("runtest_teardown", 1, (CRASHED, "1 failed")),
    "session finish": ("sessionfinish", 0, (LOST, "1 passed")),
}
"""By the phase the hook in which the worker is killed, and the run's exit code and words, all of them xdist's own."""


@pytest.mark.faults(keep=1)
@pytest.mark.parametrize("phase", XDIST)
def test_a_run_whose_xdist_worker_is_killed_ends_as_xdist_has_it_and_is_never_a_gates(
    phase: str, project: Project
) -> None:
    """Gates refuse ``-n``; an ordinary run with this plugin has workers."""
    hook, code, words = XDIST[phase]
    (project.directory / "conftest.py").write_text(WORKER.format(hook=hook))
    (project.directory / "test_plain.py").write_text("def test_it(): pass\n")
    result = project.pytest("-n", "1", "test_plain.py")
    assert (result.returncode, [word for word in words if word not in result.stdout]) == (code, []), result.stdout
    assert not project.sealed.exists()
    refused = project.gate(1, "-n", "1")
    assert (refused.returncode, "-n" in last_line(refused)) == (4, True)


# Disks


def test_a_gate_does_not_start_on_a_read_only_disk(project: Project, own_mounts: tuple[str, ...]) -> None:
    assert project.gate(1).returncode == 0
    arguments = (f"--gate={number}" for number in (1, 2))
    for command in (project.command(next(arguments)), [*project.command(next(arguments)), f"--cards={CARD}"]):
        result = project.run(read_only(own_mounts, project.sealed, *command))
        assert (result.returncode, "Read-only file system" in last_line(result)) == (4, True), result.stderr
    assert project.verify()[0] == 0


@pytest.mark.faults(keep=1)
def test_verification_works_on_a_read_only_disk(tmp_path: Path, own_mounts: tuple[str, ...]) -> None:
    build(tmp_path)
    sealed = tmp_path / "sealed"
    command = read_only(own_mounts, sealed, *LAGUNA, "verify", sealed, "--json")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that every user may read: pytest's own are private."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.mark.faults(keep=1)
def test_verification_works_as_another_user(open_place: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root becomes another user")
    build(open_place)
    sealed = open_place / "sealed"
    for path in (sealed, *sealed.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)  # as an archive without owners and modes leaves them
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all")
    reads = subprocess.run(
        [*nobody, sys.executable, "-c", "import pytest_laguna.cli"], check=False, capture_output=True
    )
    if reads.returncode != 0:
        pytest.skip("this environment's packages are closed to other users")
    assert laguna("verify", sealed, before=nobody).returncode == 0


def test_gate_2_opens_elsewhere_on_a_copied_root(project: Project, tmp_path: Path) -> None:
    """Another directory, another name of the host where that can be had, another time zone: none is in the chain."""
    assert project.gate(1, TZ="Pacific/Kiritimati").returncode == 0
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(project.directory, elsewhere, symlinks=True, ignore=shutil.ignore_patterns("elsewhere"))
    other = Project.__new__(Project)
    other.directory, other.sealed = elsewhere, elsewhere / "sealed"
    named: tuple[str, ...] = ("/usr/bin/unshare", "--uts", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh")
    if subprocess.run([*named, "true"], check=False, capture_output=True).returncode != 0:
        named = ()
    command = [*named, *other.command("--gate=2", f"--cards={CARD}")]
    result = other.run(command, TZ="America/St_Johns")
    assert result.returncode == 0, result.stdout + result.stderr
    done = laguna("verify", other.sealed, TZ="Asia/Kathmandu")
    assert (done.returncode, done.stdout.count("PASS")) == (0, 2)
    times = [
        json.loads(line)["time"] for path in other.sealed.rglob(root.JOURNAL) for line in path.read_bytes().splitlines()
    ]
    assert all(time.endswith("+00:00") for time in times)


def test_a_copied_root_that_lost_its_modes_says_what_to_do(project: Project) -> None:
    """What is there verifies; what is to be written beside it must be private."""
    assert project.gate(1).returncode == 0
    for path in (project.sealed, *project.sealed.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert project.verify()[0] == 0
    result = project.gate(2)
    assert (result.returncode, "mode 0755 lets others in; expected 0700" in last_line(result)) == (4, True)
    for path in (project.sealed, *(each for each in project.sealed.rglob("*") if each.is_dir())):
        path.chmod(0o700)
    assert project.gate(2).returncode == 0


# Files


def _files() -> list[str]:
    names = [root.ATTEMPT, root.JOURNAL, root.JUNIT, root.MANIFEST, root.ANALYSIS, root.RECEIPT]
    return [*names, root.IDENTITY, root.CAMPAIGN, root.CAMPAIGN_READ]


@pytest.mark.faults(keep=9)
@pytest.mark.parametrize("name", _files())
def test_an_empty_file_is_void_and_named(name: str, tmp_path: Path) -> None:
    attempt = build(tmp_path)
    with writable(attempt):
        (attempt / name).write_bytes(b"")
    report = verify_attempt(attempt.parent.parent, 1, 1)
    assert (report.verdict, report.reason.startswith(name) or Path(name).name in report.reason) == (Verdict.VOID, True)


SPARSE = 2 << 30
# The most of this program alone: ru_maxrss begins with what the process that started it had.
MEASURED = """import re, sys
from pytest_laguna import cli
code = cli.main(["verify", sys.argv[1]])
print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
sys.exit(code)"""


@pytest.mark.faults(keep=1)
def test_evidence_of_two_gigabytes_is_sealed_and_verified_in_constant_memory(tmp_path: Path) -> None:
    def large(evidence: Path) -> None:
        with (evidence / "large").open("wb") as stream:
            stream.truncate(SPARSE)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    build(tmp_path, before_sealing=large)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "sealed")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[-1]) < 200_000


@pytest.mark.faults(keep=1)
def test_a_file_that_has_become_two_gigabytes_is_refused_without_being_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as stream:
        stream.truncate(SPARSE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for read in (lambda: read_journal(path, "0" * 64), lambda: files.read_canonical_json(path)):
        with pytest.raises(UnusableEvidenceError, match=r"large: larger than \d+ bytes"):
            read()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000  # the larger limit is 256 MiB


# Time

JUMPS = """import datetime, types
from pytest_laguna.evidence import journal
from pytest_laguna.evidence.machine import idle
hours = [0]
class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.now(tz) + datetime.timedelta(hours=hours[0])
shown = types.SimpleNamespace(datetime=Clock, UTC=datetime.UTC)
idle.datetime = journal.datetime = shown
def pytest_{when}():
    hours[0] += {hours}
"""


@pytest.mark.faults(keep=1)
@pytest.mark.parametrize(
    ("when", "hours", "code"),
    [("runtest_teardown", 1, 0), ("runtest_teardown", -1, 0), ("sessionfinish", 1, 0), ("sessionfinish", -1, 22)],
)
def test_a_clock_that_jumps_makes_no_evidence_of_looks_that_cannot_be_dated(
    when: str, hours: int, code: int, project: Project
) -> None:
    """What came first is the chain's to say; the looks at cards after the last test are held to the journal's time."""
    (project.directory / "checks" / "conftest.py").write_text(JUMPS.format(when=when, hours=hours))
    results = [project.gate(1), project.gate(2)]
    assert [result.returncode for result in results] == [0, code], results
    seen = project.verify()[1]
    assert [gate["verdict"] for gate in seen] == ["PASS", "VOID" if code else "PASS"]
    assert code == 0 or "idle-after.json: looks-around-the-tests: seen a snapshot at " in seen[1]["reason"]
    junit = read_junit((project.attempt() / root.JUNIT).read_bytes())
    assert sum(case.seconds for case in junit.cases) < 600


# Words

SHOUTS = r"""import os
    os.write(1, b"\xff\xfe\x1b[31mred\x00\n"); os.write(2, b"\x80\x1b]0;title\x07\n")
    print("\udcff\x1b[2J\x9b")
    {then}"""


@pytest.mark.faults(keep=1)
def test_output_that_is_not_text_passes_through_and_decides_nothing(project: Project) -> None:
    project.tests(first=SHOUTS.format(then=PROVES))
    program = r'["/bin/sh", "-c", "printf \'\\377\\033[31m\\000\'; printf \'\\200\' >&2"]'
    _device_test(project, f"arm_runner({program}, {{}}, prove.directory, 30.0)")
    assert [project.gate(1).returncode, project.gate(2).returncode, project.verify()[0]] == [0, 0, 0]
    logs = {path.name: path.read_bytes() for path in (project.attempt(2) / "evidence" / "only").glob("*.log")}
    assert logs == {"stdout.log": b"\xff\x1b[31m\x00", "stderr.log": b"\x80"}


def test_a_failure_whose_words_are_no_text_is_a_failure_that_every_reader_can_read(project: Project) -> None:
    project.tests(second=SHOUTS.format(then=r'assert False, "no\udcff\x1b[31m red\x00\u202e"'))
    command = project.command("--gate=1", "--color=yes")
    done = subprocess.run(command, cwd=project.directory, env=project.environment(), check=False, capture_output=True)
    assert (done.returncode, project.verify()[0]) == (21, 21), done.stdout
    content = (project.attempt() / root.JUNIT).read_bytes()
    assert b"\x1b" not in content
    ElementTree.fromstring(content)  # noqa: S314 - ours
    assert [case.verdict for case in read_junit(content).cases] == [Verdict.PASS, Verdict.FAIL]
    told = laguna("verify", project.sealed).stdout
    assert "\x1b" not in told
    assert r"\u202e" in told
    assert [report.verdict for report in verify_root(project.sealed)] == [Verdict.FAIL]
