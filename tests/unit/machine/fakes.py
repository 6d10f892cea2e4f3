# SPDX-License-Identifier: Apache-2.0
"""Vendors' tools as the tests have them: NVML as a module with its rules, xpu-smi as an executable with a kernel.

``test_real_nvidia.py`` asks a real card, where there is one, the questions that this NVML answers.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_laguna.evidence.machine.card_masks import showing
from pytest_laguna.machine import descent, process_table
from pytest_laguna.machine.cards import Card, CardSource

DATA = Path(__file__).parents[2] / "data"
GIBIBYTE = 1024**3
MEBIBYTE = 1024**2


@contextmanager
def sleeper(**environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A real process that does nothing, with exactly this environment, exec'd before this returns."""
    with subprocess.Popen(["/bin/sleep", "300"], env=environment) as child:
        try:
            while process_table.arguments(child.pid) != ["/bin/sleep", "300"]:
                time.sleep(0.001)
            yield child
        finally:
            child.kill()


def ticks(pid: int) -> int:
    process = descent.find(pid)
    assert process is not None
    return process.start_ticks


# NVML


class NVMLError(Exception):
    """As the library raises it."""


class UninitializedError(NVMLError):
    pass


class NotSupportedError(NVMLError):
    pass


class InvalidArgumentError(NVMLError):
    pass


class NotFoundError(NVMLError):
    pass


class DriverNotLoadedError(NVMLError):
    pass


@dataclasses.dataclass
class NvmlCard:
    uuid: str | bytes
    total: int = 96 * GIBIBYTE
    used: int | None = 0
    mig: int | None = None
    compute: list[int] = dataclasses.field(default_factory=list)
    graphics: list[int] = dataclasses.field(default_factory=list)


class Nvml(types.ModuleType):
    """The part of ``pynvml`` that is used; a handle is a card, and nothing works outside init and shutdown."""

    NVMLError = NVMLError
    NVMLError_NotSupported = NotSupportedError
    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(self, *cards: NvmlCard) -> None:
        super().__init__("pynvml")
        self.cards = list(cards)
        self.loaded = True
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802 - the library's name
        if not self.loaded:
            raise DriverNotLoadedError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._check()
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._check()
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> NvmlCard:  # noqa: N802
        self._check()
        if not 0 <= index < len(self.cards):
            raise InvalidArgumentError("Invalid Argument")
        return self.cards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> NvmlCard:  # noqa: N802
        self._check()
        for card in self.cards:
            if uuid in {card.uuid, card.uuid.decode() if isinstance(card.uuid, bytes) else card.uuid}:
                return card
        raise NotFoundError("Not Found")

    def nvmlDeviceGetUUID(self, handle: NvmlCard) -> str | bytes:  # noqa: N802
        self._check(handle)
        return handle.uuid

    def nvmlDeviceGetName(self, handle: NvmlCard) -> str:  # noqa: N802
        self._check(handle)
        return "NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle: NvmlCard) -> Any:  # noqa: N802
        self._check(handle)
        if handle.used is None:
            raise NotSupportedError("Not Supported")
        return types.SimpleNamespace(total=handle.total, free=handle.total - handle.used, used=handle.used)

    def nvmlDeviceGetUtilizationRates(self, handle: NvmlCard) -> Any:  # noqa: N802
        self._check(handle)
        return types.SimpleNamespace(gpu=100, memory=0)

    def nvmlDeviceGetMigMode(self, handle: NvmlCard) -> list[int]:  # noqa: N802
        self._check(handle)
        if handle.mig is None:
            raise NotSupportedError("Not Supported")
        return [handle.mig, handle.mig]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: NvmlCard) -> list[Any]:  # noqa: N802
        self._check(handle)
        return [types.SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in handle.compute]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: NvmlCard) -> list[Any]:  # noqa: N802
        self._check(handle)
        return [types.SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in handle.graphics]

    def _check(self, handle: object = None) -> None:
        if not self.open:
            raise UninitializedError("Uninitialized")
        if handle is not None and handle not in self.cards:
            raise InvalidArgumentError("Invalid Argument")


# xpu-smi

