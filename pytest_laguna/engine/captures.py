# SPDX-License-Identifier: Apache-2.0
"""Captured graphs of a rank, in the form of the evidence."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

from pytest_laguna.evidence.arms.arm_record import CapturedGraph

from .compat import introspection


def captured_graphs(worker: Any) -> list[CapturedGraph]:
    """Every capture in a worker's process, the target's first."""
    return [_described(capture) for capture in introspection.captures(worker)]


def _described(capture: introspection.Capture) -> CapturedGraph:
    kinds = [introspection.segment_kind(segment) for segment in capture.segments]
    counted = Counter(kinds)
    return CapturedGraph(
        model=capture.model,
        descriptor=capture.descriptor,
        graphs=counted["graph"],
        breaks=len(kinds) - counted["graph"],
        kinds={str(kind): count for kind, count in counted.items()},
        order_sha256=hashlib.sha256(",".join(kinds).encode()).hexdigest(),
    )
