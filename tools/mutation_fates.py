# SPDX-License-Identifier: Apache-2.0
"""The fates of each function's mutants, by a digest of its body: a function that only moved is not asked again.

A digest is of the function's syntax tree without its name, docstrings, annotations and positions. Functions of a
package with equal bodies share a record, which holds for as many of them as were asked. A mutant is known by its number
within its function. A mutant that no record calls killed is not killed.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TypeAlias

DIGITS = 20
LEFT_OUT = frozenset({"annotation", "returns", "type_comment", "kind"})
"""Fields of a syntax tree that change nothing when a function is called."""
KILLED = frozenset({"killed", "timeout"})

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """The fates of one body.

    Attributes:
        mutants: how many it has.
        functions: how many functions of this body were asked.
        alive: the numbers of the mutants that were not killed, in one of the functions at least.
    """

    mutants: int
    functions: int
    alive: frozenset[int]


class Fates:
    """A file with the records of all packages, one a line; of two lines for one body the later one holds."""

    def __init__(self, path: Path, package: str) -> None:
        self._path, self._package = path, package
        self._records: dict[tuple[str, str], Record] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                of, digest, mutants, functions, alive = json.loads(line)
                self._records[of, digest] = Record(mutants, functions, frozenset(alive))

    def record(self, digest: str, mutants: int, functions: int) -> Record | None:
        """The record of a body, or None if it has another number of mutants, or more functions than were asked."""
        known = self._records.get((self._package, digest))
        return known if known and known.mutants == mutants and functions <= known.functions else None

    def forget(self, digest: str) -> None:
        """Have a body's functions be asked anew."""
        self._records.pop((self._package, digest), None)

    def add(self, digest: str, fates: Sequence[str]) -> None:
        """Add one more function of a body, of which every mutant was asked, and append the record to the file."""
        key, alive = (self._package, digest), frozenset(n for n, fate in enumerate(fates) if fate not in KILLED)
        before = self._records.get(key, Record(len(fates), 0, frozenset()))
        self._records[key] = Record(len(fates), before.functions + 1, before.alive | alive)
        with self._path.open("a") as lines:
            print(_line(key, self._records[key]), file=lines)

    def write(self, present: AbstractSet[str]) -> None:
        """Write all records in order, and of this package those of the bodies that are still there."""
        kept = sorted(key for key in self._records if key[0] != self._package or key[1] in present)
        self._path.write_text("".join(f"{_line(key, self._records[key])}\n" for key in kept))


def _line(key: tuple[str, str], record: Record) -> str:
    return json.dumps([*key, record.mutants, record.functions, sorted(record.alive)], separators=(",", ":"))


def digest_of(function: Function) -> str:
    """Digest of what a function does when it is called."""
    return hashlib.sha256(repr(_form(function, {"name"})).encode()).hexdigest()[:DIGITS]


def _form(value: object, left_out: AbstractSet[str] = frozenset()) -> object:
    """A syntax tree as lists that are the same in every version of Python."""
    if isinstance(value, list):
        return [_form(one) for one in value]
    if not isinstance(value, ast.AST):
        return value
    fields = {name: part for name, part in ast.iter_fields(value) if name not in LEFT_OUT | left_out}
    if isinstance(value, Function | ast.ClassDef) and ast.get_docstring(value, clean=False) is not None:
        fields["body"] = fields["body"][1:]
    given = ([name, _form(part)] for name, part in fields.items() if part is not None and part != [])
    return [type(value).__name__, *given]


def functions_of(path: Path) -> list[tuple[range, Function]]:
    """The outermost functions of a module, each with the lines from its first decorator to its end."""
    return list(_outermost(ast.parse(path.read_text())))


def _outermost(tree: ast.AST) -> Iterable[tuple[range, Function]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield range(first, (node.end_lineno or first) + 1), node
        else:
            yield from _outermost(node)
