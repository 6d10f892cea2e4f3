# SPDX-License-Identifier: Apache-2.0
"""Every prerequisite of the xpu lane, on a host made here: each is met, or is the one that is told with its cure."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.campaign import read_campaign
from pytest_laguna.evidence.machine.xpu_stack import STACKS
from pytest_laguna.machine import doctor
from pytest_laguna.machine.cards_xpu import XpuCards
from pytest_laguna.machine.doctor_xpu import LIBRARIES, XpuDoctor, XpuNeeds
from pytest_laguna.machine.xpu_host import XpuHostFiles
from tests.unit.machine.fakes import XpuHost

CAMPAIGN = Path(__file__).parents[3] / "campaigns" / "laguna-persistent-kv-views.toml"
STACK = STACKS[0]
NAME = "Intel(R) Arc(TM) Pro B70 Graphics"
ANSWER: dict[str, Any] = {
    "python": "3.12.9",
    "failed": {},
    "distributions": {"torch": f"{STACK.torch}+xpu", "vllm": f"{STACK.vllm}+xpu", "vllm_xpu_kernels": STACK.kernels},
    "torch": f"{STACK.torch}+xpu",
    "cards": [NAME] * 4,
    "graphs": "XPUGraph",
    "xccl": True,
    "kernels": "/engine/flash_attn_interface.py",
    "vllm": f"{STACK.vllm}+xpu",
    "device": "xpu",
    "candidate": "/engine/_contract.so",
    "harness": "/engine/replay_clock.py",
    "unlisted": [],
}


@dataclasses.dataclass
class Host:
    """A host on which everything is as it should be, and a way to change one thing."""

    doctor: XpuDoctor
    cards: XpuHost
    folder: Path

    def answer(self, **changed: Any) -> None:
        """What the engine's interpreter says."""
        path = self.folder / "python"
        path.write_text(f"#!/bin/sh\necho vLLM says something first\necho '{json.dumps(ANSWER | changed)}'\n")
        path.chmod(0o755)

    def problems(self) -> dict[str, str]:
        """What is not met, by name."""
        return {check.name: f"{check.found}; {check.mend}" for check in self.doctor.look() if check.mend is not None}


@pytest.fixture
def host(tmp_path: Path, xpu_host: XpuHost, xpu: XpuCards, monkeypatch: pytest.MonkeyPatch) -> Host:
    dev, proc, sys = tmp_path / "dev", xpu_host.proc, xpu_host.sys
    for node in range(4):
        (dev / "dri").mkdir(parents=True, exist_ok=True)
        (dev / "dri" / f"renderD{128 + node}").touch()
    (dev / "kmsg").touch()
    (sys / "module" / "xe").mkdir(parents=True)
    (proc / "sys/kernel").mkdir(parents=True)
    (proc / "sys/kernel/osrelease").write_text("6.17.0\n")
    disk = sys / "devices/pci0000:00/0000:09:00.0/nvme/nvme0/nvme0n1"
    disk.mkdir(parents=True)
    (sys / "dev/block").mkdir(parents=True)
    (sys / "dev/block/259:0").symlink_to(disk)
    (proc / "self").mkdir()
    (proc / "self/mountinfo").write_text("30 1 259:0 / / rw - ext4 /dev/nvme0n1 rw\n")
    libraries = tmp_path / "usr/lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    for name in LIBRARIES:
        (libraries / name).touch()
    for model in ("Laguna-S-2.1-INT4", "Laguna-S-2.1-DFlash-INT4"):
        (tmp_path / "models" / model).mkdir(parents=True)
        (tmp_path / "models" / model / "config.json").write_text("{}")
    short = tmp_path / "t"
    short.mkdir()
    monkeypatch.setattr("tempfile.tempdir", "/tmp")  # noqa: S108 - the test's own may be too long for a socket
    needs = XpuNeeds(read_campaign(CAMPAIGN).lanes["xpu"], tmp_path / "sealed", tmp_path, ranks=4)
    files = XpuHostFiles(sys, proc, dev, tmp_path / "status")
    found = Host(XpuDoctor(tmp_path / "python", needs, xpu, files, tmp_path, {"PATH": "/bin"}), xpu_host, tmp_path)
    found.answer()
    return found


