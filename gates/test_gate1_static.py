# SPDX-License-Identifier: Apache-2.0
"""Gate 1's static clauses, rules for a source tree that is not run; every campaign's gate 1 may name them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_laguna.fixtures import Prove
from pytest_laguna.identity import static_rules, vllm_names


@pytest.fixture
def project(request: pytest.FixtureRequest) -> Path:
    """The checkout with the frozen sources."""
    return request.config.rootpath


@pytest.mark.gate(1)
@pytest.mark.clause("static-lint")
def test_ruff_finds_nothing(prove: Prove, project: Path) -> None:
    """The rules of pyproject.toml."""
    assert static_rules.run_tool("ruff", ["check", "--no-cache"], project) == []
    prove("ruff check finds nothing")


@pytest.mark.gate(1)
@pytest.mark.clause("static-format")
def test_everything_is_formatted(prove: Prove, project: Path) -> None:
    """As ruff formats it."""
    assert static_rules.run_tool("ruff", ["format", "--check", "--no-cache"], project) == []
    prove("ruff format would change nothing")


@pytest.mark.gate(1)
@pytest.mark.clause("static-whitespace")
def test_text_is_tidy(prove: Prove, project: Path) -> None:
    """No white space at the end of a line, one line feed at the end of a file."""
    assert static_rules.untidy_text(project) == []
    prove("no stray white space")


@pytest.mark.gate(1)
@pytest.mark.clause("static-typos")
def test_words_are_spelled(prove: Prove, project: Path) -> None:
    """As typos knows them."""
    texts = static_rules.text_files(project)
    assert static_rules.run_tool("typos", ["--force-exclude", *texts], project) == []
    prove("typos finds nothing")


@pytest.mark.gate(1)
@pytest.mark.clause("static-licence")
def test_every_source_names_its_licence(prove: Prove, project: Path) -> None:
    """An SPDX header."""
    assert static_rules.without_licence(project) == []
    prove("every source has its SPDX header")


@pytest.mark.gate(1)
@pytest.mark.clause("static-imports")
def test_imports_go_the_allowed_ways(prove: Prove, project: Path) -> None:
    """No private pytest module, import contracts kept, a light plugin, every vLLM name bound on all platforms."""
    assert static_rules.private_pytest(project) == []
    assert static_rules.heavy_plugin(project) == []
    assert static_rules.run_tool("lint-imports", ["--no-logo", "--no-cache"], project) == []
    assert vllm_names.product_imports(project) == []
    prove("no forbidden import, and every vLLM name is bound on every platform")


@pytest.mark.gate(1)
@pytest.mark.clause("static-environment")
def test_every_environment_name_is_documented_with_its_default(prove: Prove, project: Path) -> None:
    """In docs/reference.md; and no test names a path of one host."""
    assert static_rules.undocumented_environment(project) == []
    assert static_rules.host_paths(project) == []
    prove("every environment variable is in the reference")
