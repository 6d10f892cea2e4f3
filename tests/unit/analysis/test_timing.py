# SPDX-License-Identifier: Apache-2.0
"""The six timing gates: the published comparison comes out as published, and each sign rule turns where it should."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.analysis.diagnostic.timing import GATES, compare, published_verdict
from pytest_laguna.evidence.diagnostic.analysis import Comparison

DATA = Path(__file__).parents[2] / "data"
PUBLISHED = json.loads((DATA / "kv-views-diagnostic-20260725.json").read_bytes())

NAMES = {
    "view_preparation": ("kv_view_prepare_total", "median", "positive_kv_view_prepare_median"),
    "attention_host": ("attention_host_total", "median", "positive_attention_host_median"),
    "whole_replay": ("whole_replay_completion", "median", "positive_whole_replay_median"),
    "whole_replay_p90": ("whole_replay_completion", "p90", "whole_replay_p90_non_regression"),
    "post_replay_synchronise": ("post_replay_synchronize", "median", "no_post_replay_sync_cost_transfer"),
    "generation_wall": ("fresh_generation_wall", "", "positive_fresh_generation_wall"),
}
"""By gate the published quantity, figure and gate."""


def published(name: str) -> tuple[int, int, int]:
    """Control, candidate and saving of a gate, in nanoseconds."""
    quantity, figure, _ = NAMES[name]
    figures: dict[str, Any] = PUBLISHED["comparison_ns"][quantity]
    if not figure:
        return figures["control"], figures["candidate"], figures["saving"]
    return figures[f"control_{figure}"], figures[f"candidate_{figure}"], figures[f"{figure}_saving"]


def comparisons() -> dict[str, Comparison]:
    return {name: compare(name, [published(name)[0]], [published(name)[1]]) for name in GATES}


def test_the_published_comparison_is_an_exact_timing_stop_with_its_six_gates() -> None:
    timing = comparisons()
    assert list(timing) == list(NAMES)
    assert published_verdict(timing) == PUBLISHED["status"] == "exact_timing_stop"
    assert {NAMES[name][2]: seen.passed for name, seen in timing.items()} == PUBLISHED["gates"]
    for name, seen in timing.items():
        assert (seen.control, seen.candidate, seen.saving) == published(name)
        assert (seen.interval, seen.detectable) == (None, None)


@pytest.mark.parametrize("name", GATES)
def test_one_gate_alone_turns_a_pass_into_a_stop(name: str) -> None:
    passing = {gate: compare(gate, [10], [9]) for gate in GATES}
    assert published_verdict(passing) == "diagnostic_pass"
    assert published_verdict(passing | {name: compare(name, [10], [11])}) == "exact_timing_stop"


def test_no_saving_at_all_is_enough_where_only_a_loss_speaks_against_it() -> None:
    unchanged = {name: compare(name, [10], [10]).passed for name in GATES}
    assert unchanged == {
        "view_preparation": False,
        "attention_host": False,
        "whole_replay": False,
        "whole_replay_p90": True,
        "post_replay_synchronise": True,
        "generation_wall": False,
    }


def test_the_percentiles_are_linear_over_the_samples() -> None:
    assert compare("whole_replay", [1, 2, 3, 10], [0, 0, 0, 0]).control == 2.5
    assert compare("whole_replay_p90", list(range(31)), [0] * 31).control == 27
    assert compare("whole_replay_p90", [0, 10], [0, 0]).control == 9.0
