# SPDX-License-Identifier: Apache-2.0
"""The campaign that a rehearsal runs: the device campaign's own, with what is shortened told; and its written form."""

from __future__ import annotations

import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_laguna.campaign import Campaign, CampaignError, parse_campaign, read_campaign
from pytest_laguna.evidence.events.analysis import MeasuredFitness
from pytest_laguna.evidence.values import Lane
from pytest_laguna.experiments.protocol import Protocol, read_protocol
from pytest_laguna.machine import leases
from pytest_laguna.run import rehearsal
from pytest_laguna.run.rehearsal import differences, free_slots, of_rehearsal, rehearsed, require_time, to_toml
from pytest_laguna.verdict import NotProvenError

CAMPAIGNS = Path(__file__).parents[2] / "campaigns"
DEVICE_CAMPAIGNS: list[tuple[str, Lane]] = [
    ("laguna-persistent-kv-views.toml", "xpu"),
    ("laguna-persistent-kv-views-cuda.toml", "cuda"),
    ("laguna-current-stream-events.toml", "cuda"),
    ("laguna-current-stream-events.toml", "xpu"),
    ("laguna-current-stream-events-fitness.toml", "cuda"),
    ("laguna-current-stream-events-fitness.toml", "xpu"),
]
GATES = {
    "opening": "gates/test_gate1_static.py",
    "cards": 2,
    "layers": 8,
    "protocol": "p.toml",
    "seconds": 600.0,
    "starts": 10,
    "effect_percent": 0.23,
}


@pytest.fixture
def campaign() -> Campaign:
    """A device campaign with a rehearsal, whatever the shipped ones have."""
    content = read_campaign(CAMPAIGNS / "laguna-persistent-kv-views-cuda.toml").model_dump(by_alias=True)
    content["rehearsal"]["gates"] = GATES
    content["lanes"]["cuda"]["engine"]["decides"] = "exactness+timing"
    return Campaign.model_validate(content)


@pytest.fixture
def protocol() -> Protocol:
    return read_protocol(CAMPAIGNS / "laguna-persistent-kv-views-endpoint-cpu.toml")


@pytest.mark.parametrize("null", [False, True])
def test_what_is_rehearsed_is_the_campaign(campaign: Campaign, null: bool) -> None:
    shortened = rehearsed(campaign, "cuda", null=null)
    assert shortened.candidate == campaign.candidate
    assert (shortened.gates, shortened.name) == (campaign.gates, campaign.name)
    for gate in (2, 3):
        assert shortened.gate_clauses(gate) == campaign.gate_clauses(gate)
    assert all("static" in clause for clause in shortened.gate_clauses(1))
    assert (shortened.diagnostic, campaign.diagnostic) != (None, None)
    assert shortened.diagnostic is not None
    assert campaign.diagnostic is not None
    assert shortened.diagnostic.model_copy(update={"null": False}) == campaign.diagnostic
    own, here = campaign.lanes["cuda"].engine, shortened.lanes["cpu"].engine
    assert own is not None
    assert here is not None
    assert (here.identical, here.decides) == (own.identical, "exactness")


def test_what_is_shortened_is_told_with_both_values(campaign: Campaign) -> None:
    told = differences(campaign, "cuda", rehearsed(campaign, "cuda", null=False))
    assert told["lane.engine.model.layers"] == {"lane": 48, "rehearsal": 8}
    assert told["lane.engine.decides"] == {"lane": "exactness+timing", "rehearsal": "exactness"}
    assert not [place for place in told if place.startswith(("diagnostic", "event_profile"))]
    null = differences(campaign, "cuda", rehearsed(campaign, "cuda", null=True))
    assert null["diagnostic.null"] == {"lane": False, "rehearsal": True}


def test_how_much_an_instrument_slows_a_cpu_stops_nothing() -> None:
    """The trial runs, with a limit that cannot judge, and the receipt lists both limits."""
    campaign = read_campaign(CAMPAIGNS / "laguna-current-stream-events-fitness.toml")
    shortened = rehearsed(campaign, "cuda", null=False)
    own, here = campaign.event_profile, shortened.event_profile
    assert own is not None
    assert here is not None
    assert own.fitness is not None
    assert here.fitness is not None
    assert (here.fitness.rounds, here.sparse_replays) == (own.fitness.rounds, own.sparse_replays)
    assert MeasuredFitness(
        slowdown=1000.0, stamped_slowdown=1.0, kind_slowdown={}, spread=1.0, limit=here.fitness.slowdown_limit
    ).fit
    told = differences(campaign, "cuda", shortened)
    limits = {"lane": 1.1, "rehearsal": here.fitness.slowdown_limit}
    assert {place: told[place] for place in told if place.startswith("event_profile")} == {
        "event_profile.fitness.slowdown_limit": limits
    }


@pytest.mark.parametrize("null", [False, True])
def test_it_is_written_as_a_campaign_that_reads_back(campaign: Campaign, null: bool) -> None:
    shortened = rehearsed(campaign, "cuda", null=null)
    text = to_toml(shortened.model_dump(by_alias=True, exclude_unset=True))
    assert parse_campaign(text.encode(), "rehearsal.toml") == shortened


