# SPDX-License-Identifier: Apache-2.0
"""Every fragment of the changelog names an issue and a known type, says one sentence, and can be built."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FRAGMENTS = sorted((ROOT / "changes").glob("*.md"))
SETTINGS = tomllib.loads((ROOT / "towncrier.toml").read_text())["tool"]["towncrier"]


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=lambda path: path.name)
def test_a_fragment_is_one_sentence_of_a_known_type(fragment: Path) -> None:
    found = re.fullmatch(r"\d+\.(\w+)(?:\.\d+)?\.md", fragment.name)
    assert found is not None
    assert found[1] in {kind["directory"] for kind in SETTINGS["type"]}
    assert re.fullmatch(r"[`A-Z][^\n]+\.\n", fragment.read_text())


def test_they_become_a_release(tmp_path: Path) -> None:
    pytest.importorskip("towncrier")
    for name in ("towncrier.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "changes", tmp_path / "changes")
    options = ["--keep", "--version", "9.9.9", "--date", "2026-11-29"]
    command = [sys.executable, "-m", "towncrier", "build", *options]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    written = (tmp_path / "CHANGELOG.md").read_text()
    assert "## 9.9.9 (2026-11-29)" in written
    for fragment in FRAGMENTS:
        assert fragment.read_text().strip() in written.replace("\n  ", " ")
