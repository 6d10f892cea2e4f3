# SPDX-License-Identifier: Apache-2.0
"""Every prerequisite of the xpu lane, in the order of docs/xpu-lane.md, with its finding and its remedy.

A check that cannot be made because one before it failed says so: fix the first failed one first.
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
from pytest_laguna.evidence.machine.placement import misplaced
from pytest_laguna.evidence.machine.xpu_stack import misfit
from pytest_laguna.evidence.schemas import Schema
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
"""Python of the kernels' wheel (source: its README, and vLLM's installation page for XPUs)."""
LIBRARIES = ("libze_loader.so.1", "libze_intel_gpu.so.1")
"""Level Zero's loader, and the driver it opens."""
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
"""Only an import tells a working engine from an installed one; it opens the cards, so it runs in a child."""


class Check(Schema):
    """One prerequisite: the finding, with the expectation if it is not met, and the remedy, None if it is met."""

    name: str
    found: str
    mend: str | None


class _Engine(Schema):
    """The interpreter's answers; ``failed`` has the reason for each missing one."""

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
    """A campaign's demands on a host.

    Attributes:
        settings: the campaign's lane; None asks only the demands of every campaign.
        project: base of the campaign's relative paths.
        ranks: cards of the campaign's model: one for each two of its key and value heads.
    """

    settings: LaneSettings | None
    sealed_root: Path
    project: Path
    ranks: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class XpuDoctor:
    """Examines one host; ``root`` is the parent of the operating system's libraries."""

    interpreter: Path
    needs: XpuNeeds
    source: XpuCards = dataclasses.field(default_factory=XpuCards)
    files: XpuHostFiles = dataclasses.field(default_factory=XpuHostFiles)
    root: Path = Path("/")
    environ: Mapping[str, str] = dataclasses.field(default_factory=lambda: os.environ)

    def look(self) -> list[Check]:
        """Check every prerequisite, also after one that is not met."""
        return [*self._host(), *self._cards(), *self._engine(), *self._places()]

    def _host(self) -> Iterator[Check]:
        runtime = host_runtime(self.files)
        driver = f"kernel {runtime.kernel}, driver xe {runtime.driver or 'not loaded'}"
        fix = "modprobe xe; it is part of Linux 6.12 and later"
        yield _check("driver", runtime.driver is not None, driver, "driver xe", fix)
        cards = kernel_cards(self.files.sys)
        seen = ", ".join(cards) or "none"
        yield _check("kernel's cards", bool(cards), seen, "at least one", f"lspci -d 8086: -k; see {GUIDE}")
        nodes = sorted((self.files.dev / "dri").glob("renderD*"))
        closed = closed_nodes(self.files)
        seen = f"{len(nodes)} nodes, closed: {', '.join(map(str, closed)) or 'none'}"
        fix = "usermod -aG render $USER, and log in again"
        yield _check("device nodes", bool(nodes) and not closed, seen, "at least one, and all open", fix)
        missing = [name for name in LIBRARIES if not any((self.root / at / name).exists() for at in LIBRARY_PLACES)]
        packages = ", ".join(f"{name} {version}" for name, version in sorted(runtime.packages.items()))
        seen = f"no {', '.join(missing)}" if missing else packages or "both libraries"
        yield _check("level zero", not missing, seen, "both libraries", "apt-get install libze1 libze-intel-gpu1")
        yield from self._environment()

    def _environment(self) -> Iterator[Check]:
        names = environment.inherited_runtime_variables(self.environ)
        masks = environment.inherited_masks(self.environ)
        seen = ", ".join(names) or f"no runtime variable; masks {masks or 'none'}"
        fix = f"run it under env -u {' -u '.join(names)}, and without setvars.sh"
        yield _check("environment", not names, seen, "no runtime variable", fix)
        temporary = Path(tempfile.gettempdir())
        length = len(os.fsencode(temporary)) + 1 + len("laguna-00000000") + 1 + environment.SOCKET_NAME_BYTES
        most = environment.SOCKET_PATH_BYTES
        seen = f"{length} bytes below {temporary}"
        yield _check("socket paths", length <= most, seen, f"at most {most}", "export TMPDIR to a shorter path")
        settings = self.needs.settings
        if settings is not None and settings.host.kernel_patterns is not None:
            log = self.files.dev / "kmsg"
            readable = os.access(log, os.R_OK)
            seen = f"{log} {'' if readable else 'not '}readable"
            yield _check("kernel log", readable, seen, "a readable log", "sysctl kernel.dmesg_restrict=0")

    def _cards(self) -> Iterator[Check]:
        try:
            cards = self.source.discover()
            left = self.source.inherited(cards, self.environ)
        except (CardError, UnusableEvidenceError) as error:
            mend = error.mend if isinstance(error, CardError) else "run it by hand and compare"
            yield Check(name="cards", found=error.found if isinstance(error, CardError) else str(error), mend=mend)
            return
        yield _check("cards", bool(left), ", ".join(map(str, left)) or "none", "at least one", "xpu-smi discovery")
        settings = self.needs.settings
        if settings is not None and settings.card is not None:
            others = [str(card) for card in left if card.name != settings.card]
            seen = ", ".join(others) or f"{len(left)} of {settings.card}"
            fix = f"name only cards called {settings.card!r} with --cards"
            yield _check("card name", not others, seen, settings.card, fix)
        ranks = self.needs.ranks
        expected = f"{ranks} for the campaign's model, with two key and value heads a card"
        fix = f"run it on a host with {ranks}; {GUIDE} says why"
        yield _check("number of cards", len(left) >= ranks, f"{len(left)}", expected, fix)
        yield self._idle(left)

    def _idle(self, cards: Sequence[Card]) -> Check:
        try:
            states = self.source.observe(cards, None).states
        except (CardError, UnusableEvidenceError) as error:
            return Check(name="idle", found=str(error), mend="run xpu-smi ps -j by hand and compare")
        held = [f"{state.identity}: {holder.command}" for state in states for holder in state.holders]
        unknown = [state.identity for state in states if state.memory_used_bytes is None]
        seen = f"held {held or 'by nobody'}, memory unknown of {unknown or 'none'}"
        fix = "end the holders; xpu-smi stats -d 0 -j shows memory"
        return _check("idle", not held and not unknown, seen, "no holder, and the memory of each", fix)

    def _engine(self) -> Iterator[Check]:
        answer = self._ask()
        if isinstance(answer, Check):
            yield answer
            return
        python = self.interpreter
        fits = answer.python.startswith(f"{PYTHON}.")
        yield _check("python", fits, answer.python, PYTHON, f"python{PYTHON} -m venv {python.parent.parent}")
        reason = misfit(answer.distributions)
        yield _judged("versions", reason, _versions(answer), f"{GUIDE}, step 3, with the expected versions")
        for name, met, expected, mend in _ENGINE_CHECKS:
            seen = answer.failed.get(name) or str(getattr(answer, name))
            yield _check(name, met(answer), seen, expected, mend.format(python=python))
        yield self._start_files(answer)
        number = len(kernel_cards(self.files.sys))
        yield _check(
            "torch's cards",
            bool(answer.cards) and len(answer.cards or []) == number,
            str(answer.cards),
            f"the kernel's {number}",
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
        try:
            done = ask(self.interpreter, _QUESTION, deadline_seconds=DEADLINE_SECONDS, python=f"python{PYTHON}")
        except InterpreterError as error:
            return Check(name="engine", found=error.found, mend=error.mend)
        try:
            answer = parse_foreign_json(last_line(done.stdout), str(self.interpreter))
            return _Engine.model_validate(answer, strict=True)
        except (UnusableEvidenceError, pydantic.ValidationError):
            found = f"{self.interpreter}: seen {last_line(done.stderr)}; expected its versions"
            return Check(name="engine", found=found, mend=f"{GUIDE}, step 3")

    def _places(self) -> Iterator[Check]:
        settings = self.needs.settings
        if settings is None:
            return
        wanted = used_places(settings, self.needs.sealed_root, self.needs.project)
        for purpose, path in wanted.items():
            if purpose in {"target", "draft"}:
                there = (path / "config.json").is_file()
                seen = f"{path} {'with' if there else 'without'} config.json"
                yield _check(f"{purpose} model", there, seen, "a model's folder", f"{GUIDE}, step 5, fetches it")
        if settings.storage is None:
            return
        for purpose, path in wanted.items():
            try:
                place = find_place(purpose, path, sys=self.files.sys, mounts=self.files.proc / "self/mountinfo")
            except CardError as error:
                yield Check(name=f"{purpose} storage", found=error.found, mend=error.mend)
                continue
            seen = f"{path} on {place.source} ({place.file_system})"
            fix = "move it to an internal disk of the named kinds"
            yield _judged(f"{purpose} storage", misplaced(place, settings.storage), seen, fix)


_KERNELS = "{python} -m pip install --force-reinstall vllm-xpu-kernels"
_PROJECT = "{python} -m pip install --no-deps ."
_ENGINE_CHECKS: Sequence[tuple[str, Callable[[_Engine], bool], str, str]] = (
    ("torch", lambda seen: re.fullmatch(r"[^+]+\+xpu", seen.torch or "") is not None, "+xpu", f"{GUIDE}, step 3"),
    ("graphs", lambda seen: seen.graphs == "XPUGraph", "XPUGraph", f"{GUIDE}, step 3: a torch with graphs on an XPU"),
    ("xccl", lambda seen: seen.xccl is True, "True", f"{GUIDE}, step 3: torch+xpu brings it"),
    ("kernels", lambda seen: seen.kernels is not None, "its interface", _KERNELS),
    ("vllm", lambda seen: seen.vllm is not None, "its version", f"{GUIDE}, step 4: vLLM from its sources"),
    ("device", lambda seen: seen.device == "xpu", "xpu", f"{GUIDE}, step 4: VLLM_TARGET_DEVICE=xpu"),
    ("candidate", lambda seen: seen.candidate is not None, "its compiled module", _PROJECT),
    ("harness", lambda seen: seen.harness is not None, "its replay clock", _PROJECT),
)
"""Name of the answer, its test, the expected answer, and the remedy."""


def _versions(answer: _Engine) -> str:
    wanted = (
        "torch", "vllm", "vllm-xpu-kernels", "intel-extension-for-pytorch", "intel-sycl-rt", "intel-cmplr-lib-ur",
        "oneccl", "triton-xpu",
    )  # fmt: skip
    found = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in answer.distributions.items()}
    return ", ".join(f"{name} {found[name]}" for name in wanted if name in found)


def _check(name: str, met: bool, seen: str, expected: str, mend: str) -> Check:  # noqa: FBT001 - the finding itself
    return _judged(name, None if met else f"seen {seen}; expected {expected}", seen, mend)


def _judged(name: str, reason: str | None, seen: str, mend: str) -> Check:
    return Check(name=name, found=reason or seen, mend=None if reason is None else mend)
