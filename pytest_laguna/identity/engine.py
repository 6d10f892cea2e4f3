# SPDX-License-Identifier: Apache-2.0
"""The identity of the engine's interpreter: its state, its distributions, and its copies of this project.

The interpreter only says where it searches. This process reads the files there: an engine's own word for its files
would be worth nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.engine_identity import (
    ENGINE_PACKAGES,
    EngineContent,
    EngineIdentity,
    EngineState,
    ImportedPackage,
)
from pytest_laguna.evidence.machine.process import ProcessRecord
from pytest_laguna.evidence.schemas import Schema, parse_model
from pytest_laguna.identity import source
from pytest_laguna.identity.distributions import hash_distributions, look_at_distribution, metadata_on
from pytest_laguna.identity.source import IdentityError
from pytest_laguna.identity.stamps import digest_stamped, printable, stamp

Runner: TypeAlias = Callable[[Sequence[str], Mapping[str, str], Path, float], ProcessRecord]
"""Runs argv with variables in a directory, within seconds, under supervision; see ``engine.launch.Runner``."""

PROGRAM = Path(__file__).with_name("engine_program.py")
HARNESS = "pytest_laguna"

_SIZE_LIMIT = 64 * 1024 * 1024


class _Place(Schema):
    origin: str | None
    directories: list[str]


class _Answer(Schema):
    """The result of ``engine_program.py``."""

    version: str
    prefix: str
    base_prefix: str
    path: list[str]
    standard_library: str
    packages: dict[str, _Place]
    customize: list[str | None]


def describe_engine(
    interpreter: Path, candidate: str, directory: Path, *, deadline_seconds: float, run: Runner
) -> EngineIdentity:
    """Describe the engine, and hash its contents once; its interpreter answers in ``directory``, made here (0700).

    Raises:
        FileExistsError: the directory exists.
        IdentityError: the interpreter is none, does not answer, or does not find the packages; or a file cannot be
            read.
        OSError: a file disappeared meanwhile.
    """
    state = look_at_engine(interpreter, candidate, directory, deadline_seconds=deadline_seconds, run=run)
    return EngineIdentity(state=state, content=_content(state))


def look_at_engine(
    interpreter: Path, candidate: str, directory: Path, *, deadline_seconds: float, run: Runner
) -> EngineState:
    """Describe the engine without hashing; arguments and errors as ``describe_engine``."""
    if not interpreter.is_absolute() or not os.access(interpreter, os.X_OK) or not interpreter.is_file():
        message = f"engine interpreter: seen {printable(interpreter)}; expected the absolute path of a Python program"
        raise IdentityError(message)
    answer = _ask(interpreter, candidate, directory, deadline_seconds, run)
    program = interpreter.resolve(strict=True)
    return EngineState(
        interpreter=str(interpreter),
        program=str(program),
        stamp=stamp(program.lstat()),
        version=answer.version,
        prefix=answer.prefix,
        base_prefix=answer.base_prefix,
        path=answer.path,
        standard_library=answer.standard_library,
        start_files={str(path): stamp(path.stat()) for path in _start_files(answer)},
        distributions=[look_at_distribution(path) for path in metadata_on(answer.path)],
        packages={name: _imported(interpreter, name, answer.packages[name]) for name in (candidate, HARNESS)},
        imported={name: _directory(answer.packages[name]) for name in ENGINE_PACKAGES},
    )


def _ask(interpreter: Path, candidate: str, directory: Path, deadline_seconds: float, run: Runner) -> _Answer:
    directory.mkdir(mode=files.PRIVATE_DIRECTORY)
    result = directory / "engine.json"
    argv = [str(interpreter), "-P", str(PROGRAM), str(result), candidate, HARNESS, *ENGINE_PACKAGES]
    process = run(argv, {}, directory, deadline_seconds)
    if not process.is_clean:
        said = files.read_tail(directory / "stderr.log")
        last = printable(said[-1] if said else "nothing on standard error")
        message = f"engine interpreter {printable(interpreter)}: seen {process}: {last}; expected Python 3.11 or newer"
        raise IdentityError(message)
    answer = files.parse_json(files.read_bytes(result, limit=_SIZE_LIMIT), result.name)
    return parse_model(answer, _Answer, result.name)


def _start_files(answer: _Answer) -> Iterator[Path]:
    """Yield the files that Python reads or runs by itself when it starts."""
    configuration = Path(answer.prefix, "pyvenv.cfg")
    if configuration.exists():
        yield configuration
    yield from (Path(origin) for origin in answer.customize if origin is not None)
    for place in answer.path:
        if Path(place).is_dir():
            yield from sorted(Path(place).glob("*.pth"))


def _directory(place: _Place) -> str | None:
    """Import directory of a package, as the interpreter spells it; None without a single one."""
    return place.directories[0] if place.origin is not None and len(place.directories) == 1 else None


def _imported(interpreter: Path, name: str, place: _Place) -> ImportedPackage:
    if place.origin is None or len(place.directories) != 1:
        seen = place.origin or place.directories or "nothing"
        subject = f"engine interpreter {printable(interpreter)}: package {name}"
        raise IdentityError(f"{subject}: seen {seen}; expected one directory; install this project there")
    directory = Path(place.directories[0]).resolve()  # mapped files have no links in their paths
    found = source.files_in(name, directory, source.SOURCE_SUFFIXES)
    stamps = {path: stamp(file.stat()).canonical() for path, file in found.items()}
    return ImportedPackage(directory=str(directory), stamps_sha256=files.digest_of(dict(stamps)))


def _content(state: EngineState) -> EngineContent:
    directories = {name: Path(package.directory) for name, package in state.packages.items()}
    extensions = [
        file.resolve()
        for name, directory in directories.items()
        for file in source.files_in(name, directory, source.BINARY_SUFFIXES).values()
    ]
    return EngineContent(
        program=digest_stamped(Path(state.program))[1],
        start_files={path: digest_stamped(Path(path).resolve())[1] for path in state.start_files},
        distributions=hash_distributions([Path(found.metadata) for found in state.distributions], state.start_files),
        packages={name: _sources(name, directory) for name, directory in directories.items()},
        extensions={str(file): digest_stamped(file)[1] for file in extensions},
    )


def _sources(name: str, directory: Path) -> dict[str, str]:
    found = source.files_in(name, directory, source.SOURCE_SUFFIXES)
    return {path: digest_stamped(file.resolve())[1] for path, file in found.items()}
