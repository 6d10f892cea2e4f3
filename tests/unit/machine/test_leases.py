# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.evidence.machine.process import FoundProcess
from pytest_laguna.machine import descent, lease_directory, leases, visibility
from pytest_laguna.machine.cards import Card
from pytest_laguna.machine.cards_cpu import CpuCards
from pytest_laguna.machine.errors import LeaseError
from pytest_laguna.machine.lease_directory import LeaseDirectory
from pytest_laguna.machine.sweep import Sweep
from tests.unit.machine.fakes import ticks

CARDS = CpuCards(3).discover()
ATTEMPT = Path("/sealed/campaign/cpu/gate2/0001")


class Place:
    """A lease directory, and how its cards are swept and looked at; both are recorded."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.survivors: list[FoundProcess] = []
        self.reasons: dict[str, str] = {}
        self.swept: list[str] = []
        self.looked: list[str] = []

    def sweep(self, token: str) -> Sweep:
        self.swept.append(token)
        return Sweep(list(self.survivors), list(self.survivors))

    def idle(self, card: Card) -> str | None:
        self.looked.append(card.identity)
        return self.reasons.get(card.identity)

    def lease(self, cards: Sequence[Card] = CARDS[:1], attempt: Path = ATTEMPT) -> leases.Lease:
        return leases.acquire(cards, attempt, sweep=self.sweep, idle=self.idle, directory=self.path)

    def states(self) -> dict[str, tuple[str, bool, bool]]:
        return {
            state.record.identity: (state.record.state, state.held, state.stale) for state in leases.states(self.path)
        }


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "leases")


def test_a_lease_says_who_holds_it_and_for_what(place: Place) -> None:
    lease = place.lease(CARDS[:2])
    assert [card.identity for card in lease.cards] == ["cpu-slot-0", "cpu-slot-1"]
    for state in leases.states(place.path):
        record = state.record
        assert (record.owner_pid, record.owner_start_ticks) == (os.getpid(), ticks(os.getpid()))
        assert (record.token, record.attempt, record.ended) == (lease.token, str(ATTEMPT), None)
    assert place.states() == {"cpu-slot-0": ("held", True, False), "cpu-slot-1": ("held", True, False)}
    lease.release()
    assert place.states() == {"cpu-slot-0": ("released", False, False), "cpu-slot-1": ("released", False, False)}


def test_a_card_is_leased_once(place: Place) -> None:
    with place.lease() as lease:
        with pytest.raises(
            LeaseError, match=rf"cpu-slot-0 .* seen leased, held by process {os.getpid()} since .*; expected free; wait"
        ):
            place.lease()
        lease.release()
    place.lease().release()


def test_the_record_of_the_lease_before_is_not_taken_for_the_owners(place: Place) -> None:
    place.lease().release()
    with (place.path / "cpu-slot-0.lease").open("r+b") as taken:
        fcntl.flock(taken, fcntl.LOCK_EX)
        with pytest.raises(LeaseError, match="seen leased, by a session that is taking it now; expected free; wait"):
            place.lease()


def test_a_lease_is_all_or_nothing(place: Place) -> None:
    one = place.lease(CARDS[1:2])
    with pytest.raises(LeaseError, match="cpu-slot-1"):
        place.lease([CARDS[2], CARDS[1], CARDS[0]])
    assert place.states()["cpu-slot-1"] == ("held", True, False)
    assert not {"cpu-slot-0", "cpu-slot-2"} & place.states().keys()  # nothing was written for the others
    one.release()
    place.lease(CARDS).release()


def test_locks_are_taken_in_one_order_whatever_is_asked_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    lock = LeaseDirectory.lock

    def ordered(self: LeaseDirectory, identity: str) -> int | None:
        order.append(identity)
        return lock(self, identity)

    monkeypatch.setattr(LeaseDirectory, "lock", ordered)
    lease = place.lease([CARDS[2], CARDS[0], CARDS[1]])
    assert order == ["cpu-slot-0", "cpu-slot-1", "cpu-slot-2"]
    assert [card.ordinal for card in lease.cards] == [2, 0, 1]
    lease.release()


def test_each_lease_has_a_token_of_its_own(place: Place) -> None:
    tokens = set()
    for _ in range(3):
        lease = place.lease()
        tokens.add(lease.token)
        lease.release()
    assert len(tokens) == 3
    assert all(len(token) == 32 and int(token, 16) >= 0 for token in tokens)


def test_a_released_card_needs_neither_sweep_nor_look(place: Place) -> None:
    place.lease().release()
    lease = place.lease()
    assert (place.swept, place.looked, lease.cleared) == ([], [], ())
    lease.release()


def test_leaving_without_a_release_quarantines(place: Place) -> None:
    with place.lease() as lease:
        pass
    assert place.states() == {"cpu-slot-0": ("quarantined", False, True)}
    assert leases.states(place.path)[0].record.reason == "left without a release"
    with pytest.raises(LeaseError, match="seen a second end; expected one; end it once"):
        lease.release()


def test_an_exception_quarantines_with_its_reason(place: Place) -> None:
    with pytest.raises(ZeroDivisionError), place.lease():
        _ = 1 // 0
    assert leases.states(place.path)[0].record.reason.startswith("left by ZeroDivisionError: ")


def test_a_quarantined_card_is_swept_by_its_token_and_looked_at(place: Place) -> None:
    first = place.lease(CARDS[:2])
    first.quarantine("process 7 survives")
    second = place.lease(CARDS)
    assert place.swept == [first.token]  # once, though it held two cards
    assert place.looked == ["cpu-slot-0", "cpu-slot-1"]
    assert [(record.identity, record.reason) for record in second.cleared] == [
        ("cpu-slot-0", "process 7 survives"),
        ("cpu-slot-1", "process 7 survives"),
    ]
    second.release()


def test_a_survivor_keeps_the_card_in_quarantine(place: Place) -> None:
    place.lease().quarantine("x")
    place.survivors = [FoundProcess(pid=7, command="python stuck.py", start_ticks=5)]
    with pytest.raises(
        LeaseError,
        match=r"process 7 of their last lease alive \(python stuck.py\); .*; see /proc/7",
    ):
        place.lease(CARDS)
    assert place.states() == {"cpu-slot-0": ("quarantined", False, True)}
    place.survivors = []
    place.lease(CARDS).release()


def test_only_the_cards_of_the_survivors_lease_are_blamed(place: Place) -> None:
    place.lease(CARDS[:2]).quarantine("x")
    other = place.lease(CARDS[2:])
    other.quarantine("y")
    left = FoundProcess(pid=7, command="python stuck.py", start_ticks=5)
    with pytest.raises(LeaseError, match=r"cards \['cpu-slot-2'\] are quarantined: seen process 7"):
        leases.acquire(
            CARDS,
            ATTEMPT,
            sweep=lambda token: Sweep([], [left] if token == other.token else []),
            idle=place.idle,
            directory=place.path,
        )


def test_a_host_that_hides_its_processes_gives_no_lease(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descent, "find", lambda _pid: None)
    with pytest.raises(LeaseError, match="seen nothing; expected this process; mount /proc"):
        place.lease()


def test_a_card_that_is_not_idle_stays_in_quarantine(place: Place) -> None:
    place.lease(CARDS[:2]).quarantine("x")
    place.reasons = {"cpu-slot-1": "it uses 5 bytes"}
    with pytest.raises(
        LeaseError, match=r"cpu-slot-1 .* is quarantined, last quarantined \(x\) by .*: it uses 5 bytes; end"
    ):
        place.lease(CARDS[:2])
    assert {stale for _, _, stale in place.states().values()} == {True}
    place.lease(CARDS[:1]).release()  # the other one is clean


def test_an_error_in_the_sweep_gives_no_lease_and_holds_no_lock(place: Place) -> None:
    place.lease().quarantine("x")

    def fail(_token: str) -> Sweep:
        raise RuntimeError("no /proc")

    with pytest.raises(RuntimeError, match="no /proc"):
        leases.acquire(CARDS[:1], ATTEMPT, sweep=fail, idle=place.idle, directory=place.path)
    assert place.states() == {"cpu-slot-0": ("quarantined", False, True)}


@pytest.mark.parametrize("cards", [(), (CARDS[0], CARDS[0])])
def test_no_card_and_a_doubled_card_are_refused(place: Place, cards: tuple[Card, ...]) -> None:
    with pytest.raises(LeaseError, match="expected one or more, each once; name each card once"):
        place.lease(cards)


def test_whoever_only_looks_is_in_nobodys_way(place: Place) -> None:
    place.lease().release()
    lock = os.open(place.path / "cpu-slot-0.lease", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_SH)
    threading.Timer(lease_directory.BUSY_SECONDS / 2, os.close, [lock]).start()
    place.lease().release()


def test_a_lock_on_a_file_that_was_deleted_meanwhile_is_no_lease(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.lease().release()
    path = place.path / "cpu-slot-0.lease"
    locked: list[bool] = []
    flock = fcntl.flock

    def delete_first(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_EX:
            if not locked:
                path.unlink()
            locked.append(True)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", delete_first)
    lease = place.lease()
    assert len(locked) == 2
    assert place.states() == {"cpu-slot-0": ("held", True, False)}  # on the file that has the name
    lease.release()


# Other cards

STUCK = FoundProcess(pid=7, command="python stuck.py", start_ticks=5)


def test_stale_leases_of_other_cards_are_swept_and_keep_their_quarantine(place: Place) -> None:
    other = place.lease(CARDS[1:])
    other.quarantine("x")
    lease = place.lease()
    assert (place.swept, place.looked, lease.cleared) == ([other.token], [], ())
    assert place.states() == {
        "cpu-slot-0": ("held", True, False),
        "cpu-slot-1": ("quarantined", False, True),
        "cpu-slot-2": ("quarantined", False, True),
    }
    place.lease(CARDS[1:]).release()  # and nobody keeps them from being taken
    lease.release()


def test_what_survives_of_another_cards_lease_gives_no_lease(place: Place) -> None:
    place.lease(CARDS[1:2]).quarantine("x")
    place.survivors = [STUCK]
    with pytest.raises(LeaseError, match=r"cards \['cpu-slot-1'\] are quarantined: seen process 7 of their last lease"):
        place.lease()
    assert place.states()["cpu-slot-1"] == ("quarantined", False, True)


def test_another_card_is_not_taken_while_its_last_lease_is_swept(place: Place) -> None:
    place.lease(CARDS[1:2]).quarantine("x")
    refused: list[str] = []

    def sweep(_token: str) -> Sweep:
        with pytest.raises(LeaseError, match=r"cpu-slot-1 .*: seen leased") as raised:
            leases.acquire(CARDS[1:2], ATTEMPT, sweep=place.sweep, idle=place.idle, directory=place.path)
        refused.append(str(raised.value))
        return Sweep([], [])

    leases.acquire(CARDS[:1], ATTEMPT, sweep=sweep, idle=place.idle, directory=place.path).release()
    assert len(refused) == 1


def test_a_released_and_a_held_card_beside_are_left_alone(place: Place) -> None:
    place.lease(CARDS[1:2]).release()
    with place.lease(CARDS[2:]) as held:
        place.lease().release()
        assert place.swept == []
        held.release()


def test_a_token_that_a_held_lease_bears_is_never_swept(place: Place) -> None:
    """A record that was copied over another, its card's name mended."""
    place.lease().release()
    live = place.lease(CARDS[2:])
    copied = (place.path / "cpu-slot-2.lease").read_bytes().replace(b"cpu-slot-2", b"cpu-slot-0")
    (place.path / "cpu-slot-0.lease").write_bytes(copied.replace(b'"held"', b'"quarantined"'))
    for cards in (CARDS[:1], CARDS[1:2]):
        with pytest.raises(
            LeaseError,
            match=r"cards \['cpu-slot-0'\]: seen the token of a held lease .*; see",
        ):
            place.lease(cards)
    assert place.swept == []
    live.release()


