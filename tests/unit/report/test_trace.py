# SPDX-License-Identifier: Apache-2.0
"""``laguna trace``: what Perfetto opens, of both kinds of profile, and what it refuses."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna import cli
from pytest_laguna.evidence.events.analysis import DIRECTORY
from pytest_laguna.report import trace as chrome
from tests import diagnostic_root, event_root

PHASES = {"X", "M"}


def traced(attempt: Path, out: Path) -> tuple[int, dict[str, Any]]:
    code = cli.main(["trace", str(attempt), "--out", str(out)])
    return code, json.loads(out.read_bytes()) if out.exists() else {}


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    directory = tmp_path / "0001"
    directory.mkdir()
    (directory / "attempt.json").write_text("{}")
    return directory


def cut_off(microseconds: float) -> int:
    """Nanoseconds, as trace processors read a number with a fraction."""
    return int(microseconds * 1000.0)


def test_no_nanosecond_is_cut_off() -> None:
    numbers = [*range(20_000), 10**12 + 1]
    assert [cut_off(chrome._microseconds(number)) for number in numbers] == numbers
    assert any(cut_off(number / 1_000) != number for number in numbers), "a plain quotient loses some"


def slices(trace: dict[str, Any], rank: int) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and event["pid"] == rank]


def test_an_event_profile_has_a_slice_for_each_interval(attempt: Path, tmp_path: Path) -> None:
    event_root.write(event_root.good(), attempt / "evidence" / DIRECTORY)
    code, trace = traced(attempt, tmp_path / "trace.json")
    assert code == 0
    assert {event["ph"] for event in trace["traceEvents"]} == PHASES
    for rank in range(2):
        found, written = slices(trace, rank), event_root.profile(rank)
        assert [event["args"]["kind"] for event in found] == written["kinds"]
        assert [event["args"]["duration_ns"] for event in found] == written["interval_ns"]
        begins = itertools.accumulate(written["interval_ns"], initial=0)
        assert [cut_off(event["ts"]) for event in found] == [*begins][:-1]
        for earlier, later in itertools.pairwise(found):
            assert later["ts"] == earlier["ts"] + earlier["dur"], "to the last bit"
        assert [(event["args"]["layer"], event["name"]) for event in found[:6]] == [
            (None, "prefix"),
            (None, "prefix"),
            (0, "pre_attention"),
            (0, "attention"),
            (0, "post_attention_local_o"),
            (0, "collective"),
        ]
        assert (found[-1]["args"]["layer"], found[-1]["name"]) == (None, "tail")
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"]
    assert names == ["rank 0", "graph-event, host-clock", "rank 1", "graph-event, host-clock"]
    assert "neither benchmark nor submission evidence" in trace["otherData"]["notice"]


def test_replay_profiles_have_a_thread_for_each_arm(attempt: Path, tmp_path: Path) -> None:
    diagnostic_root.write(diagnostic_root.good(), attempt / "evidence" / "diagnostic")
    code, trace = traced(attempt, tmp_path / "trace.json")
    assert code == 0
    found = slices(trace, 1)
    assert {event["tid"] for event in found} == {2, 3}
    replays = [event for event in found if event["tid"] == 2 and event["name"].startswith("replay ")]
    assert len(replays) == diagnostic_root.SAMPLES
    of_first = [event for event in found if event["tid"] == 2 and event["ts"] < replays[1]["ts"]]
    assert len(of_first) == 1 + len(diagnostic_root.TOPOLOGY.kinds) + 1
    end = replays[0]["ts"] + replays[0]["dur"]
    assert all(event["ts"] + event["dur"] <= end for event in of_first)
    assert replays[1]["ts"] == end


def test_a_torn_profile_is_void(attempt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = event_root.good()
    tree["arms/graph-event/profile/rank1.json"] = b"{}"
    event_root.write(tree, attempt / "evidence" / DIRECTORY)
    assert traced(attempt, tmp_path / "trace.json") == (22, {})
    assert capsys.readouterr().out.startswith("VOID: arms/graph-event/profile/rank1.json: ")


def test_what_has_no_profile_is_wrong_use(attempt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (attempt / "evidence").mkdir()
    for arguments, reason in (
        ([str(attempt), "--out", str(tmp_path / "x.json")], "no replay profile and no event profile"),
        ([str(attempt), "--out", str(attempt / "x.json")], "which stays as it"),
        ([str(tmp_path), "--out", str(tmp_path.parent / "x.json")], "no attempt.json"),
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main(["trace", *arguments])
        assert ended.value.code == 4
        assert reason in capsys.readouterr().err


def test_a_file_that_is_there_stays(attempt: Path, tmp_path: Path) -> None:
    event_root.write(event_root.good(), attempt / "evidence" / DIRECTORY)
    out = tmp_path / "trace.json"
    out.write_text("mine")
    with pytest.raises(SystemExit):
        cli.main(["trace", str(attempt), "--out", str(out)])
    assert out.read_text() == "mine"
