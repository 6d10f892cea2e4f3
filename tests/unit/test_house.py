# SPDX-License-Identifier: Apache-2.0
"""This project's own tree keeps the static rules and the import directions, and the check of the latter can fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pytest_laguna.identity import static_rules

ROOT = Path(__file__).resolve().parents[2]
CONTRACTS = {
    contract["id"]: contract["name"]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
}
REVERSED = [
    ("layers", "pytest_laguna/campaign.py", "pytest_laguna.gate.session"),
    ("layers", "pytest_laguna/verdict.py", "pytest_laguna.evidence.files"),
    ("layers", "pytest_laguna/verify/verification.py", "pytest_laguna.plugin"),
    ("layers", "pytest_laguna/identity/source.py", "pytest_laguna.analysis.clauses"),
    ("candidate", "src/laguna_kv/errors.py", "pytest_laguna.verdict"),
    ("engine", "pytest_laguna/engine/packets.py", "pytest_laguna.campaign"),
    ("engine", "pytest_laguna/engine/packets.py", "pytest_laguna.gate.session"),
    ("engine-inside", "pytest_laguna/gate/session.py", "pytest_laguna.engine.packets"),
    ("analysis", "pytest_laguna/analysis/clauses.py", "pytest_laguna.campaign"),
    ("analysis", "pytest_laguna/analysis/clauses.py", "laguna_kv.views"),
    ("analysis-records", "pytest_laguna/analysis/clauses.py", "pytest_laguna.evidence.root"),
    ("analysis-records", "pytest_laguna/analysis/clauses.py", "pytest_laguna.evidence.files"),
    ("analysis-pure", "pytest_laguna/analysis/clauses.py", "subprocess"),
    ("analysis-pure", "pytest_laguna/analysis/clauses.py", "time"),
    ("analysis-pure", "pytest_laguna/analysis/clauses.py", "datetime"),
    ("analysis-pure", "pytest_laguna/analysis/clauses.py", "asyncio"),
    ("analysis-pure", "pytest_laguna/analysis/clauses.py", "socket"),
    ("evidence", "pytest_laguna/evidence/files.py", "pytest_laguna.analysis.clauses"),
    ("evidence", "pytest_laguna/evidence/files.py", "pytest_laguna.engine.packets"),
    ("evidence", "pytest_laguna/evidence/files.py", "pytest_laguna.gate.session"),
    ("offline", "pytest_laguna/analysis/clauses.py", "torch"),
    ("offline", "pytest_laguna/evidence/files.py", "vllm"),
    ("offline", "pytest_laguna/verify/verification.py", "pytest"),
    ("controller", "pytest_laguna/identity/record.py", "torch"),
    ("controller", "pytest_laguna/attempt/options.py", "laguna_kv.views"),
    ("vendors", "pytest_laguna/identity/record.py", "pynvml"),
    ("vendors", "pytest_laguna/engine/packets.py", "pyzes"),
    ("product", "pytest_laguna/gate/session.py", "gates.test_gate1_cpu"),
]


def lint_imports(tree: Path, contract: str) -> subprocess.CompletedProcess[str]:
    """Run the check on a tree, and not on the one that this environment has installed."""
    return subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-logo", "--no-cache", "--contract", contract],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": f"{tree}:{tree / 'src'}", "COLUMNS": "200", "NO_COLOR": "1"},
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("rule", static_rules.RULES)
def test_the_tree_keeps_the_static_rules(rule: static_rules.Rule) -> None:
    assert rule(ROOT) == []


@pytest.mark.parametrize("contract", CONTRACTS)
def test_the_tree_keeps_the_import_directions(contract: str) -> None:
    done = lint_imports(ROOT, contract)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{CONTRACTS[contract]} KEPT" in done.stdout


@pytest.mark.parametrize(("contract", "path", "module"), REVERSED)
def test_a_reversed_import_is_found(tmp_path: Path, contract: str, path: str, module: str) -> None:
    for part in ("pytest_laguna", "src"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / path).open("a") as source:
        source.write(f"\nimport {module}\n")
    done = lint_imports(tmp_path, contract)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{CONTRACTS[contract]} BROKEN" in done.stdout
    assert path.removeprefix("src/").removesuffix(".py").replace("/", ".") in done.stdout


def test_every_contract_is_seen_to_fail() -> None:
    assert {contract for contract, _, _ in REVERSED} == CONTRACTS.keys()
