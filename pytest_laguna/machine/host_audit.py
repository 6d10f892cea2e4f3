# SPDX-License-Identifier: Apache-2.0
"""Reads the host's state from the kernel's files; a sensor that a host lacks is absent and never made up."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_laguna.evidence.machine.host import HostAudit, HostState, KernelLog, difference
from pytest_laguna.evidence.machine.idle import utc_now
from pytest_laguna.machine.cards import Card, CardSource

_MILLI = 1000
_KIBIBYTE = 1024
_KMSG_BYTES = 8192
"""The kernel refuses a smaller buffer for a line (Documentation/ABI/testing/dev-kmsg)."""


@dataclasses.dataclass(frozen=True, slots=True)
class HostFiles:
    """Places of the kernel's files."""

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    kmsg: Path = Path("/dev/kmsg")


def take_state(
    source: CardSource,
    cards: Sequence[Card],
    token: str,
    *,
    before: HostState | None = None,
    where: HostFiles | None = None,
) -> HostState:
    """Return the host's present state; the kernel's log is read from the state ``before`` on.

    Raises:
        CardError: the cards cannot be observed.
        OSError: memory or load cannot be read.
    """
    there = where or HostFiles()
    load = (there.proc / "loadavg").read_text(encoding="ascii").split()
    return HostState(
        utc=utc_now(),
        boot_id=(there.proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
        temperatures_celsius=dict(_temperatures(there.sys)),
        throttle_counts=dict(_throttle_counts(there.sys)),
        kernel_log=read_kernel_log(there.kmsg, None if before is None else before.kernel_log),
        memory_available_bytes=_available_memory(there.proc),
        load=(float(load[0]), float(load[1]), float(load[2])),
        cards=list(source.observe(cards, token).states),
    )


def audit(before: HostState, after: HostState) -> HostAudit:
    """Return both states with their difference."""
    return HostAudit(before=before, after=after, difference=difference(before, after))


def read_kernel_log(device: Path, before: KernelLog | None) -> KernelLog:
    """Read the kernel's log, which may need a privilege, from an earlier reading on; without one, only its position."""
    try:
        descriptor = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return _absent(f"{device}: {error.strerror}")
    try:
        entries = list(_entries(descriptor))
    except OSError as error:
        return _absent(f"{device}: {error.strerror}")
    finally:
        os.close(descriptor)
    numbers = [number for number, _ in entries]
    last = max(numbers, default=None)
    if before is None or before.state == "absent":
        return KernelLog(state="read", reason="", last=last, complete=before is None, lines=[])
    since = -1 if before.last is None else before.last
    lines = [line for number, line in entries if number > since]
    complete = since < 0 or (since in numbers and _without_gap(since, numbers))
    return KernelLog(state="read", reason="", last=last, complete=complete, lines=lines)


def _without_gap(since: int, numbers: Sequence[int]) -> bool:
    newer = sorted(number for number in numbers if number >= since)
    return newer == list(range(since, since + len(newer)))


def _absent(reason: str) -> KernelLog:
    return KernelLog(state="absent", reason=reason, last=None, complete=False, lines=[])


def _entries(descriptor: int) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line that the kernel still has; each read gives one."""
    while True:
        try:
            content = os.read(descriptor, _KMSG_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EPIPE:  # the line was overwritten while we read: go on with the next
                raise
            continue
        if not content:
            return
        head, _, text = content.decode(errors="replace").partition(";")
        yield int(head.split(",")[1]), text.partition("\n")[0]


def _temperatures(sys: Path) -> Iterator[tuple[str, float]]:
    for zone in sorted((sys / "class/thermal").glob("thermal_zone*")):
        yield from _degrees(f"{zone.name} {_text(zone / 'type')}", zone / "temp")
    for sensor in sorted((sys / "class/hwmon").glob("hwmon*/temp*_input")):
        label = _text(sensor.with_name(sensor.name.replace("_input", "_label"))) or sensor.name.removesuffix("_input")
        yield from _degrees(f"{sensor.parent.name} {_text(sensor.parent / 'name')} {label}", sensor)


def _degrees(name: str, path: Path) -> Iterator[tuple[str, float]]:
    value = _text(path)
    if re.fullmatch(r"-?\d+", value):
        yield name, int(value) / _MILLI


def _throttle_counts(sys: Path) -> Iterator[tuple[str, int]]:
    for counter in sorted((sys / "devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/*_throttle_count")):
        value = _text(counter)
        if value.isdigit():
            yield f"{counter.parent.parent.name} {counter.name}", int(value)


def _available_memory(proc: Path) -> int:
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", (proc / "meminfo").read_text(encoding="ascii"), re.MULTILINE)
    if found is None:
        raise OSError(errno.ENODATA, f"{proc / 'meminfo'}: seen no line MemAvailable; expected one")
    return int(found[1]) * _KIBIBYTE


def _text(path: Path) -> str:
    """Return a small kernel file; empty if the host has none or the sensor does not answer."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
