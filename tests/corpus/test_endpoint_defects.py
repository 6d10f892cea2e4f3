# SPDX-License-Identifier: Apache-2.0
"""Published harness defects of endpoint campaigns: each planted in good legs, files or figures, and refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_laguna.analysis.endpoint.figures import conventional_rate, legacy_rate
from pytest_laguna.endpoint.metrics import read_counters
from pytest_laguna.endpoint.stream import read_stream
from pytest_laguna.endpoint.suite import SUITES, pin_suite, read_answers, read_suite
from pytest_laguna.endpoint.transport import Read
from pytest_laguna.experiments.protocol import read_protocol
from pytest_laguna.verdict import UnusableEvidenceError
from tests import endpoint_legs as lab
from tests.mutants.test_endpoint_rules import A1, B1, FLAG, Change, analyse, both, put

ROOT = Path(__file__).parents[2]
METRICS = ROOT / "tests" / "data" / "endpoint" / "metrics-before.prom"
HTML = b"<!DOCTYPE html><html><body>200 OK</body></html>\n"


def _captured_late(leg: int) -> Change:
    """The suite's first row captures, which a monitor that forbids it after a warm-up would have to see."""
    return both(*(put(leg, f"ranks_captured|{rank}|graphs", []) for rank in range(lab.RANKS)))


DEFECTS: dict[str, tuple[Change, str, str]] = {
    "13-capture-after-the-first-request": (
        _captured_late(B1),
        "captures-proven",
        "captured): seen graphs and breaks []",
    ),
    "37-proof-of-one-rank-only": (
        put(A1, "ranks_captured|3|rank", 2),
        "captures-proven",
        "seen ranks [0, 1, 2, 2]",
    ),
    "38-selector-seen-by-no-worker": (
        put(B1, f"ranks_served|2|variables|{FLAG}", ""),
        "selector-observed",
        f"rank 2 (served): {FLAG}: seen ''",
    ),
    "51-six-prompts-of-the-same-id": (put(A1, "request|suite|prompts", 6), "suite-passed", "prompts=6"),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_the_defect_is_refused_for_its_reason(name: str) -> None:
    plant, rule, reason = DEFECTS[name]
    legs = lab.legs(lab.metadata_starts())
    plant(legs)
    told = [found.reason for found in analyse(legs).findings if found.rule == rule and found.verdict != "PASS"]
    assert any(reason in one for one in told), told


def test_41_a_pin_that_is_stale_is_refused(tmp_path: Path) -> None:
    """The file changed after its digest was written down."""
    protocol = read_protocol(ROOT / "campaigns" / "laguna-persistent-kv-views-endpoint-cpu.toml")
    changed = tmp_path / "suite.json"
    changed.write_text((SUITES / "tiny-laguna.json").read_text() + "\n")
    with pytest.raises(UnusableEvidenceError, match=r"seen sha256 .*; expected the campaign's"):
        read_suite(changed, protocol.suite.pin)
    suite = read_suite(SUITES / "tiny-laguna.json", protocol.suite.pin)
    teacher = json.loads((SUITES / "tiny-laguna.teacher.json").read_text())
    teacher["rows"][0]["token_ids"][0] += 1
    (tmp_path / "teacher.json").write_text(json.dumps(teacher))
    assert protocol.teacher is not None
    with pytest.raises(UnusableEvidenceError):
        read_answers(tmp_path / "teacher.json", suite, protocol.teacher.sha256)


def test_42_intervals_are_counted_and_not_events() -> None:
    """A token every 10 ms is 100 tokens/s; by the published way of counting, 100 over 99 of that."""
    arrivals = [10_000_000 * number for number in range(160)]
    assert conventional_rate(arrivals) == pytest.approx(100.0)
    assert legacy_rate(arrivals) == pytest.approx(100.0 * 100 / 99)


@pytest.mark.parametrize(
    "read",
    [
        lambda: read_counters(HTML, "metrics", "tiny-laguna"),
        lambda: list(read_stream([Read(1, HTML)], "row").token_ids),
    ],
    ids=["metrics", "stream"],
)
def test_45_a_page_that_says_200_is_no_answer(read: Callable[[], object]) -> None:
    with pytest.raises(UnusableEvidenceError):
        read()


def test_22_rows_that_nobody_expected_change_no_counter() -> None:
    """The recorded answer of a real server, and the same with five more rows of a kind that we do not read."""
    known = METRICS.read_bytes()
    model = known.decode().partition('model_name="')[2].partition('"')[0]
    rows = "".join(f'vllm:copies_total{{engine="0",kind="{n}",model_name="{model}"}} {n}\n' for n in range(5))
    more = b"# TYPE vllm:copies counter\n" + rows.encode() + known
    before, after = (read_counters(content, "metrics", model) for content in (known, more))
    assert before.model_copy(update={"sha256": after.sha256}) == after
    doubled = known + b"".join(line + b"\n" for line in known.splitlines() if line.startswith(b"vllm:prompt_tokens_t"))
    with pytest.raises(UnusableEvidenceError, match="prompt_tokens"):
        read_counters(doubled, "metrics", model)


def test_51_a_suite_is_pinned_by_digest_and_count(tmp_path: Path) -> None:
    """Six of the prompts, under the same id and version."""
    whole = SUITES / "tiny-laguna.json"
    pin = pin_suite(whole)
    content = json.loads(whole.read_text())
    content["prompts"] = content["prompts"][:6]
    (tmp_path / "six.json").write_text(json.dumps(content))
    assert pin_suite(tmp_path / "six.json").suite_id == pin.suite_id
    with pytest.raises(UnusableEvidenceError, match="a suite is pinned"):
        read_suite(tmp_path / "six.json", pin)