_PROGRAM = f"""#!{sys.executable} -IS
import json, os, pathlib, sys
here = pathlib.Path(__file__).parent
(here / "environment.json").write_text(json.dumps(dict(os.environ)))
host = json.loads((here / "host.json").read_text())
words = sys.argv[1:]
if words == ["ps", "-j"]:
    sample = json.loads((here / "sample.json").read_text())
    rows = [row | {{"process_id": os.getpid()}} for row in sample["device_util_by_proc_list"]]
    rows = rows[: len(host["addresses"])] if host["shows_itself"] else []
    rows += [
        {{"device_id": number, "mem_size": 9, "process_id": pid, "process_name": "python", "shared_mem_size": 0}}
        for number, pid in host["foreign"]
    ]
    text = json.dumps({{"device_util_by_proc_list": rows}}, indent=4)
elif words == ["discovery", "-j"]:
    devices = [
        {{
            "device_function_type": "physical", "device_id": number, "device_name": "Intel(R) Arc(TM) Pro B70 Graphics",
            "device_type": "GPU", "drm_device": f"/dev/dri/card{{number}}", "pci_bdf_address": address,
            "pci_device_id": "0xe223", "uuid": f"00000000-0000-000{{number}}-0000-0000e2238086",
            "vendor_name": "Intel(R) Corporation",
        }}
        for number, address in enumerate(host["addresses"])
    ]
    text = json.dumps({{"device_list": devices}})
elif words[:2] == ["discovery", "-d"] and words[3:] == ["-j"]:
    text = json.dumps({{"device_id": int(words[2]), "memory_physical_size_byte": str(32 * 2**30)}})
elif words[:2] == ["stats", "-d"] and words[3:] == ["-j"]:
    text = json.dumps({{"device_id": int(words[2])}} | host["statistics"])
else:
    sys.exit(f"unknown {{words}}")
sys.stderr.write(host["errors"])
print(host["output"] or text)
sys.exit(host["status"])
"""

ADDRESSES = ["0000:03:00.0", "0000:43:00.0", "0000:83:00.0", "0000:c3:00.0"]
USED = {"metrics_type": "XPUM_STATS_MEMORY_USED", "value": 26.5}
LOADED = {"metrics_type": "XPUM_STATS_GPU_UTILIZATION", "value": 100.0}


class XpuHost:
    """A host with Intel cards: the tool, the kernel's device files, and its view of open devices."""

    def __init__(self, directory: Path) -> None:
        self.program = directory / "bin" / "xpu-smi"
        self.sys = directory / "sys"
        self.proc = directory / "proc"
        self.program.parent.mkdir(parents=True)
        self.proc.mkdir()
        self.program.write_text(_PROGRAM)
        self.program.chmod(0o755)
        (self.program.parent / "sample.json").write_bytes((DATA / "record102-xpu-smi-ps-stdout.json").read_bytes())
        self.facts: dict[str, Any] = {
            "addresses": ADDRESSES,
            "shows_itself": True,
            "foreign": [],
            "statistics": {"device_level": [USED, LOADED]},
            "errors": "",
            "output": "",
            "status": 0,
        }
        self.say()
        for number, address in enumerate(ADDRESSES):
            self.plug(number, address)

    def say(self, **changed: Any) -> None:
        """Change what the tool knows."""
        self.facts |= changed
        (self.program.parent / "host.json").write_text(json.dumps(self.facts))

    def plug(self, number: int, address: str, vendor: str = "0x8086") -> None:
        """Add a display device to the kernel's files."""
        device = self.sys / "devices" / "pci0000:00" / address
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text("0x030000\n")
        for name in (f"card{number}", f"card{number}-DP-1"):
            entry = self.sys / "class" / "drm" / name
            entry.mkdir(parents=True)
            (entry / "device").symlink_to(device)

    def open_device(self, pid: int, address: str) -> None:
        """Have the kernel say that a process has a device open."""
        folder = self.proc / str(pid) / "fdinfo"
        folder.mkdir(parents=True)
        (folder / "0").write_text("pos:\t0\nflags:\t02\n")
        (folder / "7").write_text(f"pos:\t0\ndrm-driver:\txe\ndrm-pdev:\t{address}\ndrm-total-vram0:\t16 MiB\n")

    def environment(self) -> dict[str, str]:
        """What the tool's last run was given."""
        found: dict[str, str] = json.loads((self.program.parent / "environment.json").read_text())
        return found


@dataclasses.dataclass
class Bench:
    """A source under test, with a way to have a process hold one of its cards."""

    source: CardSource
    hold: Callable[[Card, int], object]

    def cards(self) -> tuple[Card, ...]:
        """The last four: slots belong to the whole host, and other tests use others."""
        return self.source.discover()[-4:]

    @contextmanager
    def held(self, card: Card, **environment: str) -> Iterator[int]:
        """A real process that the source must find on the card."""
        with sleeper(**showing(self.source.lane, [card]), **environment) as child:
            self.hold(card, child.pid)
            yield child.pid
