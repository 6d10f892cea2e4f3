# SPDX-License-Identifier: Apache-2.0
"""Plans are filled from the campaign's tables; value objects that both share keep TOML's strict types."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pydantic
import pytest

from pytest_laguna.campaign import CampaignError, parse_campaign
from pytest_laguna.evidence.endpoint.plan import Selector
from pytest_laguna.experiments.plans import filled

CAMPAIGN = Path(__file__).parents[2] / "campaigns" / "laguna-current-stream-events-fitness.toml"


@dataclasses.dataclass
class Values:
    flag: str
    control: str
    more: int = 1


def test_the_first_table_gives_a_field_and_a_derived_value_replaces_it() -> None:
    first, second = Values("FIRST", "0"), Values("SECOND", "1")
    assert filled(Selector, first, second, treatment="2") == Selector(flag="FIRST", control="0", treatment="2")
    assert filled(Selector, first, flag="OTHER", treatment="2").flag == "OTHER"


def test_a_form_is_neither_incomplete_nor_more_than_its_fields() -> None:
    with pytest.raises(pydantic.ValidationError, match=r"treatment\n  Field required"):
        filled(Selector, Values("FLAG", "0"))
    with pytest.raises(pydantic.ValidationError, match=r"more\n  Extra inputs"):
        filled(Selector, Values("FLAG", "0"), treatment="1", more=1)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rounds", '"8"', "event_profile.fitness.rounds: Input should be a valid integer"),
        ("rounds", "8.0", "event_profile.fitness.rounds: Input should be a valid integer"),
        ("slowdown_limit", '"2"', "event_profile.fitness.slowdown_limit: Input should be a valid number"),
        ("slowdown_limit", "true", "event_profile.fitness.slowdown_limit: Input should be a valid number"),
        ("drivers", "[1]", "lanes.xpu.storage.drivers.0: Input should be a valid string"),
        ("memory_bytes", "1.0", "idle.memory_bytes: Input should be a valid integer"),
    ],
)
def test_a_shared_value_object_takes_no_loose_type(field: str, value: str, message: str) -> None:
    lines = CAMPAIGN.read_text().splitlines(keepends=True)
    start = next(number for number, line in enumerate(lines) if f"{field} = " in line)
    head, _, rest = lines[start].partition(f"{field} = ")
    old = rest[: rest.index("]") + 1] if rest.startswith("[") else rest.replace("}", ",").partition(",")[0].strip()
    lines[start] = f"{head}{field} = {rest.replace(old, value, 1)}"
    with pytest.raises(CampaignError) as caught:
        parse_campaign("".join(lines).encode(), "campaign.toml")
    assert message in str(caught.value)


def test_a_whole_number_is_a_limit_too() -> None:
    text = CAMPAIGN.read_text()
    assert "slowdown_limit = 1.10" in text
    campaign = parse_campaign(text.replace("slowdown_limit = 1.10", "slowdown_limit = 2").encode(), "campaign.toml")
    assert campaign.event_profile is not None
    assert campaign.event_profile.fitness is not None
    assert campaign.event_profile.fitness.slowdown_limit == 2
