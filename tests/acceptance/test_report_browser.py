# SPDX-License-Identifier: Apache-2.0
"""The report in a real headless browser: it shows every verdict, and is readable in light and in dark."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna import cli
from pytest_laguna.report.charts import savings
from pytest_laguna.report.figures import Drawing, figure
from pytest_laguna.report.style import STYLE
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
ANSWER_SECONDS = 60.0
"""How long a browser may be silent about what it is asked; one that hangs is told long before the test's own limit."""
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


class Page:
    """A page in the browser, which is asked from outside: the report forbids whatever lies in it to run."""

    def __init__(self, asking: int, answers: int) -> None:
        self._asking = asking
        self._answers = answers
        self._session: dict[str, str] = {}
        self._last = 0
        self._rest = b""

    def open(self, file: Path, width: int) -> None:
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self._ask("Page.enable")
        self._ask("Page.navigate", url=file.as_uri())
        self._read(lambda said: said.get("method") == "Page.loadEventFired")

    def asked(self, expression: str) -> Any:
        """The value of an expression in the page."""
        return self._ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"]["value"]

    def _ask(self, method: str, **parameters: Any) -> Any:
        self._last += 1
        number = self._last
        request = {"id": number, "method": method, "params": parameters} | self._session
        os.write(self._asking, json.dumps(request).encode() + b"\0")
        answer = self._read(lambda said: said.get("id") == number)
        assert "error" not in answer, answer
        return answer["result"]

    def _read(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        end_of_patience = time.monotonic() + ANSWER_SECONDS
        while True:
            piece, end, rest = self._rest.partition(b"\0")
            if end:
                self._rest = rest
                said: dict[str, Any] = json.loads(piece)
                if wanted(said):
                    return said
            else:
                left = max(0.0, end_of_patience - time.monotonic())
                assert select.select([self._answers], [], [], left)[0], f"no answer in {ANSWER_SECONDS} s"
                more = os.read(self._answers, 65536)
                assert more, "the browser has gone"
                self._rest += more


@contextlib.contextmanager
def opened(file: Path, profile: Path, width: int) -> Iterator[Page]:
    """A file in a window of so many pixels; the browser reads what it is asked from descriptor 3 and answers on 4."""
    assert BROWSER is not None
    theirs, asking = os.pipe()
    answers, ours = os.pipe()
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
    browser = subprocess.Popen(
        [
            "/bin/bash",
            "-c",
            f'exec "$@" 3<&{theirs} 4>&{ours}',
            "bash",
            BROWSER,
            *options,
            f"--user-data-dir={profile}",
        ],
        pass_fds=(theirs, ours),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    os.close(ours)
    try:
        page = Page(asking, answers)
        page.open(file, width)
        yield page
    finally:
        browser.kill()
        browser.wait()
        os.close(asking)
        os.close(answers)


CLAUSE_CELLS = (
    "[...document.querySelectorAll('.clauses > tbody > tr > td')].map(td => td.getBoundingClientRect().right)"
)


@pytest.mark.parametrize("width", [320, 400, 1280])
def test_a_narrow_window_shows_each_clause_whole_and_does_not_scroll_sideways(tmp_path: Path, width: int) -> None:
    build(tmp_path)
    report = tmp_path / "report.html"
    assert cli.main(["report", str(tmp_path / "sealed"), "--out", str(report)]) == 0
    with opened(report, tmp_path / "profile", width) as page:
        assert page.asked("window.innerWidth") == width
        assert page.asked("document.documentElement.scrollWidth") <= width
        rights = page.asked(CLAUSE_CELLS)
    assert len(rights) == 2 * 4
    assert max(rights) <= width


def test_a_narrow_window_shows_pictures_in_letters_that_can_be_read(tmp_path: Path) -> None:
    drawing = Drawing()
    picture = savings(drawing, {"whole replay": (10.0, (5.0, 15.0), 3.0)}, "saving against the control, %")
    page_of = f"<!doctype html><style>{STYLE}</style><main>{figure(picture, 'Savings.')}</main>"
    (tmp_path / "figure.html").write_text(page_of)
    with opened(tmp_path / "figure.html", tmp_path / "profile", 400) as page:
        heights = page.asked("[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height)")
        assert page.asked("document.documentElement.scrollWidth") <= 400
    assert min(heights) >= 9
