# SPDX-License-Identifier: Apache-2.0
"""Ranks say what they hold in files, the second time when their pipe is opened."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_laguna.endpoint import ranks
from pytest_laguna.endpoint.ranks import Ranks
from pytest_laguna.verdict import UnusableEvidenceError
from tests.endpoint_server import report, write_state


@pytest.fixture
def one_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    monkeypatch.setenv("FLAG", "1")
    found = Ranks(tmp_path / "ranks", 1)
    with found.pipes() as told:
        for name, value in told.items():
            monkeypatch.setenv(name, value)
        yield found


def pipes() -> Path:
    return Path(os.environ["LAGUNA_RANK_PIPES"])


def test_a_rank_reports_before_and_after(one_rank: Ranks, tmp_path: Path) -> None:
    directory = Path(os.environ["LAGUNA_RANK_STATES"])
    assert directory == tmp_path / "ranks"
    report(directory, pipes())
    [captured] = one_rank.captured()
    assert (captured.moment, captured.rank, captured.variables) == ("captured", 0, {"FLAG": "1"})
    assert captured.graphs[0].graphs == 2
    assert not (directory / "rank-0-served.json").exists()
    [served] = one_rank.served()
    assert (served.moment, served.pid) == ("served", captured.pid)


def test_no_pipe_ever_lies_among_the_evidence(tmp_path: Path) -> None:
    """Whoever is killed while a server runs leaves regular files: a manifest of anything else cannot be taken."""
    with Ranks(tmp_path / "ranks", 2).pipes() as told:
        place = Path(told["LAGUNA_RANK_PIPES"])
        assert [path.is_fifo() for path in sorted(place.iterdir())] == [True, True]
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        assert not place.is_relative_to(tmp_path / "ranks")
        assert list((tmp_path / "ranks").iterdir()) == []
    assert not place.exists()


def test_nobody_is_asked_when_the_pipes_are_gone(tmp_path: Path) -> None:
    ranks_of_two = Ranks(tmp_path / "ranks", 2)
    with ranks_of_two.pipes():
        pass
    with pytest.raises(ValueError, match="seen no pipes"):
        ranks_of_two.served()


def test_a_rank_that_captured_nothing_is_missed(one_rank: Ranks) -> None:
    with pytest.raises(UnusableEvidenceError, match=r"rank-0-captured\.json: cannot be read \(No such file"):
        one_rank.captured()


def test_a_second_rank_is_missed(tmp_path: Path) -> None:
    both = Ranks(tmp_path / "ranks", 2)
    with both.pipes():
        write_state(tmp_path / "ranks", "captured", "1")
        with pytest.raises(UnusableEvidenceError, match=r"rank-1-captured\.json: cannot be read"):
            both.captured()


def test_a_rank_too_many_is_refused(one_rank: Ranks, tmp_path: Path) -> None:
    write_state(tmp_path / "ranks", "captured", "1")
    (tmp_path / "ranks" / "rank-1-captured.json").touch()
    with pytest.raises(UnusableEvidenceError, match=r"rank-1-captured\.json: seen a file of another rank; expected 1"):
        one_rank.captured()


def test_a_state_of_another_moment_is_refused(one_rank: Ranks, tmp_path: Path) -> None:
    write_state(tmp_path / "ranks", "served", "1")
    (tmp_path / "ranks" / "rank-0-served.json").rename(tmp_path / "ranks" / "rank-0-captured.json")
    with pytest.raises(UnusableEvidenceError, match="seen rank 0, served; expected rank 0, captured"):
        one_rank.captured()


def test_a_rank_that_waits_for_nothing_is_named(one_rank: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "ANSWER_SECONDS", 0.2)
    with pytest.raises(UnusableEvidenceError, match=r"rank-0\.ask: seen nobody waiting; expected rank 0"):
        one_rank.served()


def test_a_rank_that_does_not_answer_is_given_up(one_rank: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "ANSWER_SECONDS", 2.0)
    waits = threading.Thread(target=(pipes() / "rank-0.ask").read_bytes)
    waits.start()
    with pytest.raises(UnusableEvidenceError, match=r"rank-0-served\.json: cannot be read"):
        one_rank.served()
    waits.join()
