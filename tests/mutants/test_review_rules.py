# SPDX-License-Identifier: Apache-2.0
"""Every rule over freezing and reviewing has a mutant: two good records with one fact changed."""

from __future__ import annotations

import contextlib
import dataclasses
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_laguna.analysis.review import RULES, Running, judge_review, needs_review
from pytest_laguna.campaign import read_campaign
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.engine_identity import ModelFiles
from pytest_laguna.evidence.review import FrozenCampaign, Review, Reviewed
from pytest_laguna.evidence.schemas import Identity
from pytest_laguna.run.engine_run import EngineRun
from pytest_laguna.verdict import NotProvenError, UnusableEvidenceError, Verdict
from pytest_laguna.verify.raw import _models
from tests import diagnostic_root
from tests.caught_first import caught_first

SHIPPED = Path(__file__).parents[2] / "campaigns" / "laguna-persistent-kv-views.toml"
IDENTITY = Identity(campaign="1" * 64, candidate="2" * 64, harness="3" * 64)

FROZEN = FrozenCampaign(
    campaign_name="demo",
    identity=IDENTITY,
    preregistration="4" * 64,
    commit="5" * 40,
    tree="6" * 40,
    authors=["Ada Lovelace", "ada@example.org", "Ada Lovelace", "ada@example.org"],
    candidate={"demo_candidate/__init__.py": "7" * 64},
    harness={"checks/test_first.py": "8" * 64},
    data={},
    protocols={},
    models={"models/target": {"config.json": "9" * 64}, "models/draft": {"config.json": "a" * 64}},
)
NOT_YET = Running(IDENTITY, {"models/target": None, "models/draft": None})
RAN = Running(IDENTITY, FROZEN.models)
GOOD = Reviewed(FROZEN, Review(reviewer="Grace Hopper", frozen=FROZEN.sha256))


def _of_identity(**changed: str) -> Callable[[Reviewed], Reviewed]:
    """Frozen with another digest, and reviewed like that."""

    def change(good: Reviewed) -> Reviewed:
        del good
        frozen = FROZEN.model_copy(update={"identity": IDENTITY.model_copy(update=changed)})
        return Reviewed(frozen, Review(reviewer="Grace Hopper", frozen=frozen.sha256))

    return change


def _without_models(good: Reviewed) -> Reviewed:
    """Frozen where the models were not, and reviewed like that."""
    del good
    frozen = FROZEN.model_copy(update={"models": {}})
    return Reviewed(frozen, Review(reviewer="Grace Hopper", frozen=frozen.sha256))


def _review(**changed: Any) -> Callable[[Reviewed], Reviewed]:
    review = Review(reviewer="Grace Hopper", frozen=FROZEN.sha256).model_copy(update=changed)
    return lambda good: dataclasses.replace(good, review=review)


MUTANTS: list[tuple[str, Callable[[Reviewed], Reviewed], str]] = [
    ("frozen-present", lambda good: dataclasses.replace(good, frozen=None), "campaign: seen no frozen state"),
    ("frozen-current", _of_identity(campaign="f" * 64), "campaign: seen changed since it was frozen"),
    ("frozen-current", _of_identity(candidate="f" * 64), "candidate: seen changed since it was frozen"),
    ("frozen-current", _of_identity(harness="f" * 64), "harness: seen changed since it was frozen"),
    (
        "models-of-frozen",
        _without_models,
        "models/target: seen no frozen state; expected one; fetch it, then freeze",
    ),
    ("review-present", lambda good: dataclasses.replace(good, review=None), "campaign: seen no review"),
    ("review-of-frozen", _review(frozen="f" * 64), "review: seen one of ffffffffffff; expected the frozen "),
    ("reviewer-is-another", _review(reviewer="Ada Lovelace"), "review: seen by Ada Lovelace, who wrote it"),
    ("reviewer-is-another", _review(reviewer="ADA  lovelace"), "review: seen by ADA  lovelace, who wrote it"),
    ("reviewer-is-another", _review(reviewer="ada@example.org"), "review: seen by ada@example.org, who wrote it"),
]


@pytest.mark.parametrize("running", [NOT_YET, RAN, Running(IDENTITY, {})], ids=["before", "after", "generated"])
def test_the_good_records_pass(running: Running) -> None:
    assert judge_review(GOOD, running) == (Verdict.PASS, "frozen, and reviewed by somebody else")


