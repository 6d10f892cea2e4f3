# SPDX-License-Identifier: Apache-2.0
"""Every prerequisite of the xpu lane, in the order in which docs/xpu-lane.md meets them: found, and how to mend it.

A check that cannot be made because one before it failed says so: the first that is not met is the one to mend.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pydantic

from pytest_laguna.campaign import LaneSettings
from pytest_laguna.evidence.foreign_json import parse_foreign_json
from pytest_laguna.evidence.placement import misplaced
from pytest_laguna.evidence.schemas import Schema
from pytest_laguna.evidence.xpu_stack import misfit
from pytest_laguna.machine import environment
from pytest_laguna.machine.cards import Card
from pytest_laguna.machine.cards_xpu import XpuCards, kernel_cards
from pytest_laguna.machine.errors import CardError
from pytest_laguna.machine.interpreter import UNLISTED, InterpreterError, ask, last_line, mend_unlisted
from pytest_laguna.machine.storage import find_place, used_places
from pytest_laguna.machine.xpu_host import XpuHostFiles, closed_nodes, host_runtime
from pytest_laguna.verdict import UnusableEvidenceError

GUIDE = "docs/xpu-lane.md"
DEADLINE_SECONDS = 300.0
PYTHON = "3.12"
"""What the kernels' wheel is for. Source: its README, and vLLM's installation page for XPUs."""
LIBRARIES = ("libze_loader.so.1", "libze_intel_gpu.so.1")
"""Level Zero's loader, and the driver that it opens."""
LIBRARY_PLACES = ("usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib", "usr/local/lib")

_QUESTION = (
    UNLISTED
    + """
import importlib, importlib.metadata, json, platform
found = {"python": platform.python_version(), "failed": {}}
def ask(name, question):
    try:
        found[name] = question()
    except Exception as error:
        found["failed"][name] = f"{type(error).__name__}: {' '.join(str(error).split())}"
def interface():
    module = importlib.import_module("vllm_xpu_kernels.flash_attn_interface")
    if not module.FA2_AVAILABLE:
        raise RuntimeError(getattr(module, "FA2_UNAVAILABLE_REASON", "its library cannot be loaded"))
    return module.__file__
def names():
    return [torch.xpu.get_device_name(index) for index in range(torch.xpu.device_count())]
ask("distributions", lambda: {d.name: d.version for d in importlib.metadata.distributions()})
ask("torch", lambda: importlib.import_module("torch").__version__)
import torch
ask("cards", names)
ask("graphs", lambda: torch.xpu.XPUGraph.__name__)
ask("xccl", lambda: bool(torch.distributed.is_xccl_available()))
ask("kernels", interface)
ask("vllm", lambda: importlib.import_module("vllm").__version__)
ask("device", lambda: importlib.import_module("vllm.platforms").current_platform.device_type)
ask("candidate", lambda: importlib.import_module("laguna_kv._contract").__file__)
ask("harness", lambda: importlib.import_module("pytest_laguna.engine.replay_clock").__file__)
ask("unlisted", unlisted)
print(json.dumps(found))
"""
)
"""Importing is what tells a working engine from an installed one; it opens the cards, so it runs in a child."""


class Check(Schema):
    """One prerequisite.

    Attributes:
        name: of it.
        found: what was seen; with what was expected where it is not met.
        mend: the command, or what to do; None where it is met.
    """

    name: str
    found: str
    mend: str | None


