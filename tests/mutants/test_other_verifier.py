# SPDX-License-Identifier: Apache-2.0
"""A verifier that nobody here wrote would come to the same: one from the documentation alone does, on every root."""

from __future__ import annotations

import ast
import io
import random
import shutil
import subprocess
import sys
import tokenize
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_laguna.verdict import worst
from pytest_laguna.verify.verification import verify_root
from tests import fuzz_roots, other_verifier
from tests.demo import writable
from tests.mutants.test_machine_rules import DAMAGES
from tests.mutants.test_session_rules import MUTANTS as SESSION_MUTANTS
from tests.mutants.test_verification_rules import MUTANTS as ROOT_MUTANTS
from tests.sealed import build, good_events, restamp

SOURCE = Path(other_verifier.__file__)


def by_both(sealed: Path) -> tuple[str, str]:
    """What the whole root comes to, by verification and by the other verifier."""
    other_verifier.verify.cache_clear()
    others = [verdict for _, _, verdict, *_ in other_verifier.verify_root(sealed)]
    ours = worst(report.verdict for report in verify_root(sealed))
    return str(ours), max(others, key=other_verifier.CODES.__getitem__, default="NOT_PROVEN")


def code_lines(source: str) -> set[int]:
    """The lines that hold code: no import, no comment and no docstring."""
    aside: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        told = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if isinstance(node, ast.Import | ast.ImportFrom) or (isinstance(node, ast.Expr) and told):
            aside.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    empty = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type not in empty]
    return {line for token in tokens for line in range(token.start[0], token.end[0] + 1)} - aside


def test_it_is_short_and_has_nothing_of_this_project() -> None:
    source = SOURCE.read_text()
    imported = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    }
    assert imported - sys.stdlib_module_names == {"jsonschema", "rfc8785"}
    assert len(code_lines(source)) <= 160


@pytest.mark.parametrize("name", fuzz_roots.ROOTS)
def test_it_agrees_on_good_and_bad_sessions(name: str, tmp_path: Path) -> None:
    fuzz_roots.ROOTS[name](tmp_path)
    ours, others = by_both(tmp_path / "sealed")
    assert ours == others


@pytest.mark.parametrize("index", range(len(ROOT_MUTANTS)))
def test_it_agrees_on_every_mutant_root(index: int, tmp_path: Path) -> None:
    _, mutate, verdict, _ = ROOT_MUTANTS[index]
    mutate(build(tmp_path))
    assert by_both(tmp_path / "sealed") == (verdict, verdict)


@pytest.mark.parametrize("index", range(len(SESSION_MUTANTS)))
def test_it_agrees_on_every_mutant_session(index: int, tmp_path: Path) -> None:
    _, mutate, exit_status, verdict, _ = SESSION_MUTANTS[index]
    attempt = build(tmp_path, mutate(good_events()), exit_status=exit_status)
    assert by_both(tmp_path / "sealed") == (verdict, verdict)
    _claim_pass(attempt)
    ours, others = by_both(tmp_path / "sealed")
    assert "PASS" not in {ours, others}


def _claim_pass(attempt: Path) -> None:
    """The verdict object, and what is made from it, say PASS whatever the journal says."""
    with writable(attempt):
        for name in ("analysis.json", "junit.xml"):
            content = (attempt / name).read_bytes()
            for verdict in (b"STOP", b"FAIL", b"VOID", b"NOT_PROVEN"):
                content = content.replace(verdict, b"PASS")
            (attempt / name).write_bytes(content)
    restamp(attempt, lambda manifest: manifest)


@pytest.mark.parametrize("index", range(len(DAMAGES)))
def test_it_agrees_on_a_device_gate_whose_machine_speaks_against_it(index: int, tmp_path: Path) -> None:
    damage: Callable[[Path], None] = DAMAGES[index][0]
    fuzz_roots.open_next(tmp_path, build(tmp_path), before_sealing=damage)
    ours, others = by_both(tmp_path / "sealed")
    assert ours == others == DAMAGES[index][1]


def test_it_agrees_on_roots_that_are_damaged_anyhow(tmp_path: Path) -> None:
    generator = random.Random(8)  # noqa: S311 - a reproducible sample, not a secret
    for name in fuzz_roots.ROOTS:
        (tmp_path / name).mkdir()
        specimen = fuzz_roots.make_specimen(name, tmp_path / name)
        for kind, change in fuzz_roots.CHANGES.items():
            for _ in range(5):
                specimen.restore()
                try:
                    change(generator, specimen.sealed)
                except fuzz_roots.UnfitError:
                    continue
                ours, others = by_both(specimen.sealed)
                assert ours == others, (name, kind)
        shutil.rmtree(tmp_path / name)


def test_it_runs_by_itself(tmp_path: Path) -> None:
    """Without this project in its path; what it needs is there."""
    fuzz_roots.ROOTS["passed"](tmp_path)
    program = (
        f"import runpy, sys; sys.argv = ['other', {str(tmp_path / 'sealed')!r}]; sys.path_importer_cache.clear()\n"
    )
    program += "class Refuse:\n    def find_spec(self, name, *_):\n"
    program += "        if name.partition('.')[0] in {'pytest_laguna', 'pydantic', 'pytest'}: raise ImportError(name)\n"
    program += f"sys.meta_path.insert(0, Refuse())\nrunpy.run_path({str(SOURCE)!r}, run_name='__main__')\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        ["demo/cpu/gate1 PASS 2 clauses proven", "demo/cpu/gate2 PASS 1 clauses proven"],
    ), done.stderr
