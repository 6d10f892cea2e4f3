# SPDX-License-Identifier: Apache-2.0
"""The benchmark really measures, and its ratios are those that its description promises."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import hot_path

METHODS = ("forward", "forward+update")


def test_ratios_follow_from_medians_of_repeats_and_of_their_differences() -> None:
    medians = dict.fromkeys((f"{name} {method}" for name in ("incumbent", "floor") for method in METHODS), 10.0)
    for method in METHODS:
        medians |= {f"native {method}": 0.5, f"python {method}": 8.0, f"stock path {method}": 40.0}
        medians |= {f"native path {method}": 31.5, f"python path {method}": 39.0}
    medians |= {"clock cold": 0.5, "incumbent cold": 10.5, "native cold": 1.25}
    medians |= {"native to aliases": 1.0, "python to aliases": 8.5, "native equal work": 3.0, "python equal work": 9.5}
    # A host that is ten milliseconds slower in one repeat, for all alike, does not move what the path saves.
    repeats = {name: [value, value + 10.0 * ("path" in name), value] for name, value in medians.items()}
    assert hot_path.ratios(repeats) == {
        "ratio_forward": 0.05,
        "ratio_forward_python": 0.8,
        "ratio_path": pytest.approx(0.15),
        "ratio_path_python": pytest.approx(0.9),
        "ratio_forward_update": 0.05,
        "ratio_forward_update_python": 0.8,
        "ratio_path_forward_update": pytest.approx(0.15),
        "ratio_path_forward_update_python": pytest.approx(0.9),
        "ratio_forward_to_aliases": 0.1,
        "ratio_forward_to_aliases_python": 0.85,
        "ratio_forward_equal_work": 0.3,
        "ratio_forward_equal_work_python": 0.95,
        "ratio_forward_update_cold": 0.075,
    }


def test_a_short_run_prints_every_figure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(hot_path, "REPEATS", 5)
    monkeypatch.setattr(sys, "argv", ["hot_path", "--json"])
    assert hot_path.main() == 0
    result = json.loads(capsys.readouterr().out)
    assert result["shape"] == [256, 2, 16, 256]
    assert {len(values) for values in result["raw_ms"].values()} == {5}
    assert all(value > 0 for values in result["raw_ms"].values() for value in values)
    # Wide bounds: a machine that other work shares. The floor checks nothing, the incumbent makes views.
    assert result["median_ms"]["floor forward"] < result["median_ms"]["native forward"]
    assert result["ratio_forward"] < 0.5
    for figure in (
        "ratio_path ",
        "ratio_forward_to_aliases ",
        "ratio_forward_equal_work ",
        "ratio_forward_update_cold ",
    ):
        assert figure in hot_path.table(result)
    # Reading other memory in between is felt, by both; 0.3 where 0.1 is usual.
    assert result["median_ms"]["incumbent cold"] > result["median_ms"]["incumbent forward+update"]
    assert result["median_ms"]["native cold"] > result["median_ms"]["native forward+update"]
    assert 0 < result["ratio_forward_update_cold"] < 0.3
    assert result["ratio_forward"] < result["ratio_forward_to_aliases"] < result["ratio_forward_equal_work"]
