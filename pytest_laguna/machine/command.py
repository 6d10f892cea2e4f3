# SPDX-License-Identifier: Apache-2.0
"""The command of a supervised child, its bounds and its token."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

import pydantic

from pytest_laguna.machine import descent

_STRICT = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)


class Ladder(pydantic.BaseModel):
    """Seconds for each signal to empty the tree before the next is sent; the last bound is the kill's."""

    model_config = _STRICT

    interrupt_seconds: float = pydantic.Field(ge=0, allow_inf_nan=False)
    terminate_seconds: float = pydantic.Field(ge=0, allow_inf_nan=False)
    kill_seconds: float = pydantic.Field(gt=0, allow_inf_nan=False)

    @property
    def seconds(self) -> float:
        """The longest time for all of it."""
        return self.interrupt_seconds + self.terminate_seconds + self.kill_seconds


class Command(pydantic.BaseModel):
    """A command and its bounds.

    Attributes:
        argv: the program, as an absolute path, and its arguments.
        environment: all of it, but for the token, which is added; nothing is inherited.
        directory: working directory; ``stdout.log`` and ``stderr.log`` are made there and must not exist.
        deadline_seconds: from its start to the ladder.
        ladder: the end of every run that does not end by itself.
        settle_seconds: time for the child's leftovers to end by themselves.
        memory_limit_bytes: of the whole tree, as ``descent.memory_bytes`` counts; None polls nothing.
        journal: a file whose last whole line belongs in the result.
        cores: the processor cores of the whole tree; empty for all.
    """

    model_config = _STRICT

    argv: tuple[str, ...] = pydantic.Field(min_length=1)
    environment: Mapping[str, str]
    directory: Path
    deadline_seconds: float = pydantic.Field(gt=0, allow_inf_nan=False)
    ladder: Ladder
    settle_seconds: float = pydantic.Field(ge=0, allow_inf_nan=False)
    memory_limit_bytes: int | None = pydantic.Field(default=None, gt=0)
    journal: Path | None = None
    cores: frozenset[int] = frozenset()

    @pydantic.field_validator("argv")
    @classmethod
    def _absolute(cls, argv: tuple[str, ...]) -> tuple[str, ...]:
        if not argv[0].startswith("/"):
            message = f"argv[0]: seen {argv[0]!r}; expected an absolute path: a search path would choose the program"
            raise ValueError(message)
        return argv


def new_token() -> str:
    """Return a lease's token: random, so no other process bears it."""
    return secrets.token_hex(descent.TOKEN_DIGITS // 2)


def check_token(token: str) -> None:
    """Refuse a malformed token.

    Raises:
        ValueError: it is not ``descent.TOKEN_DIGITS`` lower-case hexadecimal digits.
    """
    if len(token) != descent.TOKEN_DIGITS or not set(token) <= set("0123456789abcdef"):
        raise ValueError(f"token: seen {token!r}; expected {descent.TOKEN_DIGITS} lower-case hexadecimal digits")
