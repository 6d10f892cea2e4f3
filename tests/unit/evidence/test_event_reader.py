# SPDX-License-Identifier: Apache-2.0
"""Which files the closure of an event profile binds, and what is read of a directory in which nothing is."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_laguna.evidence import files
from pytest_laguna.evidence.events.analysis import CONFIGURATION, EVENTS, FITNESS, SPARSE, EventPlan
from pytest_laguna.evidence.events.reader import file_digests, read_events
from pytest_laguna.evidence.reading import PLAN, Missing, present
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.verdict import UnusableEvidenceError, Verdict
from tests import event_root

OF_ALL = (
    "plan.json", "target-config.json", "draft-config.json", "identity.json", "idle-before.json", "idle-after.json",
)  # fmt: skip
OF_ARM = (
    "request.json", "record.json", "process.json", "idle.json", "host.json", "failure.json",
    "rank-0-stack.txt", "profile/rank0.json",
)  # fmt: skip


def test_the_closure_binds_every_file_that_is_judged_and_no_other(tmp_path: Path) -> None:
    bound = [*OF_ALL, *(f"arms/{arm}/{name}" for arm in CONFIGURATION for name in OF_ARM)]
    for number, name in enumerate([*bound, "closure.json", "arms/other/record.json"]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"%d" % number)
    assert file_digests(tmp_path) == {name: files.sha256_bytes(b"%d" % number) for number, name in enumerate(bound)}
    (tmp_path / "plan.json").unlink()
    (tmp_path / "identity.json").unlink()
    (tmp_path / "identity.json").symlink_to("idle-before.json")
    assert file_digests(tmp_path).keys() == set(bound) - {"plan.json", "identity.json"}


def test_a_file_of_more_than_64_mib_is_not_bound(tmp_path: Path) -> None:
    with (tmp_path / "plan.json").open("wb") as stream:
        stream.truncate(2**26 + 1)
    assert file_digests(tmp_path) == {}


def test_an_empty_directory_is_all_missing(tmp_path: Path) -> None:
    found = read_events(tmp_path, tuple(CONFIGURATION))
    pieces = {
        "target-config.json": found.target_config,
        "draft-config.json": found.draft_config,
        "identity.json": found.identity,
        "idle-before.json": found.idle_before,
        "idle-after.json": found.idle_after,
        "closure.json": found.closure,
        **{f"arms/{arm}/request.json": run.request for arm, run in found.arms.items()},
    }
    assert pieces == {name: Missing(Verdict.NOT_PROVEN, f"{name}: there is none") for name in pieces}
    assert [*found.arms] == [*CONFIGURATION]
    assert (found.profiles, found.fitness, found.sparse, found.digests, found.unexpected) == ({}, {}, {}, {}, ())
    with pytest.raises(UnusableEvidenceError, match=r"^plan\.json: cannot be read"):
        read_model(tmp_path / PLAN, EventPlan)


def test_what_lies_there_is_found_in_its_place(tmp_path: Path) -> None:
    arms = tuple(CONFIGURATION)
    for arm in (*arms, "another"):
        (tmp_path / "arms" / arm / "profile").mkdir(parents=True)
        (tmp_path / "arms" / arm / "profile" / f"{arm}.json").write_bytes(b"{")
    found = read_events(tmp_path, arms)
    assert found.unexpected == ("arms/another",)
    for read in (found.profiles, found.fitness, found.sparse):
        ((name, piece),) = read.items()
        assert isinstance(piece, Missing)
        assert piece.reason.startswith(f"arms/{name.removesuffix('.json')}/profile/{name}: not JSON")
    kinds = [found.profiles, found.fitness, found.sparse]
    assert [next(iter(kind)) for kind in kinds] == [f"{arm}.json" for arm in (EVENTS, FITNESS, SPARSE)]


def test_each_arm_has_profiles_of_its_own_form(tmp_path: Path) -> None:
    written = {EVENTS: event_root.profile(0), FITNESS: event_root.trial(0), SPARSE: event_root.sparse(0)}
    for arm, value in written.items():
        (tmp_path / "arms" / arm / "profile").mkdir(parents=True)
        (tmp_path / "arms" / arm / "profile" / "rank0.json").write_bytes(files.canonical_json(value))
    found = read_events(tmp_path, tuple(CONFIGURATION))
    read = {EVENTS: found.profiles, FITNESS: found.fitness, SPARSE: found.sparse}
    for arm, value in written.items():
        assert {name: present(profile).canonical() for name, profile in read[arm].items()} == {"rank0.json": value}
