# SPDX-License-Identifier: Apache-2.0
"""What the report shows of each kind of gate, from the evidence that the rules are tested on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_laguna.analysis.endpoint import analyse_endpoint
from pytest_laguna.evidence import files
from pytest_laguna.evidence.diagnostic.analysis import Diagnosis
from pytest_laguna.evidence.endpoint import reader as endpoint_reader
from pytest_laguna.evidence.endpoint.analysis import EndpointAnalysis
from pytest_laguna.evidence.endpoint.plan import Repetition
from pytest_laguna.evidence.events.analysis import EventAnalysis
from pytest_laguna.evidence.experiments import files_behind
from pytest_laguna.report import aa as null
from pytest_laguna.report import diagnostic, endpoint, events
from pytest_laguna.report.clauses import clause_table
from pytest_laguna.report.figures import Drawing
from pytest_laguna.verdict import Verdict
from tests import diagnostic_root, event_root
from tests import endpoint_legs as lab
from tests.unit.analysis import test_null_timing as nulls
from tests.unit.report.shown import derived, own_place, shown_attempt

pytest.importorskip("matplotlib")

REPETITION = Repetition(blocks=2, margin_percent=0.5, confidence=0.95, sign_flip_level=0.25, effect_percent=1.0)


def plain(html: str) -> str:
    """The words between the tags of everything but pictures."""
    without = re.sub(r"<svg.*?</svg>", "", html, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", without).split())


def segments(html: str) -> int:
    """How many segments the timelines draw."""
    return len(re.findall(r'clip-path="[^"]*" style="fill: var\(--(?:graph|attention|collective|other)\)"', html))


def test_a_diagnostic_is_shown_with_its_samples_and_what_they_could_not_tell(tmp_path: Path) -> None:
    own = diagnostic_root.judged(diagnostic_root.good(), own_place(tmp_path, Diagnosis))
    html = diagnostic.diagnostic_section(shown_attempt(tmp_path, own), own, Drawing())
    words = plain(html)
    assert html.count("<svg") == 4
    assert f"one of {diagnostic_root.SAMPLES} profiled replays" in words
    assert f"the {len(diagnostic_root.TOPOLOGY.kinds)} segments" in words
    assert "graph-candidate rank 1" in html
    for name in ("view preparation", "whole replay p90", "generation wall"):
        assert name in words
    lines = [*diagnostic.undetectable(own)]
    assert own.timing is not None
    assert len(lines) == len(own.timing) + 1
    assert any(line.startswith("generation wall: minimum detectable effect unknown") for line in lines)


def test_without_a_comparison_nothing_is_said_to_be_detectable(tmp_path: Path) -> None:
    tree = diagnostic_root.good()
    del tree["arms/graph-candidate/record.json"]
    own = diagnostic_root.judged(tree, own_place(tmp_path, Diagnosis))
    assert own.timing is None
    assert [*diagnostic.undetectable(own)] == [
        "No timing was compared: a change of speed of any size would be invisible."
    ]
    words = plain(diagnostic.diagnostic_section(shown_attempt(tmp_path, own), own, Drawing()))
    assert "graph-candidate arms/graph-candidate/record.json: there is none" in words
    assert "detectable" not in words


def test_an_event_profile_has_each_rank_with_every_interval(tmp_path: Path) -> None:
    own = event_root.judged(event_root.good(fitness=True), own_place(tmp_path, EventAnalysis))
    html = events.events_section(shown_attempt(tmp_path, own), own, Drawing())
    words = plain(html)
    assert own.selected is not None
    assert f"The {len(event_root.KINDS)} intervals of one replay by rank" in words
    assert f"rank {own.selected.rank}, slowest" in html
    assert segments(html) == len(event_root.KINDS) * len(own.rank_total_ns)
    assert "slowdown of a replay by events" in words
    assert "Ranks have clocks of their own" in " ".join(events.undetectable(own))


def test_a_limit_that_is_just_missed_does_not_seem_kept(tmp_path: Path) -> None:
    own = event_root.judged(event_root.good(fitness=True), own_place(tmp_path, EventAnalysis))
    assert own.fitness_figures is not None
    missed = own.fitness_figures.model_copy(update={"slowdown": 1.10000004, "limit": 1.1})
    own = own.model_copy(update={"fitness_figures": missed})
    words = plain(events.events_section(shown_attempt(tmp_path, own), own, Drawing()))
    assert "slowdown of a replay by events 1.10000004, limit 1.1" in words


def endpoint_of(tmp_path: Path, *, blocks: int = 1) -> tuple[Path, EndpointAnalysis]:
    """An endpoint's directory with the laboratory's legs, and what they come to."""
    place = own_place(tmp_path, EndpointAnalysis)
    changed = {} if blocks == 1 else {"repetition": REPETITION}
    values = lab.legs(lab.metadata_starts()) if blocks == 1 else lab.blocks([lab.metadata_starts()] * blocks)
    legs = lab.records(values)
    for leg in legs:
        directory = endpoint_reader.leg_directory(place, leg.request.sequence, leg.request.leg)
        directory.mkdir(parents=True)
        files.write_new(directory / "leg.json", files.canonical_json(leg.canonical()))
    return place, analyse_endpoint(lab.plan(**changed), legs, teacher=lab.TEACHER, campaign=lab.CAMPAIGN)


def test_an_endpoint_shows_legs_pairs_and_that_one_block_decides_nothing(tmp_path: Path) -> None:
    _, own = endpoint_of(tmp_path)
    html = endpoint.endpoint_section(shown_attempt(tmp_path, own), own, Drawing())
    words = plain(html)
    assert html.count("<svg") == 3
    assert "block 1 B1 against A1" in words
    assert f"{own.legs[0].headline:.3f} tokens/s" in words
    assert f"{own.exactness.teacher} of {own.exactness.teacher_planned}" in words
    lines = [*endpoint.undetectable(own)]
    assert lines[0].startswith("A single block")


def test_an_endpoint_says_beside_the_published_verdict_where_time_decides_nothing(tmp_path: Path) -> None:
    _, own = endpoint_of(tmp_path)
    aside = f"all published rules {own.published_verdict}; those of time are reported and decide nothing on this lane"
    for decides, is_told in (("exactness", True), ("exactness+timing", False)):
        held = own.model_copy(update={"decides": decides})
        words = plain(endpoint.endpoint_section(shown_attempt(tmp_path, held), held, Drawing()))
        assert (aside in " ".join(words.split())) is is_told


def test_blocks_have_an_interval_and_a_power(tmp_path: Path) -> None:
    _, own = endpoint_of(tmp_path, blocks=2)
    html = endpoint.endpoint_section(shown_attempt(tmp_path, own), own, Drawing())
    assert own.repetition is not None
    assert own.repetition.conclusion.value in plain(html)
    assert "block 2 (" in html
    assert any(line.startswith("Power of these blocks") for line in endpoint.undetectable(own))


def test_control_against_control_says_what_noise_is_promoted_and_what_is_lost_in_it(tmp_path: Path) -> None:
    own = nulls.analysed(nulls.PLAN)
    shown = shown_attempt(tmp_path)
    words = plain(null.null_section(shown, own, Drawing()))
    assert f"{own.diagnostic.promoted} of {own.diagnostic.count}" in words
    assert f"{own.whole_replay.detectable_percent:.2f} %" in words
    assert str(own.gates["whole_replay"]) in words
    lines = [*null.undetectable(own)]
    assert re.match("whole replay: .*minimum detectable effect", lines[0])
    assert lines[-1].startswith("The starts ran on lane cpu")
    near = own.whole_replay.model_copy(update={"detectable_percent": 0.2301, "effect_percent": 0.23})
    held = own.model_copy(update={"whole_replay": near})
    assert "0.2301 % 0.23 %" in plain(null.null_section(shown, held, Drawing()))


def test_a_leg_without_a_record_says_why(tmp_path: Path) -> None:
    place, own = endpoint_of(tmp_path)
    ended = place / "legs" / "05-A1"
    ended.mkdir()
    files.write_new(ended / "failure.json", files.canonical_json({"reason": "the port was <taken>"}))
    html = endpoint.endpoint_section(shown_attempt(tmp_path, own), own, Drawing())
    assert "left no record: the port was &lt;taken&gt;" in html


def test_each_clause_stands_with_its_rules_its_proof_and_its_files(tmp_path: Path) -> None:
    own = diagnostic_root.judged(diagnostic_root.good(), own_place(tmp_path, Diagnosis))
    shown = shown_attempt(tmp_path, own)
    (result,) = shown.analysis.clauses
    shown = shown_attempt(
        tmp_path,
        own,
        clauses=[
            result.model_copy(update={"clause": "replay-samples"}),
            result.model_copy(update={"clause": "timing", "verdict": Verdict.STOP, "reason": "whole_replay: <slower>"}),
        ],
    )
    html = clause_table(shown)
    assert "<strong>whole_replay: &lt;slower&gt;</strong>" in html
    assert "evidence/diagnostic/arms/graph-control/profile/rank0.json" in html
    assert "samples-complete" in html
    behind = files_behind((entry.path for entry in shown.manifest.entries), "replay-samples")
    assert set(behind) == {
        f"evidence/diagnostic/arms/{arm}/profile/rank{rank}.json"
        for arm in ("graph-control", "graph-candidate")
        for rank in range(2)
    }


def test_a_rehearsal_rests_on_its_receipts_and_on_what_its_sessions_said() -> None:
    lane = "evidence/rehearsed/sealed/demo/cpu"
    receipts = [f"{lane}/gate1/0001/receipt.json", f"{lane}/gate2/0001/receipt.json"]
    said = ["evidence/rehearsed/gate1/stdout.log", "evidence/rehearsed/shortened.json"]
    others = [f"{lane}/gate1/0001/journal.jsonl", "evidence/rehearsed-null/sealed/demo/cpu/gate1/0001/receipt.json"]
    assert files_behind([*said, *receipts, *others], "rehearsal") == [*said, *receipts]
    assert files_behind([*said, *receipts, *others], "null-exact") == others[1:]


def test_every_clause_with_an_analysis_of_its_own_has_files_behind_it(tmp_path: Path) -> None:
    own = diagnostic_root.judged(diagnostic_root.good(), own_place(tmp_path, Diagnosis))
    shown = shown_attempt(tmp_path, own)
    for clause in derived(own).rules:
        assert files_behind([entry.path for entry in shown.manifest.entries], clause), clause
