# SPDX-License-Identifier: Apache-2.0
"""The laguna command as a user runs it: exit codes, messages, and never a traceback."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fuzz_roots
from tests.demo import writable
from tests.sealed import build, good_events, phase, reseal, restamp

pytestmark = pytest.mark.sessions(keep=2)

LAGUNA = (sys.executable, "-m", "pytest_laguna.cli")
SECOND = "checks/test_first.py::test_second"


def laguna(
    *arguments: str | Path, before: tuple[str, ...] = (), stdout: int = subprocess.PIPE, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command; what it says on standard error is never a traceback."""
    done = subprocess.run(
        [*before, *LAGUNA, *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=300,
        env=os.environ | variables,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    return done


def without_privileges() -> tuple[str, ...]:
    """What makes modes count for a command even if we are root."""
    return ("setpriv", "--bounding-set=-all") if os.geteuid() == 0 else ()


# Calls


def test_the_version_is_that_of_the_distribution() -> None:
    done = laguna("--version")
    assert (done.returncode, done.stdout) == (0, f"pytest-laguna {importlib.metadata.version('pytest-laguna')}\n")


@pytest.mark.parametrize(
    ("root", "message"),
    [
        ("", "argument ROOT: empty; expected a path"),
        ("x" * 300, "cannot be read (File name too long); expected a sealed root"),
        ("/dev/null", "'/dev/null': not a directory; expected a sealed root"),
        ("/nowhere/at/all", "'/nowhere/at/all': not a directory; expected a sealed root"),
        ("\x1b[2J", r"'\x1b[2J': not a directory"),
    ],
)
def test_what_is_no_root_is_refused_in_one_line(root: str, message: str) -> None:
    done = laguna("verify", root)
    assert (done.returncode, done.stdout) == (4, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize(
    "call",
    [
        ("verify", ".", "--junit", ""),
        ("analyze", "", "--out", "new"),
        ("analyze", ".", "--out", ""),
        ("trace", "", "--out", "new"),
        ("report", "", "--out", "new"),
        ("freeze", ""),
        ("review", "", "--as", "somebody"),
        ("doctor", "--campaign", ""),
    ],
)
def test_an_empty_path_is_refused_and_not_taken_for_the_current_directory(call: tuple[str, ...]) -> None:
    done = laguna(*call)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (4, "", 1)
    assert ": empty; expected a path" in done.stderr


@pytest.mark.parametrize("command", ["verify", "analyze", "report", "trace", "doctor", "freeze", "review"])
def test_each_command_says_what_it_does(command: str) -> None:
    done = laguna(command, "--help", COLUMNS="80")
    assert done.returncode == 0
    overview = " ".join(laguna("--help", COLUMNS="80").stdout.split())
    does = done.stdout.split("\n\n")[1]
    assert " ".join(does[:-1].split()).lower() in overview.lower()
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_an_unknown_command_is_refused_in_one_line() -> None:
    done = laguna("\x1b[2J")
    assert (done.returncode, done.stderr.count("\n"), "\x1b" in done.stderr) == (4, 1, False)


def test_a_directory_that_is_no_root_is_void(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("to do")
    done = laguna("verify", str(tmp_path))
    assert done.returncode == 22
    assert "does not belong into a sealed root; expected directories campaign/lane/gate1..3" in done.stdout


@pytest.mark.parametrize("place", ["x", "x/cpu"])
def test_a_directory_without_a_gate_below_it_proves_nothing(tmp_path: Path, place: str) -> None:
    (tmp_path / place).mkdir(parents=True)
    done = laguna("verify", str(tmp_path))
    assert done.returncode == 23
    assert f"{place}: holds no attempt" in done.stdout


def test_an_empty_root_is_not_proven(tmp_path: Path) -> None:
    done = laguna("verify", tmp_path)
    assert (done.returncode, done.stdout) == (23, f"NOT_PROVEN: {tmp_path}: holds no attempt; expected a sealed root\n")


ATTEMPT = "sealed/demo/cpu/gate1/0001"


@pytest.mark.parametrize(
    "where", [".", "sealed/demo", "sealed/demo/cpu", "sealed/demo/cpu/gate1", ATTEMPT, f"{ATTEMPT}/evidence"]
)
def test_a_directory_beside_the_root_is_void_and_told_the_root(tmp_path: Path, where: str) -> None:
    build(tmp_path)
    reason = f"{tmp_path / where}: not itself a sealed root; name {tmp_path / 'sealed'}"
    done = laguna("verify", tmp_path / where)
    assert (done.returncode, done.stdout) == (22, f"VOID: {reason}\n")
    done = laguna("verify", tmp_path / where, "--json")
    [told] = json.loads(done.stdout)["gates"]
    assert (done.returncode, told["verdict"], told["reason"]) == (22, "VOID", reason)


@pytest.mark.parametrize(
    ("count", "told"),
    [(2, "one of 2: {0}, {1}"), (3, "one of 3: {0}, {1}, {2}"), (5, "one of 5: {0}, {1}, {2} and 2 more")],
)
def test_a_directory_that_holds_several_roots_is_told_of_all(tmp_path: Path, count: int, told: str) -> None:
    build(tmp_path)
    roots = [tmp_path / f"sealed-{number}" for number in range(count)]
    (tmp_path / "sealed").rename(roots[-1])
    for root in roots[:-1]:
        shutil.copytree(roots[-1], root)
    reason = f"{tmp_path}: not itself a sealed root; name {told.format(*roots)}"
    done = laguna("verify", tmp_path)
    assert (done.returncode, done.stdout) == (22, f"VOID: {reason}\n")
    [said] = json.loads(laguna("verify", tmp_path, "--json").stdout)["gates"]
    assert said["reason"] == reason


def test_a_file_of_a_root_is_refused_and_told_the_root(tmp_path: Path) -> None:
    receipt = build(tmp_path) / "receipt.json"
    done = laguna("verify", receipt)
    assert done.returncode == 4
    assert f"{str(receipt)!r}: not a directory; expected {tmp_path / 'sealed'}; see" in done.stderr


def test_the_root_that_is_told_is_the_innermost(tmp_path: Path) -> None:
    """Gate 1 keeps its rehearsal's root among its evidence."""
    evidence = build(tmp_path) / "evidence"
    evidence.chmod(0o700)
    build(evidence)
    assert f"name {evidence / 'sealed'}\n" in laguna("verify", evidence / "sealed" / "demo").stdout
    assert f"name {tmp_path / 'sealed'}\n" in laguna("verify", evidence).stdout


# Receipts that were kept elsewhere


def _receipts(root: Path) -> list[str]:
    return [gate["receipt"] for gate in json.loads(laguna("verify", root, "--json").stdout)["gates"]]


def test_the_receipt_that_was_kept_vouches_for_the_root(tmp_path: Path) -> None:
    fuzz_roots.passed(tmp_path)
    opened, newest = _receipts(tmp_path / "sealed")
    done = laguna("verify", tmp_path / "sealed", "--expect", newest)
    assert (done.returncode, done.stdout.count("PASS")) == (0, 2)
    done = laguna("verify", tmp_path / "sealed", "--expect", opened)
    assert done.returncode == 23
    assert f"its receipt {newest} is not expected, nor vouched for by one that is" in done.stdout


def test_a_root_that_was_made_again_coherently_is_not_the_expected_one(tmp_path: Path) -> None:
    kept = build(tmp_path)
    (receipt,) = _receipts(tmp_path / "sealed")
    reseal(kept, plugins=["another"])
    assert laguna("verify", tmp_path / "sealed").returncode == 0
    done = laguna("verify", tmp_path / "sealed", "--expect", receipt)
    assert (done.returncode, done.stdout.count("\n"), "VOID" in done.stdout) == (23, 2, True)
    assert f"receipt {receipt}: expected of a gate's newest attempt, and none has it" in done.stdout


@pytest.mark.parametrize("digest", ["", "abc", "A" * 64, "0" * 65])
def test_what_is_no_digest_is_refused_in_one_line(tmp_path: Path, digest: str) -> None:
    done = laguna("verify", tmp_path, "--expect", digest)
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)
    assert "expected the SHA-256 of a receipt.json, 64 hexadecimal digits" in done.stderr


# Output inside what is sealed


@pytest.mark.parametrize("command", ["analyze", "trace"])
@pytest.mark.parametrize("where", ["", "demo", "demo/cpu/gate1", "demo/cpu/gate1/0001", "demo/cpu/gate1/0001/evidence"])
def test_nothing_is_written_into_a_sealed_root(tmp_path: Path, command: str, where: str) -> None:
    attempt = build(tmp_path)
    out = tmp_path / "sealed" / where / "again.json"
    done = laguna(command, attempt, "--out", out)
    assert (done.returncode, out.exists()) == (4, False)
    assert f"inside {tmp_path / 'sealed'}, which stays as it was sealed" in done.stderr
    assert laguna("verify", tmp_path / "sealed").returncode == 0


@pytest.mark.parametrize("command", ["analyze", "trace", "report", "verify"])
def test_an_output_that_cannot_be_written_is_named_before_any_work(tmp_path: Path, command: str) -> None:
    attempt = build(tmp_path)
    (tmp_path / "there").write_text("mine")
    (tmp_path / "loop").symlink_to("loop")
    option = "--junit" if command == "verify" else "--out"
    for out, told in (
        ("there", "exists already; name a new file"),
        ("loop", "exists already; name a new file"),
        ("nowhere/new", "nowhere; name a new file in an existing one"),
        ("there/new", "there; name a new file in an existing one"),
        ("x" * 300, "cannot be written (File name too long); name a new file in a writable directory"),
    ):
        if len(out) < 300 or command in {"report", "verify"}:  # the attempt has neither a profile nor an analysis
            read = tmp_path / "sealed" if command in {"report", "verify"} else attempt
            done = laguna(command, read, option, tmp_path / out)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (4, "", 1)
            assert done.stderr.startswith(f"laguna {command}: {tmp_path / out}: "), done.stderr
            assert told in done.stderr
    assert (tmp_path / "there").read_text() == "mine"


@pytest.mark.parametrize("command", ["analyze", "trace", "report", "verify"])
def test_a_link_to_itself_is_refused_in_one_line(tmp_path: Path, command: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    out = () if command == "verify" else ("--out", tmp_path / "new")
    done = laguna(command, tmp_path / "loop", *out)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (4, "", 1)
    assert f"{tmp_path / 'loop'}" in done.stderr


# What cannot be read


@pytest.mark.parametrize("kind", ["text", "json"])
@pytest.mark.parametrize(
    ("where", "code", "message"),
    [
        ("", 4, "cannot be read (Permission denied); expected a sealed root"),
        ("demo", 22, "demo: cannot be read (Permission denied)"),
        ("demo/cpu", 22, "demo/cpu: cannot be read (Permission denied)"),
        ("demo/cpu/gate1", 22, "gate1: cannot be listed (Permission denied)"),
        ("demo/cpu/gate1/0001", 22, "Permission denied"),
        ("demo/cpu/gate1/0001/evidence", 22, "evidence: cannot be read (Permission denied)"),
        ("demo/cpu/gate1/0001/journal.jsonl", 22, "journal.jsonl: cannot be read (Permission denied)"),
        ("demo/cpu/gate1/0001/receipt.json", 22, "receipt.json: cannot be read (Permission denied)"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, where: str, code: int, message: str, kind: str) -> None:
    build(tmp_path)
    closed = tmp_path / "sealed" / where
    mode = stat.S_IMODE(closed.stat().st_mode)
    closed.chmod(0)
    done = laguna("verify", tmp_path / "sealed", *(["--json"] if kind == "json" else []), before=without_privileges())
    closed.chmod(mode)
    assert done.returncode == code, done.stdout + done.stderr
    assert message in done.stdout + done.stderr
    assert len((done.stdout if kind == "text" else done.stderr).splitlines()) <= 1


# Output that goes nowhere


def test_a_reader_that_has_gone_ends_it_as_any_other_program(tmp_path: Path) -> None:
    build(tmp_path)
    reading, writing = os.pipe()
    os.close(reading)
    done = laguna("verify", tmp_path / "sealed", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_full_device_is_told_apart_from_a_verdict(tmp_path: Path) -> None:
    build(tmp_path)
    full = os.open("/dev/full", os.O_WRONLY)
    done = laguna("verify", tmp_path / "sealed", stdout=full)
    os.close(full)
    assert done.returncode == 4
    assert "standard output cannot be written (No space left on device)" in done.stderr


def test_a_closed_output_is_told_apart_from_a_verdict(tmp_path: Path) -> None:
    build(tmp_path)
    closed = ("sh", "-c", 'exec "$@" >&-', "sh")
    done = laguna("verify", tmp_path / "sealed", before=closed)
    assert (done.returncode, "standard output cannot be written (it is closed)" in done.stderr) == (4, True)
    silent = ("sh", "-c", 'exec "$@" >&- 2>&-', "sh")
    assert laguna("verify", tmp_path / "sealed", before=silent).returncode == 4


# What a terminal would obey


def test_names_and_reasons_cannot_command_the_terminal(tmp_path: Path) -> None:
    events = good_events()
    events[8] = phase(SECOND, "call", outcome="failed", cause="assertion", reason="no\x1b]0;title\x07\x9b2J\u202e")
    build(tmp_path, events, exit_status=1)
    (tmp_path / "sealed" / "\x1b[31mred\nPASS").write_text("")
    done = laguna("verify", tmp_path / "sealed")
    assert done.returncode == 22
    assert len(done.stdout.splitlines()) == 2
    assert all(letter.isprintable() or letter == "\n" for letter in done.stdout)
    assert r"\x1b[31mred\nPASS" in done.stdout
    assert r"no\x1b]0;title\x07\x9b2J\u202e" in done.stdout
    as_json = laguna("verify", tmp_path / "sealed", "--json")
    assert "\x1b" not in as_json.stdout
    assert {gate["campaign"] for gate in json.loads(as_json.stdout)["gates"]} == {"demo", "\x1b[31mred\nPASS"}


def test_an_output_that_holds_ascii_only_gets_escapes(tmp_path: Path) -> None:
    (tmp_path / "ä").write_text("")
    (tmp_path / os.fsdecode(b"\xff")).write_text("")
    done = laguna("verify", tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 22
    assert r"\xe4: does not belong" in done.stdout
    assert r"\udcff: does not belong" in done.stdout


def test_a_campaign_nested_without_end_is_void(tmp_path: Path) -> None:
    attempt = build(tmp_path)
    with writable(attempt):
        (attempt / "evidence" / "campaign.toml").write_text("x = " + "[" * 5000 + "]" * 5000)
    restamp(attempt, lambda manifest: manifest)
    done = laguna("verify", tmp_path / "sealed")
    assert (done.returncode, "evidence/campaign.toml: nested too deeply;" in done.stdout) == (22, True)


# The doctor


def test_the_doctor_looks_at_every_lane_and_judges_the_one_that_is_named() -> None:
    every = laguna("doctor", "--json")
    assert every.returncode == 0
    assert [lane["lane"] for lane in json.loads(every.stdout)["lanes"]] == ["cpu", "cuda", "xpu"]
    one = laguna("doctor", "--json", "--device=cpu")
    report = json.loads(one.stdout)
    assert [(lane["lane"], lane["problems"]) for lane in report["lanes"]] == [("cpu", [])]
    assert one.returncode == (23 if report["problems"] else 0)  # a lease that tests left behind is a problem too
    missing = laguna("doctor", "--device=xpu")
    assert missing.returncode == 23
    assert missing.stdout.startswith("xpu: not ready\n")
    assert "  - cards: xpu: /usr/bin/xpu-smi discovery -j: seen No such file" in missing.stdout
    assert "    fix: apt-get install xpu-smi\n" in missing.stdout


def test_the_doctor_knows_three_lanes() -> None:
    done = laguna("doctor", "--device=tpu")
    assert (done.returncode, "invalid choice: 'tpu'" in done.stderr) == (4, True)
