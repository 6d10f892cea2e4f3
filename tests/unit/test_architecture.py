# SPDX-License-Identifier: Apache-2.0
"""The architecture page names every room, and for each exactly the rooms that it imports."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
EVERYWHERE = {"evidence", "verdict"}
"""Rooms that the page lets every room above them import."""
_ROW = re.compile(r"^\| `(\w+)` \| [^|]+ \| ([^|]*) \|$", re.MULTILINE)


def stated(page: str) -> dict[str, set[str]]:
    """The page's table of rooms: imports by room, in the order of the rows."""
    table = page.partition("## Rooms")[2].partition("### ")[0]
    return {room: set(re.findall(r"`?([a-z_.]+)`?", imports)) - {"nothing"} for room, imports in _ROW.findall(table)}


def room_of(module: str) -> str:
    """The room of a module; of ``engine`` the two modules that others may import are named apart."""
    _, room, *below = (*module.split("."), "", "")
    return f"engine.{below[0]}" if room == "engine" and below[0] in {"launch", "serving"} else room


@pytest.fixture(scope="module")
def real() -> dict[str, set[str]]:
    """Imports by room, from the sources."""
    graph = grimp.build_graph("pytest_laguna", "laguna_kv", cache_dir=None)
    arrows: dict[str, set[str]] = {}
    for module in graph.modules:
        if not module.startswith("pytest_laguna."):
            continue
        found = arrows.setdefault(module.split(".")[1], set())
        for imported in graph.find_modules_directly_imported_by(module):
            found.add("laguna_kv" if imported.startswith("laguna_kv") else room_of(imported))
    return {
        room: {one for one in imported if one and one.partition(".")[0] != room} - EVERYWHERE
        for room, imported in arrows.items()
    }


def test_the_page_names_every_room_and_its_imports(real: dict[str, set[str]]) -> None:
    assert stated(PAGE) == real


def test_the_rows_stand_in_the_order_of_the_layers() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["id"] == "layers")
    rank = {room: place for place, layer in enumerate(layers) for room in re.findall(r"\w+", layer)}
    rooms = list(stated(PAGE))
    assert rooms == sorted(rooms, key=rank.__getitem__)
    assert set(rooms) == set(rank)


def test_a_stale_page_is_seen(real: dict[str, set[str]]) -> None:
    assert stated(PAGE.replace("| verify, experiments, analysis, campaign |", "| verify, experiments |")) != real
    assert stated(re.sub(r"^\| `machine` .*\n", "", PAGE, count=1, flags=re.MULTILINE)) != real
