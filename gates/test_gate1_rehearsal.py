# SPDX-License-Identifier: Apache-2.0
"""Gate 1 of a device campaign: its gates 2 and 3, rehearsed on the cpu lane.

Each runs in a session of its own, with leases, supervision, analysis and receipt, in a sealed root below this attempt.
On the cpu lane nothing runs twice: the campaign's own gates 2 and 3 are the rehearsal.
"""

from __future__ import annotations

import pytest

from pytest_laguna.evidence.aa import rehearsal as places
from pytest_laguna.evidence.files import read_canonical_json
from pytest_laguna.fixtures import Prove
from pytest_laguna.run.rehearsal import OWN_REHEARSAL, Rehearsal


@pytest.mark.gate(1)
@pytest.mark.clause("rehearsal")
def test_the_campaigns_gates_pass_on_the_cpu_lane(prove: Prove, rehearsal: Rehearsal) -> None:
    """From emitter to receipt, with the campaign's own treatment, arms, rules and clauses."""
    if rehearsal.lane == "cpu":
        prove(OWN_REHEARSAL)
        return
    proven = rehearsal.gates(null=False)
    shortened = read_canonical_json(rehearsal.evidence / places.DIRECTORY / places.SHORTENED)
    prove("every gate of the campaign passes on the cpu lane, from emitter to receipt", **proven, shortened=shortened)
