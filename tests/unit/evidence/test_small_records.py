# SPDX-License-Identifier: Apache-2.0
"""What records say of themselves beyond their fields: digests, counts, seeds, and whether a bound is kept."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.parity import AttentionKind, cache_seed, query_seed
from pytest_laguna.evidence.arms.plan import Topology
from pytest_laguna.evidence.arms.rank_stacks import Frame
from pytest_laguna.evidence.diagnostic.analysis import DiagnosticPlan
from pytest_laguna.evidence.events.analysis import EVENTS, FITNESS, SPARSE, TEACHER, EventPlan, MeasuredFitness
from pytest_laguna.evidence.experiments import files_behind
from pytest_laguna.evidence.machine.closure import AbsentLibrary, Closure, Library
from pytest_laguna.evidence.machine.host import BACKGROUND, HostLimits
from pytest_laguna.evidence.review import FrozenCampaign, Review, Reviewed, read_reviewed
from pytest_laguna.evidence.schemas import Identity, parse_model
from pytest_laguna.verdict import JSON, UnusableEvidenceError
from tests import diagnostic_root, event_root

# What is digested


def test_a_closures_digest_is_of_names_and_contents_and_of_what_is_absent() -> None:
    library = Library(path="/a/liba.so", link=None, target="/b/liba.so.1", soname=None, needed=[], sha256="1" * 64)
    absent = AbsentLibrary(name="libb.so", needed_by="/a/liba.so", renamed=None)
    expected: JSON = {"libraries": {"liba.so": "1" * 64}, "absent": {"libb.so": None}}
    assert Closure(libraries=[library], absent=[absent]).digest == files.digest_of(expected)


def test_a_plans_digest_is_that_of_its_file() -> None:
    value = diagnostic_root.plan()
    assert parse_model(value, DiagnosticPlan, "plan.json").sha256 == files.digest_of(value)


# What is counted


def test_a_topology_counts_its_segments_by_kind() -> None:
    topology = Topology(kinds=["graph", "attention", "graph"])
    assert (topology.counts, topology.graphs, topology.breaks) == ({"graph": 2, "attention": 1}, 2, 1)


def test_a_parity_case_has_the_published_seeds_and_heads() -> None:
    full, sliding = AttentionKind.FULL, AttentionKind.SLIDING
    assert [cache_seed(rank) for rank in (0, 3)] == [70100, 70103]
    assert (full.query_heads, sliding.query_heads) == (12, 18)
    assert [query_seed(*case) for case in ((0, full, 2), (3, full, 8), (2, sliding, 5))] == [90002, 93008, 92105]


# Which arms run, and which bounds are kept


@pytest.mark.parametrize(
    ("fitness", "replays", "arms"),
    [
        (False, 0, (TEACHER, EVENTS)),
        (True, 0, (TEACHER, EVENTS, FITNESS)),
        (False, 1, (TEACHER, EVENTS, SPARSE)),
        (True, 2, (TEACHER, EVENTS, FITNESS, SPARSE)),
    ],
)
def test_an_event_plan_runs_the_arms_that_it_asks_for(fitness: bool, replays: int, arms: tuple[str, ...]) -> None:
    value = event_root.plan(fitness=fitness) | {"sparse_replays": replays}
    assert parse_model(value, EventPlan, "plan.json").arms == arms


@pytest.mark.parametrize(("slowdown", "fit"), [(1.1, True), (math.nextafter(1.1, 2), False)])
def test_an_instrument_is_fit_up_to_its_limit(slowdown: float, fit: bool) -> None:
    measured = MeasuredFitness(slowdown=slowdown, stamped_slowdown=1, kind_slowdown={}, spread=1, limit=1.1)
    assert measured.fit is fit


@pytest.mark.parametrize(
    ("changed", "published"),
    [
        ({}, True),
        ({"acceptance_rate_difference": 0.0}, True),
        ({"accepted_per_cycle": 0.5}, True),
        ({"queries": [*range(1, 17)]}, True),
        ({"completion_tokens": 16}, False),
        ({"samples": 2}, False),
        ({"draft_tokens": 3}, False),
        ({"target_layers": 12}, False),
        ({"cards": diagnostic_root.CARDS}, False),
        ({"acceptance_rate_difference": 0.0011}, False),
        ({"acceptance_rate_difference": 0.0011, "accepted_per_cycle": 0.0}, False),
        ({"accepted_per_cycle": 0.0}, False),
        ({"queries": [2]}, False),
    ],
)
def test_a_plan_that_asks_for_less_has_not_the_published_shape(changed: dict[str, JSON], published: bool) -> None:
    value = diagnostic_root.plan(diagnostic_root.PUBLISHED_CARDS, samples=31) | changed
    assert parse_model(value, DiagnosticPlan, "plan.json").has_published_shape is published


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "'(': missing ), unterminated subpattern at position 0; expected a regular expression"),
        ("by h/w", f"'by h/w' matches {BACKGROUND[2]!r}, which a healthy host logs; expected a graver line"),
    ],
)
def test_a_pattern_that_cannot_be_held_is_refused(pattern: str, message: str) -> None:
    value: JSON = {"kernel_patterns": ["GPU HANG", pattern], "foreign_holders": False}
    with pytest.raises(UnusableEvidenceError) as caught:
        parse_model(value, HostLimits, "plan.json")
    assert str(caught.value) == f"plan.json: kernel_patterns: Value error, {message}"


def test_no_patterns_are_none() -> None:
    assert HostLimits(kernel_patterns=None, foreign_holders=True).kernel_patterns is None


# What a report names


def test_a_frame_is_named_from_its_package_on() -> None:
    frame = Frame("/x/site-packages/y/site-packages/vllm/engine.py", "7", "step")
    assert str(frame) == "step (vllm/engine.py, line 7)"


def test_files_behind_a_clause_are_its_own_and_those_that_its_analysis_reads() -> None:
    paths = ["evidence/teacher-exact/a", "evidence/endpoint/teacher.json", "evidence/endpoint/suite.json"]
    assert files_behind(paths, "teacher-exact") == paths[:2]


# Who has read a campaign


FROZEN = FrozenCampaign(
    campaign_name="demo",
    identity=Identity(campaign="1" * 64, candidate="2" * 64, harness="3" * 64),
    preregistration="4" * 64,
    commit="5" * 40,
    tree="6" * 40,
    authors=["Ada  Lovelace"],
    candidate={},
    harness={},
    data={},
    protocols={},
    models={},
)
REVIEWED = Review(reviewer="Grace Hopper", frozen=FROZEN.sha256)


@pytest.mark.parametrize(("name", "author"), [("ada lovelace", True), ("AdaLovelace", False), ("Ada", False)])
def test_an_author_is_known_however_the_name_is_spaced_and_capitalised(name: str, author: bool) -> None:
    assert FROZEN.is_by(name) is author


def test_what_is_frozen_and_reviewed_is_read_where_it_is_there(tmp_path: Path) -> None:
    frozen, review = tmp_path / "frozen.json", tmp_path / "review.json"
    assert read_reviewed(frozen, review) == Reviewed(None, None)
    frozen.write_bytes(files.canonical_json(FROZEN.canonical()))
    assert read_reviewed(frozen, review) == Reviewed(FROZEN, None)
    review.write_bytes(files.canonical_json(REVIEWED.canonical()))
    assert read_reviewed(frozen, review) == Reviewed(FROZEN, REVIEWED)
