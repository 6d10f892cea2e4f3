# SPDX-License-Identifier: Apache-2.0
"""Each static rule is content with a good tree and speaks when one thing in it is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_laguna.evidence import files
from pytest_laguna.identity import static_rules

HEADER = "# SPDX-License-Identifier: Apache-2.0\n"
MISSPELT = "the".replace("he", "eh")
GOOD = {
    "Makefile": f"{HEADER}all:\n\ttrue\n",
    ".ci/run": f"#!/bin/bash\n{HEADER}true\n",
    "LICENSE": "Apache License\n",
    "docs/reference.md": "| Variable | Default |\n|--|--|\n| `LAGUNA_LANE` | unset | x |\n| `LAGUNA_NATIVE` | off |\n",
    "pytest_laguna/plugin.py": f"{HEADER}import pytest\n\nfrom pytest_laguna.attempt import options\n",
    "pytest_laguna/attempt/options.py": f'{HEADER}import os\n\nLANE = os.environ["LAGUNA_LANE"]\n',
    "src/laguna_kv/_contract.c": '// SPDX-License-Identifier: Apache-2.0\nconst char *name = "LAGUNA_NATIVE";\n',
    "tests/test_it.py": f"{HEADER}import pytest\n",
    "tests/data/theirs.py": "import _pytest \n\n\n",
    "wheels/vllm/theirs.py": "import _pytest \n\n\n",
    ".venv/lib/theirs.py": "import _pytest \n\n\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for path, text in GOOD.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def replace(tree: Path, path: str, old: str, new: str) -> None:
    text = (tree / path).read_text()
    assert old in text
    (tree / path).write_text(text.replace(old, new))


@pytest.mark.parametrize("rule", static_rules.RULES)
def test_a_good_tree_has_no_findings(tree: Path, rule: static_rules.Rule) -> None:
    assert rule(tree) == []


@pytest.mark.parametrize("path", ["Makefile", ".ci/run", "pytest_laguna/plugin.py", "src/laguna_kv/_contract.c"])
def test_a_source_without_its_licence_is_found(tree: Path, path: str) -> None:
    replace(tree, path, "SPDX-License-Identifier: Apache-2.0", "SPDX-License-Identifier: MIT")
    (finding,) = static_rules.without_licence(tree)
    assert finding.startswith(f"{path}: seen no 'SPDX-License-Identifier: Apache-2.0'")


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("Apache License \n", "LICENSE:1: seen white space"),
        ("Apache\r\nLicense\n", "LICENSE:1: seen white space"),
        ("Apache License", "LICENSE: seen b'se' at the end; expected exactly one line feed"),
        ("Apache License\n\n", "LICENSE: seen b'\\n\\n' at the end; expected exactly one"),
    ],
)
def test_untidy_text_is_found(tree: Path, text: str, finding: str) -> None:
    (tree / "LICENSE").write_bytes(text.encode())
    (found,) = static_rules.untidy_text(tree)
    assert found.startswith(finding)


@pytest.mark.parametrize("name", ["kv.frozen.json", "kv.review.json"])
def test_the_records_beside_a_frozen_campaign_are_canonical_and_not_untidy(tree: Path, name: str) -> None:
    (tree / name).write_bytes(files.canonical_json({"campaign": "kv"}))
    assert static_rules.untidy_text(tree) == []
    (tree / name.replace(".", "-")).with_suffix(".json").write_bytes(files.canonical_json({"campaign": "kv"}))
    assert len(static_rules.untidy_text(tree)) == 1


def test_a_file_that_is_not_python_is_found_once(tree: Path) -> None:
    replace(tree, "pytest_laguna/attempt/options.py", "import os", "import os =")
    (finding,) = static_rules.unreadable_python(tree)
    assert finding.startswith("pytest_laguna/attempt/options.py:2: seen ")
    assert static_rules.heavy_plugin(tree) == []


@pytest.mark.parametrize("line", ["import _pytest", "import _pytest.config", "from _pytest.config import Config"])
@pytest.mark.parametrize("path", ["pytest_laguna/attempt/options.py", "tests/test_it.py"])
def test_an_import_of_private_pytest_is_found(tree: Path, path: str, line: str) -> None:
    (tree / path).write_text(f"{HEADER}def late():\n    {line}\n")
    assert f"{path}:3: seen an import of _pytest" in static_rules.private_pytest(tree)[0]


@pytest.mark.parametrize("line", ["import vllm._C", "from vllm import _custom_ops", "from vllm.v1.x import _y as y"])
@pytest.mark.parametrize("path", ["pytest_laguna/attempt/options.py", "src/laguna_kv/views.py"])
def test_an_import_of_private_vllm_is_found(tree: Path, path: str, line: str) -> None:
    (tree / path).write_text(f"{HEADER}def late():\n    {line}\n")
    assert f"{path}:3: seen an import of vllm." in static_rules.private_vllm(tree)[0]


def test_a_compatibility_module_may_import_private_vllm(tree: Path) -> None:
    (tree / "src/laguna_kv/compat.py").write_text(f"{HEADER}from vllm import _custom_ops\n")
    (tree / "pytest_laguna/engine/compat").mkdir(parents=True)
    (tree / "pytest_laguna/engine/compat/cpu.py").write_text(f"{HEADER}from vllm import _custom_ops\n")
    assert static_rules.private_vllm(tree) == []


@pytest.mark.parametrize("line", ["import pydantic", "from torch import nn", "if True:\n    import vllm"])
@pytest.mark.parametrize("path", ["pytest_laguna/plugin.py", "pytest_laguna/attempt/options.py"])
def test_a_heavy_import_in_the_plugin_is_found(tree: Path, path: str, line: str) -> None:
    replace(tree, path, HEADER, f"{HEADER}{line}\n")
    findings = static_rules.heavy_plugin(tree)
    assert findings
    assert findings[0].startswith(f"{path}:")


def test_a_relative_import_in_the_plugin_is_followed(tree: Path) -> None:
    replace(tree, "pytest_laguna/plugin.py", "from pytest_laguna.attempt import", "from .attempt import")
    replace(tree, "pytest_laguna/attempt/options.py", "import os", "import os\nimport torch")
    assert [finding.partition(":")[0] for finding in static_rules.heavy_plugin(tree)] == [
        "pytest_laguna/attempt/options.py"
    ]


def test_an_import_inside_a_function_of_the_plugin_costs_nothing(tree: Path) -> None:
    replace(tree, "pytest_laguna/plugin.py", "import pytest\n", "import pytest\ndef late():\n    import torch\n")
    assert static_rules.heavy_plugin(tree) == []


@pytest.mark.parametrize(
    ("path", "old"),
    [("pytest_laguna/attempt/options.py", "LAGUNA_LANE"), ("src/laguna_kv/_contract.c", "LAGUNA_NATIVE")],
)
def test_an_undocumented_variable_is_found(tree: Path, path: str, old: str) -> None:
    replace(tree, path, old, "VLLM_XPU_LAGUNA_M9_NEW")
    missing, stale = static_rules.undocumented_environment(tree)
    assert path in missing
    assert "VLLM_XPU_LAGUNA_M9_NEW: seen no row in docs/reference.md" in missing
    assert stale.startswith(f"docs/reference.md: {old}: seen nowhere")


def test_a_row_without_a_default_documents_nothing(tree: Path) -> None:
    replace(tree, "docs/reference.md", "| `LAGUNA_LANE` | unset |", "| `LAGUNA_LANE` | |")
    (finding,) = static_rules.undocumented_environment(tree)
    assert "LAGUNA_LANE: seen no row" in finding


def test_a_report_that_was_written_beside_the_sources_is_no_text_of_theirs(tree: Path) -> None:
    (tree / "report.html").write_text(f"<p>{MISSPELT}</p>")
    (tree / "notes.md").write_text(f"{MISSPELT}\n")
    texts = static_rules.text_files(tree)
    assert ("notes.md" in texts, "report.html" in texts) == (True, False)
    (finding,) = [one for one in static_rules.run_tool("typos", ["--format=brief", *texts], tree) if MISSPELT in one]
    assert "notes.md" in finding


def test_a_tool_that_is_content_has_no_findings(tree: Path) -> None:
    assert static_rules.run_tool("ruff", ["check", "--isolated", "pytest_laguna/plugin.py", "--ignore=F"], tree) == []


@pytest.mark.parametrize(
    ("tool", "arguments", "text", "expected"),
    [
        ("ruff", ["check", "--isolated", "--output-format=concise"], "import os\n", "F401"),
        ("ruff", ["format", "--isolated", "--check"], "x  =  1\n", "would be reformatted"),
        ("typos", [], f"# {MISSPELT} end\n", MISSPELT),
    ],
)
def test_what_a_tool_finds_is_reported(
    tmp_path: Path, tool: str, arguments: list[str], text: str, expected: str
) -> None:
    (tmp_path / "bad.py").write_text(text)
    assert expected in "\n".join(static_rules.run_tool(tool, arguments, tmp_path))


def test_a_missing_tool_is_a_finding(tmp_path: Path) -> None:
    (finding,) = static_rules.run_tool("no-such-tool", [], tmp_path)
    program = Path(sys.executable).parent / "no-such-tool"
    assert finding == f"no-such-tool: seen none at {program}; expected the tool; install requirements/dev.txt"


def test_a_tool_that_fails_in_silence_is_a_finding(tmp_path: Path) -> None:
    (finding,) = static_rules.run_tool(Path(sys.executable).name, ["-c", "raise SystemExit(3)"], tmp_path)
    assert finding.endswith("exit code 3 and no output; expected 0")