class _Engine(Schema):
    """What the interpreter answered; what it could not is in ``failed`` with the reason."""

    python: str
    failed: dict[str, str]
    distributions: dict[str, str] = pydantic.Field(default_factory=dict)
    torch: str | None = None
    cards: list[str] | None = None
    graphs: str | None = None
    xccl: bool | None = None
    kernels: str | None = None
    vllm: str | None = None
    device: str | None = None
    candidate: str | None = None
    harness: str | None = None
    unlisted: list[str] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class XpuNeeds:
    """What a campaign asks of a host.

    Attributes:
        settings: the campaign's lane; None where no campaign is named: then only what every campaign needs is asked.
        sealed_root: where evidence is to lie.
        project: that the campaign's relative paths start from.
        ranks: cards that the campaign's model needs: one for each two of its key and value heads.
    """

    settings: LaneSettings | None
    sealed_root: Path
    project: Path
    ranks: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class XpuDoctor:
    """Looks at one host.

    Attributes:
        interpreter: the engine's Python.
        needs: what is asked.
        source: of the cards.
        files: of the operating system.
        root: under which the operating system has its libraries.
        environ: of this process.
    """

    interpreter: Path
    needs: XpuNeeds
    source: XpuCards = dataclasses.field(default_factory=XpuCards)
    files: XpuHostFiles = dataclasses.field(default_factory=XpuHostFiles)
    root: Path = Path("/")
    environ: Mapping[str, str] = dataclasses.field(default_factory=lambda: os.environ)

    def look(self) -> list[Check]:
        """Every prerequisite; none is left out because one before it is not met."""
        return [*self._host(), *self._cards(), *self._engine(), *self._places()]

    def _host(self) -> Iterator[Check]:
        runtime = host_runtime(self.files)
        driver = f"kernel {runtime.kernel}, driver xe {runtime.driver or 'not loaded'}"
        yield _check("driver", driver, runtime.driver is not None, "modprobe xe; it is part of Linux 6.12 and later")
        cards = kernel_cards(self.files.sys)
        yield _check("kernel's cards", ", ".join(cards) or "none", bool(cards), f"lspci -d 8086: -k; see {GUIDE}")
        nodes = sorted((self.files.dev / "dri").glob("renderD*"))
        closed = closed_nodes(self.files)
        told = f"{len(nodes)} nodes, closed: {', '.join(map(str, closed)) or 'none'}"
        yield _check("device nodes", told, bool(nodes) and not closed, "usermod -aG render $USER, and log in again")
        missing = [name for name in LIBRARIES if not any((self.root / at / name).exists() for at in LIBRARY_PLACES)]
        packages = ", ".join(f"{name} {version}" for name, version in sorted(runtime.packages.items()))
        told = f"missing: {', '.join(missing)}" if missing else packages or "both libraries"
        yield _check("level zero", told, not missing, "apt-get install libze1 libze-intel-gpu1")
        yield from self._environment()

    def _environment(self) -> Iterator[Check]:
        names = environment.inherited_runtime_variables(self.environ)
        masks = environment.inherited_masks(self.environ)
        told = ", ".join(names) or f"no runtime variable; masks {masks or 'none'}"
        yield _check("environment", told, not names, f"run it under env -u {' -u '.join(names)}: no setvars.sh")
        temporary = Path(tempfile.gettempdir())
        length = len(os.fsencode(temporary)) + 1 + len("laguna-00000000") + 1 + environment.SOCKET_NAME_BYTES
        told = f"{length} bytes below {temporary}; at most {environment.SOCKET_PATH_BYTES}"
        yield _check("socket paths", told, length <= environment.SOCKET_PATH_BYTES, "export TMPDIR to a shorter path")
        settings = self.needs.settings
        if settings is not None and settings.host.kernel_patterns is not None:
            log = self.files.dev / "kmsg"
            readable = os.access(log, os.R_OK)
            yield _check("kernel log", f"{log} readable: {readable}", readable, "sysctl kernel.dmesg_restrict=0")

    def _cards(self) -> Iterator[Check]:
        try:
            cards = self.source.discover()
            left = self.source.inherited(cards, self.environ)
        except (CardError, UnusableEvidenceError) as error:
            mend = error.mend if isinstance(error, CardError) else "run it by hand and compare"
            yield Check(name="cards", found=error.found if isinstance(error, CardError) else str(error), mend=mend)
            return
        told = ", ".join(map(str, left)) or "none"
        yield _check("cards", told, bool(left), "xpu-smi discovery")
        settings = self.needs.settings
        if settings is not None and settings.card is not None:
            others = [str(card) for card in left if card.name != settings.card]
            told = f"others: {', '.join(others)}" if others else f"{len(left)} of {settings.card}"
            yield _check("card name", told, not others, f"name only cards called {settings.card!r} with --cards")
        enough = len(left) >= self.needs.ranks
        told = f"{len(left)}; the campaign's model needs {self.needs.ranks}: two key and value heads a card"
        yield _check("number of cards", told, enough, f"run it on a host with {self.needs.ranks}; {GUIDE} says why")
        yield self._idle(left)

    def _idle(self, cards: Sequence[Card]) -> Check:
        try:
            states = self.source.observe(cards, None).states
        except (CardError, UnusableEvidenceError) as error:
            return Check(name="idle", found=str(error), mend="run xpu-smi ps -j by hand and compare")
        held = [f"{state.identity}: {holder.command}" for state in states for holder in state.holders]
        unknown = [state.identity for state in states if state.memory_used_bytes is None]
        told = f"held {held or 'by nobody'}, memory unknown of {unknown or 'none'}"
        return _check("idle", told, not held and not unknown, "end what holds them; xpu-smi stats -d 0 -j shows memory")

    def _engine(self) -> Iterator[Check]:
        answer = self._ask()
        if isinstance(answer, Check):
            yield answer
            return
        python = self.interpreter
        fits = answer.python.startswith(f"{PYTHON}.")
        yield _check("python", answer.python, fits, f"python{PYTHON} -m venv {python.parent.parent}")
        reason = misfit(answer.distributions)
        yield _check("versions", reason or _versions(answer), reason is None, f"{GUIDE}, step 3, with what is expected")
        for name, met, mend in _ENGINE_CHECKS:
            seen = answer.failed.get(name) or str(getattr(answer, name))
            yield _check(name, seen, met(answer), mend.format(python=python))
        yield self._start_files(answer)
        yield _check(
            "torch's cards",
            str(answer.cards),
            bool(answer.cards) and len(answer.cards or []) == len(kernel_cards(self.files.sys)),
            f"{python} -c 'import torch; print(torch.xpu.device_count())'; see device nodes and level zero above",
        )

    def _start_files(self, answer: _Engine) -> Check:
        name = "start files"
        if answer.unlisted is None:
            return Check(name=name, found=answer.failed.get("unlisted", "unknown"), mend=f"{GUIDE}, step 3")
        for found, mend in map(mend_unlisted, answer.unlisted):
            return Check(name=name, found=found, mend=mend)
        return Check(name=name, found="a RECORD lists each", mend=None)

    def _ask(self) -> _Engine | Check:
        """Have the interpreter import its engine."""
        try:
            done = ask(self.interpreter, _QUESTION, deadline_seconds=DEADLINE_SECONDS, python=f"python{PYTHON}")
        except InterpreterError as error:
            return Check(name="engine", found=error.found, mend=error.mend)
        try:
            answer = parse_foreign_json(last_line(done.stdout), str(self.interpreter))
            return _Engine.model_validate(answer, strict=True)
        except (UnusableEvidenceError, pydantic.ValidationError):
            return Check(name="engine", found=f"{self.interpreter}: {last_line(done.stderr)}", mend=f"{GUIDE}, step 3")

    def _places(self) -> Iterator[Check]:
        settings = self.needs.settings
        if settings is None:
            return
        wanted = used_places(settings, self.needs.sealed_root, self.needs.project)
        for purpose, path in wanted.items():
            if purpose in {"target", "draft"}:
                there = (path / "config.json").is_file()
                yield _check(f"{purpose} model", str(path), there, f"{GUIDE}, step 5, fetches it")
        if settings.storage is None:
            return
        for purpose, path in wanted.items():
            try:
                place = find_place(purpose, path, sys=self.files.sys, mounts=self.files.proc / "self/mountinfo")
            except CardError as error:
                yield Check(name=f"{purpose} storage", found=error.found, mend=error.mend)
                continue
            reason = misplaced(place, settings.storage)
            told = reason or f"{path} on {place.source} ({place.file_system})"
            yield _check(f"{purpose} storage", told, reason is None, "move it to an internal disk of the named kinds")


