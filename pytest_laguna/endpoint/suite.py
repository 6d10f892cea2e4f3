# SPDX-License-Identifier: Apache-2.0
"""The prompts of a pass, pinned by digest and by count."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.evidence.endpoint.leg import SuitePin
from pytest_laguna.evidence.endpoint.plan import Teacher
from pytest_laguna.evidence.endpoint.reader import read_teacher
from pytest_laguna.evidence.foreign_json import parse_foreign_json
from pytest_laguna.evidence.schemas import Schema, Sha256, first_defect
from pytest_laguna.evidence.values import SchemaName
from pytest_laguna.verdict import UnusableEvidenceError

SUITES = Path(__file__).parent / "suites"
"""The shipped suites: ``tiny-laguna.json`` for the tiny pair, ``laguna-kinds.json`` for real models."""

SIZE_LIMIT = 1024 * 1024

_Text = Annotated[str, pydantic.Field(min_length=1)]


class Prompt(Schema):
    """One prompt.

    Attributes:
        id: unique in a suite.
        kind: its subject, in a word or two.
        text: content of the only user message.
    """

    id: Annotated[str, pydantic.Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    kind: _Text
    text: _Text

    @property
    def sha256(self) -> Sha256:
        """Digest of the text in UTF-8."""
        return files.sha256_bytes(self.text.encode())


class Suite(Schema):
    """Content of a suite file.

    Attributes:
        suite_id: name of the suite.
        version: of the suite.
        max_tokens: limit of an answer.
        rollover_prompt_tokens: least number of prompt tokens of a rollover row.
        prompts: in the order of asking; ids and texts are unique.
    """

    file_schema: SchemaName[Literal["pytest-laguna-suite-v1"]]
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
                raise ValueError(f"{what} {twice[:40]!r}: seen twice; expected unique prompts, as each is asked cold")
        return self


def pin_suite(path: Path) -> SuitePin:
    """Pin of a suite file, for a campaign; raises UnusableEvidenceError if the file is unreadable or not a suite."""
    return _read(path)[1]


def read_suite(path: Path, pin: SuitePin) -> Suite:
    """Read the suite of a campaign; raises UnusableEvidenceError with the difference if it is not the pinned one."""
    suite, found = _read(path)
    for field in SuitePin.model_fields:
        expected, seen = getattr(pin, field), getattr(found, field)
        if expected != seen:
            message = f"{path.name}: seen {field} {seen}; expected the campaign's {expected}; a suite is pinned"
            raise UnusableEvidenceError(message)
    return suite


def read_answers(path: Path, suite: Suite, sha256: Sha256) -> Teacher:
    """Read the teacher of a protocol, the expected answers to a suite.

    Args:
        path: of its file.
        suite: the prompts.
        sha256: digest of the teacher's canonical form.

    Raises:
        UnusableEvidenceError: unreadable, not a teacher, another teacher, or answers to other prompts.
    """
    teacher = read_teacher(path)
    if teacher.digest != sha256:
        message = f"{path.name}: seen digest {teacher.digest}; expected the protocol's {sha256}, which pins a teacher"
        raise UnusableEvidenceError(message)
    if len(teacher.rows) != len(suite.prompts):
        message = f"{path.name}: seen {len(teacher.rows)} rows; expected {len(suite.prompts)}, one for each prompt"
        raise UnusableEvidenceError(message)
    for row, prompt in zip(teacher.rows, suite.prompts, strict=True):
        if (row.prompt_id, row.prompt_sha256) != (prompt.id, prompt.sha256):
            message = (
                f"{path.name}: seen row {row.prompt_index} of {row.prompt_id} ({row.prompt_sha256}); expected"
                f" {prompt.id} ({prompt.sha256}) of this suite"
            )
            raise UnusableEvidenceError(message)
    return teacher


def _read(path: Path) -> tuple[Suite, SuitePin]:
    content = files.read_bytes(path, limit=SIZE_LIMIT)
    try:
        suite = Suite.model_validate(parse_foreign_json(content.decode("utf-8"), path.name), strict=True)
    except UnicodeDecodeError as error:
        raise UnusableEvidenceError(f"{path.name}: seen no UTF-8 ({error.reason}); expected a suite") from error
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
