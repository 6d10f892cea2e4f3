# SPDX-License-Identifier: Apache-2.0
"""What make says where a machine lacks what gates need, and that no test is in no target."""

from __future__ import annotations

import ast
import itertools
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conftest import LONG

ROOT = Path(__file__).resolve().parents[2]
MAKE = shutil.which("make")
COMPILED = ("laguna_kv._contract", "pytest_laguna.engine._replay_clock")
ASKED_FOR = (
    "requirements/cpu.txt",
    "requirements/dev.txt",
    ".venv/packages.stamp",
    "pyproject.toml",
    "setup.py",
    "src/laguna_kv/_contract.c",
    "pytest_laguna/engine/_replay_clock.c",
)
"""What the project's stamp needs, the oldest first."""

PYTHON = """\
#!/bin/sh
test "$2" = pip && exit 0
PYTHONPATH="$PWD/packages" exec {python} -S "$@"
"""
"""An environment's: pip leaves what it finds, and only the packages of this directory are there."""


def place(file: Path, content: str = "") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


@pytest.mark.skipif(MAKE is None, reason="no make here")
@pytest.mark.parametrize("missing", [None, *COMPILED])
def test_an_environment_without_what_is_compiled_is_not_ready(tmp_path: Path, missing: str | None) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ASKED_FOR:
        place(tmp_path / name)
    place(tmp_path / ".venv" / "bin" / "python", PYTHON.format(python=sys.executable))
    (tmp_path / ".venv" / "bin" / "python").chmod(0o700)
    for module in COMPILED:
        file = tmp_path / "packages" / f"{module.replace('.', '/')}.py"
        place(file.with_name("__init__.py"))
        if module != missing:
            place(file)
    command = [str(MAKE), ".venv/project.stamp"]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode == 0) is (missing is None), done.stderr
    assert (tmp_path / ".venv" / "project.stamp").exists() is (missing is None)
    if missing is not None:
        assert done.stderr.startswith(f"{missing}: not compiled; gates need a C compiler and Python's headers")


def targets() -> dict[str, ast.Expression]:
    """What each target that runs pytest selects by markers; each runs the whole of ``testpaths``."""
    text = (ROOT / "Makefile").read_text()
    [(names, chosen)] = re.findall(r"^(test-.*): test-%: .*\n\t\$\(TESTS\) --timeout=\d+ -m (\S+)$", text, re.MULTILINE)
    assert chosen == "$*"
    [short] = re.findall(r'^test: .*\n\t\$\(TESTS\) --timeout=\d+ -m "(.*)"$', text, re.MULTILINE)
    selected = {name: name.removeprefix("test-") for name in names.split()} | {"test": short}
    assert set(selected) <= set(re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)[0].split())
    return {name: ast.parse(expression, mode="eval") for name, expression in selected.items()}


def chosen_by(expression: ast.expr, marked: Mapping[str, bool]) -> bool:
    """The value of a marker expression: names, ``not``, ``and`` and ``or``, with Python's own precedence."""
    match expression:
        case ast.Name(name):
            return marked[name]
        case ast.UnaryOp(ast.Not(), one):
            return not chosen_by(one, marked)
        case ast.BoolOp(ast.And(), several):
            return all(chosen_by(one, marked) for one in several)
        case ast.BoolOp(ast.Or(), several):
            return any(chosen_by(one, marked) for one in several)
    raise AssertionError(ast.dump(expression))


def test_every_test_is_in_a_target() -> None:
    """Whatever markers it has, of those that a target asks for."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    names = [re.split(r"\W", line)[0] for line in declared["markers"]]
    assert names == [*LONG, "kept"]
    assert declared["testpaths"] == ["tests"]
    assert "-m" not in declared["addopts"]
    for has in itertools.product([False, True], repeat=len(names)):
        marked = dict(zip(names, has, strict=True))
        chosen = {name for name, one in targets().items() if chosen_by(one.body, marked)}
        assert chosen, marked
        assert ("test" in chosen) is (marked["kept"] or not any(marked[name] for name in LONG))
        assert chosen - {"test"} == {f"test-{name}" for name in LONG if marked[name]}


def test_of_a_long_test_that_says_so_a_sample_is_kept_and_always_the_same(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers =\n  rules: long\n  kept: short\n")
    pytester.makeconftest("from tests.conftest import pytest_collection_modifyitems")
    pytester.makepyfile("""
        import pytest
        pytestmark = pytest.mark.rules(keep=1)
        def test_one(): pass
        @pytest.mark.rules
        def test_long(): pass
        @pytest.mark.rules(keep=2)
        @pytest.mark.parametrize("number", range(9))
        def test_many(number): pass
    """)
    first, again = (pytester.inline_run("-m", "kept", "-p", "no:cacheprovider") for _ in range(2))
    kept = [
        [report.nodeid for report in run.getreports("pytest_runtest_logreport") if report.when == "call"]
        for run in (first, again)
    ]
    assert kept[0] == kept[1]
    assert [name.partition("::")[2].partition("[")[0] for name in kept[0]] == ["test_one", "test_many", "test_many"]
