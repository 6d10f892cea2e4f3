# SPDX-License-Identifier: Apache-2.0
"""The event profile through ``pytest --gate=2`` on real vLLM: one whole run of the trial's campaign, read by others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.demo import CARD, laguna, last_line, writable
from tests.event_project import FITNESS, EventProject

pytestmark = [pytest.mark.engines(keep=1), pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> EventProject:
    """Gates 1 and 2 on one card. A busy host slows one replay in three: here the instrument is tried, not judged."""
    project = EventProject(tmp_path_factory.mktemp("passed"), FITNESS, slowdown_limit="100.0")
    project.both_gates()
    assert project.second.returncode == 0, project.second.stdout + project.second.stderr
    return project


def test_the_campaign_passes_and_verifies(passed: EventProject) -> None:
    result = laguna("verify", str(passed.sealed), "--json")
    assert [gate["verdict"] for gate in json.loads(result.stdout)["gates"]] == ["PASS", "PASS"]


def test_the_analysis_says_what_was_found_and_no_more(passed: EventProject) -> None:
    analysis = json.loads((passed.events / "analysis.json").read_bytes())
    assert analysis["status"] == "exact_event_profile_stop"
    assert analysis["fitness"] == "fit"
    assert analysis["fitness_figures"]["slowdown"] > 0
    assert sum(share["percent"] for share in analysis["sparse"]["0"].values()) == pytest.approx(100)
    selected = analysis["selected"]
    assert (selected["clock"], selected["host"]) == ("host-clock", None)
    assert sum(selected["category_ns"].values()) == selected["total_ns"]
    assert len(selected["ranges"]["layers"]) == 8
    for field in ("global_critical_path_validated", "collective_cross_stream_completion_validated"):
        assert analysis[field] is False
    for field in ("authorize_uninstrumented_endpoint", "authorize_submission"):
        assert analysis[field] is False
    assert analysis["device_work_only"] == "not_validated"
    for arm in ("q1", "graph-event", "graph-fitness", "graph-sparse"):
        record = json.loads((passed.events / "arms" / arm / "record.json").read_bytes())
        assert (record["network"] is not None) == (analysis["network_isolated"] is True)


@pytest.mark.engines
def test_two_ranks_have_a_profile_each_with_collectives_between_their_graphs(tmp_path: Path) -> None:
    project = EventProject(tmp_path)
    project.both_gates(CARD, CARD + 1)
    assert project.second.returncode == 0, project.second.stdout + project.second.stderr
    analysis = json.loads((project.events / "analysis.json").read_bytes())
    totals = analysis["rank_total_ns"]
    assert totals.keys() == {"0", "1"}
    selected = analysis["selected"]
    assert totals[str(selected["rank"])] == max(totals.values())
    assert {"graph", "attention", "collective"} == selected["category_ns"].keys()
    assert [len(layer) for layer in selected["ranges"]["layers"]] == [6] * 8
    bound = json.loads((project.events / "closure.json").read_bytes())["files"]
    assert {f"arms/graph-event/profile/rank{rank}.json" for rank in range(2)} <= bound.keys()
    assert analysis["fitness"] == "unmeasured"


@pytest.mark.engines
def test_what_ends_it_before_its_first_arm_is_named(tmp_path: Path) -> None:
    project = EventProject(tmp_path, prompt='"no-such"')
    project.both_gates()
    reason = "lanes.cpu.engine.model: prompt 'no-such'; expected one of the pair's: "
    told = f"gate 2: NOT_PROVEN: evidence/event-profile/analysis.json: missing; {reason}"
    assert (project.second.returncode, told in project.second.stdout) == (23, True), project.second.stdout
    assert "(diagnostic only: neither benchmark nor submission evidence)" in project.second.stdout
    failure = json.loads((project.events / "failure.json").read_bytes())
    assert failure["reason"].startswith(reason)


def test_gate_3_is_refused(passed: EventProject) -> None:
    result = passed.gate(3, f"--cards={CARD}", "--device=cpu")
    assert result.returncode == 4
    assert "3" in last_line(result)


def test_analyze_gives_the_same_bytes_again(passed: EventProject, tmp_path: Path) -> None:
    out = tmp_path / "again.json"
    result = laguna("analyze", str(passed.newest), "--out", str(out))
    assert result.returncode == 0, result.stdout + result.stderr
    assert out.read_bytes() == (passed.events / "analysis.json").read_bytes()
    assert "exact_event_profile_stop" in result.stdout


def test_trace_writes_what_perfetto_opens(passed: EventProject, tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    assert laguna("trace", str(passed.newest), "--out", str(out)).returncode == 0
    slices = [event for event in json.loads(out.read_bytes())["traceEvents"] if event["ph"] == "X"]
    assert [event["args"]["kind"] for event in slices] == ["graph", "attention"] * 8 + ["graph"]


def test_a_changed_profile_is_seen(passed: EventProject, tmp_path: Path) -> None:
    """Last in its module: it damages what the others read."""
    path = passed.events / "arms" / "graph-event" / "profile" / "rank0.json"
    with writable(passed.newest):
        profile = json.loads(path.read_bytes())
        profile["interval_ns"][0] += 1
        path.write_text(json.dumps(profile))
    out = tmp_path / "again.json"
    assert laguna("analyze", str(passed.newest), "--out", str(out)).returncode == 22
    assert not out.exists()
    assert laguna("verify", str(passed.sealed)).returncode == 22
