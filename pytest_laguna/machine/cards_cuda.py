# SPDX-License-Identifier: Apache-2.0
"""NVIDIA cards through the management library NVML, without a CUDA context; identity is the UUID."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from pytest_laguna.evidence.machine.card_masks import MASK, ORDER
from pytest_laguna.evidence.machine.idle import CardState, SeenProcess
from pytest_laguna.evidence.values import Lane
from pytest_laguna.machine import process_table
from pytest_laguna.machine.cards import Card, Observation, find
from pytest_laguna.machine.errors import CardError

MASK_VARIABLE = MASK["cuda"]
ORDER_VARIABLE, PCI_ORDER = ORDER["cuda"]


class CudaCards:
    """Every NVIDIA card of the driver, in NVML's order by PCI address."""

    lane: ClassVar[Lane] = "cuda"

    def discover(self) -> tuple[Card, ...]:
        """Return the cards by NVML index; a card split into MIG instances is refused: a lease is a whole card."""
        with _library() as nvml:
            return tuple(_card(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))

    def observe(self, cards: Sequence[Card], token: str | None) -> Observation:
        """Read compute and graphics processes, memory and utilisation from NVML."""
        with _library() as nvml:
            of_lease = process_table.bearers(token)
            return Observation(tuple(_state(nvml, card, of_lease) for card in cards), None)

    def inherited(self, cards: Sequence[Card], environment: Mapping[str, str]) -> tuple[Card, ...]:
        """Return the cards left by ``CUDA_VISIBLE_DEVICES``; as in CUDA, entries after a -1 do not count.

        A number counts like NVML only when CUDA is told to order by PCI address (its default is by speed).
        """
        if MASK_VARIABLE not in environment:
            return tuple(cards)
        left: list[Card] = []
        for entry in filter(None, environment[MASK_VARIABLE].split(",")):
            if entry == "-1":
                break
            if entry.isdigit() and len(cards) > 1 and environment.get(ORDER_VARIABLE) != PCI_ORDER:
                found = f"{MASK_VARIABLE}: seen number {entry}, counted in CUDA's own order, by speed; expected UUIDs"
                raise CardError(
                    found, f"export it with UUIDs of nvidia-smi -L, or {ORDER_VARIABLE}={PCI_ORDER} if it counts so"
                )
            left.append(find(cards, entry, MASK_VARIABLE))
        return tuple(left)


@contextlib.contextmanager
def _library() -> Iterator[Any]:
    """Yield NVML, initialised, and shut it down; its errors become a CardError."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError as error:
        found = f"cuda: seen {error}; expected the package nvidia-ml-py"
        raise CardError(found, f"{sys.executable} -m pip install nvidia-ml-py") from error
    try:
        nvml.nvmlInit()
        try:
            yield nvml
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        found = f"cuda: seen {error}; expected NVIDIA's driver to answer"
        raise CardError(found, "install or load it until nvidia-smi -L lists the cards") from error


def _card(nvml: Any, index: int) -> Card:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    card = Card(
        "cuda",
        index,
        _text(nvml.nvmlDeviceGetUUID(handle)),
        _text(nvml.nvmlDeviceGetName(handle)),
        nvml.nvmlDeviceGetMemoryInfo(handle).total,
    )
    if _split(nvml, handle):
        found = f"cuda: seen card {card} split into MIG instances; expected whole cards"
        raise CardError(found, f"nvidia-smi -i {index} -mig 0")
    return card


def _split(nvml: Any, handle: Any) -> bool:
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError_NotSupported:
        return False
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _state(nvml: Any, card: Card, of_lease: frozenset[int]) -> CardState:
    handle = nvml.nvmlDeviceGetHandleByUUID(card.identity)
    return CardState(
        identity=card.identity,
        ordinal=card.ordinal,
        memory_used_bytes=_supported(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used),
        utilisation_percent=_supported(nvml, lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
        holders=_holders(nvml, handle, of_lease),
    )


def _supported(nvml: Any, read: Any) -> Any:
    """Return a reading, or None if the card lacks it; a driver that does not answer is an error."""
    try:
        return read()
    except nvml.NVMLError_NotSupported:
        return None


def _holders(nvml: Any, handle: Any, of_lease: frozenset[int]) -> list[SeenProcess]:
    running = [*nvml.nvmlDeviceGetComputeRunningProcesses(handle), *nvml.nvmlDeviceGetGraphicsRunningProcesses(handle)]
    return [process_table.see(pid, "nvml", of_lease) for pid in sorted({process.pid for process in running})]


def _text(value: str | bytes) -> str:
    """Older releases of the library return bytes."""
    return value.decode() if isinstance(value, bytes) else value