def test_a_stale_lease_one_of_whose_cards_is_just_being_taken_is_swept(place: Place) -> None:
    first = place.lease(CARDS[:2])
    first.quarantine("x")
    with (place.path / "cpu-slot-1.lease").open("r+b") as taken:
        fcntl.flock(taken, fcntl.LOCK_EX)
        place.lease().release()
    assert place.swept == [first.token]


def test_a_record_of_another_card_is_refused(place: Place) -> None:
    live = place.lease(CARDS[2:])
    (place.path / "cpu-slot-0.lease").write_bytes((place.path / "cpu-slot-2.lease").read_bytes())
    with pytest.raises(
        LeaseError,
        match=r"cpu-slot-0\.lease: seen a record of card cpu-slot-2; expected one of cpu-slot-0; see",
    ):
        place.lease()
    assert place.swept == []
    live.release()


def test_a_lease_whose_file_an_editor_replaced_is_not_swept(place: Place) -> None:
    """The new file has a free lock, and a record that says that the lease is held."""
    with place.lease(CARDS[:2]) as live:
        _replace(place.path)
        for cards in (CARDS[:1], CARDS[2:]):
            with pytest.raises(
                LeaseError,
                match=rf"seen its lease in .* replaced while process {os.getpid()} holds it; .*; leave the",
            ):
                place.lease(cards)
        assert place.swept == []
        with pytest.raises(LeaseError, match="deleted or replaced; expected this session's"):
            live.release()


