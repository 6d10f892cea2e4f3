# SPDX-License-Identifier: Apache-2.0
"""The counters are read whole and by name, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_laguna.endpoint.metrics import read_counters
from pytest_laguna.evidence import files
from pytest_laguna.verdict import UnusableEvidenceError

DATA = Path(__file__).parents[2] / "data" / "endpoint"
MODEL = "tiny-laguna"
DRAFTS = 'vllm:spec_decode_num_drafts_total{engine="0",model_name="tiny-laguna"} 41.0\n'


def after() -> str:
    return (DATA / "metrics-after.prom").read_text()


def test_the_counters_of_vllm_are_read() -> None:
    content = (DATA / "metrics-after.prom").read_bytes()
    counters = read_counters(content, "metrics-after.prom", MODEL)
    assert (counters.file, counters.sha256) == ("metrics-after.prom", files.sha256_bytes(content))
    assert (counters.drafts, counters.draft_tokens, counters.accepted) == (41, 287, 33)
    assert counters.accepted_per_position == {"0": 8, "1": 7, "2": 5, "3": 5, "4": 4, "5": 2, "6": 2}
    assert counters.decode_count == 3
    assert counters.decode_seconds == pytest.approx(2.657059170998764, rel=0, abs=0)
    assert (counters.prompt_tokens, counters.generated_tokens) == (32, 72)
    assert counters.finished == {"abort": 0, "error": 0, "length": 3, "repetition": 0, "stop": 0}
    assert counters.prefix_cache_queries == counters.prefix_cache_hits == counters.cached_prompt_tokens == 0
    assert counters.external_cache_queries == counters.external_cache_hits == counters.preemptions == 0


def test_a_fresh_server_of_vllm_has_only_zeros() -> None:
    counters = read_counters((DATA / "metrics-before.prom").read_bytes(), "before", MODEL)
    numbers = [value for value in counters.model_dump().values() if not isinstance(value, str)]
    assert all(not any(value.values()) if isinstance(value, dict) else value == 0 for value in numbers)


def test_a_counter_that_is_not_exposed_is_absent_and_not_zero() -> None:
    counters = read_counters(after().replace(DRAFTS, "").encode(), "m", MODEL)
    assert counters.drafts is None
    assert read_counters(b"", "m", MODEL).finished == {}


@pytest.mark.parametrize(
    ("instead", "reason"),
    [
        (DRAFTS.replace("41.0", "41.5"), "spec_decode_num_drafts_total 41.5; expected a whole number"),
        (DRAFTS.replace("41.0", "NaN"), "spec_decode_num_drafts_total nan; expected a finite number"),
        (DRAFTS.replace("41.0", "+Inf"), "spec_decode_num_drafts_total inf; expected a finite number"),
        (DRAFTS.replace(MODEL, "other"), "spec_decode_num_drafts_total of model 'other'; expected 'tiny-laguna'"),
        (DRAFTS + DRAFTS.replace('"0"', '"1"'), "spec_decode_num_drafts_total 2 times; expected one engine's"),
        ("{\n", "m: seen no Prometheus text"),
    ],
)
def test_a_counter_without_one_meaning_is_refused_by_name(instead: str, reason: str) -> None:
    with pytest.raises(UnusableEvidenceError, match=reason):
        read_counters(after().replace(DRAFTS, instead).encode(), "m", MODEL)


def test_a_label_that_occurs_twice_is_refused_by_name() -> None:
    line = next(line for line in after().splitlines() if 'position="3"' in line and "_total" in line)
    doubled = after().replace(line, f"{line}\n{line}")
    with pytest.raises(UnusableEvidenceError, match="accepted_tokens_per_pos_total with position '3' twice"):
        read_counters(doubled.encode(), "m", MODEL)


def test_a_negative_counter_is_recorded_for_the_rules_to_judge() -> None:
    assert read_counters(after().replace(DRAFTS, DRAFTS.replace("41.0", "-1.0")).encode(), "m", MODEL).drafts == -1