def test_a_host_where_everything_is_there_is_ready(host: Host) -> None:
    assert host.problems() == {}
    names = [check.name for check in host.doctor.look()]
    assert len(names) == len(set(names)) == 29


def _remove(path: str) -> Callable[[Host], None]:
    return lambda host: (host.folder / path).unlink()


def _answer(**changed: Any) -> Callable[[Host], None]:
    return lambda host: host.answer(**changed)


def _failed(name: str) -> Callable[[Host], None]:
    reason = "ImportError: libgrouped_gemm_xe_default.so: cannot open shared object file"
    return lambda host: host.answer(**{name: None}, failed={name: reason})


def _driver(host: Host) -> None:
    (host.cards.sys / "module/xe").rmdir()


def _mounted(file_system: str) -> Callable[[Host], None]:
    def change(host: Host) -> None:
        (host.cards.proc / "self/mountinfo").write_text(f"30 1 259:0 / / rw - {file_system} /dev/nvme0n1 rw\n")

    return change


def _environment(**variables: str) -> Callable[[Host], None]:
    def change(host: Host) -> None:
        host.doctor = dataclasses.replace(host.doctor, environ=variables)

    return change


def _needs(**changed: Any) -> Callable[[Host], None]:
    def change(host: Host) -> None:
        host.doctor = dataclasses.replace(host.doctor, needs=dataclasses.replace(host.doctor.needs, **changed))

    return change


def _other_cards(host: Host) -> None:
    settings = host.doctor.needs.settings
    assert settings is not None
    _needs(settings=settings.model_copy(update={"card": "Intel(R) Arc(TM) Pro B60 Graphics"}))(host)


def _held(host: Host) -> None:
    host.cards.say(foreign=[[2, os.getpid()]])


@pytest.mark.parametrize(
    ("change", "name", "told"),
    [
        (_driver, "driver", "seen kernel 6.17.0, driver xe not loaded; expected driver xe; modprobe"),
        (lambda host: host.cards.say(addresses=[]), "cards", "in the order of the kernel's cards"),
        (lambda host: host.cards.program.unlink(), "cards", "expected Intel's XPU manager; apt-get install"),
        (
            _remove("usr/lib/x86_64-linux-gnu/libze_intel_gpu.so.1"),
            "level zero",
            "seen no libze_intel_gpu.so.1; expected",
        ),
        (
            _environment(SYCL_CACHE_DIR="/x", UR_LOG="1"),
            "environment",
            "seen SYCL_CACHE_DIR, UR_LOG; expected no",
        ),
        (_environment(ONEAPI_DEVICE_SELECTOR="level_zero:0"), "cards", "unset ONEAPI_DEVICE_SELECTOR and use ZE_AFF"),
        (
            _environment(ZE_AFFINITY_MASK="0,1", ZE_ENABLE_PCI_ID_DEVICE_ORDER="1"),
            "number of cards",
            "seen 2; expected 4",
        ),
        (_remove("dev/kmsg"), "kernel log", "not readable; expected a readable log; sysctl kernel.dmesg_restrict=0"),
        (_other_cards, "card name", "seen 0 = 0000:03:00.0"),
        (_held, "idle", "held ['0000:83:00.0: "),
        (lambda host: host.cards.say(statistics={"device_level": []}), "idle", "memory unknown of ['0000:03:00.0'"),
        (_answer(python="3.11.7"), "python", "seen 3.11.7; expected 3.12; python3.12 -m venv"),
        (
            _answer(distributions=ANSWER["distributions"] | {"torch": "2.8.0+xpu"}),
            "versions",
            "torch 2.8.0+xpu does not",
        ),
        (_answer(torch="2.14.0+cpu"), "torch", "seen 2.14.0+cpu; expected +xpu; docs/xpu-lane.md, step 3"),
        (_answer(graphs=None, failed={"graphs": "AttributeError: XPUGraph"}), "graphs", "AttributeError: XPUGraph"),
        (_answer(xccl=False), "xccl", "seen False; expected True; docs/xpu-lane.md"),
        (
            _failed("kernels"),
            "kernels",
            "cannot open shared object file; expected its interface; ",
        ),
        (_failed("vllm"), "vllm", "ImportError"),
        (_answer(device="cpu"), "device", "seen cpu; expected xpu; docs/xpu-lane.md, step 4: VLLM_TARGET"),
        (_failed("candidate"), "candidate", "-m pip install --no-deps ."),
        (_failed("harness"), "harness", "-m pip install --no-deps ."),
        (_answer(unlisted=["/e/_virtualenv.pth"]), "start files", "gate 2 would be VOID; rm /e/_virtualenv.pth /e/_v"),
        (_answer(unlisted=None, failed={"unlisted": "OSError: no"}), "start files", "OSError: no; docs/xpu-lane.md"),
        (_answer(cards=[NAME] * 3), "torch's cards", f"seen {[NAME] * 3}; expected the kernel's 4; "),
        (_remove("models/Laguna-S-2.1-INT4/config.json"), "target model", "docs/xpu-lane.md, step 5, fetches it"),
        (_remove("models/Laguna-S-2.1-DFlash-INT4/config.json"), "draft model", "docs/xpu-lane.md, step 5"),
    ],
)
def test_what_is_not_met_is_told_with_its_cure(
    change: Callable[[Host], None], name: str, told: str, host: Host
) -> None:
    change(host)
    problems = host.problems()
    assert list(problems) == [name]
    assert told in problems[name]
    assert "\n" not in problems[name]