@pytest.fixture
def stale(place: Place) -> Callable[[str, str], Place]:
    """Makes a stale record of card 0 that bears another ``boot_id``; the state is the last argument."""

    def make(boot_id: str, state: str = "quarantined") -> Place:
        place.lease().quarantine("x")
        path = place.path / "cpu-slot-0.lease"
        own = f"{visibility.boot_id()} {visibility.pid_namespace()}".encode()
        content = path.read_bytes()
        assert content.count(own) == 1
        path.write_bytes(content.replace(own, boot_id.encode()).replace(b'"quarantined"', f'"{state}"'.encode()))
        return place

    return make


@pytest.mark.parametrize("state", ["quarantined", "held"])
def test_what_a_start_of_the_host_ended_is_not_swept_and_still_looked_at(
    stale: Callable[[str, str], Place], state: str
) -> None:
    place = stale("e97a9943-0000-4000-8000-000000000000 pid:[1]", state)
    place.reasons["cpu-slot-0"] = "it uses 5 bytes"
    with pytest.raises(LeaseError, match=r"is quarantined, last .*: it uses 5 bytes; end"):
        place.lease()
    place.reasons.clear()
    place.lease(CARDS[1:2]).release()
    place.lease().release()
    assert place.swept == []


@pytest.mark.parametrize("namespace", [" pid:[4026532000]", ""])
def test_a_stale_lease_whose_processes_are_not_seen_from_here_gives_no_lease(
    stale: Callable[[str], Place], namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = stale(f"{visibility.boot_id()}{namespace}")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(visibility, "pid_namespace", lambda: "pid:[4026531999]")
        for cards in (CARDS[:1], CARDS[1:2]):
            with pytest.raises(
                LeaseError,
                match=r"is quarantined: seen its last .* in .*; .* whose processes pid:\[4026531999\] shows",
            ):
                place.lease(cards)
    assert place.swept == []
    with monkeypatch.context() as host:
        host.setattr(visibility, "pid_namespace", lambda: visibility.INITIAL_NAMESPACE)
        place.lease().release()  # from there every namespace's are seen
    assert len(place.swept) == 1


def test_a_host_that_hides_other_users_processes_gives_no_lease(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visibility, "hidden_by", lambda: "hidepid=2")
    with pytest.raises(
        LeaseError, match=r"/proc: seen the mount option hidepid=2, which hides other users\' .*; mount -o"
    ):
        place.lease()


def test_a_lease_that_cannot_be_recorded_whole_leaves_none_of_its_cards_held(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite
    written: list[bytes] = []

    def once(descriptor: int, content: bytes, offset: int) -> int:
        written.append(content)
        if len(written) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(descriptor, content, offset)

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", once)
        with pytest.raises(LeaseError, match="seen No space left on device; expected 4096 bytes written"):
            place.lease(CARDS[:2])
    assert place.states() == {"cpu-slot-0": ("released", False, False)}
    place.lease(CARDS[:2]).release()


# What becomes of the files while they are held


def _delete(path: Path) -> None:
    (path / "cpu-slot-0.lease").unlink()


def _replace(path: Path) -> None:
    content = (path / "cpu-slot-0.lease").read_bytes()
    _delete(path)
    (path / "cpu-slot-0.lease").write_bytes(content)


def _rewrite(path: Path) -> None:
    content = (path / "cpu-slot-0.lease").read_bytes()
    (path / "cpu-slot-0.lease").write_bytes(content.replace(b'"held"', b'"released"').ljust(4096))


def _garble(path: Path) -> None:
    (path / "cpu-slot-0.lease").write_bytes(b"{")


def _move(path: Path) -> None:
    path.rename(path.with_name("away"))
    path.mkdir(mode=0o700)


def _remove(path: Path) -> None:
    path.rename(path.with_name("away"))


@pytest.mark.parametrize("harm", [_delete, _replace, _rewrite, _garble, _move, _remove])
@pytest.mark.parametrize("end", [leases.Lease.release, lambda lease: lease.quarantine("x")])
def test_a_lease_notices_that_it_is_lost(place: Place, harm: Callable[[Path], None], end: Any) -> None:
    lease = place.lease()
    lease.check()
    harm(place.path)
    left = {path: path.read_bytes() for path in place.path.parent.rglob("*.lease")}
    for look in (lease.check, functools.partial(end, lease)):
        with pytest.raises(LeaseError, match=r"cpu-slot-0"):
            look()
    assert {path: path.read_bytes() for path in place.path.parent.rglob("*.lease")} == left
    with pytest.raises(LeaseError, match="seen a second end; expected one; end it once"):
        lease.release()


def test_a_lease_that_was_lost_leaves_its_successor_alone(place: Place) -> None:
    first = place.lease(CARDS[:2])
    _delete(place.path)
    second = place.lease()
    with pytest.raises(
        LeaseError, match=r"cpu-slot-0: seen its lease in .* deleted or replaced; .*: another session may have used it"
    ):
        first.check()
    with pytest.raises(LeaseError, match="deleted or replaced; expected this session's"):
        first.release()
    assert place.states() == {"cpu-slot-0": ("held", True, False), "cpu-slot-1": ("released", False, False)}
    second.check()
    second.release()


@pytest.mark.parametrize("letter", ["x", "\N{GRINNING FACE}", '"', "\0", "\udc80"])
def test_a_long_reason_is_cut_and_fits_beside_the_longest_attempt(place: Place, letter: str) -> None:
    attempt = "/"
    while True:
        with contextlib.suppress(LeaseError):
            place.lease(attempt=Path(attempt + "a" * 100)).release()
            attempt += "a" * 100
            continue
        break
    assert len(attempt) > 1500
    place.lease(attempt=Path(attempt)).quarantine(letter * 5000)
    (state,) = leases.states(place.path)
    assert (state.record.state, len(state.record.reason)) == ("quarantined", 400)


def _make_pipe(path: Path) -> None:
    os.mkfifo(path, 0o600)


@pytest.mark.parametrize(("make", "seen"), [(_make_pipe, "no regular file"), (Path.mkdir, "Is a directory")])
def test_what_is_no_file_is_refused_at_once(place: Place, make: Callable[[Path], None], seen: str) -> None:
    place.lease().release()
    make(place.path / "cpu-slot-1.lease")
    with pytest.raises(LeaseError, match=rf"cpu-slot-1\.lease: seen {seen}; expected a lease; move it away"):
        place.lease(CARDS[1:2])
    place.lease().release()  # the other cards are free
    assert place.states() == {"cpu-slot-0": ("released", False, False)}
    assert [str(error).partition(": ")[0] for error in leases.defects(place.path)] == [
        str(place.path / "cpu-slot-1.lease")
    ]
    directory = LeaseDirectory(place.path)
    with pytest.raises(LeaseError, match="expected a lease; move it away"):
        directory.read("cpu-slot-1")
    directory.close()


# The directory


def test_the_place_is_the_machines_and_does_not_depend_on_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nowhere")
    monkeypatch.setenv("TMPDIR", "/nowhere")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    place = LeaseDirectory()
    place.close()
    assert place.path == Path("/tmp/pytest-laguna")  # noqa: S108 - the place itself
    assert place.path.stat().st_mode & 0o7777 == 0o1777


def test_files_are_every_users_whatever_the_umask(place: Place) -> None:
    before = os.umask(0o077)
    try:
        place.lease().release()
    finally:
        os.umask(before)
    assert place.path.stat().st_mode & 0o7777 == 0o1777
    assert {path.stat().st_mode & 0o777 for path in place.path.iterdir()} == {0o666}


def _as_nobody(do: Callable[[], object]) -> str:
    """What a call comes to in a process of another user: a fork, since that user may not read this checkout."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        try:
            said = str(do())
        except BaseException as error:  # noqa: BLE001 - the test judges it
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as stream:  # noqa: PTH123 - a pipe
        said = stream.read()
    os.waitpid(child, 0)
    return said


NOBODY = 65534


@pytest.fixture
def machine_place() -> Iterator[Place]:
    if os.geteuid() != 0:
        pytest.skip("only root has a second user to be")
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        place = Place(Path(directory) / "leases")
        LeaseDirectory(place.path).close()
        yield place


def test_a_card_that_one_user_leases_is_not_leased_by_another(machine_place: Place) -> None:
    with machine_place.lease() as lease:
        said = _as_nobody(machine_place.lease)
        assert re.search(
            rf"LeaseError: card .* seen leased, held by process {os.getpid()} since .*; expected free; wait", said
        )
        lease.release()


def test_a_user_leases_what_another_released_and_what_another_made(machine_place: Place) -> None:
    machine_place.lease().release()
    assert _as_nobody(lambda: machine_place.lease(CARDS[:2]).release()) == "None"
    assert (machine_place.path / "cpu-slot-1.lease").stat().st_uid == NOBODY
    machine_place.lease(CARDS[:2]).release()
    assert machine_place.states() == {
        "cpu-slot-0": ("released", False, False),
        "cpu-slot-1": ("released", False, False),
    }


def test_what_another_user_left_is_quarantined_swept_and_looked_at(machine_place: Place) -> None:
    assert "Lease" in _as_nobody(machine_place.lease)  # dies with it
    assert machine_place.states() == {"cpu-slot-0": ("held", False, True)}
    machine_place.reasons["cpu-slot-0"] = "something holds it"
    with pytest.raises(LeaseError, match=r"is quarantined, last held by process \d+ since .*: something holds it"):
        machine_place.lease()
    machine_place.reasons.clear()
    machine_place.lease().release()
    assert len(machine_place.swept) == 2


def test_another_user_deletes_no_lease(machine_place: Place) -> None:
    machine_place.lease().release()
    assert _as_nobody((machine_place.path / "cpu-slot-0.lease").unlink).startswith("PermissionError")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(LeaseError, match="seen Not a directory; expected a directory open to every user; move away"):
        LeaseDirectory(tmp_path / "link")


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777, 0o1770])
def test_a_directory_that_is_not_open_to_every_user_is_refused(tmp_path: Path, mode: int) -> None:
    place = tmp_path / "closed"
    place.mkdir()
    place.chmod(mode)
    with pytest.raises(LeaseError, match=f"seen mode {mode:04o}; expected 1777, every user's; chmod 1777 {place}"):
        LeaseDirectory(place)


def test_a_directory_that_somebody_has_locked_is_refused_at_once(place: Place) -> None:
    place.lease().release()
    lock = os.open(place.path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    start = time.monotonic()
    for look in (place.lease, place.states):
        with pytest.raises(
            LeaseError, match=f"{place.path}: seen the whole directory locked by another process.*lslocks"
        ):
            look()
    assert time.monotonic() - start < 20 * lease_directory.BUSY_SECONDS
    threading.Timer(lease_directory.BUSY_SECONDS / 2, os.close, [lock]).start()
    place.lease().release()


@pytest.mark.parametrize("name", ["a b.lease", ".cpu-slot-0.lease", "cpu-slot-0 (copy).lease", ".lease"])
def test_what_can_be_no_cards_lease_is_in_nobodys_way(place: Place, name: str) -> None:
    place.lease().release()
    (place.path / name).touch()
    place.lease().release()
    assert place.states().keys() == {"cpu-slot-0"}
    assert leases.defects(place.path) == []
    assert leases.strays(place.path) == [place.path / name]


def test_a_file_that_is_made_has_its_name_when_every_user_may_write_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_descriptor: int, _mode: int) -> None:
        raise KeyboardInterrupt

    LeaseDirectory(place.path).close()
    monkeypatch.setattr(os, "fchmod", killed)
    with pytest.raises(KeyboardInterrupt):
        place.lease()
    assert list(place.path.iterdir()) == []


def test_another_users_closed_file_keeps_its_own_card_only(machine_place: Place) -> None:
    machine_place.lease(CARDS[:2]).release()
    (machine_place.path / "cpu-slot-0.lease").chmod(0o600)
    assert _as_nobody(lambda: machine_place.lease(CARDS[1:2]).release()) == "None"
    assert "cpu-slot-0.lease: seen Permission denied" in _as_nobody(machine_place.lease)


def test_a_directory_that_somebody_is_just_making_is_waited_for(tmp_path: Path) -> None:
    place = tmp_path / "young"
    place.mkdir(mode=0o700)
    maker = threading.Timer(0.01, place.chmod, [0o1777])
    maker.start()
    LeaseDirectory(place).close()
    maker.join()


def test_a_lease_that_cannot_be_made_is_one_line(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    really = os.open

    def full(path: str, flags: int, *arguments: int, **named: int) -> int:
        if flags & os.O_EXCL:
            raise OSError(errno.ENOSPC, "No space left on device")
        return really(path, flags, *arguments, **named)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(LeaseError, match=r"cpu-slot-0\.lease: seen No space left on device; expected a new lease; see"):
        place.lease()


def test_a_lock_file_that_is_a_link_is_refused(place: Place, tmp_path: Path) -> None:
    LeaseDirectory(place.path).close()
    (place.path / "cpu-slot-0.lease").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LeaseError, match="expected a lease; move it away"):
        place.lease()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("identity", ["../x", "a/b", "", ".hidden", "a\nb", "x" * 201])
def test_an_identity_that_is_no_file_name_is_refused(place: Place, identity: str) -> None:
    with pytest.raises(LeaseError, match="expected letters, digits and"):
        place.lease([Card("cuda", 0, identity, "x", 1)])


@pytest.mark.parametrize(
    "content",
    [b"{}", b"null", b"not json", b"\xff", b"[" * 4096],
)
def test_a_damaged_record_is_refused_and_names_its_file(place: Place, content: bytes) -> None:
    place.lease().release()
    (place.path / "cpu-slot-0.lease").write_bytes(content)
    with pytest.raises(
        LeaseError,
        match=r"cpu-slot-0\.lease: .*see that no process is left on card cpu-slot-0, then delete that file as",
    ):
        place.lease()
    place.lease(CARDS[1:]).release()  # it is nobody else's trouble
    assert place.states().keys() == {"cpu-slot-1", "cpu-slot-2"}
    (defect,) = leases.defects(place.path)
    assert defect.found.startswith(f"{place.path}/cpu-slot-0.lease: ")


def test_a_record_that_does_not_fit_is_refused_before_anything_is_held(place: Place) -> None:
    with pytest.raises(LeaseError, match="expected at most 2396; shorten --sealed-root"):
        place.lease(attempt=Path("/" + "x" * 4096))
    place.lease().release()


def test_a_record_that_cannot_be_written_whole_gives_no_lease(place: Place) -> None:
    def full(_descriptor: int, _content: bytes, _offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    for pwrite, message in (
        (full, "seen No space left on device"),
        (lambda *_: 7, "seen 7 bytes written; expected 4096"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "pwrite", pwrite)
            with pytest.raises(LeaseError, match=rf"{message}.*; make room on its disk"):
                place.lease()
    place.lease().release()


def test_a_reader_never_sees_half_a_record(place: Place) -> None:
    stop = threading.Event()
    seen: list[Any] = []

    def read() -> None:
        while not stop.is_set():
            seen.extend(leases.states(place.path))

    reader = threading.Thread(target=read)
    place.lease().release()
    reader.start()
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        place.lease().release()
    stop.set()
    reader.join()
    assert len(seen) > 10
    assert {state.record.state for state in seen} <= {"held", "released"}
