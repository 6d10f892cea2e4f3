# SPDX-License-Identifier: Apache-2.0
"""The two records between gate 1 and a card: the frozen campaign, and another person's review of exactly this.

Both lie beside the campaign, ``<campaign>.frozen.json`` and ``<campaign>.review.json``. Gate 2 of a device lane keeps
copies of them in its evidence.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Annotated, Literal

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.evidence.schemas import Identity, Schema, Sha256, read_model
from pytest_laguna.evidence.values import SchemaName

DIRECTORY = "review"
"""Place of the copies below the attempt's ``evidence``."""
FROZEN = "frozen.json"
REVIEW = "review.json"

Name = Annotated[str, pydantic.Field(min_length=1, max_length=200, pattern=r"^\S(.*\S)?$")]


class FrozenCampaign(Schema):
    """A campaign, down to the bytes, on the day of its freezing.

    Attributes:
        commit: the checked-out one, without a change.
        authors: names and addresses of the commit's author and committer; none of them may review it.
        candidate: its sources, by path.
        harness: the judging code, by path.
        data: the other files of this package, such as weights, suites and teachers, by path.
        protocols: the existing endpoint protocols, by path.
        models: the files of existing models, but for generated ones, by folder.
    """

    file_schema: SchemaName[Literal["pytest-laguna-frozen-v1"]] = "pytest-laguna-frozen-v1"
    campaign_name: str
    identity: Identity
    preregistration: Sha256
    commit: Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]
    tree: Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]
    authors: Annotated[list[str], pydantic.Field(min_length=1)]
    candidate: dict[str, Sha256]
    harness: dict[str, Sha256]
    data: dict[str, Sha256]
    protocols: dict[str, Sha256]
    models: dict[str, dict[str, Sha256]]

    @property
    def sha256(self) -> str:
        """Digest of the record, named by its review."""
        return files.digest_of(self.canonical())

    def is_by(self, reviewer: str) -> bool:
        """True if a name or address is one of its authors', regardless of spaces and capitals."""
        return _plain(reviewer) in map(_plain, self.authors)


def _plain(name: str) -> str:
    return " ".join(name.split()).casefold()


class Review(Schema):
    """Approval by another person: the frozen campaign may run on cards."""

    file_schema: SchemaName[Literal["pytest-laguna-review-v1"]] = "pytest-laguna-review-v1"
    reviewer: Name
    frozen: Sha256


@dataclasses.dataclass(frozen=True, slots=True)
class Reviewed:
    """Both records, each None if absent."""

    frozen: FrozenCampaign | None
    review: Review | None


def read_reviewed(frozen: Path, review: Path) -> Reviewed:
    """Read both records.

    Raises:
        UnusableEvidenceError: one of them exists and is not of its form.
    """
    return Reviewed(
        read_model(frozen, FrozenCampaign) if os.path.lexists(frozen) else None,
        read_model(review, Review) if os.path.lexists(review) else None,
    )
