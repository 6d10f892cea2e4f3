# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_laguna.machine.xpu_host import XpuHostFiles, closed_nodes, host_runtime

STATUS = """Package: libze-intel-gpu1
Status: install ok installed
Version: 26.18.38308.1-0

Package: libze1
Status: deinstall ok config-files
Version: 1.24.1-1

Package: intel-igc-core-2
Status: install ok installed
Maintainer: somebody
Version: 2.34.4+21428

Package: bash
Status: install ok installed
Version: 5.2
"""


@pytest.fixture
def files(tmp_path: Path) -> XpuHostFiles:
    there = XpuHostFiles(tmp_path / "sys", tmp_path / "proc", tmp_path / "dev", tmp_path / "status")
    (there.proc / "sys/kernel").mkdir(parents=True)
    (there.proc / "sys/kernel/osrelease").write_text("6.17.0-8-generic\n")
    (there.sys / "module/xe").mkdir(parents=True)
    (there.dev / "dri").mkdir(parents=True)
    there.packages.write_text(STATUS)
    return there


def test_what_serves_the_cards_is_found(files: XpuHostFiles) -> None:
    found = host_runtime(files)
    assert (found.kernel, found.driver) == ("6.17.0-8-generic", "built in")
    assert found.packages == {"libze-intel-gpu1": "26.18.38308.1-0", "intel-igc-core-2": "2.34.4+21428"}


@pytest.mark.parametrize("name", ["version", "srcversion"])
def test_a_driver_says_which_it_is(name: str, files: XpuHostFiles) -> None:
    (files.sys / "module/xe" / name).write_text("1.2.3\n")
    assert host_runtime(files).driver == "1.2.3"


def test_what_is_not_there_is_not_made_up(files: XpuHostFiles) -> None:
    (files.sys / "module/xe").rmdir()
    files.packages.unlink()
    found = host_runtime(files)
    assert (found.driver, found.packages) == (None, {})


def test_this_host_has_a_kernel() -> None:
    assert host_runtime().kernel == os.uname().release


def test_a_node_that_may_not_be_opened_is_named(files: XpuHostFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [files.dev / "dri" / name for name in ("card0", "renderD128", "renderD129")]
    for node in nodes:
        node.touch()
    assert closed_nodes(files) == []
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != nodes[2] and real(path, mode))
    assert closed_nodes(files) == [nodes[2]]
