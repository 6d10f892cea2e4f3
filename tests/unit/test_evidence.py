# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import json
import math
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.git import git
from pytest_laguna.evidence.journal import Journal, read_journal
from pytest_laguna.evidence.junit import Case, read_junit, write_junit
from pytest_laguna.evidence.schemas import Manifest
from pytest_laguna.verdict import JSON, UnusableEvidenceError, Verdict, worst

CASES = (
    Case("gates/a.py::test_one", "one", Verdict.PASS, seconds=0.25),
    Case("gates/a.py::test_two[x-1]", "two", Verdict.FAIL, "expected 1 & saw 2", "trace\nback", 1.5),
    Case("gates/a.py::test_three", "three", Verdict.VOID, "<torn>", files=("sealed/a.log", "sealed/b & c.json")),
)


# Files


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    files.write_new(tmp_path / "a", b"1")
    with pytest.raises(FileExistsError):
        files.write_new(tmp_path / "a", b"2")
    assert ((tmp_path / "a").read_bytes(), (tmp_path / "a").stat().st_mode & 0o777) == (b"1", 0o600)


def test_large_writes_are_complete(tmp_path: Path) -> None:
    content = bytes(range(256)) * 40_000
    files.write_new(tmp_path / "a", content)
    assert files.sha256_file(tmp_path / "a") == files.sha256_bytes(content)


CUT_OFF = """
import os, signal, sys
from pathlib import Path
from pytest_laguna.evidence import files

def write(descriptor, content):
    os.write(descriptor, content[:len(content) // 2])
    os.kill(os.getpid(), signal.SIGKILL)

files.write_all = write
files.write_new(Path(sys.argv[1]), b"the whole of it")
"""


