# SPDX-License-Identifier: Apache-2.0
"""What the benchmark of the analysis measures is a diagnostic whose arms can be compared, of any size."""

from __future__ import annotations

import pytest

from benchmarks import analysis


@pytest.mark.parametrize(("ranks", "samples"), [analysis.PUBLISHED, (1, 1_950)])
def test_a_point_compares_both_arms(ranks: int, samples: int) -> None:
    """From so many samples on, replays no longer fit the one generation of the good directory."""
    figures = analysis.measure(ranks, samples)
    assert (figures["ranks"], figures["samples"]) == (ranks, samples)
    assert figures["seconds"] > 0
