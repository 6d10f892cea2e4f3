# SPDX-License-Identifier: Apache-2.0
"""The shipped JSON Schemas are those of the models, and hold for what is really written."""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pytest_laguna.campaign import read_campaign
from pytest_laguna.evidence import root
from pytest_laguna.identity.record import take_identity
from tests import diagnostic_root, event_root, sealed
from tools.make_schemas import IDENTITY, JOURNAL_LINE, PROTOCOL, RECEIPT, TARGET, json_schemas

PROJECT = Path(__file__).parents[2]
DATA = PROJECT / "tests" / "data"


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((TARGET / f"{name}.json").read_text()))


def test_what_is_shipped_is_what_the_models_say() -> None:
    shipped = {path.name: path.read_text() for path in TARGET.glob("*.json")}
    assert shipped == json_schemas(), "run python tools/make_schemas.py"


@pytest.mark.parametrize("name", sorted(path.stem for path in TARGET.glob("*.json")))
def test_each_is_a_schema_of_its_dialect(name: str) -> None:
    Draft202012Validator.check_schema(json.loads((TARGET / f"{name}.json").read_text()))


def values(directory: Path) -> Iterator[dict[str, Any]]:
    """Every file that names its schema: of an attempt, of both gates' own evidence, of a leg."""
    attempt = sealed.build(directory)
    yield from (json.loads(path.read_text()) for path in attempt.rglob("*.json"))
    for tree in (diagnostic_root.good(), event_root.good(fitness=True)):
        yield from (value for value in tree.values() if isinstance(value, dict))
    yield json.loads((DATA / "legs" / "three-prompts.json").read_text())


def test_what_is_written_is_valid(tmp_path: Path) -> None:
    seen = set()
    for value in values(tmp_path):
        name = value.get("schema")
        if name is None:
            continue
        seen.add(name)
        errors = [error.message for error in validator(name).iter_errors(value)]
        assert errors == [], (name, errors[:3])
    kinds = ("attempt-v1", "analysis-v2", "manifest-v1", "arm-record-v1", "leg-v1", "idle-v1")
    assert {f"pytest-laguna-{kind}" for kind in kinds} <= seen


def test_a_receipt_and_an_identity_are_valid_and_nothing_less_or_more(tmp_path: Path) -> None:
    receipt = json.loads((sealed.build(tmp_path) / root.RECEIPT).read_bytes())
    campaign = PROJECT / "campaigns" / "laguna-persistent-kv-views-quick.toml"
    _, identity = take_identity(read_campaign(campaign), PROJECT)
    good: dict[str, Any]
    for name, good in {RECEIPT: receipt, IDENTITY: identity}.items():
        schema = validator(name)
        schema.validate(good)
        assert not schema.is_valid(good | {"more": 1})
        for field in good:
            assert not schema.is_valid({other: value for other, value in good.items() if other != field}), field


def test_the_protocols_of_the_campaigns_are_valid() -> None:
    protocols = sorted((PROJECT / "campaigns").glob("*-endpoint-*.toml"))
    assert protocols
    for path in protocols:
        validator(PROTOCOL).validate(tomllib.loads(path.read_text()))


def test_the_lines_of_a_journal_are_valid(tmp_path: Path) -> None:
    attempt = sealed.build(tmp_path)
    lines = [json.loads(line) for line in (attempt / root.JOURNAL).read_text().splitlines()]
    assert len(lines) > 3
    for line in lines:
        validator(JOURNAL_LINE).validate(line)


def test_what_is_not_of_the_form_is_refused(tmp_path: Path) -> None:
    good = json.loads((sealed.build(tmp_path) / root.ATTEMPT).read_text())
    attempt = validator("pytest-laguna-attempt-v1")
    assert attempt.is_valid(good)
    for name in good:
        lacking = copy.deepcopy(good)
        del lacking[name]
        assert attempt.is_valid(lacking) is (name in {"schema", "state"}), name
    assert not attempt.is_valid(good | {"more": 1})
    assert not attempt.is_valid(good | {"gate": "1"})
    assert not attempt.is_valid(good | {"record": "z" * 64})