@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize(("name", "lane"), DEVICE_CAMPAIGNS)
def test_every_shipped_device_campaign_can_be_rehearsed(name: str, lane: Lane, null: bool) -> None:
    campaign = read_campaign(CAMPAIGNS / name)
    shortened = rehearsed(campaign, lane, null=null)
    text = to_toml(shortened.model_dump(by_alias=True, exclude_unset=True))
    assert parse_campaign(text.encode(), "rehearsal.toml") == shortened
    protocol = None if campaign.rehearsal is None else campaign.rehearsal.gates and campaign.rehearsal.gates.protocol
    if protocol:
        require_time(campaign, lane, read_protocol(CAMPAIGNS / protocol))


@pytest.mark.parametrize("file", sorted(CAMPAIGNS.glob("*.toml")), ids=lambda file: file.stem)
def test_every_shipped_file_reads_back(file: Path) -> None:
    content = tomllib.loads(file.read_text())
    assert tomllib.loads(to_toml(content)) == content


def test_the_protocol_is_the_campaigns_but_for_whose_it_is(campaign: Campaign, protocol: Protocol) -> None:
    null = of_rehearsal(protocol, campaign, null=True)
    assert (null.campaign, null.null, null.authorised_by) == (campaign.name, True, None)
    assert (null.thresholds, null.suite, null.teacher) == (protocol.thresholds, protocol.suite, protocol.teacher)


def test_a_campaign_without_the_table_cannot_be_rehearsed(campaign: Campaign) -> None:
    assert campaign.rehearsal is not None
    without = campaign.model_copy(update={"rehearsal": campaign.rehearsal.model_copy(update={"gates": None})})
    with pytest.raises(NotProvenError, match=r"expected tables rehearsal\.gates and lanes\.cuda\.engine"):
        rehearsed(without, "cuda", null=False)


@pytest.mark.parametrize("clause", ["rehearsal", "null-exact", "null-timing"])
def test_a_device_campaign_cannot_leave_its_rehearsal_out(clause: str) -> None:
    content = read_campaign(CAMPAIGNS / DEVICE_CAMPAIGNS[1][0]).model_dump(by_alias=True, exclude_unset=True)
    text = to_toml(content)
    assert parse_campaign(text.encode(), "c.toml").gate_clauses(1)[clause]
    del content["clauses"]["1"][clause]
    with pytest.raises(CampaignError, match=rf"clauses\.1 lacks {clause}; expected each clause"):
        parse_campaign(to_toml(content).encode(), "c.toml")
    del content["rehearsal"]["gates"]
    with pytest.raises(CampaignError, match=r"no table rehearsal\.gates; expected one"):
        parse_campaign(to_toml(content).encode(), "c.toml")


def test_a_rehearsal_needs_something_to_open_with(campaign: Campaign) -> None:
    content = campaign.model_dump(by_alias=True)
    content["rehearsal"]["gates"]["opening"] = "gates/none.py"
    with pytest.raises(NotProvenError, match=r"opening: seen 'gates/none\.py'; expected the file of a clause"):
        rehearsed(Campaign.model_validate(content), "cuda", null=False)


def test_a_server_must_be_given_the_time_that_its_parts_are_granted(campaign: Campaign, protocol: Protocol) -> None:
    lane = campaign.lanes["cuda"]
    for deadline, refused in ((420.0, False), (419.0, True)):
        bounds = lane.bounds.model_copy(update={"deadline_seconds": deadline})
        lanes = {"cuda": lane.model_copy(update={"bounds": bounds})}
        changed = campaign.model_copy(update={"lanes": lanes})
        if not refused:
            require_time(changed, "cuda", protocol)
            continue
        with pytest.raises(NotProvenError, match=r"deadline_seconds: seen 419\.0; expected at least the 420\.0 of"):
            require_time(changed, "cuda", protocol)


def test_rehearsals_that_begin_at_once_draw_different_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is drawn before any is leased; of two processes each first took slot 0, and one of them was refused."""
    monkeypatch.setattr(leases, "states", list)
    drawn = {tuple(free_slots(2)) for _ in range(20)}
    assert len(drawn) > 10
    assert all(second == first + 1 and first % 2 == 0 for first, second in drawn)


def test_slots_that_somebody_leases_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    def held(*free: int) -> list[Any]:
        names = [f"cpu-slot-{slot}" for slot in range(rehearsal._MOST_SLOTS) if slot not in free]
        return [SimpleNamespace(held=True, record=SimpleNamespace(identity=name)) for name in names]

    monkeypatch.setattr(leases, "states", lambda: held(7, 300, 301, 302))
    assert free_slots(3) == [300, 301, 302]
    assert free_slots(1)[0] in {7, 300, 301, 302}
    monkeypatch.setattr(leases, "states", held)
    with pytest.raises(NotProvenError, match="no 2 of 512 process slots are free; laguna doctor shows who has them"):
        free_slots(2)
