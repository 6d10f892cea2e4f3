# SPDX-License-Identifier: Apache-2.0
"""A rank's profile comes back from its file sample by sample, and every torn or foreign file is refused in one line."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.profile_file import read_profile
from pytest_laguna.evidence.arms.replay_profile import ReplayProfile
from pytest_laguna.verdict import UnusableEvidenceError


def profile(samples: int = 3, **changes: Any) -> dict[str, Any]:
    views = {
        "forward_calls": 1,
        "forward_ns": 20,
        "update_calls": 0,
        "update_ns": 0,
        "incumbent_calls": 1,
        "persistent_calls": 0,
        "persistent_hits": 0,
        "persistent_builds": 0,
    }
    one = {
        "segment_ns": [10, 30, 10],
        "loop_ns": 60,
        "debug_guard_ns": None,
        "offloader_sync_ns": 1,
        "signature_collect_ns": None,
        "signature_compare_ns": None,
        "host_ns": 70,
        "synchronize_ns": 5,
        "whole_ns": 80,
        "views": views,
    }
    return {
        "schema": "pytest-laguna-replay-profile-v1",
        "rank": 1,
        "world_size": 2,
        "descriptor": 'a batch, "samples":[ and \\ all',
        "kinds": ["graph", "attention", "graph"],
        "samples": [one | {"whole_ns": 80 + number, "views": dict(views)} for number in range(samples)],
    } | changes


def written(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "rank1.json"
    path.write_bytes(content)
    return path


def read_all(path: Path) -> int:
    return len(list(read_profile(path).samples))


def test_a_profile_comes_back_as_it_was_written(tmp_path: Path) -> None:
    whole = ReplayProfile.model_validate(profile())
    path = written(tmp_path, files.canonical_json(whole.canonical()))
    seen = read_profile(path)
    assert seen.sha256 == files.sha256_file(path)
    assert seen.header.model_dump() == whole.model_dump(exclude={"samples"})
    assert list(seen.samples) == whole.samples


GOOD = files.canonical_json(profile())


def test_a_file_that_ends_early_is_refused_wherever_that_is(tmp_path: Path) -> None:
    for end in range(len(GOOD)):
        with pytest.raises(UnusableEvidenceError, match=r"^rank1\.json: ") as caught:
            read_all(written(tmp_path, GOOD[:end]))
        assert "\n" not in str(caught.value)


def test_a_file_that_goes_on_behind_its_end_is_refused(tmp_path: Path) -> None:
    for rest in (b"]", b"}", b" ", b"\n", b",[]"):
        with pytest.raises(UnusableEvidenceError, match=r"^rank1\.json: "):
            read_all(written(tmp_path, GOOD + rest))


def _sample(change: Callable[[dict[str, Any]], None]) -> bytes:
    value = profile()
    change(value["samples"][2])
    return files.canonical_json(value)


def _times(value: object) -> Callable[[dict[str, Any]], None]:
    return lambda sample: sample.update(segment_ns=value)


REFUSED: list[tuple[bytes, str]] = [
    (files.canonical_json(profile(samples=0)), "torn, or without samples"),
    (b"[]", "torn, or without samples"),
    (b"\xff", "not text"),
    (GOOD.replace(b"v1", b"v9"), "schema: Input should be"),
    (GOOD.replace(b'"rank":1', b'"rank":2'), "rank 2 of 2"),
    (GOOD.replace(b'"rank":1', b'"rank": 1'), "not in canonical form"),
    (GOOD.replace(b'"rank":1', b'"rank":1,"ranks":1'), "ranks: Extra inputs"),
    (GOOD.replace(b'"kinds":["graph"', b'"kinds":["capture"'), "kinds.0"),
    (GOOD.replace(b'"whole_ns":82', b'"whole_ns":-1'), "sample 2: whole_ns: Input should be greater"),
    (GOOD.replace(b'"whole_ns":82', b'"whole_ns":82.5'), "sample 2: whole_ns: Input should be a valid integer"),
    (GOOD.replace(b'"whole_ns":82', b'"whole_ns":082'), "sample 2: not JSON"),
    (GOOD.replace(b'"whole_ns":82', b'"whole_ns": 82'), "sample 2: not in canonical form"),
    (GOOD.replace(b'"whole_ns":82', b'"whole_ns":82,"whole_ns":82'), "sample 2: not in canonical form"),
    (GOOD.replace(b'"whole_ns":82', b'"whole_ns":9007199254740992'), "sample 2: whole_ns: Input should be less"),
    (GOOD.replace(b'"whole_ns":82', b'"whole_ns":NaN'), "sample 2: whole_ns: Input should be"),
    (GOOD.replace(b'"whole_ns":82', b'"whole_ns":true'), "sample 2: whole_ns: Input should be a valid integer"),
    (GOOD.replace(b'"whole_ns":82', b'"zeal":1,"whole_ns":82'), "sample 2: not in canonical form"),
    (GOOD.replace(b'"whole_ns":82', b'"whole_ns":82,"zeal":1'), "sample 2: zeal: Extra inputs"),
    (GOOD.replace(b"80},{", b"80};{"), "sample 0: ends in other text"),
    (GOOD.replace(b'82}],"schema"', b'82},],"schema"'), "sample 3: not JSON"),
    (_sample(_times([10, 30])), "sample 2: seen 2 segment times for 3 segments"),
    (_sample(_times([10, 30, None])), "sample 2: segment_ns.2: Input should be a valid integer"),
    (_sample(lambda sample: sample.pop("views")), "sample 2: views: Field required"),
    (_sample(lambda sample: sample["views"].update(forward_calls="1")), "sample 2: views.forward_calls"),
]


@pytest.mark.parametrize(
    ("content", "reason"), REFUSED, ids=[f"{number} {reason}" for number, (_, reason) in enumerate(REFUSED)]
)
def test_what_is_no_profile_is_refused_with_the_place(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(UnusableEvidenceError) as caught:
        read_all(written(tmp_path, content))
    assert str(caught.value).startswith("rank1.json: ")
    assert reason in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(written(tmp_path, GOOD))
    with pytest.raises(UnusableEvidenceError, match=r"link\.json: cannot be read"):
        read_profile(tmp_path / "link.json")
    with pytest.raises(UnusableEvidenceError, match=r"rank7\.json: cannot be read"):
        read_profile(tmp_path / "rank7.json")


def test_the_samples_are_never_in_memory_all_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, files.canonical_json(profile(samples=5_000)))
    tracemalloc.start()
    count = sum(1 for _ in read_profile(path).samples)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 5_000
    assert peak < 3 * path.stat().st_size  # its bytes and its text; as objects it would be twenty times that
