# SPDX-License-Identifier: Apache-2.0
"""The event profile's campaigns: what they freeze, the plan that follows, and what cannot be one."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_laguna.campaign import CampaignError, parse_campaign, read_campaign
from pytest_laguna.engine import launch
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.plan import GeneratedModels
from pytest_laguna.evidence.events.analysis import CLAUSES
from pytest_laguna.experiments.plans import plan_events
from pytest_laguna.verdict import JSON, UnusableEvidenceError

CAMPAIGNS = Path(__file__).parents[2] / "campaigns"
PUBLISHED = CAMPAIGNS / "laguna-current-stream-events.toml"
FITNESS = CAMPAIGNS / "laguna-current-stream-events-fitness.toml"
CARDS = ["a", "b", "c", "d"]
TARGET_CONFIG: dict[str, JSON] = {"architectures": ["LagunaForCausalLM"], "num_hidden_layers": 48}
DIAGNOSTIC = """\
[diagnostic]
completion_tokens = 272
samples = 31
collective_breaks = true
acceptance_rate_difference = 0.001
accepted_per_cycle = 2.0
queries = [2]
"""
PAIR = 'model = { generated = "tiny-laguna", layers = 48, prompt = "letters" }'
ORDER = "e5b64443ef499d8bb8b138a94ad504effeaa6434a8884ae9f885aecf12d34e1b"


def test_the_published_campaign_does_not_try_its_instrument_and_the_other_does() -> None:
    published, fitness = read_campaign(PUBLISHED), read_campaign(FITNESS)
    assert published.gates == fitness.gates == [1, 2]
    assert set(published.gate_clauses(2)) == set(fitness.gate_clauses(2)) == set(CLAUSES)
    plans = [plan_events(campaign, "cpu", CARDS, TARGET_CONFIG) for campaign in (published, fitness)]
    assert [plan.arms for plan in plans] == [
        ("q1", "graph-event"),
        ("q1", "graph-event", "graph-fitness", "graph-sparse"),
    ]
    assert {plan.topology.order_sha256 for plan in plans} == {ORDER}
    prompt = files.sha256_bytes(launch.TINY_PAIR_PROMPTS["letters"].encode())
    pair = GeneratedModels(
        generated="tiny-laguna", layers=48, width=1, hidden_size=64, prompt="letters", prompt_sha256=prompt
    )
    assert [(plan.vllm, plan.models) for plan in plans] == [("0.32.0", pair)] * 2
    assert (plans[0].fitness, plans[1].fitness and plans[1].fitness.slowdown_limit) == (None, 1.1)
    assert plans[0].completion_tokens == 272
    assert published.digest != fitness.digest


def test_each_lane_has_its_vllm_and_one_card_no_collectives() -> None:
    for path in (PUBLISHED, FITNESS):
        plan = plan_events(read_campaign(path), "cuda", CARDS[:1], TARGET_CONFIG)
        assert (plan.vllm, plan.topology.graphs, plan.topology.breaks) == ("0.26.0", 49, 48)
        assert plan_events(read_campaign(path), "cuda", CARDS[:2], TARGET_CONFIG).topology.order_sha256 == ORDER


def test_a_lane_without_an_engine_has_no_plan() -> None:
    campaign = read_campaign(PUBLISHED)
    without = campaign.model_copy(update={"lanes": {"xpu": campaign.lanes["xpu"].model_copy(update={"engine": None})}})
    with pytest.raises(UnusableEvidenceError, match=r"expected tables event_profile and lanes\.xpu\.engine"):
        plan_events(without, "xpu", CARDS, TARGET_CONFIG)
    views = read_campaign(CAMPAIGNS / "laguna-persistent-kv-views.toml")
    with pytest.raises(UnusableEvidenceError, match="expected tables event_profile"):
        plan_events(views, "cpu", CARDS, TARGET_CONFIG)


def _changed(old: str, new: str) -> bytes:
    text = FITNESS.read_text()
    assert old in text
    return text.replace(old, new, 1).encode()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("material_percent = 60.0", "material_percent = 50.0", "event_profile.material_percent"),
        ("material_percent = 60.0", "material_percent = 100.0", "event_profile.material_percent"),
        (PAIR, PAIR + '\ndecides = "exactness"', r"engine\.decides: seen in an event profile; expected"),
        (PAIR, PAIR + '\nidentical = [["q1", "eager"]]', r"engine\.identical: seen in an event profile; expected"),
        ("slowdown_limit = 1.10", "slowdown_limit = 1.0", "event_profile.fitness.slowdown_limit"),
        ("sparse_replays = 30", "sparse_replays = 129", "event_profile.sparse_replays"),
        ("rounds = 9", "rounds = 2", "event_profile.fitness.rounds"),
        ("rounds = 9", "rounds = 9\nretries = 1", "event_profile.fitness.retries"),
        (
            "[event_profile]",
            DIAGNOSTIC + "[event_profile]",
            "expected one of them, for gate 2",
        ),
    ],
    ids=["always", "never", "decides", "identical", "no-slower", "many", "few", "unknown", "two-kinds"],
)
def test_what_cannot_be_one_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(CampaignError, match=message):
        parse_campaign(_changed(old, new), "campaign.toml")
