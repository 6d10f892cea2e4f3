# SPDX-License-Identifier: Apache-2.0
"""The report in a real headless browser: it shows every verdict, and is readable in light and in dark."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna import cli
from pytest_laguna.verdict import Verdict
from tests.sealed import build, good_events, phase

matplotlib_image = pytest.importorskip("matplotlib.image")

BROWSER = next((found for name in ("chromium", "google-chrome", "chrome") if (found := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium")

SECOND = "checks/test_first.py::test_second"
CAUSES = {
    Verdict.STOP: "stop",
    Verdict.FAIL: "assertion",
    Verdict.VOID: "unusable",
    Verdict.NOT_PROVEN: "not-proven",
}
READABLE = 4.5
"""The contrast that ordinary text needs. Source: Web Content Accessibility Guidelines 2.2, level AA."""


def browse(report: Path, profile: Path, *arguments: str) -> str:
    """Open a report without a network; returns what the browser writes to standard output."""
    assert BROWSER is not None
    fixed = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND",
    ]
    done = subprocess.run(
        [BROWSER, *fixed, f"--user-data-dir={profile}", "--window-size=1000,1200", *arguments, report.as_uri()],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout


@pytest.fixture(params=[Verdict.PASS, *CAUSES], ids=str)
def shown(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Verdict, Path]:
    """A report for each verdict."""
    verdict: Verdict = request.param
    events: list[tuple[Any, dict[str, Any]]] = good_events()
    if verdict is not Verdict.PASS:
        failed = phase(SECOND, "call", outcome="failed", cause=CAUSES[verdict], reason="as the evidence says")
        events[events.index(phase(SECOND, "call"))] = failed
    build(tmp_path, events, exit_status=int(verdict is not Verdict.PASS))
    report = tmp_path / "report.html"
    assert cli.main(["report", str(tmp_path / "sealed"), "--out", str(report)]) == verdict.exit_code
    return verdict, report


def luminance(colour: Sequence[float]) -> float:
    channels = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    return 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]


def contrast(picture: Any) -> float:
    """Between the page, which its corner shows, and the strongest colour of the heading."""
    page = luminance(picture[5, 5])
    inks = [luminance(picture[y, x]) for y in range(20, 60) for x in range(20, 300)]
    ink = max(inks, key=lambda value: abs(value - page))
    return (max(page, ink) + 0.05) / (min(page, ink) + 0.05)


def test_a_browser_shows_the_verdict_in_light_and_dark(shown: tuple[Verdict, Path], tmp_path: Path) -> None:
    verdict, report = shown
    dom = browse(report, tmp_path / "profile", "--dump-dom")
    assert f'<span class="verdict {verdict}">{verdict}</span>' in dom
    pages = []
    for name, scheme in (("light", 1), ("dark", 0)):
        picture = tmp_path / f"{name}.png"
        browse(
            report, tmp_path / "profile", f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={picture}"
        )
        pixels = matplotlib_image.imread(picture)
        assert pixels.shape[:2] == (1200, 1000)
        assert contrast(pixels) > READABLE
        pages.append(luminance(pixels[5, 5]))
    assert pages[0] > 0.9
    assert pages[1] < 0.05