def test_a_writer_that_is_killed_leaves_no_half_file(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", CUT_OFF, str(tmp_path / "receipt.json")], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "receipt.json").exists()
    files.write_new(tmp_path / "receipt.json", b"the whole of it")
    assert (tmp_path / "receipt.json").read_bytes() == b"the whole of it"


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").write_bytes(b"1")
    with pytest.raises(FileExistsError):
        files.write_new(tmp_path / "there", b"2")

    def full(_descriptor: int, _content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_all", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_new(tmp_path / "x", b"1")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


@pytest.mark.parametrize("value", [math.nan, math.inf, 2**53, "\ud800", {"a": [-math.inf]}])
def test_values_without_a_canonical_form_are_refused(value: object) -> None:
    with pytest.raises(UnusableEvidenceError, match="cannot be written as RFC 8785 JSON"):
        files.canonical_json(value)  # type: ignore[arg-type]


def test_canonical_json_is_that_of_the_standard() -> None:
    # RFC 8785, section 3.2.2 and 3.2.3: number forms and the order of keys by UTF-16 code units
    value: JSON = {"\u20ac": 1, "\r": 2, "1": 333333333.33333329, "\U0001f600": 1e30, "a": 4.50, "\u0080": 2e-3}
    expected = '{"\\r":2,"1":333333333.3333333,"a":4.5,"\u0080":0.002,"\u20ac":1,"\U0001f600":1e+30}'
    assert files.canonical_json(value) == expected.encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}', "not in canonical form"),
        (b'{"a":1,"a":1}', "not in canonical form"),
        (b'{"b":1,"a":1}', "not in canonical form"),
        (b'{"a":1}\n', "not in canonical form"),
        (b'{"a":NaN}', "cannot be written"),
        (b'{"a":1', "not JSON"),
        (b"\xff", "not JSON"),
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_other_spellings_of_json_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(UnusableEvidenceError, match=message):
        files.read_canonical_json(tmp_path / "x.json")


def test_reading_follows_no_link_and_has_a_limit(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("real")
    assert files.read_bytes(tmp_path / "real", limit=5) == b"12345"
    with pytest.raises(UnusableEvidenceError, match="larger than 4 bytes"):
        files.read_bytes(tmp_path / "real", limit=4)
    for name in ("link", "missing", "."):
        with pytest.raises(UnusableEvidenceError, match="cannot be read"):
            files.read_bytes(tmp_path / name, limit=9)


@pytest.mark.timeout(60)
def test_only_regular_files_are_hashed_and_read(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"1")
    (tmp_path / "link").symlink_to("real")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "link", tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError, match=r"not a regular file|symbolic links"):
            files.sha256_file(path)
        with pytest.raises(UnusableEvidenceError, match="cannot be read"):
            files.read_bytes(path, limit=9)


def _nested(levels: int) -> JSON:
    value: JSON = "inside"
    for level in range(levels):
        value = [1, value] if level % 2 else {"a": value}
    return value


def test_what_may_be_written_can_be_read_however_deep(tmp_path: Path) -> None:
    deepest = _nested(files.NESTING_LIMIT)
    files.write_new(tmp_path / "x.json", files.canonical_json(deepest))
    assert files.read_canonical_json(tmp_path / "x.json") == deepest
    journal = Journal(tmp_path / "journal.jsonl", "0" * 64)
    journal.append("problem", reason=_nested(files.NESTING_LIMIT - 2))
    read_journal(tmp_path / "journal.jsonl", "0" * 64)
    with pytest.raises(UnusableEvidenceError, match="nested deeper than 100 levels"):
        files.canonical_json(_nested(files.NESTING_LIMIT + 1))
    with pytest.raises(UnusableEvidenceError, match="nested deeper than 9 levels"):
        files.canonical_json(_nested(10), nesting=9)


def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    for levels in (101, 500, 900, 100_000):
        (tmp_path / "x.json").write_bytes(b"[" * levels + b"]" * levels)
        with pytest.raises(UnusableEvidenceError, match=r"not JSON|nested deeper"):
            files.read_canonical_json(tmp_path / "x.json")


def test_what_a_terminal_would_obey_is_escaped() -> None:
    assert files.printable("plain, ä and 漢") == "plain, ä and 漢"
    assert files.printable("a\x1b[2Jb\nc\rd\x9b\u202e\udcff\x7f") == r"a\x1b[2Jb\nc\rd\x9b\u202e\udcff\x7f"


# Journal


def _journal(path: Path) -> bytes:
    journal = Journal(path, "0" * 64)
    journal.append("session-started", nonce="n")
    journal.append("test-started", nodeid="a.py::b")
    journal.append("session-finished", exit_status=0)
    journal.close()
    return path.read_bytes()


def test_a_journal_comes_back_as_it_was_written(tmp_path: Path) -> None:
    _journal(tmp_path / "journal.jsonl")
    events = read_journal(tmp_path / "journal.jsonl", "0" * 64)
    assert [event.kind for event in events] == ["session-started", "test-started", "session-finished"]
    with pytest.raises(UnusableEvidenceError, match="line 1: the chain is broken"):
        read_journal(tmp_path / "journal.jsonl", "1" * 64)


def test_each_event_is_on_the_disk_before_the_next(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl", "0" * 64)
    for count in (1, 2):
        journal.append("problem", reason="x")
        assert len((tmp_path / "journal.jsonl").read_bytes().splitlines()) == count


def test_threads_append_one_after_the_other(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl", "0" * 64)
    threads = [threading.Thread(target=_append_many, args=(journal, number)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = read_journal(tmp_path / "journal.jsonl", "0" * 64)
    assert len(events) == 8 * 25
    assert journal.head == files.sha256_bytes((tmp_path / "journal.jsonl").read_bytes().splitlines()[-1])


def _append_many(journal: Journal, number: int) -> None:
    for count in range(25):
        journal.append("problem", thread=number, count=count)


def test_an_interrupt_anywhere_in_an_append_keeps_the_chain(tmp_path: Path) -> None:
    """Real interrupts, as many as fit: whatever an append is in the middle of, the journal goes on behind it."""
    journal = Journal(tmp_path / "journal.jsonl", "0" * 64)
    ended, interrupts = 0, 0
    signal.signal(signal.SIGALRM, _interrupt_append)
    try:
        for count in range(400):
            signal.setitimer(signal.ITIMER_REAL, 1e-5 + count % 40 * 1e-5)
            try:
                journal.append("problem", count=count)
                ended += 1
            except KeyboardInterrupt:
                interrupts += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    journal.append("problem", count=-1)
    events = read_journal(tmp_path / "journal.jsonl", "0" * 64)
    assert interrupts > 0
    assert ended < len(events) <= ended + interrupts + 1
    counts = [int(str(event.data["count"])) for event in events][:-1]
    assert counts == sorted(set(counts))


def _interrupt_append(_number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code is Journal.append.__code__:
            raise KeyboardInterrupt
        frame = frame.f_back


@pytest.mark.parametrize("written", [0, 1, 50, 1000])
def test_an_append_that_was_cut_off_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    journal = Journal(tmp_path / "journal.jsonl", "0" * 64)

    def cut_off(descriptor: int, content: bytes) -> None:
        os.write(descriptor, content[:written])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_all", cut_off)
        with pytest.raises(KeyboardInterrupt):
            journal.append("problem", reason="first")
    journal.append("problem", reason="second")
    events = read_journal(tmp_path / "journal.jsonl", "0" * 64)
    assert [event.data["reason"] for event in events] == ["first", "second"]


def _unlink(path: Path) -> None:
    path.unlink()


def _replace(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.parametrize("damage", [_unlink, _replace, _cut, _link])
def test_a_journal_that_was_replaced_or_changed_is_put_back(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path, aside = tmp_path / "journal.jsonl", tmp_path / "aside"
    journal = Journal(path, "0" * 64)
    journal.append("phase", cause="assertion")
    journal.append("problem", reason="x")
    assert journal.is_as_written()
    damage(path)
    assert not journal.is_as_written()
    journal.write_again(aside)
    assert journal.is_as_written()
    assert aside.exists() == (damage is not _unlink)
    journal.append("session-finished", exit_status=1)
    journal.close()
    kinds = [event.kind for event in read_journal(path, "0" * 64)]
    assert kinds == ["phase", "problem", "session-finished"]


def test_a_damaged_journal_names_the_line(tmp_path: Path) -> None:
    lines = _journal(tmp_path / "journal.jsonl").splitlines(keepends=True)
    damaged = {
        "line 2: the chain": [lines[0], lines[2]],
        "line 4: the chain": [*lines, lines[2]],
        "line 1: the chain": [lines[1], lines[0], lines[2]],
        "line 3: cut off": [lines[0], lines[1], lines[2][:-1]],
        "line 2: not JSON": [lines[0], lines[1][:-5] + b"\n", lines[2]],
        "line 2: not an event": [lines[0], lines[1].replace(b"test-started", b"test-staged"), lines[2]],
        "line 3: not an event": [lines[0], lines[1], lines[2].replace(b"+00:00", b"+01:00")],
        "line 2: not in canonical form": [lines[0], lines[1].replace(b"{", b"{ ", 1), lines[2]],
        "line 3: the chain": [lines[0], lines[1].replace(b"a.py::b", b"a.py::c"), lines[2]],
    }
    for message, content in damaged.items():
        (tmp_path / "journal.jsonl").write_bytes(b"".join(content))
        with pytest.raises(UnusableEvidenceError, match=message):
            read_journal(tmp_path / "journal.jsonl", "0" * 64)


# JUnit


def test_a_report_comes_back_as_it_was_written() -> None:
    content = write_junit("suite", {"nonce": "a", "gate": "1"}, CASES)
    report = read_junit(content)
    assert (report.properties, report.cases) == ({"nonce": "a", "gate": "1"}, CASES)
    assert b'<failure type="FAIL" message="expected 1 &amp; saw 2">' in content
    assert b'<error type="VOID" message="&lt;torn&gt;">&lt;torn&gt;</error>' in content
    assert b"[[ATTACHMENT|sealed/a.log]]\n[[ATTACHMENT|sealed/b &amp; c.json]]" in content
    assert b'<property name="attachment" value="sealed/a.log" />' in content


@given(st.text(), st.text(), st.lists(st.text()))
def test_any_text_makes_a_report_that_can_be_read(reason: str, detail: str, paths: list[str]) -> None:
    case = Case("a.py::t", "c", Verdict.FAIL, reason, detail, files=tuple(paths))
    (read,) = read_junit(write_junit("suite", {"text": reason}, [case])).cases
    assert (read.verdict, read.clause, len(read.files)) == (Verdict.FAIL, "c", min(len(paths), 20))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b' tests="3"', b"", "states tests=None; its cases add up to 3"),
        (b' tests="3"', b' tests="2"', "states tests=2; its cases add up to 3"),
        (b' failures="1"', b' failures="0"', "states failures=0"),
        (b' errors="1"', b"", "states errors=None"),
        (b' skipped="0"', b' skipped="1"', "states skipped=1"),
        (b"<testsuites>", b"<!DOCTYPE x [<!ENTITY e 'x'>]><testsuites>", "document type"),
        (b"<testsuites>", b"<testsuites><testsuite/>", "exactly one testsuite"),
        (b'type="FAIL"', b'type="PASS"', "expected one failure or error"),
        (b'type="FAIL"', b'type="VOID"', "expected one failure or error"),
        (b"<failure", b"<skipped/><failure", "expected one failure or error"),
        (b'value="FAIL"', b'value="PASS"', "states verdict PASS; its result is FAIL"),
        (b'name="test_one"', b'name="test_three"', "stands twice"),
        (b'name="test_one"', b"", "not a test case"),
        (b'time="0.250"', b'time="nan"', "expected seconds"),
        (b'<property name="clause" value="one" />', b"", "states verdict"),
        (b'value="sealed/a.log"', b'value="sealed/c.log"', "another system-out than marks of its 2 attachments"),
        (b"ATTACHMENT|sealed/a", b"ATTACHMENT|sealed/c", "another system-out than marks of its 2 attachments"),
        (b"<system-out>", b"<system-out>ran</system-out><system-out>", "another system-out"),
        (b'<property name="nonce" value="a" />', b'<property name="nonce" />', "doubled or lacks"),
        (b"</testsuites>", b"", "not XML"),
        (b"utf-8", b"utf-99", "not XML"),
    ],
)
def test_a_report_that_lies_is_refused(old: bytes, new: bytes, message: str) -> None:
    content = write_junit("suite", {"nonce": "a"}, CASES)
    assert old in content
    with pytest.raises(UnusableEvidenceError, match=message):
        read_junit(content.replace(old, new, 1))


def test_an_empty_file_is_no_report() -> None:
    with pytest.raises(UnusableEvidenceError, match="not XML"):
        read_junit(b"")


# Root


def test_the_manifest_lists_everything_but_itself_and_the_receipt(tmp_path: Path) -> None:
    for name in (root.MANIFEST, root.RECEIPT, "a", "d/b"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    manifest = root.take_manifest(tmp_path)
    assert [(entry.path, entry.kind, entry.size) for entry in manifest.entries] == [
        ("a", "file", 1),
        ("d", "directory", None),
        ("d/b", "file", 1),
    ]
    assert root.difference(manifest, manifest) is None
    doubled = Manifest(entries=[*manifest.entries, manifest.entries[0]])
    assert root.difference(doubled, manifest) == "manifest.json: lists an entry twice or out of order"


def test_an_attempt_is_hashed_on_all_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))
    meeting = threading.Barrier(cores, timeout=60)
    sha256_file = files.sha256_file

    def meet_and_hash(path: Path) -> str:
        meeting.wait()
        return sha256_file(path)

    for number in range(cores):
        (tmp_path / f"{number:03d}").write_bytes(bytes([number]))
    monkeypatch.setattr(files, "sha256_file", meet_and_hash)
    digests = [entry.sha256 for entry in root.take_tree(tmp_path).entries]
    assert digests == [files.sha256_bytes(bytes([number])) for number in range(cores)]


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "\udcff").write_bytes(b"")
    with pytest.raises(UnusableEvidenceError, match="its name is not UTF-8"):
        root.take_manifest(tmp_path)


def unprivileged(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command for which modes count, even if we are root."""
    drop = ["setpriv", "--bounding-set=-all"] if os.geteuid() == 0 else []
    return subprocess.run([*drop, *command], capture_output=True, text=True, check=False, timeout=60)


def test_a_directory_that_cannot_be_read_is_named_and_not_left_out(tmp_path: Path) -> None:
    (tmp_path / "evidence" / "hidden").mkdir(parents=True)
    (tmp_path / "evidence" / "hidden" / "file").write_bytes(b"")
    (tmp_path / "evidence" / "hidden").chmod(0)
    program = f"""
from pathlib import Path
from pytest_laguna.evidence import root
for work in (root.take_manifest, root.seal):
    try:
        print(work(Path({str(tmp_path)!r})))
    except Exception as error:
        print(type(error).__name__, error)
"""
    done = unprivileged(sys.executable, "-c", program)
    line = (
        "UnusableEvidenceError evidence/hidden: cannot be read (Permission denied);"
        " expected a directory as it was written\n"
    )
    assert (done.stdout, done.stderr) == (line * 2, "")
    assert stat.S_IMODE((tmp_path / "evidence" / "hidden").stat().st_mode) == 0
    (tmp_path / "evidence" / "hidden").chmod(0o700)


def test_directories_may_be_nested_deeper_than_python_calls(tmp_path: Path) -> None:
    nested = [tmp_path / "d"]
    while len(nested) < 1200:
        nested.append(nested[-1] / "d")
    for directory in nested:
        directory.mkdir()
    file = nested[-1] / "file"
    file.write_bytes(b"")
    assert len(root.take_manifest(tmp_path).entries) == 1201
    root.seal(tmp_path)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in [tmp_path, *nested]}
    assert (modes, stat.S_IMODE(file.stat().st_mode)) == ({0o500}, 0o400)
    for directory in [tmp_path, *nested]:
        directory.chmod(0o700)
    file.unlink()
    for directory in nested[::-1]:  # what pytest removes its directories with would be too deep in calls
        directory.rmdir()


def test_sealing_takes_bits_away_and_adds_none(tmp_path: Path) -> None:
    before = {"a": 0o600, "b": 0o200, "c": 0o755, "d": 0o000, "e": 0o4777}
    for name, mode in before.items():
        (tmp_path / name).write_bytes(b"")
        (tmp_path / name).chmod(mode)
    (tmp_path / "link").symlink_to("a")
    root.seal(tmp_path)
    after = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in before}
    assert after == {"a": 0o400, "b": 0o000, "c": 0o400, "d": 0o000, "e": 0o400}
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o500
    tmp_path.chmod(0o700)


def _lane(directory: Path) -> tuple[Path, Path]:
    sealed = directory / "sealed"
    lane = sealed / "demo" / "cpu"
    root.make_directory(lane / "gate1")
    return sealed, lane


@pytest.mark.parametrize("where", ["demo", "demo/cpu", "demo/cpu/gate1"])
def test_directories_below_the_root_must_be_the_users_own(tmp_path: Path, where: str) -> None:
    sealed, lane = _lane(tmp_path)
    root.check_tree(sealed, lane)
    for mode in (0o710, 0o720, 0o704, 0o777):
        (sealed / where).chmod(mode)
        with pytest.raises(root.RootError, match=rf"{where}: mode 0{mode:o} lets others in; expected 0700"):
            root.check_tree(sealed, lane)
    (sealed / where).chmod(0o700)
    (sealed / where).rename(tmp_path / "elsewhere")
    root.check_tree(sealed, lane)  # what does not exist yet is made
    (sealed / where).touch()
    with pytest.raises(root.RootError, match=f"{where}: not a directory or a link to one"):
        root.check_tree(sealed, lane)
    for target in ("elsewhere", "nowhere"):
        (sealed / where).unlink()
        (sealed / where).symlink_to(tmp_path / target)
        with pytest.raises(root.RootError, match=f"{where}: not a directory or a link to one"):
            root.check_tree(sealed, lane)


def test_directories_of_another_user_are_refused(tmp_path: Path) -> None:
    with pytest.raises(root.RootError, match=r"cpu: not a directory or a link|owned by user 0|mode 0555"):
        root.check_tree(Path("/proc"), Path("/proc/1/cpu"))
    sealed, lane = _lane(tmp_path)
    if os.geteuid() == 0:
        os.chown(lane, 1234, -1)
        with pytest.raises(root.RootError, match="demo/cpu: owned by user 1234; expected 0, who runs the gate"):
            root.check_tree(sealed, lane)


@pytest.mark.parametrize("path", ["/", "/usr"])
def test_nobody_is_told_to_close_a_directory_that_others_use(path: str) -> None:
    with pytest.raises(root.RootError) as caught:
        root.check_root(Path(path))
    assert "chmod" not in str(caught.value)
    assert "choose a directory of its own" in str(caught.value) or "owned by user" in str(caught.value)


def test_a_path_that_no_directory_can_have_is_refused() -> None:
    with pytest.raises(root.RootError, match="cannot be read"):
        root.check_root(Path("/tmp") / ("x" * 300))  # noqa: S108 - nothing is made there
    with pytest.raises(root.RootError, match="cannot be read"):
        root.check_root(Path("/dev/null/sealed"))


def _repository(directory: Path, *arguments: str) -> Path:
    made = git(directory, "init", "--quiet", *arguments, str(directory / "checkout"))
    assert made is not None
    assert made.returncode == 0, made.stderr
    return directory / "checkout"


@pytest.mark.parametrize(
    ("patterns", "accepted"),
    [
        ("/sealed/\n", True),
        ("sealed\n", True),
        ("*\n", True),
        ("", False),
        ("x\n", False),
        ("*.json\n", False),
        ("/sealed/**\n!/sealed/**/\n!*.jsonl\n", False),
        ("campaign.toml\nevidence\n*.json\n*.jsonl\n", False),
    ],
)
def test_git_is_asked_about_every_kind_of_file(tmp_path: Path, patterns: str, *, accepted: bool) -> None:
    checkout = _repository(tmp_path)
    (checkout / ".gitignore").write_text(patterns)
    if accepted:
        root.check_root(checkout / "sealed")
    else:
        with pytest.raises(root.RootError, match="inside a git checkout that does not ignore it"):
            root.check_root(checkout / "sealed")


def test_a_bare_repository_is_not_a_checkout(tmp_path: Path) -> None:
    root.check_root(_repository(tmp_path, "--bare") / "sealed")


def test_git_answers_for_the_directory_and_not_for_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = _repository(tmp_path)
    (tmp_path / "other").mkdir()
    other = _repository(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    found = git(checkout, "rev-parse", "--show-toplevel")
    assert found is not None
    assert found.stdout == f"{checkout}\n"


def test_an_attempt_is_never_opened_twice(tmp_path: Path) -> None:
    root.open_attempt(tmp_path / "gate1", 1)
    with pytest.raises(root.RootError, match="exists already; expected a new attempt"):
        root.open_attempt(tmp_path / "gate1", 1)


# Verdicts


def test_the_worst_verdict_is_the_one_with_the_highest_exit_code() -> None:
    assert worst([]) is Verdict.NOT_PROVEN
    assert worst([Verdict.PASS, Verdict.PASS]) is Verdict.PASS
    assert worst([Verdict.PASS, Verdict.FAIL, Verdict.STOP]) is Verdict.FAIL
    assert [verdict.exit_code for verdict in Verdict] == [0, 20, 21, 22, 23]
    assert [verdict for verdict in Verdict if verdict.closes] == [Verdict.STOP, Verdict.FAIL]


def test_verdicts_are_their_own_json() -> None:
    assert json.dumps([Verdict.PASS]) == '["PASS"]'
