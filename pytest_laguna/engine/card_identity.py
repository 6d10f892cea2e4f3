# SPDX-License-Identifier: Apache-2.0
"""Which card this process computes on, in the words of its lease: asked of the process and not of the lease."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

from pytest_laguna.evidence.card_masks import MASK
from pytest_laguna.evidence.values import Lane

_FDINFO = Path("/proc/self/fdinfo")
_ADDRESS = re.compile(r"^drm-pdev:\s+(\S+)$", re.MULTILINE)
_MEMORY = re.compile(r"^drm-(?:total|resident)-vram\d*:\s+([1-9]\d*)\b", re.MULTILINE)


def visible_cards(lane: Lane) -> int:
    """How many accelerators torch counts; on the cpu lane, how many slots the process holds."""
    if lane == "cpu":
        return len(_slots())
    return torch.accelerator.device_count()


def require_one_card(lane: Lane) -> None:
    """Refuse to run where there is a choice of cards.

    Raises:
        RuntimeError: the process sees more than one card, or none.
    """
    visible = visible_cards(lane)
    if visible != 1:
        message = f"{lane}: this process sees {visible} cards; expected one; start it under the lease of one card"
        raise RuntimeError(message)


def card_identity(lane: Lane) -> str:
    """The one card that this process computes on, as its lease names it: slot, UUID or PCI address.

    To be called after memory of the card has been taken.

    Raises:
        RuntimeError: there is more than one, or none.
    """
    found = _IDENTITIES[lane]()
    if len(found) != 1:
        message = f"{lane}: this process has memory of the cards {found}; expected one; see what else it computes on"
        raise RuntimeError(message)
    return found[0]


def _slots() -> list[str]:
    return [f"cpu-slot-{slot}" for slot in os.environ.get(MASK["cpu"], "").split(",") if slot]


def _cuda_uuids() -> list[str]:
    """As NVML writes them, which the lease's identities are from."""
    count = torch.accelerator.device_count()
    return [f"GPU-{torch.cuda.get_device_properties(index).uuid}" for index in range(count)]


def drm_addresses(fdinfo: Path = _FDINFO) -> list[str]:
    """PCI addresses of the cards in whose own memory this process has something, by the kernel's driver.

    Level Zero opens every card of the host, mask or none, so that an open file alone says nothing.

    Args:
        fdinfo: where the kernel describes a process's open files. Source: Linux, "DRM client usage stats".
    """
    texts = [_text(entry) for entry in fdinfo.iterdir()]
    return sorted({address for text in texts if _MEMORY.search(text) for address in _ADDRESS.findall(text)})


def _text(entry: Path) -> str:
    try:
        return entry.read_text(errors="replace")
    except FileNotFoundError:  # the one by which the directory itself was listed
        return ""


_IDENTITIES = {"cpu": _slots, "cuda": _cuda_uuids, "xpu": drm_addresses}
