# SPDX-License-Identifier: Apache-2.0
"""What is asked of every mutant: that its own rule is the first with something to say."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

import pytest

MUTATED = "mutated_rules"
NOBODY: Mapping[str, str] = MappingProxyType({})


def caught_first(
    columns: str, table: Iterable[tuple[Any, ...]], told_first: Mapping[str, str] = NOBODY
) -> Callable[[Callable[..., Iterable[str | None]]], Callable[..., None]]:
    """Make a test of each mutant of a table, from a function that judges it.

    Args:
        columns: names of the table's columns, of which one is ``rule``; the function takes those that it needs.
        table: the mutants.
        told_first: by a mutant's rule and name, the rule that rightly speaks before its own; its own must speak too.

    Returns:
        A decorator of the function, which returns the rules with something to say in the order in which they are asked.
    """
    names = columns.split()
    rows = [dict(zip(names, row, strict=True)) for row in table]
    ids = [f"{row['rule']}-{row.get('name', number)}" for number, row in enumerate(rows)]
    if unknown := told_first.keys() - ids:
        raise ValueError(f"told first: {sorted(unknown)}; expected mutants of the table")
    cases = [pytest.param(row, told_first.get(name, row["rule"]), id=name) for row, name in zip(rows, ids, strict=True)]

    def made(judged: Callable[..., Iterable[str | None]]) -> Callable[..., None]:
        parameters = inspect.signature(judged).parameters
        taken = [name for name in names if name in parameters]

        @functools.wraps(judged)
        def test(mutant: Mapping[str, Any], first: str, **fixtures: Any) -> None:
            said = [*judged(**{name: mutant[name] for name in taken}, **fixtures)]
            assert said[:1] == [first], f"{said} have something to say; expected {first} first"
            assert mutant["rule"] in said, f"{said} have something to say; expected {mutant['rule']} among them"

        keyword = inspect.Parameter.KEYWORD_ONLY
        fixtures = [parameter for name, parameter in parameters.items() if name not in names]
        vars(test)["__signature__"] = inspect.Signature(
            [inspect.Parameter(name, keyword) for name in ("mutant", "first")]
            + [parameter.replace(kind=keyword) for parameter in fixtures]
        )
        vars(test)[MUTATED] = {row["rule"] for row in rows}
        decorated: Callable[..., None] = pytest.mark.parametrize(("mutant", "first"), cases)(test)
        return decorated

    return made


def caught(module: ModuleType) -> set[str]:
    """The rules of which a test module has a mutant that they are the first to catch."""
    return {rule for test in vars(module).values() for rule in getattr(test, MUTATED, ())}
