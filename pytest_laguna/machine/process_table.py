# SPDX-License-Identifier: Apache-2.0
"""Describes processes for the evidence, and recognises inference workers."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePath

from pytest_laguna.evidence.machine.idle import SeenProcess
from pytest_laguna.machine import descent

PROC = Path("/proc")

LEASE_TOKEN = "lease token"  # noqa: S105 - what is seen, not the token
WORKER_PREFIXES = ("VLLM::", "ray::")
WORKER_TITLES = ("VLLM::EngineCore", "VLLM::Worker", "ray::")
"""Titles of vLLM's and Ray's children: in place of their arguments, and cut to 15 bytes as their name."""
VLLM_COMMANDS = frozenset({"bench", "run-batch", "serve"})
"""Commands of vLLM's program that run an engine or load one."""
WORKER_MODULES = ("torch.distributed.launch", "torch.distributed.run", "vllm.entrypoints.")
STARTERS = frozenset({"run", "uv"})
"""Programs that stay in front of the one they start; ``env``, ``nice`` and the like become it."""

_COMMAND_LIMIT = 4096
_LETTERS = "-[bBdEhiIOPqRsSuvVx?]*"
_MODULE = re.compile(f"{_LETTERS}m(.*)", re.DOTALL)
_TAKES_NEXT = re.compile(f"{_LETTERS}[WX]")
"""Python's options (``python3 --help``): letters without a value may precede one that takes the rest."""


def arguments(pid: int) -> list[str]:
    """Return a process's arguments; empty for kernel threads and ended processes."""
    # A process with a title of its own leaves zeros behind it.
    content = _read(pid, "cmdline").rstrip(b"\0")
    return os.fsdecode(content).split("\0") if content else []


def name(pid: int) -> str:
    """Return a process's short name; empty once it has ended."""
    return os.fsdecode(_read(pid, "comm")).rstrip("\n")


def environment(pid: int) -> dict[str, str]:
    """Return a process's first environment; empty if it may not be read or a title was written over it."""
    pairs = (os.fsdecode(entry).partition("=") for entry in _read(pid, "environ").split(b"\0") if entry)
    return {key: value for key, _, value in pairs}


def bearers(token: str | None) -> frozenset[int]:
    """Pids of the bearers of a lease's token; none without a lease."""
    return frozenset() if token is None else frozenset(process.pid for process in descent.bearers(token))


def see(pid: int, seen_by: str, of_lease: Collection[int]) -> SeenProcess:
    """Describe a process for the evidence; one that has ended, or in another pid namespace, keeps its pid."""
    process = descent.find(pid)
    words = arguments(pid)
    return SeenProcess(
        pid=pid,
        start_ticks=None if process is None else process.start_ticks,
        command=(shlex.join(words) if words else f"[{name(pid)}]")[:_COMMAND_LIMIT],
        carries_token=pid in of_lease if process is not None else None,
        seen_by=seen_by,
    )


def find_workers(token: str | None) -> list[SeenProcess]:
    """Inference workers on the host, and all bearers of the lease's token, without our own ancestors."""
    return list(_workers(bearers(token)))


def _workers(of_lease: frozenset[int]) -> Iterator[SeenProcess]:
    own = descent.ancestors(os.getpid())
    for process in descent.live_processes():
        if process.pid in own:
            continue
        pattern = worker_pattern(name(process.pid), arguments(process.pid))
        if pattern or process.pid in of_lease:
            seen = see(process.pid, pattern or LEASE_TOKEN, of_lease)
            if seen.start_ticks is not None:
                yield seen


def worker_pattern(comm: str, words: Sequence[str]) -> str | None:
    """Return the pattern by which a process is an inference worker, or None.

    Source of the patterns: the laboratory's published worker proof, and the other ways to start the same programs.
    """
    for prefix in WORKER_PREFIXES:
        if comm.startswith(prefix):
            return f"name {prefix}"
    for title in WORKER_TITLES:
        if words and words[0].startswith(title):
            return f"title {title.partition('::')[0]}::"
    return _launcher(words) if words else None


def _launcher(words: Sequence[str]) -> str | None:
    programs = [PurePath(word).name for word in words]
    for program, command in zip(programs, words[1:], strict=False):
        if program == "vllm" and command in VLLM_COMMANDS:
            return f"vllm {command}"
    preceded = zip(["", *words], words, programs, strict=False)
    named = [
        program for before, word, program in preceded if not word.startswith("-") and not _TAKES_NEXT.fullmatch(before)
    ]
    launched = list(itertools.dropwhile(_is_starter, named))
    if launched[:1] == ["torchrun"]:
        return "torchrun"
    return next((module for module in _modules(words, programs) if module.startswith(WORKER_MODULES)), None)


def _is_starter(program: str) -> bool:
    return program.startswith("python") or program in STARTERS


def _modules(words: Sequence[str], programs: Sequence[str]) -> Iterator[str]:
    """Yield the modules of Python's ``-m``, in one word or two, or behind other letters."""
    python = next((index for index, program in enumerate(programs) if program.startswith("python")), len(words))
    for option, following in itertools.pairwise([*words[python:], ""]):
        module = _MODULE.fullmatch(option)
        if module is not None:
            yield module[1] or following


def _read(pid: int, file: str) -> bytes:
    try:
        return (PROC / str(pid) / file).read_bytes()
    except OSError:
        return b""
