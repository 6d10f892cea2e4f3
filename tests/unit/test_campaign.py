# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_laguna.analysis.endpoint.clauses import CLAUSES as JUDGED_ENDPOINT_CLAUSES
from pytest_laguna.campaign import CampaignError, parse_campaign
from pytest_laguna.evidence.diagnostic.analysis import CLAUSES as DIAGNOSTIC_CLAUSES
from pytest_laguna.evidence.endpoint.plan import CLAUSES as ENDPOINT_CLAUSES
from pytest_laguna.evidence.events.analysis import CLAUSES as EVENT_CLAUSES
from tests.demo import CAMPAIGN

CAMPAIGNS = Path(__file__).parents[2] / "campaigns"


def test_the_digest_is_that_of_the_content_and_not_of_the_spelling() -> None:
    campaign = parse_campaign(CAMPAIGN.encode(), "campaign.toml")
    spelled = CAMPAIGN.replace('name = "demo"', "name = 'demo'  # a comment")
    assert parse_campaign(spelled.encode(), "campaign.toml").digest == campaign.digest
    changed = CAMPAIGN.replace('treatment = "1"', 'treatment = "2"')
    assert parse_campaign(changed.encode(), "campaign.toml").digest != campaign.digest


def test_the_order_of_clauses_is_part_of_what_runs() -> None:
    campaign = parse_campaign(CAMPAIGN.encode(), "campaign.toml")
    assert list(campaign.gate_clauses(1)) == ["first", "second"]
    assert campaign.gate_clauses(3) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CAMPAIGN + "surprise = 1\n", "clauses.2.surprise"),
        (CAMPAIGN.replace('lane = "cpu"', 'lane = "cpu"\nlane = "cpu"'), "not TOML in UTF-8 (Cannot overwrite a value"),
        (
            CAMPAIGN.replace('lane = "cpu"', 'lame = "cpu"', 1),
            "campaign.toml: lane: Field required, and lame is unknown",
        ),
        (CAMPAIGN.replace('lane = "cpu"', 'lane = "cuda"'), "expected one of the tables under lanes: cpu"),
        (CAMPAIGN.replace("[lanes.cpu]", '[lanes.cpu]\nextra = "x"'), "lanes.cpu.extra: Extra inputs"),
        (CAMPAIGN.replace("gates = [1, 2]", "gates = [1]"), "clauses.2: no such gate; expected one of gates, [1]"),
        (CAMPAIGN.replace("gates = [1, 2]", "gates = [2, 1]"), "expected 1, 2, ... without a gap"),
        (CAMPAIGN.replace("gates = [1, 2]", "gates = []"), "gates: List should have at least 1 item"),
        (CAMPAIGN.replace("gates = [1, 2]", 'gates = ["1"]'), "gates.0: Input should be a valid integer"),
        (CAMPAIGN.replace('name = "demo"', 'name = "../demo"'), "name: String should match"),
        (CAMPAIGN.replace("0000", "000", 1), "preregistration.sha256: String should match"),
        (CAMPAIGN.replace("test_second", "test_first"), "names a test twice"),
        (CAMPAIGN.replace("::test_second", "::test_sécond"), "clauses.1.second: String should match"),
        (CAMPAIGN.replace('"checks/test_device', '"/checks/test_device'), "clauses.2.only: String should match"),
        (CAMPAIGN.replace('"checks/test_device', '"../checks/test_device'), "clauses.2.only: String should match"),
        (CAMPAIGN.replace('"checks/test_device', '"checks/../test_device'), "clauses.2.only: String should match"),
        (CAMPAIGN.replace('"checks/test_device', '"checks//test_device'), "clauses.2.only: String should match"),
        (CAMPAIGN.replace("demo_candidate", ""), "candidate.package: String should match"),
        (CAMPAIGN.replace("demo_candidate", ".demo"), "candidate.package: String should match"),
        (CAMPAIGN.replace("demo_candidate", "../demo"), "candidate.package: String should match"),
        (CAMPAIGN.replace("demo_candidate", "demo."), "candidate.package: String should match"),
        (CAMPAIGN.replace("1_000_000_000", str(2**60)), "campaign.toml: cannot be written as RFC 8785 JSON"),
        (f"x = {'[' * 5000}{']' * 5000}", "campaign.toml: nested too deeply"),
        ("", "campaign.toml: schema: Field required"),
        ("\x00", "campaign.toml: "),
    ],
)
def test_a_wrong_campaign_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(CampaignError) as caught:
        parse_campaign(text.encode(), "campaign.toml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


QUICK = (CAMPAIGNS / "laguna-persistent-kv-views-quick.toml").read_text()
EVENTS = (CAMPAIGNS / "laguna-current-stream-events.toml").read_text()


def _lacking(text: str, gate: int, clause: str) -> str:
    """A campaign without one clause of a gate."""
    head, table, rest = text.partition(f"[clauses.{gate}]\n")
    kept = "".join(line for line in rest.splitlines(keepends=True) if not line.startswith(f"{clause} = "))
    assert kept != rest
    return head + table + kept


@pytest.mark.parametrize(
    ("text", "gate", "clauses"),
    [(QUICK, 2, DIAGNOSTIC_CLAUSES), (EVENTS, 2, EVENT_CLAUSES), (QUICK, 3, ENDPOINT_CLAUSES)],
    ids=["diagnostic", "event profile", "endpoint"],
)
def test_a_campaign_cannot_leave_out_what_its_analysis_judges(text: str, gate: int, clauses: tuple[str, ...]) -> None:
    parse_campaign(text.encode(), "campaign.toml")
    for clause in clauses:
        with pytest.raises(CampaignError, match=rf"clauses\.{gate} lacks {clause}; expected each clause"):
            parse_campaign(_lacking(text, gate, clause).encode(), "campaign.toml")


def test_the_clauses_of_gate_3_are_those_that_its_analysis_judges() -> None:
    assert set(ENDPOINT_CLAUSES) == {*JUDGED_ENDPOINT_CLAUSES, "identity-exact", "cards-idle"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("samples = 31", "samples = 600", "diagnostic: Value error, samples is 600; expected at most the 272"),
        ("completion_tokens = 272\nsamples", "completion_tokens = 512\nsamples", "diagnostic.completion_tokens: Input"),
        ("[2, 3, 4, 5, 6, 7, 8]", "[2, 3, 2]", "diagnostic.queries: Value error, queries is [2, 3, 2]; expected each"),
        ("[2, 3, 4, 5, 6, 7, 8]", "[1000]", "diagnostic.queries.0: Input should be less than or equal to 8"),
    ],
)
def test_a_diagnostic_that_cannot_run_is_refused(old: str, new: str, message: str) -> None:
    assert QUICK.count(old) == 1
    with pytest.raises(CampaignError, match=re.escape(message)):
        parse_campaign(QUICK.replace(old, new).encode(), "campaign.toml")


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ('[["q1", "q1"]]', "pair of q1 and q1; expected two arms: an arm cannot be paired with itself"),
        ('[["graph-control", "graph-candidate"], ["eager", "eager"]]', "pair of eager and eager; expected two arms"),
        ('[["q1", "eager"], ["q1", "graph-control"]]', "expected the pair of graph-control and graph-candidate among"),
    ],
)
def test_the_candidates_tokens_are_always_held_against_the_controls(pairs: str, message: str) -> None:
    required = '[["q1", "eager"], ["q1", "graph-control"], ["graph-control", "graph-candidate"]]'
    assert QUICK.count(required) == 1
    with pytest.raises(CampaignError, match=re.escape(message)):
        parse_campaign(QUICK.replace(required, pairs).encode(), "campaign.toml")
    with pytest.raises(CampaignError, match=r"lanes\.cpu\.engine: no decides; expected 'exactness'"):
        parse_campaign(QUICK.replace('decides = "exactness"\n', "").encode(), "campaign.toml")
    with pytest.raises(
        CampaignError, match=r"lanes\.cpu\.engine\.decides: exactness\+timing; expected 'exactness': times of a"
    ):
        parse_campaign(QUICK.replace('decides = "exactness"', 'decides = "exactness+timing"').encode(), "campaign.toml")
    turned = QUICK.replace(required, '[["graph-candidate", "graph-control"]]')
    parse_campaign(turned.encode(), "campaign.toml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'treatment = "1"',
            'treatment = "0"',
            "candidate: Value error, control and treatment are both '0'; expected two values",
        ),
        (
            'decides = "exactness"',
            'decides = "exactness"\ninterpreter = ""',
            "lanes.cpu.engine.interpreter: Value error, '' names no program; expected a path",
        ),
        (
            'decides = "exactness"',
            'decides = "exactness"\ninterpreter = "."',
            "lanes.cpu.engine.interpreter: Value error, '.' names no program; expected a path",
        ),
        (
            '[lanes.cpu]\nvllm = "0.32.0"',
            '[lanes.cpu]\nvllm = "9.9"',
            "lanes.cpu: Value error, vllm is '9.9'; expected one of 0.26.0, 0.32.0, 0.33.0",
        ),
        (
            'flag = "VLLM_XPU_LAGUNA_M8_PERSISTENT_KV_CACHE_VIEWS"',
            'flag = "VLLM_OTHER"',
            "candidate: flag, control and treatment ('VLLM_OTHER', '0', '1'); expected those of laguna_kv",
        ),
        (
            'control = "0"\ntreatment = "1"',
            'control = "1"\ntreatment = "0"',
            "VIEWS', '1', '0'); expected those of laguna_kv",
        ),
        ('treatment = "1"', 'treatment = "on"', "VIEWS', '0', 'on'); expected those of laguna_kv"),
        ("layers = 12", "layers = 4", "model.GeneratedPair.layers: Input should be greater than or equal to 8"),
        ("layers = 12", "layers = 10", "model.GeneratedPair.layers: Input should be a multiple of 4"),
        ("layers = 12", "layers = 12, width = 3", "model.GeneratedPair.width: Input should be 1, 4, 16 or 64"),
    ],
)
def test_what_could_not_run_is_refused_before_anything_does(old: str, new: str, message: str) -> None:
    assert QUICK.count(old) == 1
    with pytest.raises(CampaignError, match=re.escape(message)):
        parse_campaign(QUICK.replace(old, new).encode(), "campaign.toml")


def test_a_campaign_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(CampaignError, match="utf-8"):
        parse_campaign(b"name = '\xff'", "campaign.toml")
