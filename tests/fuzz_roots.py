# SPDX-License-Identifier: Apache-2.0
"""Damages sealed roots one change at a time and counts what still passes: ``python -m tests.fuzz_roots --json``.

A change is judged against the receipt digests that were kept before it, as ``laguna verify --expect`` does. It is a
false PASS when the root as a whole passes though a name, a kind or a byte of it differs, or when an attempt passes that
did not before. A change of modes alone must change nothing.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from pytest_laguna.evidence import root
from pytest_laguna.evidence.schemas import AttemptStart, Previous, read_model
from pytest_laguna.verdict import Verdict, worst
from pytest_laguna.verify.verification import GateReport, hold_to, look_back, verify_root
from tests.demo import writable
from tests.sealed import build, good_events, phase, reseal

Chance: TypeAlias = random.Random
Change: TypeAlias = Callable[[Chance, Path], None]


class UnfitError(Exception):
    """This change cannot be made to what was drawn; another draw may do."""


# Roots


def passed(directory: Path) -> None:
    """Gate 1 at its second attempt, after one that failed by an error, and gate 2."""
    lane = directory / "sealed" / "demo" / "cpu"
    build(directory, _failing("error"), exit_status=1)
    open_next(directory, build(directory, earlier=look_back(lane, 1)))


def stopped(directory: Path) -> None:
    """Gate 1, and a gate 2 that a measurement stopped."""
    open_next(directory, build(directory), _failing("stop", gate=2))


def failed(directory: Path) -> None:
    """Gate 1 that broke a contract."""
    build(directory, _failing("assertion"), exit_status=1)


def unfinished(directory: Path) -> None:
    """Gate 1 whose session ended without its last test."""
    build(directory, good_events()[:-2])


def _failing(cause: str, gate: int = 1) -> list[tuple[str, dict[str, object]]]:
    events = good_events(gate)
    nodeid = events[-1][1]["nodeid"]
    events[-2] = phase(nodeid, "call", outcome="failed", cause=cause, reason="no")
    return events


def open_next(
    directory: Path, attempt: Path, events: list[tuple[str, dict[str, object]]] | None = None, **built: Any
) -> None:
    """Gate 2 behind a gate 1 that passed; ``built`` is as ``sealed.build`` takes it."""
    (report,) = verify_root(directory / "sealed")
    assert report.receipt is not None
    previous = Previous(gate=1, attempt=int(attempt.name), receipt=report.receipt)
    build(directory, events, gate=2, previous=previous, exit_status=0 if events is None else 1, **built)


ROOTS: Mapping[str, Callable[[Path], None]] = {
    "passed": passed,
    "stopped": stopped,
    "failed": failed,
    "unfinished": unfinished,
}


# Changes


def _draw(chance: Chance, found: Iterable[Path]) -> Path:
    candidates = sorted(found)
    if not candidates:
        raise UnfitError
    return chance.choice(candidates)


def _files(sealed: Path) -> list[Path]:
    return [path for path in sealed.rglob("*") if path.is_file()]


def _file(chance: Chance, sealed: Path) -> Path:
    return _draw(chance, _files(sealed))


def _anything(chance: Chance, sealed: Path) -> Path:
    return _draw(chance, sealed.rglob("*"))


def _directory(chance: Chance, sealed: Path) -> Path:
    return _draw(chance, [sealed, *(path for path in sealed.rglob("*") if path.is_dir())])


def change_byte(chance: Chance, sealed: Path) -> None:
    """One byte is another, is gone, or is new."""
    path = _file(chance, sealed)
    content = bytearray(path.read_bytes())
    place = chance.randrange(len(content) + 1)
    end = place + chance.randrange(2)
    new = bytes(chance.randrange(256) for _ in range(chance.randrange(2)))
    path.write_bytes(content[:place] + new + content[end:])


def change_name(chance: Chance, sealed: Path) -> None:
    """A file or directory has another name, or lies elsewhere."""
    path = _anything(chance, sealed)
    names = [path.name[:-1], path.name + chance.choice("x. \n~"), path.name.swapcase(), f".{path.name}", "0001", "0002"]
    to = chance.choice([path.with_name(chance.choice(names) or "x"), _directory(chance, sealed) / path.name])
    if to.exists() or to.is_relative_to(path):
        raise UnfitError
    path.rename(to)


def change_mode(chance: Chance, sealed: Path) -> None:
    """Other modes, as an artifact store leaves them; what nobody may read any more may not pass, and may not crash."""
    _anything(chance, sealed).chmod(chance.choice([0, 0o400, 0o500, 0o644, 0o755, 0o777, 0o4755]))


def replace_by_link(chance: Chance, sealed: Path) -> None:
    """A file or directory is a link to what it was."""
    path = _anything(chance, sealed)
    kept = sealed.parent / "kept"
    path.rename(kept)
    path.symlink_to(kept)


def remove(chance: Chance, sealed: Path) -> None:
    """A file or a directory with all that is in it is gone."""
    path = _anything(chance, sealed)
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def add(chance: Chance, sealed: Path) -> None:
    """There is something that was not there: a file, a directory, a link or a pipe."""
    names = ["x", "0002", "0003", "gate1", "gate2", "gate3", "analysis.json", "evidence", "cpu", "cuda", ".hidden"]
    path = _directory(chance, sealed) / chance.choice(names)
    if path.exists():
        raise UnfitError
    kinds: list[Callable[[], object]] = [
        lambda: path.write_bytes(_file(chance, sealed).read_bytes()),
        lambda: path.write_bytes(b""),
        path.mkdir,
        lambda: path.symlink_to(_anything(chance, sealed)),
        lambda: os.mkfifo(path),
    ]
    chance.choice(kinds)()


def swap(chance: Chance, sealed: Path) -> None:
    """Two files, or two directories, are each in the other's place."""
    one = _anything(chance, sealed)
    other = _draw(chance, [path for path in sealed.rglob("*") if path.is_dir() == one.is_dir() and path != one])
    if one.is_relative_to(other) or other.is_relative_to(one):
        raise UnfitError
    aside = sealed.parent / "aside"
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def double(chance: Chance, sealed: Path) -> None:
    """Something is there twice: a file, an attempt, a line of the journal, an entry of a JSON object or list."""
    path = _anything(chance, sealed)
    if path.is_dir():
        shutil.copytree(path, _unused(path, chance))
    elif chance.randrange(3) == 0:
        shutil.copy(path, _unused(path, chance))
    else:
        lines = _pieces(path)
        index = chance.randrange(len(lines))
        path.write_bytes(b"".join([*lines[: index + 1], *lines[index:]]))


