# SPDX-License-Identifier: Apache-2.0
"""Identity of the card that this process computes on, in its lease's terms, but asked of the process itself."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

from pytest_laguna.evidence.machine.card_masks import MASK
from pytest_laguna.evidence.values import Lane

_FDINFO = Path("/proc/self/fdinfo")
_ADDRESS = re.compile(r"^drm-pdev:\s+(\S+)$", re.MULTILINE)
_MEMORY = re.compile(r"^drm-(?:total|resident)-vram\d*:\s+([1-9]\d*)\b", re.MULTILINE)


def visible_cards(lane: Lane) -> int:
    """Number of accelerators that torch counts; on the cpu lane, of slots that the process holds."""
    if lane == "cpu":
        return len(_slots())
    return torch.accelerator.device_count()


def require_one_card(lane: Lane) -> None:
    """Refuse a choice of cards: raise RuntimeError unless the process sees exactly one."""
    visible = visible_cards(lane)
    if visible != 1:
        message = f"{lane}: seen {visible} cards in this process; expected one; start it under the lease of one card"
        raise RuntimeError(message)


def card_identity(lane: Lane) -> str:
    """The one card that this process computes on, as its lease names it: slot, UUID or PCI address.

    Call it after the process has allocated memory on the card.

    Raises:
        RuntimeError: it computes on several cards, or on none.
    """
    found = _IDENTITIES[lane]()
    if len(found) != 1:
        message = f"{lane}: seen memory of cards {found} in this process; expected one; see what else it computes on"
        raise RuntimeError(message)
    return found[0]


def _slots() -> list[str]:
    return [f"cpu-slot-{slot}" for slot in os.environ.get(MASK["cpu"], "").split(",") if slot]


def _cuda_uuids() -> list[str]:
    """UUIDs in NVML's form, as a lease has them."""
    count = torch.accelerator.device_count()
    return [f"GPU-{torch.cuda.get_device_properties(index).uuid}" for index in range(count)]


def drm_addresses(fdinfo: Path = _FDINFO) -> list[str]:
    """PCI addresses of the cards whose own memory this process uses, from the kernel's driver.

    Level Zero opens every card of the host, masked or not, so an open file alone proves nothing.

    Args:
        fdinfo: directory that describes a process's open files. Source: Linux, "DRM client usage stats".
    """
    texts = [_text(entry) for entry in fdinfo.iterdir()]
    return sorted({address for text in texts if _MEMORY.search(text) for address in _ADDRESS.findall(text)})


def _text(entry: Path) -> str:
    try:
        return entry.read_text(errors="replace")
    except FileNotFoundError:  # the descriptor of the listing itself
        return ""


_IDENTITIES = {"cpu": _slots, "cuda": _cuda_uuids, "xpu": drm_addresses}
