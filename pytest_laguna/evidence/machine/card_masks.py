# SPDX-License-Identifier: Apache-2.0
"""Variables for the visible cards of a process: the lease sets them, and the analysis expects them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from pytest_laguna.evidence.values import Lane

MASK: Mapping[Lane, str] = {"cpu": "LAGUNA_CPU_CARDS", "cuda": "CUDA_VISIBLE_DEVICES", "xpu": "ZE_AFFINITY_MASK"}
"""Variable with the visible cards."""

ORDER: Mapping[Lane, tuple[str, str]] = {
    "cuda": ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
    "xpu": ("ZE_ENABLE_PCI_ID_DEVICE_ORDER", "1"),
}
"""Variable and value for PCI order in the mask, the order of the management tools."""


class Named(Protocol):
    """A card with its number and identity."""

    @property
    def ordinal(self) -> int:
        """Number of the card in the management tool."""

    @property
    def identity(self) -> str:
        """PCI address, UUID or slot."""


def showing(lane: Lane, cards: Iterable[Named]) -> dict[str, str]:
    """Return the mask of these cards, and the variable of its order.

    CUDA takes whole UUIDs, because a number or a prefix may be another card; Level Zero takes nothing but numbers.
    """
    named = (card.identity if lane == "cuda" else str(card.ordinal) for card in cards)
    return dict([(MASK[lane], ",".join(named)), *([ORDER[lane]] if lane in ORDER else [])])
