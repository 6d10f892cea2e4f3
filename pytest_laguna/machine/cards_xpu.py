# SPDX-License-Identifier: Apache-2.0
"""Intel cards through xpu-smi, checked against the kernel's own view; identity is the PCI address.

xpu-smi runs as a short child without this process's mask, so that it counts every device; the child opens the devices,
this process never does. The second source is sysfs (present cards) and DRM fdinfo (holders).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

import pydantic

from pytest_laguna.evidence.foreign_json import parse_foreign_json
from pytest_laguna.evidence.machine.card_masks import MASK, ORDER
from pytest_laguna.evidence.machine.idle import CardState, Observer, SeenProcess
from pytest_laguna.evidence.machine.xpu_smi import read_processes
from pytest_laguna.evidence.schemas import first_defect
from pytest_laguna.evidence.values import Lane
from pytest_laguna.machine import process_table, xpu_smi
from pytest_laguna.machine.cards import Card, Observation, find
from pytest_laguna.machine.errors import CardError
from pytest_laguna.verdict import JSON

MASK_VARIABLE = MASK["xpu"]
ORDER_VARIABLE, PCI_ORDER = ORDER["xpu"]
SELECTOR_VARIABLE = "ONEAPI_DEVICE_SELECTOR"

_EVERY_CARD = ("level_zero:gpu", "level_zero:*")
"""Allowed values of SYCL's selector: with the mask, a second filter would count devices in two ways."""

_INTEL = "0x8086"
_DISPLAY_CLASS = "0x03"
_MEBIBYTE = 1024 * 1024


class _Device(pydantic.BaseModel):
    """Used fields of an entry of ``xpu-smi discovery -j``; the tool's releases differ in the others."""

    model_config = pydantic.ConfigDict(strict=True)

    device_id: pydantic.NonNegativeInt
    device_name: str
    device_function_type: str
    pci_bdf_address: str


