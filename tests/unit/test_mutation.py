# SPDX-License-Identifier: Apache-2.0
"""The mutation testing tool gives live functions other code, and objects to what nobody has accounted for."""

from __future__ import annotations

import ast
import dataclasses
import gc
import importlib.util
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tools import mutation
from tools.mutation_fates import Fates, digest_of, functions_of

SOURCE = """
class Thing:
    @property
    def value(self):
        return 1

    @value.setter
    def value(self, given):
        self.given = given + 1

def outer():
    def inner():
        return 2
    return inner

INNER = outer()
"""


@dataclasses.dataclass
class Change:
    """Stands for a mutant: the tool's own need mutmut, which this environment does not have."""

    path: Path
    function: str
    old: str
    new: str

    def source(self) -> str:
        assert SOURCE.count(self.old) == 1
        return SOURCE.replace(self.old, self.new)


@pytest.fixture
def module(tmp_path: Path) -> Any:
    path = tmp_path / "mutated.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("mutated", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def changed(module: Any, function: str, old: str, new: str) -> None:
    path = Path(module.__file__)
    change: Any = Change(path, function, old, new)
    mutation.change(change, mutation._functions(f"{path.parent}{os.sep}"))


def test_what_is_decorated_or_of_one_name_gets_its_own_code(module: Any) -> None:
    changed(module, "Thing.value", "given + 1", "given - 1")
    thing = module.Thing()
    thing.value = 5
    assert (thing.value, thing.given) == (1, 4)
    changed(module, "Thing.value", "return 1", "return 7")
    thing.value = 5
    assert (thing.value, thing.given) == (7, 6)


def test_a_function_that_was_made_before_gets_the_code_too(module: Any) -> None:
    changed(module, "outer", "return 2", "return 3")
    assert (module.INNER(), module.outer()()) == (3, 3)


def test_a_function_that_was_frozen_gets_the_code_too(module: Any) -> None:
    gc.collect()
    gc.freeze()
    try:
        changed(module, "outer", "return 2", "return 3")
    finally:
        gc.unfreeze()
    assert module.INNER() == 3


def test_what_a_test_runs_in_a_thread_of_its_own_is_seen(module: Any) -> None:
    path = Path(module.__file__)
    with mutation._traced(f"{path.parent}{os.sep}") as lines:
        thread = threading.Thread(target=module.INNER)
        thread.start()
        thread.join()
    assert {SOURCE.splitlines()[number - 1].strip() for number in lines[str(path)]} == {"return 2"}


def nowhere(_mutant: str) -> bool:
    return False


def test_one_entry_accepts_one_survivor_wherever_its_module_is() -> None:
    fates = {"a.py::f: 1": "survived", "moved/b.py::f: 1": "survived"}
    assert list(mutation.objections(fates, ["f: 1"], nowhere)) == [
        "not listed in mutation_survivors.toml: moved/b.py::f: 1"
    ]
    assert list(mutation.objections(fates, ["f: 1", "f: 1"], nowhere)) == []


def test_survivors_that_nobody_listed_and_lists_that_went_stale_are_told() -> None:
    fates = {"a.py::f: 1": "killed", "a.py::f: 2": "survived", "a.py::g: 3": "not reached", "b.py::f: 4": "timeout"}
    assert list(mutation.objections(fates, ["f: 2", "g: 3"], nowhere)) == []
    assert list(mutation.objections(fates, ["f: 1", "g: 3", "g: 9"], nowhere)) == [
        "not listed in mutation_survivors.toml: a.py::f: 2",
        "listed in mutation_survivors.toml, but killed: f: 1",
        "listed in mutation_survivors.toml, but no mutant: g: 9",
    ]
    assert list(mutation.objections(fates, ["f: 2", "g: 3", "h: 1"], {"h: 1"}.__contains__)) == []
    assert list(mutation.table(fates))[2:] == [
        "| a.py | 3 | 1 | 33.3% | 2 |",
        "| b.py | 1 | 1 | 100.0% | 0 |",
        "| all | 4 | 2 | 50.0% | 2 |",
    ]


def test_every_accepted_survivor_has_a_reason_and_its_function() -> None:
    listed = mutation.accepted()
    assert all(reason for _, reason in listed)
    assert list(mutation.gone(mutant for mutant, _ in listed)) == []


def test_nothing_runs_where_a_survivor_is_listed_of_what_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pytest_laguna" / "evidence" / "deeper").mkdir(parents=True)
    (tmp_path / "pytest_laguna" / "evidence" / "deeper" / "thing.py").write_text(SOURCE)
    names = ["Thing.value: 1 -> 2 in: x: int", "Thing.worth: 1 -> 2"]
    listed = tmp_path / "listed.toml"
    listed.write_text(f"[[survivors]]\nreason = 'none'\nmutants = {names}\n")
    monkeypatch.setattr(mutation, "ROOT", tmp_path)
    monkeypatch.setattr(mutation, "ACCEPTED", listed)
    assert mutation.main(["evidence", "--fates", str(tmp_path / "fates")]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"listed.toml: {names[1]}: no function Thing.worth; delete the entry, or name its new one",
    ]


BODY = """
@decorated
def compared(value: int) -> bool:
    \"\"\"Compare.\"\"\"
    limit: int = 3
    return value < limit
"""


