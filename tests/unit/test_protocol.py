# SPDX-License-Identifier: Apache-2.0
"""The endpoint protocol: the shipped ones are read, and what is not one is refused by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.campaign import Campaign, parse_campaign, read_campaign
from pytest_laguna.endpoint.suite import SUITES, read_suite
from pytest_laguna.evidence.arms.arm_record import Arm
from pytest_laguna.evidence.endpoint.plan import CaptureCounts
from pytest_laguna.evidence.endpoint.reader import read_teacher
from pytest_laguna.experiments.protocol import parse_protocol, plan_endpoint, read_protocol
from pytest_laguna.verdict import UnusableEvidenceError

CAMPAIGNS = Path(__file__).parents[2] / "campaigns"
SHIPPED = sorted(CAMPAIGNS.glob("*-endpoint-*.toml"))
QUICK = CAMPAIGNS / "laguna-persistent-kv-views-quick-endpoint-cpu.toml"
CONFIG: dict[str, Any] = {"architectures": ["LagunaForCausalLM"], "num_hidden_layers": 12}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.name))
def test_a_shipped_protocol_finds_its_suite_and_its_teacher(path: Path) -> None:
    protocol = read_protocol(path)
    suite = read_suite(SUITES / protocol.suite.file, protocol.suite.pin)
    if protocol.teacher is None:
        campaign = read_campaign(CAMPAIGNS / f"{protocol.campaign}.toml")
        pairs = [pair for lane in campaign.lanes.values() if lane.engine for pair in lane.engine.identical]
        assert not any(Arm.Q1 in pair for pair in pairs), "a campaign that requires q1's tokens needs its teacher"
        return
    teacher = read_teacher(SUITES / protocol.teacher.file)
    assert teacher.digest == protocol.teacher.sha256
    assert [(row.prompt_id, row.prompt_sha256) for row in teacher.rows] == [
        (prompt.id, prompt.sha256) for prompt in suite.prompts
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('model = "tiny-laguna"\n', "", "p.toml: model: Field required"),
        ("null = false", "null = 0", "p.toml: null: Input should be a valid boolean"),
        ("null = false", "null = false\nretries = 1", "p.toml: retries: Extra inputs are not permitted"),
        (
            "rows_won = 10",
            "rows_won = 14",
            "p.toml: protocol: Value error, rows_won is 14; expected at most the 13 prompts",
        ),
        ("rows_won = 10", "rows_won = 0", "p.toml: thresholds.rows_won: Input should be greater than or equal to 1"),
        ("prompts = 13", "prompts = 0", "p.toml: suite.pin.prompts: Input should be greater than or equal to 1"),
        ('file = "tiny-laguna.json"', 'file = "../../etc/x"', "p.toml: suite.file: String should match pattern"),
        ("null = false", "null = false\nnull = false", "p.toml: Cannot overwrite a value"),
    ],
)
def test_what_is_no_protocol_is_named(old: str, new: str, message: str) -> None:
    text = QUICK.read_text()
    assert old in text
    with pytest.raises(UnusableEvidenceError, match=message):
        parse_protocol(text.replace(old, new, 1).encode(), "p.toml")


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(UnusableEvidenceError, match=r"p\.toml: 'utf-8' codec"):
        parse_protocol(b"\xff", "p.toml")


def campaign(decides: str = "exactness") -> Campaign:
    text = (CAMPAIGNS / "laguna-persistent-kv-views-quick.toml").read_text()
    parsed = parse_campaign(text.encode(), "c.toml")
    if decides == "exactness":
        return parsed
    settings = parsed.lanes["cpu"]  # a CPU's time may not decide
    assert settings.engine is not None
    timed = settings.model_copy(update={"engine": settings.engine.model_copy(update={"decides": decides})})
    return parsed.model_copy(update={"lane": "cuda", "lanes": {"cuda": timed}})


def test_the_plan_follows_from_campaign_protocol_cards_and_model() -> None:
    plan = plan_endpoint(campaign(), "cpu", read_protocol(QUICK), ranks=2, target_config=CONFIG, authorised_by="a" * 64)
    assert plan.topology == CaptureCounts(ranks=2, graphs=38, breaks=37, target_layers=12)
    assert plan.validator == campaign().candidate.validator
    assert (plan.decides, plan.selector.treatment, plan.blocks) == ("exactness", "1", 1)
    assert plan.thresholds.record == 94.92003934159611


def test_where_timing_decides_the_protocol_names_the_receipt_that_authorised_it() -> None:
    timed, protocol = campaign("exactness+timing"), read_protocol(QUICK)
    with pytest.raises(UnusableEvidenceError, match=f"authorised_by is None; expected {'a' * 64}"):
        plan_endpoint(timed, "cuda", protocol, ranks=2, target_config=CONFIG, authorised_by="a" * 64)
    authorised = protocol.model_copy(update={"authorised_by": "a" * 64})
    plan = plan_endpoint(timed, "cuda", authorised, ranks=2, target_config=CONFIG, authorised_by="a" * 64)
    assert plan.decides == "exactness+timing"


@pytest.mark.parametrize(
    ("lane", "changed", "message"),
    [
        ("cpu", {"campaign": "another"}, "protocol of campaign another: expected laguna-persistent-kv-views-quick's"),
        ("xpu", {}, "no lane xpu; expected one of"),
    ],
)
def test_another_campaigns_protocol_or_lane_is_refused(lane: str, changed: dict[str, str], message: str) -> None:
    protocol = read_protocol(QUICK).model_copy(update=changed)
    with pytest.raises(UnusableEvidenceError, match=message):
        plan_endpoint(campaign(), lane, protocol, ranks=1, target_config=CONFIG, authorised_by=None)


def test_a_teacher_with_a_gap_is_refused(tmp_path: Path) -> None:
    teacher = json.loads((SUITES / "tiny-laguna.teacher.json").read_bytes())
    del teacher["rows"][3]
    path = tmp_path / "teacher.json"
    path.write_text(json.dumps(teacher))
    with pytest.raises(UnusableEvidenceError, match=r"teacher\.json: .*without a gap"):
        read_teacher(path)


def test_a_campaign_that_requires_q1s_tokens_needs_its_teacher() -> None:
    without = read_protocol(QUICK).model_copy(update={"teacher": None})
    with pytest.raises(UnusableEvidenceError, match=r"no \[teacher\]; expected q1's, which campaign .*-quick requires"):
        plan_endpoint(campaign(), "cpu", without, ranks=1, target_config=CONFIG, authorised_by=None)
    text = (CAMPAIGNS / "laguna-persistent-kv-views-quick.toml").read_text()
    free = parse_campaign(re.sub(r'\["q1", "[a-z-]+"\], ', "", text).encode(), "c.toml")
    assert plan_endpoint(free, "cpu", without, ranks=1, target_config=CONFIG, authorised_by=None).teacher_sha256 is None


@pytest.mark.parametrize(
    ("line", "backend"), [('executor_backend = "mp"\n', "mp"), ('executor_backend = "ray"\n', "ray"), ("", None)]
)
def test_a_protocol_names_the_way_of_running_several_ranks(line: str, backend: str | None) -> None:
    text = QUICK.read_text().replace("[server]\n", f"[server]\n{line}")
    assert parse_protocol(text.encode(), "p.toml").server.executor_backend == backend


def test_another_way_of_running_several_ranks_is_refused() -> None:
    text = QUICK.read_text().replace("[server]\n", '[server]\nexecutor_backend = "uni"\n')
    with pytest.raises(
        UnusableEvidenceError, match=r"p\.toml: server\.executor_backend: Input should be 'mp' or 'ray'"
    ):
        parse_protocol(text.encode(), "p.toml")
