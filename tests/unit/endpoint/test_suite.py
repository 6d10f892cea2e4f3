# SPDX-License-Identifier: Apache-2.0
"""A suite is what its pin says, to the byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.endpoint.suite import SUITES, pin_suite, read_suite
from pytest_laguna.evidence import files
from pytest_laguna.verdict import UnusableEvidenceError


def content(**changes: Any) -> dict[str, Any]:
    return {
        "schema": "pytest-laguna-suite-v1",
        "suite_id": "cold",
        "version": 1,
        "max_tokens": 100,
        "rollover_prompt_tokens": 50,
        "prompts": [{"id": "a", "kind": "code", "text": "One"}, {"id": "b", "kind": "prose", "text": "Two"}],
    } | changes


def write(path: Path, value: dict[str, Any]) -> Path:
    path.write_text(json.dumps(value))
    return path


def test_a_suite_is_read_by_its_pin(tmp_path: Path) -> None:
    path = write(tmp_path / "suite.json", content())
    pin = pin_suite(path)
    assert (pin.suite_id, pin.version, pin.prompts, pin.max_tokens) == ("cold", 1, 2, 100)
    assert pin.sha256 == files.sha256_file(path)
    suite = read_suite(path, pin)
    assert [prompt.text for prompt in suite.prompts] == ["One", "Two"]
    assert suite.prompts[0].sha256 == files.sha256_bytes(b"One")


def test_the_right_name_with_the_wrong_prompts_is_refused(tmp_path: Path) -> None:
    pin = pin_suite(write(tmp_path / "suite.json", content()))
    other = write(tmp_path / "other.json", content(prompts=[{"id": "a", "kind": "code", "text": "Ten"}]))
    with pytest.raises(UnusableEvidenceError, match=r"other\.json: sha256 is .*; expected the campaign's"):
        read_suite(other, pin)


def test_the_right_digest_with_the_wrong_count_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "suite.json", content())
    pin = pin_suite(path).model_copy(update={"prompts": 13})
    with pytest.raises(UnusableEvidenceError, match=r"suite\.json: prompts is 2; expected the campaign's 13"):
        read_suite(path, pin)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"prompts": [{"id": "a", "kind": "k", "text": "x"}, {"id": "a", "kind": "k", "text": "y"}]}, "id 'a' occurs"),
        (
            {"prompts": [{"id": "a", "kind": "k", "text": "x"}, {"id": "b", "kind": "k", "text": "x"}]},
            "text 'x' occurs",
        ),
        ({"prompts": []}, "prompts: List should have at least 1 item"),
        ({"schema": "other"}, "schema: Input should be 'pytest-laguna-suite-v1'"),
        ({"version": "1"}, "version: Input should be a valid integer"),
        ({"more": 1}, "more: Extra inputs are not permitted"),
    ],
)
def test_what_is_no_suite_is_refused_by_name(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(UnusableEvidenceError, match=rf"suite\.json: .*{reason}"):
        pin_suite(write(tmp_path / "suite.json", content(**changes)))


@pytest.mark.parametrize("bad", [b"\xff", b'{"schema": "a", "schema": "b"}', b"["])
def test_what_is_no_json_is_refused_by_name(bad: bytes, tmp_path: Path) -> None:
    (tmp_path / "suite.json").write_bytes(bad)
    with pytest.raises(UnusableEvidenceError, match=r"suite\.json: not"):
        pin_suite(tmp_path / "suite.json")


@pytest.mark.parametrize("name", ["laguna-kinds.json", "tiny-laguna.json"])
def test_a_shipped_suite_has_thirteen_prompts_one_of_them_long(name: str) -> None:
    path = SUITES / name
    suite = read_suite(path, pin_suite(path))
    assert len(suite.prompts) == 13
    lengths = sorted(len(prompt.text.encode()) for prompt in suite.prompts)
    assert lengths[-1] > 3 * lengths[-2]


def test_the_suite_for_real_models_has_the_published_profile() -> None:
    suite = read_suite(SUITES / "laguna-kinds.json", pin_suite(SUITES / "laguna-kinds.json"))
    assert (suite.max_tokens, suite.rollover_prompt_tokens) == (512, 863)
    assert [prompt.kind for prompt in suite.prompts] == [
        "code",
        "code debug",
        "SQL",
        "design review",
        "arithmetic",
        "factual",
        "code review",
        "code",
        "plan",
        "code audit",
        "JSON extraction",
        "prose",
        "long prompt, diff output",
    ]
