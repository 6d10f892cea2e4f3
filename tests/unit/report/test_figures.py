# SPDX-License-Identifier: Apache-2.0
"""Pictures take their colours from the page, keep to themselves, and are the same for the same numbers."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from pytest_laguna.report import charts
from pytest_laguna.report.figures import COLOURS, Drawing, figure, scale
from pytest_laguna.report.markup import Markup

pytest.importorskip("matplotlib")

ROWS = [("rank 0", ["graph", "attention", "graph"], [10.0, 20.0, 30.0]), ("rank 1", ["graph"] * 3, [5.0, 5.0, 5.0])]


def test_a_picture_has_no_colour_of_its_own() -> None:
    picture = charts.timelines(Drawing(), ROWS)
    assert not re.findall(r"#[0-9a-f]{6}", picture)
    assert {"var(--graph)", "var(--attention)", "var(--ink)", "var(--soft)"} <= set(
        re.findall(r"var\(--\w+\)", picture)
    )
    assert len({*COLOURS.values()}) == len(COLOURS)


def test_the_same_numbers_give_the_same_bytes_and_two_pictures_no_id_twice() -> None:
    assert charts.timelines(Drawing(), ROWS) == charts.timelines(Drawing(), ROWS)
    drawing = Drawing()
    both = charts.timelines(drawing, ROWS) + charts.timelines(drawing, ROWS)
    ids = re.findall(r'(?<![\w-])id="([^"]+)"', both)
    assert len(ids) == len(set(ids))
    targets = re.findall(r"url\(#([^)]+)\)", both) + re.findall(r'href="#([^"]+)"', both)
    assert targets
    assert set(targets) <= set(ids)


def test_a_picture_is_one_svg_that_names_nothing_elsewhere() -> None:
    picture = charts.timelines(Drawing(), ROWS)
    assert ElementTree.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314
    assert not re.findall(r"(?:href|src)=\"(?!#)", picture)
    assert "metadata" not in picture


def test_a_name_from_the_evidence_is_text_and_not_mathematics() -> None:
    picture = charts.paired_rows(Drawing(), ["$x_1$ <b>", "b"], {"B1 against A1": [1.0, -2.0]}, {"B1 against A1": None})
    assert "$x_1$ &lt;b&gt;" in picture


def test_a_caption_stands_for_the_picture_and_is_escaped() -> None:
    html = figure(Markup("<svg/>"), 'a "caption" <here>')
    assert 'aria-label="a &quot;caption&quot; &lt;here&gt;"' in html
    assert "<figcaption>a &quot;caption&quot; &lt;here&gt;</figcaption>" in html


@pytest.mark.parametrize(("largest", "unit"), [(5e9, "s"), (5e6, "ms"), (5e3, "\N{MICRO SIGN}s"), (5, "ns")])
def test_the_unit_suits_the_largest_value(largest: float, unit: str) -> None:
    assert scale(largest)[1] == unit


@pytest.mark.parametrize("name", ["graph-candidate", "B1", "block 2 B2"])
def test_a_candidate_has_its_colour_in_every_block(name: str) -> None:
    assert charts.side(name) == COLOURS["candidate"]
    assert charts.side(name.replace("B", "A").replace("candidate", "control")) == COLOURS["control"]


def test_every_other_picture_can_be_drawn() -> None:
    drawing = Drawing()
    samples = {"graph-candidate": {"whole": [5, 6, 7]}, "graph-control": {"whole": [6, 7, 9]}}
    pictures = [
        charts.distributions(drawing, samples),
        charts.savings(drawing, {"whole": (1.0, (-1.0, 3.0), 2.0), "wall": (5.0, None, None)}, "%"),
        charts.acceptance(drawing, {"eager": [0.9, 0.5], "graph-control": [0.9]}),
        charts.rates(drawing, {"block 1 A1": [100.0, 101.0], "block 1 B1": [103.0, 104.0]}),
        charts.blocks(drawing, {"block 1": 1.0}, (1.0, 0.2, 1.8), 0.5),
        charts.shares(drawing, {"rank 0": {"graph": (60.0, 55.0, 65.0)}}),
    ]
    for picture in pictures:
        assert picture.startswith("<svg")
        assert not re.findall(r"#[0-9a-f]{6}", picture)
    assert "var(--candidate)" in pictures[3]
    assert "var(--control)" in pictures[3]
