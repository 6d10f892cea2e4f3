# SPDX-License-Identifier: Apache-2.0
"""The variables that show a process some cards and no others: who leases sets them, and the analysis expects them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from pytest_laguna.evidence.values import Lane

MASK: Mapping[Lane, str] = {
    "cpu": "LAGUNA_CPU_CARDS",
    "cuda": "CUDA_VISIBLE_DEVICES",
    "xpu": "ZE_AFFINITY_MASK",
}
"""What names the cards."""

ORDER: Mapping[Lane, tuple[str, str]] = {
    "cuda": ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
    "xpu": ("ZE_ENABLE_PCI_ID_DEVICE_ORDER", "1"),
}
"""What makes the mask count in PCI order, as the management tools do."""


class Named(Protocol):
    """A card, as it is found or as it is recorded."""

    @property
    def ordinal(self) -> int:
        """Its number as the management tool counts."""

    @property
    def identity(self) -> str:
        """PCI address, UUID or slot."""


def showing(lane: Lane, cards: Iterable[Named]) -> dict[str, str]:
    """The mask of these cards, and what fixes the order in which it counts.

    CUDA takes whole UUIDs, where a number or a prefix may be another card; Level Zero takes numbers and nothing else.
    """
    named = (card.identity if lane == "cuda" else str(card.ordinal) for card in cards)
    return dict([(MASK[lane], ",".join(named)), *([ORDER[lane]] if lane in ORDER else [])])
