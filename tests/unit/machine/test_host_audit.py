# SPDX-License-Identifier: Apache-2.0
"""The state of this real host, of a host made of files, and the kernel's log line by line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_laguna.analysis.machine.host import judge_host
from pytest_laguna.evidence.machine.host import HostAudit, HostLimits, KernelLog
from pytest_laguna.evidence.schemas import parse_model
from pytest_laguna.machine import host_audit
from pytest_laguna.machine.cards_cpu import MASK_VARIABLE, CpuCards
from pytest_laguna.machine.host_audit import HostFiles
from pytest_laguna.verdict import Verdict
from tests.unit.machine.fakes import sleeper

TOKEN = "c3" * 16
SLOTS = CpuCards(31)
CARDS = SLOTS.discover()[30:]  # slots belong to the whole host: other tests use others
ONLY_HOLDERS = HostLimits(
    temperature_celsius=None,
    throttle_events=None,
    kernel_patterns=None,
    memory_available_bytes=1,
    load=1e9,
    foreign_holders=False,
)


def test_this_host_is_recorded_and_judged() -> None:
    before = host_audit.take_state(SLOTS, CARDS, TOKEN)
    with sleeper(**{MASK_VARIABLE: "30"}, LAGUNA_LEASE=TOKEN):
        during = host_audit.take_state(SLOTS, CARDS, TOKEN, before=before)
    with sleeper(**{MASK_VARIABLE: "30"}) as child:
        disturbed = host_audit.take_state(SLOTS, CARDS, TOKEN, before=before)
    audit = host_audit.audit(before, during)
    assert parse_model(audit.canonical(), HostAudit, "host.json") == audit
    assert judge_host(audit, ONLY_HOLDERS)[0] is Verdict.PASS
    assert 0 < before.memory_available_bytes <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    verdict, reason = judge_host(host_audit.audit(before, disturbed), ONLY_HOLDERS)
    assert verdict is Verdict.VOID
    assert reason.startswith(f"no-foreign-holder: card {CARDS[0].identity}: seen held by process {child.pid} ")


@pytest.fixture
def where(tmp_path: Path) -> HostFiles:
    """A host with two thermal zones, a card's sensors and two cores that count their throttling."""
    contents = {
        "sys/class/thermal/thermal_zone0/type": "x86_pkg_temp\n",
        "sys/class/thermal/thermal_zone0/temp": "61500\n",
        "sys/class/thermal/thermal_zone1/type": "acpitz\n",
        "sys/class/thermal/thermal_zone1/temp": "-5000\n",
        "sys/class/thermal/cooling_device0/type": "Processor\n",
        "sys/class/hwmon/hwmon3/name": "xe\n",
        "sys/class/hwmon/hwmon3/temp2_input": "48000\n",
        "sys/class/hwmon/hwmon3/temp2_label": "pkg\n",
        "sys/class/hwmon/hwmon3/temp3_input": "50000\n",
        "sys/class/hwmon/hwmon3/temp4_input": "",
        "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "7\n",
        "sys/devices/system/cpu/cpu1/thermal_throttle/package_throttle_count": "0\n",
        "sys/devices/system/cpu/cpufreq/thermal_throttle/core_throttle_count": "9\n",
        "proc/loadavg": "1.25 0.50 0.10 2/300 4242\n",
        "proc/meminfo": "MemTotal:       1000 kB\nMemAvailable:    640 kB\n",
        "proc/sys/kernel/random/boot_id": "b7f1\n",
    }
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    return HostFiles(tmp_path / "sys", tmp_path / "proc", tmp_path / "kmsg")


def test_sensors_and_counters_are_read_and_what_is_not_there_is_absent(where: HostFiles) -> None:
    state = host_audit.take_state(SLOTS, CARDS, TOKEN, where=where)
    assert state.temperatures_celsius == {
        "thermal_zone0 x86_pkg_temp": 61.5,
        "thermal_zone1 acpitz": -5.0,
        "hwmon3 xe pkg": 48.0,
        "hwmon3 xe temp3": 50.0,
    }
    assert state.throttle_counts == {"cpu0 core_throttle_count": 7, "cpu1 package_throttle_count": 0}
    assert (state.load, state.memory_available_bytes, state.boot_id) == ((1.25, 0.5, 0.1), 640 * 1024, "b7f1")
    assert (state.kernel_log.state, state.kernel_log.complete) == ("absent", False)
    assert state.kernel_log.reason.endswith("kmsg: No such file or directory")


def test_a_host_without_sensors_is_recorded_without_them(tmp_path: Path, where: HostFiles) -> None:
    bare = HostFiles(tmp_path / "nothing", where.proc, where.kmsg)
    state = host_audit.take_state(SLOTS, CARDS, TOKEN, where=bare)
    assert (state.temperatures_celsius, state.throttle_counts) == ({}, {})


def test_a_host_without_memory_figures_is_an_error(where: HostFiles) -> None:
    (where.proc / "meminfo").write_text("MemTotal: 1000 kB\n")
    with pytest.raises(OSError, match="seen no line MemAvailable; expected one"):
        host_audit.take_state(SLOTS, CARDS, TOKEN, where=where)


# The kernel's log


class Log:
    """A pipe in packet mode: like the kernel's log device, each read gives one line, and then there is none."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)
        self.device = Path(f"/proc/self/fd/{self.reader}")

    def say(self, *numbers: int, text: str = "line") -> None:
        for number in numbers:
            os.write(self.writer, f"6,{number},1234,-;{text} {number}\n SUBSYSTEM=pci\n".encode())

    def read(self, before: KernelLog | None) -> KernelLog:
        return host_audit.read_kernel_log(self.device, before)


@pytest.fixture
def log() -> Iterator[Log]:
    log = Log()
    yield log
    os.close(log.reader)
    os.close(log.writer)


def test_before_an_arm_only_the_place_in_the_log_is_kept(log: Log) -> None:
    log.say(5, 6, 7)
    assert log.read(None) == KernelLog(state="read", reason="", last=7, complete=True, lines=[])


def test_after_an_arm_the_new_lines_are_kept_without_what_belongs_to_them(log: Log) -> None:
    log.say(5, 6, 7)
    before = log.read(None)
    log.say(6, 7)  # still there
    log.say(8, 9, text="xe 0000:03:00.0: GT; reset")
    after = log.read(before)
    assert after.lines == ["xe 0000:03:00.0: GT; reset 8", "xe 0000:03:00.0: GT; reset 9"]
    assert (after.last, after.complete) == (9, True)


@pytest.mark.parametrize("numbers", [(8, 9), (7, 9), (), (1, 2)])
def test_lines_that_were_overwritten_leave_the_log_incomplete(log: Log, numbers: tuple[int, ...]) -> None:
    log.say(7)
    before = log.read(None)
    log.say(*numbers)
    assert log.read(before).complete is False


def test_an_empty_log_that_fills_is_complete(log: Log) -> None:
    before = log.read(None)
    assert (before.last, before.complete) == (None, True)
    log.say(0, 1)
    after = log.read(before)
    assert (after.lines, after.complete) == (["line 0", "line 1"], True)


def test_a_log_that_was_absent_before_is_not_complete_after(log: Log, tmp_path: Path) -> None:
    before = host_audit.read_kernel_log(tmp_path / "none", None)
    log.say(1)
    after = log.read(before)
    assert (after.state, after.complete, after.lines) == ("read", False, [])


def test_a_device_that_cannot_be_read_is_absent(tmp_path: Path) -> None:
    log = host_audit.read_kernel_log(tmp_path, None)
    assert (log.state, log.reason) == ("absent", f"{tmp_path}: Is a directory")
