# SPDX-License-Identifier: Apache-2.0
"""Evidence of the event profile campaign, in memory; a piece that is absent says why."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from pytest_laguna.evidence.arms_evidence import ArmsEvidence
from pytest_laguna.evidence.event_analysis import EventClosure
from pytest_laguna.evidence.event_profile import EventFitness, EventProfile
from pytest_laguna.evidence.event_sparse import SparseProfile
from pytest_laguna.evidence.reading import Missing


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EventEvidence(ArmsEvidence):
    """Content of the event profile's directory.

    Attributes:
        profiles: of the arm with the event profile, by file name.
        fitness: of the arm that tries the instrument, by file name.
        sparse: of the arm with a few events in many replays, by file name.
        closure: binds the files.
        digests: present SHA-256 of the files that the closure must bind.
    """

    profiles: Mapping[str, EventProfile | Missing]
    fitness: Mapping[str, EventFitness | Missing]
    sparse: Mapping[str, SparseProfile | Missing]
    closure: EventClosure | Missing
    digests: Mapping[str, str]