def test_every_rule_has_a_mutant() -> None:
    assert {rule for rule, *_ in MUTANTS} == set(RULES)


@pytest.mark.parametrize("running", [NOT_YET, RAN], ids=["before", "after"])
@caught_first("rule mutate reason", MUTANTS)
def test_the_mutant_is_caught_by_its_rule(
    rule: str, mutate: Callable[[Reviewed], Reviewed], reason: str, running: Running
) -> list[str]:
    verdict, told = judge_review(mutate(GOOD), running)
    assert verdict is Verdict.NOT_PROVEN
    assert told.startswith(f"{rule}: {reason}")
    return [name for name, says in RULES.items() if says(mutate(GOOD), running) is not None]


@pytest.mark.parametrize(
    ("files", "changed"),
    [
        ({"config.json": "f" * 64}, "config.json"),
        ({"config.json": "9" * 64, "added.py": "f" * 64}, "added.py"),
        ({}, "config.json"),
    ],
)
def test_a_model_that_ran_is_the_frozen_one_file_by_file(files: dict[str, str], changed: str) -> None:
    verdict, told = judge_review(GOOD, Running(IDENTITY, {"models/target": files}))
    reason = "seen changed since it was frozen; expected the frozen state; freeze and review it again"
    expected = f"models-of-frozen: models/target/{changed}: {reason}"
    assert (verdict, told) == (Verdict.NOT_PROVEN, expected)


def test_what_ran_is_told_by_the_names_of_the_campaign(tmp_path: Path) -> None:
    """The identity's folders in their order, target before draft; nothing of what was not looked at."""
    named = ["models/target", "models/draft"]
    assert _models(tmp_path, named) == dict.fromkeys(named)
    (tmp_path / "diagnostic").mkdir()
    identity = diagnostic_root.identity()
    files.write_new(tmp_path / "diagnostic" / "identity.json", files.canonical_json(identity))
    folders = identity["models"]["folders"]
    expected = [{file["path"]: file["sha256"] for file in folder["files"]} for folder in folders]
    assert _models(tmp_path, named) == dict(zip(named, expected, strict=True))
    assert _models(tmp_path, []) == {}
    with pytest.raises(UnusableEvidenceError, match=r"identity\.json: seen 2 models; expected 1"):
        _models(tmp_path, named[:1])


@pytest.mark.parametrize("changed", [False, True])
def test_no_arm_runs_with_other_models_than_the_frozen_ones(changed: bool, tmp_path: Path) -> None:
    """They are told as soon as they are hashed, and not when the cards have been at work."""
    campaign, unused = read_campaign(SHIPPED), cast("Any", None)
    hashed = ModelFiles.model_validate(diagnostic_root.identity()["models"])
    frozen = hashed.named(campaign.folders("xpu"))
    if changed:
        frozen = frozen | {campaign.folders("xpu")[1]: {"config.json": "f" * 64}}
    place = tmp_path / "evidence" / "review"
    place.mkdir(parents=True)
    record = FROZEN.model_copy(update={"models": frozen})
    files.write_new(place / "frozen.json", files.canonical_json(record.canonical()))
    attempt = cast("Any", types.SimpleNamespace(directory=tmp_path, identity=IDENTITY))
    engine = EngineRun(campaign, "xpu", unused, unused, attempt, tmp_path, tmp_path)
    refused = pytest.raises(NotProvenError, match=r"^before any arm: models-of-frozen: .*: seen changed since")
    with refused if changed else contextlib.nullcontext():
        engine.require_frozen(hashed)


def test_a_record_binds_every_file_that_it_names() -> None:
    """A review is of all of it."""
    for name in ("candidate", "harness", "data", "protocols"):
        other = FROZEN.model_copy(update={name: {"other.py": "9" * 64}})
        verdict, told = judge_review(dataclasses.replace(GOOD, frozen=other), NOT_YET)
        assert (verdict, told.startswith("review-of-frozen: ")) == (Verdict.NOT_PROVEN, True)


@pytest.mark.parametrize("gate", [1, 2, 3])
@pytest.mark.parametrize("lane", ["cpu", "cuda", "xpu"])
def test_only_the_diagnostic_on_devices_needs_a_review(gate: int, lane: str) -> None:
    assert needs_review(gate, lane) is (gate == 2 and lane in {"cuda", "xpu"})