_ENGINE_CHECKS: Sequence[tuple[str, Callable[[_Engine], bool], str]] = (
    ("torch", lambda seen: re.fullmatch(r"[^+]+\+xpu", seen.torch or "") is not None, f"{GUIDE}, step 3: torch+xpu"),
    ("graphs", lambda seen: seen.graphs == "XPUGraph", f"{GUIDE}, step 3: a torch that has graphs on an XPU"),
    ("xccl", lambda seen: seen.xccl is True, f"{GUIDE}, step 3: torch+xpu brings it"),
    ("kernels", lambda seen: seen.kernels is not None, "{python} -m pip install --force-reinstall vllm-xpu-kernels"),
    ("vllm", lambda seen: seen.vllm is not None, f"{GUIDE}, step 4: vLLM from its sources"),
    ("device", lambda seen: seen.device == "xpu", f"{GUIDE}, step 4: VLLM_TARGET_DEVICE=xpu"),
    ("candidate", lambda seen: seen.candidate is not None, "{python} -m pip install --no-deps ."),
    ("harness", lambda seen: seen.harness is not None, "{python} -m pip install --no-deps ."),
)
"""Name of the answer, whether it is met, and how to mend it."""


def _versions(answer: _Engine) -> str:
    wanted = (
        "torch",
        "vllm",
        "vllm-xpu-kernels",
        "intel-extension-for-pytorch",
        "intel-sycl-rt",
        "intel-cmplr-lib-ur",
        "oneccl",
        "triton-xpu",
    )
    found = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in answer.distributions.items()}
    return ", ".join(f"{name} {found[name]}" for name in wanted if name in found)


def _check(name: str, found: str, met: bool, mend: str) -> Check:  # noqa: FBT001 - the fact that the check is about
    return Check(name=name, found=found, mend=None if met else mend)