def _unused(path: Path, chance: Chance) -> Path:
    to = path.with_name(chance.choice(["0001", "0002", "0003", "0009", "gate1", "gate2", "gate3", f"{path.name}.copy"]))
    if to.exists():
        raise UnfitError
    return to


def _pieces(path: Path) -> list[bytes]:
    """A file in pieces that make it up: the lines of a journal or report, the entries of a one-line JSON file."""
    content = path.read_bytes()
    pieces = content.splitlines(keepends=True)
    if len(pieces) < 2:
        head, *rest = content.split(b",")
        pieces = [head, *(b"," + piece for piece in rest)]
    return pieces


def truncate(chance: Chance, sealed: Path) -> None:
    """A file ends early."""
    path = _file(chance, sealed)
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size or 1)])


def reorder(chance: Chance, sealed: Path) -> None:
    """Lines or entries are in another order."""
    path = _file(chance, sealed)
    pieces = _pieces(path)
    chance.shuffle(pieces)
    path.write_bytes(b"".join(pieces))


def rehash(chance: Chance, sealed: Path) -> None:
    """An adversary changes a fact and makes everything behind it again: reports, manifest, receipt and later gates."""
    lane = sealed / "demo" / "cpu"
    attempts = sorted(lane.glob("gate*/*"))
    attempt = chance.choice(attempts)
    _forge_start(chance, attempt) if chance.randrange(2) else _forge_journal(attempt)
    for later in attempts[attempts.index(attempt) + 1 :]:
        _follow(later)


def _forge_start(chance: Chance, attempt: Path) -> None:
    digits = f"{chance.getrandbits(128):032x}"
    changed: list[dict[str, object]] = [{"plugins": [digits]}, {"arguments": [digits]}, {"nonce": digits}]
    reseal(attempt, **chance.choice(changed))


def _forge_journal(attempt: Path) -> None:
    """The journal tells that everything went well, or quicker."""
    good = [b'"outcome":"failed"', b'"cause":"stop"', b'"cause":"error"', b'"cause":"assertion"', b'"seconds":0.5']
    better = [b'"outcome":"passed"', b'"cause":""', b'"cause":""', b'"cause":""', b'"seconds":0.4']
    path = attempt / root.JOURNAL
    content = path.read_bytes()
    for old, new in zip(good, better, strict=True):
        content = content.replace(old, new)
    path.write_bytes(content)
    reseal(attempt)


def _follow(later: Path) -> None:
    """Make an attempt name what lies before it as it is now."""
    start = read_model(later / root.ATTEMPT, AttemptStart)
    lane, gate = later.parent.parent, int(later.parent.name.removeprefix("gate"))
    changed: dict[str, object] = {}
    if start.earlier:
        earlier = look_back(lane, gate)[: len(start.earlier)]
        changed["earlier"] = [entry.model_dump(mode="json") for entry in earlier]
    if start.previous is not None:
        before = look_back(lane, start.previous.gate)[start.previous.attempt - 1]
        changed["previous"] = start.previous.model_dump() | {"receipt": before.receipt}
    if changed:
        reseal(later, **changed)


CHANGES: Mapping[str, Change] = {
    "byte": change_byte,
    "name": change_name,
    "mode": change_mode,
    "link": replace_by_link,
    "missing": remove,
    "extra": add,
    "swapped": swap,
    "doubled": double,
    "truncated": truncate,
    "reordered": reorder,
    "rehashed": rehash,
}