def test_cards_of_which_some_are_not_there_are_told_wherever_they_are_missed(host: Host) -> None:
    for entry in (host.cards.sys / "class/drm").iterdir():
        (entry / "device").unlink()
    assert list(host.problems()) == ["kernel's cards", "cards", "torch's cards"]


def test_a_node_that_may_not_be_opened_is_told(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "renderD129" not in str(path) and real(path, mode))
    assert list(host.problems()) == ["device nodes"]


def test_disks_of_another_kind_are_told_for_each_purpose(host: Host) -> None:
    _mounted("ntfs3")(host)
    assert list(host.problems()) == [f"{what} storage" for what in ("evidence", "temporary", "target", "draft")]


def test_a_long_place_for_sockets_is_told(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    long = host.folder / ("x" * 70)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    assert list(host.problems()) == ["socket paths"]


@pytest.mark.parametrize(
    ("program", "name"),
    [("exit 3", "engine"), ("echo '[]'", "engine"), (f"echo '{json.dumps(ANSWER | {'extra': 1})}'", "engine")],
)
def test_an_interpreter_that_does_not_answer_is_told(program: str, name: str, host: Host) -> None:
    (host.folder / "python").write_text(f"#!/bin/sh\n{program}\n")
    assert list(host.problems()) == [name]


def test_an_interpreter_that_is_not_there_is_told(host: Host) -> None:
    (host.folder / "python").unlink()
    assert host.problems()["engine"].endswith(f"python3.12 -m venv {host.folder.parent}")


def test_without_a_campaign_only_what_all_of_them_need_is_asked(host: Host) -> None:
    _needs(settings=None, ranks=1)(host)
    names = [check.name for check in host.doctor.look()]
    assert {"card name", "kernel log", "target model", "evidence storage"}.isdisjoint(names)
    assert host.problems() == {}


def test_the_report_tells_what_is_met_and_what_is_not(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.answer(device="cpu")
    monkeypatch.setattr(doctor, "XpuDoctor", lambda _interpreter, _needs: host.doctor)
    report = doctor.diagnose({"xpu": Path("python")}, directory=host.folder / "leases")
    assert not report.ready("xpu")
    text = report.to_text()
    assert text.startswith("xpu: not ready\n  card 0 = 0000:03:00.0 (Intel(R) Arc(TM) Pro B70 Graphics)\n")
    assert "  driver: kernel 6.17.0, driver xe built in\n" in text
    assert "  - device: seen cpu; expected xpu\n    fix: docs/xpu-lane.md, step 4: VLLM_TARGET_DEVICE=xpu\n" in text
    assert json.loads(report.to_json())["lanes"][0]["checks"][0]["name"] == "driver"