@dataclasses.dataclass
class Placed:
    """Stands for a mutant of one function."""

    name: str
    lines: tuple[int, int]


def bodies(path: Path, source: str, count: int = 3) -> list[Any]:
    """The bodies of a module whose functions have so many mutants each."""
    path.write_text(source)
    placed: list[Any] = [
        Placed(f"{path.name}::{function.name}: {number}", (lines[-1], lines[-1]))
        for lines, function in functions_of(path)
        for number in range(count)
    ]
    return mutation.bodies_of(path, placed)


def plan(directory: Path, found: list[Any], listed: frozenset[str] = frozenset()) -> Any:
    return mutation.Plan(found, Fates(directory / "fates.jsonl", "analysis"), listed)


def ask(planned: Any, **fates: str) -> list[str]:
    """Ask what is waiting; a mutant whose fate is not given, by number, is killed."""
    waiting = [mutant.name for mutant in planned.waiting]
    for mutant in planned.waiting:
        planned.note(mutant, fates.get(f"of_{mutant.name[-1]}", "killed"))
    return waiting


def test_a_function_that_moved_with_another_name_docstring_and_annotation_is_not_asked_again(tmp_path: Path) -> None:
    assert len(ask(plan(tmp_path, bodies(tmp_path / "a.py", BODY)))) == 3
    moved = BODY.replace("compared", "renamed").replace("Compare.", "Tell.").replace(": int", ": float")
    planned = plan(
        tmp_path,
        bodies(tmp_path / "b.py", f"import ast\n\n\nclass Holder:\n    {moved.replace(chr(10), chr(10) + '    ')}"),
    )
    assert planned.waiting == []
    assert planned.fates == {f"b.py::renamed: {number}": "killed" for number in range(3)}


@pytest.mark.parametrize(
    ("old", "new"), [("<", "<="), ("= 3", "= 4"), ("return value", "return not value"), ("@decorated\n", "")]
)
def test_a_changed_function_is_asked_again_and_nothing_of_it_counts_as_killed_before(
    old: str, new: str, tmp_path: Path
) -> None:
    ask(plan(tmp_path, bodies(tmp_path / "a.py", BODY)))
    planned = plan(tmp_path, bodies(tmp_path / "a.py", BODY.replace(old, new, 1)))
    assert (len(planned.waiting), planned.fates) == (3, {})


def test_a_body_with_other_mutants_or_in_more_functions_than_were_asked_is_asked(tmp_path: Path) -> None:
    ask(plan(tmp_path, bodies(tmp_path / "a.py", BODY)))
    assert len(plan(tmp_path, bodies(tmp_path / "a.py", BODY, count=4)).waiting) == 4
    twice = BODY + BODY.replace("compared", "twin")
    assert len(ask(plan(tmp_path, bodies(tmp_path / "a.py", twice)))) == 6
    assert plan(tmp_path, bodies(tmp_path / "a.py", twice)).waiting == []
    other = mutation.Plan(bodies(tmp_path / "a.py", BODY), Fates(tmp_path / "fates.jsonl", "evidence"), frozenset())
    assert len(other.waiting) == 3, "another package has other tests"


def test_a_function_that_was_not_asked_whole_is_not_kept(tmp_path: Path) -> None:
    planned = plan(tmp_path, bodies(tmp_path / "a.py", BODY))
    for mutant in planned.waiting[:2]:
        planned.note(mutant, "killed")
    assert len(plan(tmp_path, bodies(tmp_path / "a.py", BODY)).waiting) == 3


def test_a_survivor_stays_one_if_it_is_listed_and_is_asked_again_if_not(tmp_path: Path) -> None:
    ask(plan(tmp_path, bodies(tmp_path / "a.py", BODY)), of_1="survived", of_2="timeout")
    planned = plan(tmp_path, bodies(tmp_path / "moved.py", BODY), frozenset({"compared: 1"}))
    assert planned.waiting == []
    assert planned.fates["moved.py::compared: 1"] == "survived"
    assert ask(plan(tmp_path, bodies(tmp_path / "a.py", BODY))) == ["a.py::compared: 1"]
    assert plan(tmp_path, bodies(tmp_path / "a.py", BODY)).waiting == []


def test_the_file_keeps_other_packages_and_forgets_bodies_that_are_gone(tmp_path: Path) -> None:
    found = bodies(tmp_path / "a.py", BODY)
    ask(plan(tmp_path, found))
    ask(mutation.Plan(found, Fates(tmp_path / "fates.jsonl", "evidence"), frozenset()))
    Fates(tmp_path / "fates.jsonl", "analysis").write(frozenset())
    left = Fates(tmp_path / "fates.jsonl", "evidence").record(found[0].digest, 3, 1)
    assert left is not None
    assert Fates(tmp_path / "fates.jsonl", "analysis").record(found[0].digest, 3, 1) is None


def test_a_docstring_of_a_function_within_is_no_part_of_a_body() -> None:
    plain, told = (
        "def f():\n    def g():\n        return 1\n    return g",
        'def f():\n    def g():\n        """G."""\n        return 1\n    return g',
    )
    digests = {
        digest_of(statement)
        for text in (plain, told)
        for statement in ast.parse(text).body
        if isinstance(statement, ast.FunctionDef)
    }
    assert len(digests) == 1