class _Devices(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    device_list: list[_Device]


class _Properties(pydantic.BaseModel):
    """Used fields of ``xpu-smi discovery -d N -j``; some releases print the number as text."""

    memory_physical_size_byte: pydantic.PositiveInt


class _Metric(pydantic.BaseModel):
    metrics_type: str
    value: float


class _Tile(pydantic.BaseModel):
    data_list: list[_Metric]


class _Statistics(pydantic.BaseModel):
    """Used fields of ``xpu-smi stats -d N -j``."""

    device_level: list[_Metric]
    tile_level: list[_Tile] = []


@dataclasses.dataclass(frozen=True, slots=True)
class XpuCards:
    """Every physical Intel card that xpu-smi and the kernel agree on."""

    program: Path = xpu_smi.PROGRAM_PATH
    sys: Path = Path("/sys")
    proc: Path = process_table.PROC
    lane: ClassVar[Lane] = "xpu"

    def discover(self) -> tuple[Card, ...]:
        """Return the cards by xpu-smi's number, which must rise with the PCI address, Level Zero's order."""
        listed = _read(_Devices, self._ask("discovery", "-j"), "xpu-smi discovery -j").device_list
        devices = sorted(
            (device for device in listed if device.device_function_type == "physical"),
            key=lambda device: device.device_id,
        )
        addresses = [device.pci_bdf_address.casefold() for device in devices]
        present = kernel_cards(self.sys)
        if addresses != present or [device.device_id for device in devices] != list(range(len(devices))):
            numbered = {device.device_id: device.pci_bdf_address for device in devices}
            found = f"xpu: seen {numbered} in xpu-smi; expected 0, 1, ... in the order of the kernel's cards {present}"
            raise CardError(found, f"compare xpu-smi discovery with {self.sys}/class/drm")
        return tuple(
            Card("xpu", device.device_id, address, device.device_name, self._memory(device.device_id))
            for device, address in zip(devices, addresses, strict=True)
        )

    def _memory(self, number: int) -> int:
        command = ("discovery", "-d", str(number), "-j")
        return _read(_Properties, self._ask(*command), f"xpu-smi {' '.join(command)}").memory_physical_size_byte

    def _ask(self, *words: str) -> str:
        return xpu_smi.run(self.program, words).output

    def observe(self, cards: Sequence[Card], token: str | None) -> Observation:
        """Run ``xpu-smi ps`` once for all cards, then its statistics and a search of fdinfo for each."""
        done = xpu_smi.run(self.program, ("ps", "-j"))
        observer = Observer(
            command=list(done.command),
            executable=done.executable,
            executable_sha256=done.executable_sha256,
            pid=done.pid,
            devices=list(range(len(kernel_cards(self.sys)))),
            output=done.output,
        )
        rows = [row for row in read_processes(done.output) if row.process_id != done.pid]
        shown = dict.fromkeys((row.device_id, row.process_id) for row in rows)
        opened = set(clients(self.proc))
        of_lease = process_table.bearers(token)
        states = []
        for card in cards:
            by_tool = {pid: "xpu-smi" for number, pid in shown if number == card.ordinal}
            by_kernel = {pid: "fdinfo" for address, pid in opened if address == card.identity}
            holders = [process_table.see(pid, by, of_lease) for pid, by in (by_kernel | by_tool).items()]
            states.append(self._state(card, holders))
        return Observation(tuple(states), observer)

    def _state(self, card: Card, holders: list[SeenProcess]) -> CardState:
        command = ("stats", "-d", str(card.ordinal), "-j")
        statistics = _read(_Statistics, self._ask(*command), f"xpu-smi {' '.join(command)}")
        used = _metric(statistics, "XPUM_STATS_MEMORY_USED")
        return CardState(
            identity=card.identity,
            ordinal=card.ordinal,
            memory_used_bytes=None if used is None else round(used * _MEBIBYTE),
            utilisation_percent=_metric(statistics, "XPUM_STATS_GPU_UTILIZATION"),
            holders=sorted(holders, key=lambda holder: holder.pid),
        )

    def inherited(self, cards: Sequence[Card], environment: Mapping[str, str]) -> tuple[Card, ...]:
        """Return the cards left by ``ZE_AFFINITY_MASK``; a mask of tiles (``0.1``) is refused: a lease is a whole card.

        A mask that leaves cards out counts like xpu-smi only when Level Zero is told to order by PCI address.
        """
        selector = environment.get(SELECTOR_VARIABLE, _EVERY_CARD[0])
        if selector not in _EVERY_CARD:
            found = f"{SELECTOR_VARIABLE}: seen {selector}; expected one of {_EVERY_CARD}"
            raise CardError(found, f"unset {SELECTOR_VARIABLE} and use {MASK_VARIABLE}")
        if MASK_VARIABLE not in environment:
            return tuple(cards)
        entries = [entry for entry in environment[MASK_VARIABLE].split(",") if entry]
        for entry in entries:
            if not entry.isdigit():
                found = f"{MASK_VARIABLE}: seen {entry}; expected the number of a card"
                raise CardError(found, "export it with numbers of whole cards")
        left = tuple(find(cards, entry, MASK_VARIABLE) for entry in entries)
        if left and set(left) != set(cards) and environment.get(ORDER_VARIABLE) != PCI_ORDER:
            seen = f"{','.join(entries)}, which leaves cards out and counts in Level Zero's own order"
            found = f"{MASK_VARIABLE}: seen {seen}; expected {ORDER_VARIABLE}={PCI_ORDER}"
            raise CardError(
                found, f"export {ORDER_VARIABLE}={PCI_ORDER} if it counts as xpu-smi does, or unset it and use --cards"
            )
        return left


def kernel_cards(sys: Path) -> list[str]:
    """PCI addresses of Intel's display devices with a driver, rising."""
    found = set()
    for entry in (sys / "class" / "drm").glob("card*"):
        if not re.fullmatch(r"card\d+", entry.name):
            continue
        device = (entry / "device").resolve()
        if _line(device / "vendor") == _INTEL and _line(device / "class").startswith(_DISPLAY_CLASS):
            found.add(device.name.casefold())
    return sorted(found, key=lambda address: [int(part, 16) for part in re.split("[:.]", address)])


def clients(proc: Path) -> Iterator[tuple[str, int]]:
    """Yield PCI address and pid of every process with an open DRM device, as far as this user may see."""
    for process in proc.glob("[0-9]*"):
        try:
            entries = list((process / "fdinfo").iterdir())
        except OSError:
            continue
        for entry in entries:
            found = re.search(r"^drm-pdev:\s*(\S+)$", _text(entry), re.MULTILINE)
            if found:
                yield found[1].casefold(), int(process.name)


def _metric(statistics: _Statistics, name: str) -> float | None:
    """Return the device's value or the sum over its tiles; None if none, doubled or negative."""
    levels = [statistics.device_level, *(tile.data_list for tile in statistics.tile_level)]
    device, *tiles = [[metric.value for metric in level if metric.metrics_type == name] for level in levels]
    values = [device] if device else tiles
    if not values or any(len(value) != 1 or value[0] < 0 for value in values):
        return None
    return sum(value[0] for value in values)


_Model = TypeVar("_Model", bound=pydantic.BaseModel)


def _read(model: type[_Model], output: str, name: str) -> _Model:
    value: JSON = parse_foreign_json(output, name)
    try:
        return model.model_validate(value)
    except pydantic.ValidationError as error:
        raise CardError(f"xpu: {name}: {first_defect(error)}", "run it by hand and compare") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _line(path: Path) -> str:
    return _text(path).strip()
