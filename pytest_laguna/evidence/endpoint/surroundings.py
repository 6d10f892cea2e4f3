# SPDX-License-Identifier: Apache-2.0
"""Snapshots of the cards and of the host around one leg."""

from __future__ import annotations

import dataclasses

from pytest_laguna.evidence.machine.host import HostAudit
from pytest_laguna.evidence.machine.idle import IdleRecord
from pytest_laguna.evidence.reading import Missing


@dataclasses.dataclass(frozen=True, slots=True)
class LegSurroundings:
    """Records around one leg.

    Attributes:
        served: True if its server was to be started.
        before: snapshots of the cards, as in ``after``.
        span: of its begin and its end, by its record; None without one.
    """

    name: str
    served: bool
    before: IdleRecord | Missing
    after: IdleRecord | Missing
    host: HostAudit | Missing
    span: tuple[str, str] | None
