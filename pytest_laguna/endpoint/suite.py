# SPDX-License-Identifier: Apache-2.0
"""The prompts of a pass, pinned by digest and by count."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.evidence.endpoint_campaign import Teacher
from pytest_laguna.evidence.endpoint_reader import read_teacher
from pytest_laguna.evidence.foreign_json import parse_foreign_json
from pytest_laguna.evidence.leg import SuitePin
from pytest_laguna.evidence.schemas import Schema, Sha256, first_defect
from pytest_laguna.verdict import UnusableEvidenceError

SUITES = Path(__file__).parent / "suites"
"""The suites that are shipped: ``tiny-laguna.json`` for the tiny pair, ``laguna-kinds.json`` for real models."""

SIZE_LIMIT = 1024 * 1024

_Text = Annotated[str, pydantic.Field(min_length=1)]


class Prompt(Schema):
    """One prompt.

    Attributes:
        id: its name, once in a suite.
        kind: what it asks, in a word or two.
        text: the one message of the user.
    """

    id: Annotated[str, pydantic.Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    kind: _Text
    text: _Text

    @property
    def sha256(self) -> Sha256:
        """Of the text in UTF-8."""
        return files.sha256_bytes(self.text.encode())


class Suite(Schema):
    """A suite file.

    Attributes:
        suite_id: its name.
        version: its version.
        max_tokens: the most that a row generates.
        rollover_prompt_tokens: a prompt of at least so many tokens is a rollover row.
        prompts: in the order in which they are asked; no id and no text occurs twice.
    """

    file_schema: Annotated[Literal["pytest-laguna-suite-v1"], pydantic.Field(alias="schema")]
    suite_id: _Text
    version: Annotated[int, pydantic.Field(ge=1)]
    max_tokens: Annotated[int, pydantic.Field(ge=1)]
    rollover_prompt_tokens: Annotated[int, pydantic.Field(ge=1)]
    prompts: Annotated[list[Prompt], pydantic.Field(min_length=1)]

    @pydantic.model_validator(mode="after")
    def _unique(self) -> Self:
        for what, values in (("id", [p.id for p in self.prompts]), ("text", [p.text for p in self.prompts])):
            twice = next((value for value in values if values.count(value) > 1), None)
            if twice is not None:
                message = f"{what} {twice[:40]!r} occurs twice; expected unique prompts: each is asked cold"
                raise ValueError(message)
        return self


def pin_suite(path: Path) -> SuitePin:
    """The pin of a suite file, for a campaign to freeze.

    Raises:
        UnusableEvidenceError: it cannot be read, or is no suite.
    """
    return _read(path)[1]


def read_suite(path: Path, pin: SuitePin) -> Suite:
    """Read the suite that a campaign froze.

    Raises:
        UnusableEvidenceError: it cannot be read, is no suite, or another than the pinned one; the difference is named.
    """
    suite, found = _read(path)
    for field in SuitePin.model_fields:
        expected, seen = getattr(pin, field), getattr(found, field)
        if expected != seen:
            message = (
                f"{path.name}: {field} is {seen}; expected the campaign's {expected}: a suite is pinned by content"
            )
            raise UnusableEvidenceError(message)
    return suite


def read_answers(path: Path, suite: Suite, sha256: Sha256) -> Teacher:
    """Read the teacher that a protocol froze, which must answer the suite.

    Args:
        path: of its file.
        suite: whose prompts it answers.
        sha256: digest of its canonical form.

    Raises:
        UnusableEvidenceError: it cannot be read, is no teacher or another one, or answers other prompts.
    """
    teacher = read_teacher(path)
    if teacher.digest != sha256:
        message = f"{path.name}: digest {teacher.digest}; expected the protocol's {sha256}: a teacher is pinned"
        raise UnusableEvidenceError(message)
    if len(teacher.rows) != len(suite.prompts):
        message = f"{path.name}: {len(teacher.rows)} rows; expected one for each of the suite's {len(suite.prompts)}"
        raise UnusableEvidenceError(message)
    for row, prompt in zip(teacher.rows, suite.prompts, strict=True):
        if (row.prompt_id, row.prompt_sha256) != (prompt.id, prompt.sha256):
            message = (
                f"{path.name}: row {row.prompt_index} answers {row.prompt_id} ({row.prompt_sha256}); expected"
                f" {prompt.id} ({prompt.sha256}): another suite's teacher"
            )
            raise UnusableEvidenceError(message)
    return teacher


def _read(path: Path) -> tuple[Suite, SuitePin]:
    content = files.read_bytes(path, limit=SIZE_LIMIT)
    try:
        suite = Suite.model_validate(parse_foreign_json(content.decode("utf-8"), path.name), strict=True)
    except UnicodeDecodeError as error:
        message = f"{path.name}: not UTF-8 ({error.reason}); expected a suite"
        raise UnusableEvidenceError(message) from error
    except pydantic.ValidationError as error:
        raise UnusableEvidenceError(f"{path.name}: {first_defect(error)}") from error
    pin = SuitePin(
        suite_id=suite.suite_id,
        version=suite.version,
        sha256=files.sha256_bytes(content),
        prompts=len(suite.prompts),
        max_tokens=suite.max_tokens,
        rollover_prompt_tokens=suite.rollover_prompt_tokens,
    )
    return suite, pin