# Judging


@dataclasses.dataclass(frozen=True, slots=True)
class Specimen:
    """A sound root, its bytes for putting it back, and what is known of it.

    Attributes:
        name: of the root.
        sealed: where it lies.
        content: what ``_content`` gives of it.
        reports: what verification says of it.
        receipts: digests of the newest attempts' receipts, as somebody kept them.
    """

    name: str
    sealed: Path
    content: dict[str, bytes | None]
    reports: list[GateReport]
    receipts: list[str]

    def restore(self) -> None:
        """Put it back as it was."""
        for left in self.sealed.parent.iterdir():
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
        for name, content in sorted(self.content.items()):
            path = self.sealed.parent / name
            path.mkdir() if content is None else path.write_bytes(content)


def _content(sealed: Path) -> dict[str, bytes | None]:
    """Names, kinds and bytes of a root; a directory has no bytes, and what is neither has its kind instead."""
    content: dict[str, bytes | None] = {sealed.name: None}
    for path in sealed.rglob("*"):
        name = str(path.relative_to(sealed.parent))
        if path.is_symlink():
            content[name] = b"link to " + os.fsencode(path.readlink())
        elif path.is_dir():
            content[name] = None
        else:
            content[name] = path.read_bytes() if path.is_file() else b"neither file nor directory"
    return content


def _place(report: GateReport) -> tuple[str, str, int, int]:
    return report.campaign, report.lane, report.gate, report.attempt


def make_specimen(name: str, directory: Path) -> Specimen:
    """Build one of ``ROOTS`` in an empty directory."""
    with tempfile.TemporaryDirectory() as elsewhere:
        ROOTS[name](Path(elsewhere))
        shutil.move(Path(elsewhere) / "sealed", directory / "sealed")
    sealed = directory / "sealed"
    with writable(sealed):
        reports = verify_root(sealed)
    receipts = [report.receipt for report in reports if report.receipt is not None]
    return Specimen(name, sealed, _content(sealed), reports, receipts)


def is_false_pass(specimen: Specimen) -> bool:
    """Whether verification passes what is there now and should not."""
    reports = hold_to(verify_root(specimen.sealed), specimen.receipts)
    before = {_place(report) for report in specimen.reports if report.verdict is Verdict.PASS}
    if any(report.verdict is Verdict.PASS and _place(report) not in before for report in reports):
        return True
    return worst(report.verdict for report in reports) is Verdict.PASS and _content(specimen.sealed) != specimen.content


@dataclasses.dataclass(slots=True)
class Tally:
    """What a campaign of changes came to.

    Attributes:
        mutations: changes that were judged, by kind.
        false_pass: the seed, root and kind of each that passed and should not have.
    """

    mutations: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    false_pass: list[tuple[int, str, str]] = dataclasses.field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """What ``--json`` prints."""
        return {
            "mutations": self.mutations.total(),
            "false_pass": len(self.false_pass),
            "by_kind": dict(sorted(self.mutations.items())),
            "seeds": self.false_pass,
        }


def run(count: int, directory: Path, *, seed: int = 0, changes: Mapping[str, Change] = CHANGES) -> Tally:
    """Make and judge so many single changes, in turn of every kind to every root.

    Args:
        count: of changes.
        directory: empty; where the roots lie, best in memory.
        seed: of the first change; the next one has the next.
        changes: by kind.
    """
    tally = Tally()
    specimens = []
    for name in ROOTS:
        (directory / name).mkdir()
        specimens.append(make_specimen(name, directory / name))
    kinds = list(changes)
    while tally.mutations.total() < count:
        chance = random.Random(seed)  # noqa: S311 - reproducible, not secret
        kind, specimen = kinds[seed % len(kinds)], specimens[seed // len(kinds) % len(specimens)]
        specimen.restore()
        try:
            changes[kind](chance, specimen.sealed)
        except UnfitError:
            seed += 1
            continue
        if kind == "mode" or _content(specimen.sealed) != specimen.content:
            tally.mutations[kind] += 1
            if is_false_pass(specimen):
                tally.false_pass.append((seed, specimen.name, kind))
        seed += 1
    return tally


def main() -> int:
    """Run as a program; exit code 1 when anything passed that should not have."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz_roots", description=__doc__)
    parser.add_argument("--mutations", type=int, default=1000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, help="of the first change")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args()
    begin = time.monotonic()
    memory = Path("/dev/shm")  # noqa: S108 - a directory of its own is made there
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        tally = run(chosen.mutations, Path(directory), seed=chosen.seed)
    result = tally.to_json() | {"seconds": round(time.monotonic() - begin, 1)}
    print(
        json.dumps(result, indent=2) if chosen.json else "  ".join(f"{name} {value}" for name, value in result.items())
    )
    return 1 if tally.false_pass else 0


if __name__ == "__main__":
    sys.exit(main())
