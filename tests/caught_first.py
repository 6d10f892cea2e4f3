# SPDX-License-Identifier: Apache-2.0
"""What is asked of every mutant: that its own rule is the first with something to say."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

import pytest

TABLE = "mutants"
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
    names, mutants = columns.split(), [*table]
    rows = [dict(zip(names, mutant, strict=True)) for mutant in mutants]
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
        vars(test)[TABLE] = [(row["rule"], mutant) for row, mutant in zip(rows, mutants, strict=True)]
        decorated: Callable[..., None] = pytest.mark.parametrize(("mutant", "first"), cases)(test)
        return decorated

    return made


def _taken(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The mutants, each with its rule, of the tests that pytest finds in a module."""
    for name, test in vars(module).items():
        if name.startswith("test_"):
            yield from getattr(test, TABLE, ())


def caught(module: ModuleType) -> set[str]:
    """The rules of which a test module has a mutant that they are the first to catch."""
    return {rule for rule, _ in _taken(module)}


def left_out(modules: Iterable[ModuleType]) -> dict[str, int]:
    """By table named ``...MUTANTS`` of test modules, how many of its mutants no such test takes, where some are not.

    A mutant is told by its identity: one that is put into a table after the test was made is left out, too.
    """
    searched = [*modules]
    taken = {id(mutant) for module in searched for _, mutant in _taken(module)}
    tables = {
        f"{module.__name__}.{name}": table
        for module in searched
        for name, table in vars(module).items()
        if name.endswith("MUTANTS")
    }
    counts = {name: sum(id(mutant) not in taken for mutant in table) for name, table in tables.items()}
    return {name: count for name, count in counts.items() if count}
