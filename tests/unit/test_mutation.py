# SPDX-License-Identifier: Apache-2.0
"""The mutation testing tool gives live functions other code, and objects to what nobody has accounted for."""

from __future__ import annotations

import dataclasses
import gc
import importlib.util
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tools import mutation

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


def test_survivors_that_nobody_listed_and_lists_that_went_stale_are_told() -> None:
    fates = {"a.py::f: 1": "killed", "a.py::f: 2": "survived", "a.py::g: 3": "not reached", "b.py::f: 4": "timeout"}
    assert list(mutation.objections(fates, ["a.py::f: 2", "a.py::g: 3"])) == []
    assert list(mutation.objections(fates, ["a.py::f: 1", "a.py::g: 3", "a.py::g: 9"])) == [
        "not listed in mutation_survivors.toml: a.py::f: 2",
        "listed in mutation_survivors.toml, but killed: a.py::f: 1",
        "listed in mutation_survivors.toml, but no mutant: a.py::g: 9",
    ]
    assert list(mutation.table(fates))[2:] == [
        "| a.py | 3 | 1 | 33.3% | 2 |",
        "| b.py | 1 | 1 | 100.0% | 0 |",
        "| all | 4 | 2 | 50.0% | 2 |",
    ]


def test_every_accepted_survivor_has_a_reason_and_its_function() -> None:
    listed = mutation.accepted()
    assert all(listed.values())
    assert list(mutation.gone(listed)) == []


def test_nothing_runs_where_a_survivor_is_listed_of_what_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thing.py").write_text(SOURCE)
    names = ["thing.py::Thing.value: 1 -> 2 in: x: int", "thing.py::Thing.worth: 1 -> 2", "other.py::value: 1 -> 2"]
    listed = tmp_path / "listed.toml"
    listed.write_text(f"[[survivors]]\nreason = 'none'\nmutants = {names}\n")
    monkeypatch.setattr(mutation, "ROOT", tmp_path)
    monkeypatch.setattr(mutation, "ACCEPTED", listed)
    assert mutation.main(["evidence", "--fates", str(tmp_path / "fates")]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"listed.toml: {names[1]}: thing.py has no function Thing.worth; delete the entry, or name its new one",
        f"listed.toml: {names[2]}: there is no file other.py; delete the entry, or name where that went",
    ]
