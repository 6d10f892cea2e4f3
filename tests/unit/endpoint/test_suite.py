# SPDX-License-Identifier: Apache-2.0
"""A suite is what its pin says, to the byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.endpoint.suite import SUITES, pin_suite, read_answers, read_suite
from pytest_laguna.evidence import files
from pytest_laguna.evidence.endpoint.plan import Teacher, TeacherRow
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
    with pytest.raises(UnusableEvidenceError, match=r"other\.json: seen sha256 .*; expected the campaign's"):
        read_suite(other, pin)


def test_the_right_digest_with_the_wrong_count_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "suite.json", content())
    pin = pin_suite(path).model_copy(update={"prompts": 13})
    with pytest.raises(UnusableEvidenceError, match=r"suite\.json: seen prompts 2; expected the campaign's 13"):
        read_suite(path, pin)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"prompts": [{"id": "a", "kind": "k", "text": "x"}, {"id": "a", "kind": "k", "text": "y"}]},
            "'a': seen twice",
        ),
        (
            {"prompts": [{"id": "a", "kind": "k", "text": "x"}, {"id": "b", "kind": "k", "text": "x"}]},
            "text 'x': seen twice",
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
    with pytest.raises(UnusableEvidenceError, match=r"suite\.json: (not|seen no UTF-8)"):
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


def teacher_of(path: Path) -> Teacher:
    suite = read_suite(path, pin_suite(path))
    rows = [
        TeacherRow(prompt_index=place, prompt_id=prompt.id, prompt_sha256=prompt.sha256, token_ids=[1, 2])
        for place, prompt in enumerate(suite.prompts)
    ]
    return Teacher(source_sha256="0" * 64, rows=rows)


def answers(directory: Path, teacher: Teacher, sha256: str | None = None) -> Teacher:
    """Read a teacher of the suite in that directory."""
    suite = directory / "suite.json"
    (directory / "teacher.json").write_bytes(files.canonical_json(teacher.canonical()))
    return read_answers(directory / "teacher.json", read_suite(suite, pin_suite(suite)), sha256 or teacher.digest)


def test_a_teacher_answers_each_prompt_of_the_suite(tmp_path: Path) -> None:
    teacher = teacher_of(write(tmp_path / "suite.json", content()))
    assert answers(tmp_path, teacher) == teacher


def test_another_teacher_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    teacher = teacher_of(write(tmp_path / "suite.json", content()))
    with pytest.raises(
        UnusableEvidenceError, match=r"teacher\.json: seen digest [0-9a-f]{64}; expected the protocol's 0{64}"
    ):
        answers(tmp_path, teacher, "0" * 64)


@pytest.mark.parametrize(
    ("prompts", "reason"),
    [
        ([], "seen 2 rows; expected 1, one for each prompt"),
        ([{"id": "c", "kind": "k", "text": "Two"}], r"seen row 1 of b \(.*\); expected c "),
        ([{"id": "b", "kind": "k", "text": "Ten"}], r"seen row 1 of b \(.*\); expected b .* of this suite"),
    ],
)
def test_another_suites_teacher_is_refused(prompts: list[dict[str, Any]], reason: str, tmp_path: Path) -> None:
    path = write(tmp_path / "suite.json", content())
    teacher = teacher_of(path)
    write(path, content(prompts=[content()["prompts"][0], *prompts]))
    with pytest.raises(UnusableEvidenceError, match=rf"teacher\.json: {reason}"):
        answers(tmp_path, teacher)
