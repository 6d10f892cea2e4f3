# SPDX-License-Identifier: Apache-2.0
"""What a campaign asks of cards, disks and models is asked before anything is leased."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_laguna.campaign import CampaignError, LaneSettings, parse_campaign, read_campaign
from pytest_laguna.evidence.machine.placement import Place, Purpose
from pytest_laguna.evidence.machine.xpu_stack import STACKS
from pytest_laguna.machine.cards import Card
from pytest_laguna.machine.errors import CardError
from pytest_laguna.run.leasing import require_kind, require_number, require_places
from pytest_laguna.verdict import UnusableEvidenceError

CAMPAIGNS = Path(__file__).parents[2] / "campaigns"
NAME = "Intel(R) Arc(TM) Pro B70 Graphics"
DOCUMENT = CAMPAIGNS.parent / "docs" / "xpu-lane.md"


@pytest.fixture
def settings() -> LaneSettings:
    return read_campaign(CAMPAIGNS / "laguna-persistent-kv-views.toml").lanes["xpu"]


def cards(count: int, name: str = NAME) -> list[Card]:
    return [Card("xpu", number, f"0000:{number}3:00.0", name, 32 * 2**30) for number in range(count)]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    target = tmp_path / "models" / "Laguna-S-2.1-INT4"
    target.mkdir(parents=True)
    (target / "config.json").write_text('{"num_key_value_heads": 8}')
    return tmp_path


def test_the_default_campaign_runs_on_four_cards_of_its_name(settings: LaneSettings, project: Path) -> None:
    require_kind(cards(4), settings)
    require_number(cards(4), project, settings)


def test_a_card_of_another_name_is_refused(settings: LaneSettings) -> None:
    mixed = [*cards(3), Card("xpu", 3, "0000:e3:00.0", "Intel(R) Arc(TM) Pro B60 Graphics", 1)]
    with pytest.raises(CardError, match=r"--cards: seen 3 = 0000:e3:00.0 .*B60.*; expected the campaign's .*B70"):
        require_kind(mixed, settings)
    require_kind(mixed, settings.model_copy(update={"card": None}))


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_any_other_number_of_cards_is_told_which_fits(count: int, settings: LaneSettings, project: Path) -> None:
    told = f"--cards: seen {count} cards; expected 4, for two KV heads of .* on each; name exactly 4"
    with pytest.raises(CardError, match=told):
        require_number(cards(count), project, settings)


def test_a_model_that_is_not_there_is_told_before_anything_is_leased(settings: LaneSettings, tmp_path: Path) -> None:
    with pytest.raises(CardError, match=r"no config.json; expected the campaign's model; see docs/xpu-lane.md"):
        require_number(cards(4), tmp_path, settings)


@pytest.mark.parametrize("config", ["{}", '{"num_key_value_heads": 3}', '{"num_key_value_heads": "8"}', "[]"])
def test_a_model_that_says_nothing_of_its_heads_is_refused(config: str, settings: LaneSettings, project: Path) -> None:
    (project / "models/Laguna-S-2.1-INT4/config.json").write_text(config)
    with pytest.raises(UnusableEvidenceError, match="expected a multiple of 2, as many as a rank has"):
        require_number(cards(4), project, settings)


def test_a_pair_that_is_generated_fits_any_number() -> None:
    settings = read_campaign(CAMPAIGNS / "laguna-persistent-kv-views.toml").lanes["cpu"]
    require_number(cards(1), Path(), settings)
    assert require_places(Path("sealed"), Path(), settings) == ()


def _on(file_system: str) -> Callable[[Purpose, Path], Place]:
    def place(purpose: Purpose, path: Path) -> Place:
        return Place.model_validate({
            "purpose": purpose,
            "path": str(path),
            "real": str(path),
            "file_system": file_system,
            "source": "/dev/nvme0n1p2",
            "device": "259:2",
            "hardware": [{"path": "/devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1", "removable": False}],
        })

    return place


def test_everything_that_is_read_or_written_has_a_place(
    settings: LaneSettings, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_laguna.run.leasing.find_place", _on("ext4"))
    places = require_places(project / "sealed", project, settings)
    assert [place.purpose for place in places] == ["evidence", "temporary", "target", "draft"]
    assert places[2].path == str(project / "models/Laguna-S-2.1-INT4")
    monkeypatch.setattr("pytest_laguna.run.leasing.find_place", _on("nfs4"))
    with pytest.raises(CardError, match=r"^storage: evidence .* lies on .*; expected one of ext4; move"):
        require_places(project / "sealed", project, settings)


def test_the_published_identity_is_data_and_no_campaign() -> None:
    path = CAMPAIGNS / "reference" / "published-identity-20260725.toml"
    published = tomllib.loads(path.read_text())
    assert len(published["closure"]) == 10
    assert {len(digest) for digest in published["closure"].values()} == {64}
    assert {len(commit) for commit in published["commits"].values()} == {40}
    assert {len(model["revision"]) for model in published["models"].values()} == {40}
    assert published["record_tok_s"] == 94.92003934159611
    campaign = read_campaign(CAMPAIGNS / "laguna-persistent-kv-views.toml")
    assert published["preregistration"] == campaign.preregistration.sha256
    with pytest.raises(CampaignError, match="schema: Input should be 'pytest-laguna-campaign-v1'"):
        parse_campaign(path.read_bytes(), path.name)


def test_the_guide_has_the_table_and_the_models_of_the_campaign(settings: LaneSettings) -> None:
    text = DOCUMENT.read_text()
    for stack in STACKS:
        ipex = f"{stack.ipex}+xpu" if stack.ipex else "-"
        assert f"| {stack.vllm} | {stack.torch}+xpu | {stack.kernels or '-'} | {ipex} | {stack.source} |" in text
    [stack] = [stack for stack in STACKS if stack.vllm == settings.vllm]
    for told in (f"torch=={stack.torch} ", f"vllm-xpu-kernels=={stack.kernels}\n", f"--branch v{stack.vllm} "):
        assert told in text
    extras = tomllib.loads((CAMPAIGNS.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["xpu"] == [f"vllm-xpu-kernels=={stack.kernels}"]
    published = tomllib.loads((CAMPAIGNS / "reference" / "published-identity-20260725.toml").read_text())
    for model in published["models"].values():
        folder = f"models/{model['repository'].partition('/')[2]}"
        assert f"hf download {model['repository']} --revision {model['revision']} --local-dir {folder}\n" in text
    assert "**This project has made no run on an XPU.**" in text
