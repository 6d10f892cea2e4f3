# SPDX-License-Identifier: Apache-2.0
"""Runs a function in a process that sees one card only, and returns its value."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_laguna.evidence import files
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.machine.card_program import FAILED, CardRequest, CardResult
from pytest_laguna.machine.cards import Card
from pytest_laguna.run.arm_runner import ArmRunner
from pytest_laguna.run.leasing import LeasedCards
from pytest_laguna.verdict import JSON, NotProvenError


class CardProcessError(RuntimeError):
    """A function raised on its card; the message is the line of its error."""


class CardProcessEndedError(NotProvenError):
    """A card process ended before its function did; the message says how."""


@dataclasses.dataclass(frozen=True, slots=True)
class CardProcess:
    """Value of the ``card_process`` fixture: calls functions on leased cards, each in a new directory."""

    held: LeasedCards
    run: ArmRunner
    directory: Path

    def __call__(self, card: Card, function: Callable[..., JSON], *arguments: JSON) -> JSON:
        """Call a function of a file on one of the leased cards, with JSON values, and return its value.

        The function is defined at the top of a file and does its own imports, since another process loads it.

        Raises:
            ValueError: the card is not leased, or the function is a closure or defined inside another.
            CardProcessError: the function raised.
            CardProcessEndedError: the process was killed, or failed outside the function.
            UnusableEvidenceError: the value is not JSON.
        """
        if card not in self.held.cards:
            message = f"card {card}: not leased; expected one of the session's cards"
            raise ValueError(message)
        place = self._new_directory(card)
        request, result = place / "request.json", place / "result.json"
        asked = CardRequest(file=_file_of(function), function=function.__qualname__, arguments=list(arguments))
        files.write_new(request, files.canonical_json(asked.canonical()))
        argv = [sys.executable, "-P", "-m", "pytest_laguna.machine.card_program", str(request), str(result)]
        runner = self.run.on_card(card)
        process = runner(argv, {}, place, runner.bounds.deadline_seconds)
        if not process.is_clean:
            raised, where = _raised(place), f"card {card.identity}, {function.__qualname__}"
            if raised is None:
                raise CardProcessEndedError(f"{where}: {process}")
            raise CardProcessError(f"{where}: {raised}")
        return read_model(result, CardResult).value

    def _new_directory(self, card: Card) -> Path:
        number = len(list(self.directory.iterdir())) if self.directory.exists() else 0
        place = self.directory / f"{number:03d}-{files.sha256_bytes(card.identity.encode())[:8]}"
        place.mkdir(mode=files.PRIVATE_DIRECTORY, parents=True)
        return place


def _file_of(function: Callable[..., Any]) -> str:
    file = inspect.getsourcefile(function)
    if file is None or "<locals>" in function.__qualname__:
        message = f"{function.__qualname__}: another process cannot load it; expected a function at the top of a file"
        raise ValueError(message)
    return str(Path(file).resolve())


def _raised(place: Path) -> str | None:
    lines = files.read_tail(place / "stderr.log")
    return next((line.removeprefix(FAILED) for line in reversed(lines) if line.startswith(FAILED)), None)
