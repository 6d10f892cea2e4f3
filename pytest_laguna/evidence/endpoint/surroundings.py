# SPDX-License-Identifier: Apache-2.0
"""What was seen of the cards and of the host around one leg."""

from __future__ import annotations

import dataclasses

from pytest_laguna.evidence.machine.host import HostAudit
from pytest_laguna.evidence.machine.idle import IdleRecord
from pytest_laguna.evidence.reading import Missing


@dataclasses.dataclass(frozen=True, slots=True)
class LegSurroundings:
    """What lies around one leg's record.

    Attributes:
        name: of its directory.
        served: whether a server was to be started.
        before: the looks at the cards before it.
        after: those after it.
        host: the host before and after its server.
        span: when it began and when it had ended, by its record; None without one.
    """

    name: str
    served: bool
    before: IdleRecord | Missing
    after: IdleRecord | Missing
    host: HostAudit | Missing
    span: tuple[str, str] | None
