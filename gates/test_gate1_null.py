# SPDX-License-Identifier: Apache-2.0
"""Gate 1 of a device campaign with a candidate and a control: A/A, the control in both slots.

Every difference is noise then. Results must not differ at all; of times, the campaign's rules are measured on noise:
their rate of false promotions, and their minimum detectable effect. The findings hold for the lane of the run.
"""

from __future__ import annotations

import pytest

from pytest_laguna.analysis.aa.noise import judge_null, warnings
from pytest_laguna.fixtures import Prove
from pytest_laguna.run.rehearsal import OWN_REHEARSAL, Rehearsal
from pytest_laguna.verdict import raise_verdict


@pytest.mark.gate(1)
@pytest.mark.clause("null-exact")
def test_control_against_control_differs_in_nothing(prove: Prove, rehearsal: Rehearsal) -> None:
    """Every rule of exactness holds with a control in the candidate's slot."""
    if rehearsal.lane == "cpu":
        prove(OWN_REHEARSAL)
        return
    proven = rehearsal.gates(null=True)
    prove("with a control in the candidate's slot every rule of exactness holds", **proven)


@pytest.mark.gate(1)
@pytest.mark.clause("null-timing")
def test_the_timing_rules_are_measured_on_noise(prove: Prove, rehearsal: Rehearsal) -> None:
    """Their false promotions with interval and number, and their minimum detectable effect."""
    if rehearsal.lane == "cpu":
        prove(OWN_REHEARSAL)
        return
    rehearsal.null_starts()
    analysis = rehearsal.analyse_null()
    finding = judge_null(analysis)
    if finding is not None:
        raise_verdict(*finding)
    told = warnings(analysis)
    prove(
        "; ".join(["the timing rules' false promotions were measured on controls alone", *told]),
        analysis=analysis.canonical(),
        warnings=[*told],
    )
