# SPDX-License-Identifier: Apache-2.0
"""The mutants of a module: each is its source with one node of one function changed by one of mutmut's operators.

Only the operators are mutmut's. What it leaves out of a module is mutated here too (functions with decorators, which
properties, validators and overrides are); left out are what is evaluated where a function is defined (decorators,
defaults, annotations), docstrings, the wording of errors and findings (literal text that is raised, that stands beside
a verdict or is joined to other text; the values in it stay), the target of ``cast``, the ``strict`` of ``zip``, which
the linter asks for wherever lengths are equal, and, as in mutmut, ``len`` and ``isinstance``.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

# Not in the environment that types are checked in: see requirements/mutation.in.
import libcst as cst  # type: ignore[import-not-found]
from libcst.metadata import MetadataWrapper, PositionProvider  # type: ignore[import-not-found]
from mutmut.mutation.mutators import mutation_operators  # type: ignore[import-not-found]

UNCHANGED_CALLS = frozenset({"cast", "isinstance", "len"})


@dataclasses.dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a module.

    Attributes:
        name: file, function and change; independent of the function's place in the file.
        path: the module's file.
        function: qualified name of the outermost function around the change.
        lines: first and last line of the statement, or of the head of the compound statement, around the change.
        within: first and last line of that function.
        module: the original source.
        before: the node to replace.
        after: its replacement.
    """

    name: str
    path: Path
    function: str
    lines: tuple[int, int]
    within: tuple[int, int]
    module: cst.Module
    before: cst.CSTNode
    after: cst.CSTNode

    def source(self) -> str:
        """The mutated module."""
        code: str = self.module.deep_replace(self.before, self.after).code
        return code


def mutants_of(path: Path, root: Path) -> list[Mutant]:
    """Return every mutant of a module, in the order of its source; names are relative to ``root``."""
    wrapper = MetadataWrapper(cst.parse_module(path.read_text()))
    collector = _Collector(path, path.relative_to(root).as_posix(), wrapper.module)
    wrapper.visit(collector)
    return collector.mutants


class _Collector(cst.CSTVisitor):  # type: ignore[misc]
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, path: Path, shown: str, module: cst.Module) -> None:
        super().__init__()
        self.mutants: list[Mutant] = []
        self._path, self._shown, self._module = path, shown, module
        self._lines_of_file = path.read_text().splitlines()
        self._around: list[cst.CSTNode] = []
        self._names: Counter[str] = Counter()

    def on_visit(self, node: cst.CSTNode) -> bool:
        if self._left_out(node):
            return False
        self._around.append(node)
        if any(isinstance(outer, cst.FunctionDef) for outer in self._around[:-1]):
            self._mutate(node)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if self._around and self._around[-1] is original_node:
            self._around.pop()

    def _left_out(self, node: cst.CSTNode) -> bool:
        match node:
            case cst.Annotation() | cst.Decorator() | cst.Parameters():
                return True
            case cst.Call(func=cst.Name(value=called)) if called in UNCHANGED_CALLS:
                return True
            case cst.Arg(keyword=cst.Name(value="strict")):
                return True
            case cst.SimpleString() if any(map(_raised_or_found, self._around)):
                return True
            case cst.SimpleString():
                return isinstance(self._around[-1], cst.Expr | cst.ConcatenatedString)  # a docstring, or prose
        return False

    def _mutate(self, node: cst.CSTNode) -> None:
        for kind, operator in mutation_operators:
            if isinstance(node, kind):
                for changed in operator(node):
                    if _strict(node) == _strict(changed):
                        self._add(node, changed)

    def _add(self, before: cst.CSTNode, after: cst.CSTNode) -> None:
        function, lines, within = self._function(), self._lines(), self._within()
        change = f"{self._text(before)} -> {self._text(after)}"
        line = " ".join(self._lines_of_file[self._line(before) - 1].split())
        name = f"{self._shown}::{function}: {change} in: {line}"
        self._names[name] += 1
        if self._names[name] > 1:
            name += f" ({self._names[name]})"
        self.mutants.append(Mutant(name, self._path, function, lines, within, self._module, before, after))

    def _function(self) -> str:
        """As Python's ``__qualname__`` of the outermost function."""
        names = []
        for outer in self._around:
            if isinstance(outer, cst.FunctionDef | cst.ClassDef):
                names.append(outer.name.value)
                if isinstance(outer, cst.FunctionDef):
                    break
        return ".".join(names)

    def _within(self) -> tuple[int, int]:
        outermost = next(outer for outer in self._around if isinstance(outer, cst.FunctionDef))
        place = self.get_metadata(PositionProvider, outermost)
        return place.start.line, place.end.line

    def _lines(self) -> tuple[int, int]:
        for outer in reversed(self._around):
            if isinstance(outer, cst.BaseSmallStatement | cst.BaseCompoundStatement):
                place = self.get_metadata(PositionProvider, outer)
                last = place.end.line
                if isinstance(outer, cst.BaseCompoundStatement) and not isinstance(outer, cst.Match):
                    last = max(place.start.line, self.get_metadata(PositionProvider, outer.body).start.line - 1)
                return place.start.line, last
        raise AssertionError(self._shown)

    def _line(self, node: cst.CSTNode) -> int:
        """Line of a node, or of its parent: operators have no position."""
        for inner in (node, *reversed(self._around)):
            place = self.get_metadata(PositionProvider, inner, None)
            if place is not None:
                line: int = place.start.line
                return line
        raise AssertionError(self._shown)

    def _text(self, node: cst.CSTNode) -> str:
        return " ".join(self._module.code_for_node(node).split())


def _raised_or_found(node: cst.CSTNode) -> bool:
    """True if a node is a raised error, or a finding: a verdict and its reason."""
    match node:
        case cst.Raise():
            return True
        case cst.Tuple(elements=[cst.Element(value=cst.Attribute(value=cst.Name(value="Verdict"))), _]):
            return True
    return False


def _strict(node: cst.CSTNode) -> list[str]:
    """The ``strict`` of a ``zip``, as it is written."""
    match node:
        case cst.Call(func=cst.Name(value="zip"), args=arguments):
            return [
                argument.value.value
                for argument in arguments
                if argument.keyword and argument.keyword.value == "strict"
            ]
    return []
