# SPDX-License-Identifier: Apache-2.0
"""The two records between gate 1 and a card: what was frozen, and who else has reviewed exactly that.

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

DIRECTORY = "review"
"""Below the attempt's ``evidence``, with the copies."""
FROZEN = "frozen.json"
REVIEW = "review.json"

Name = Annotated[str, pydantic.Field(min_length=1, max_length=200, pattern=r"^\S(.*\S)?$")]


class FrozenCampaign(Schema):
    """What a campaign is, down to the bytes, on the day on which it is frozen.

    Attributes:
        campaign_name: the campaign's.
        identity: the digests that tie its gates together.
        preregistration: digest of the text that it carries out.
        commit: that was checked out, without a change.
        tree: of that commit.
        authors: names and addresses of its author and its committer; none of them may review it.
        candidate: its sources, by path.
        harness: what judges, by path.
        data: the other files of this package, such as weights, suites and teachers, by path.
        protocols: the endpoint protocols that are there already, by path.
        models: the files of the models that are there and not generated, by folder.
    """

    file_schema: Annotated[Literal["pytest-laguna-frozen-v1"], pydantic.Field(alias="schema")] = (
        "pytest-laguna-frozen-v1"
    )
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
        """Digest of the record: what a review is about."""
        return files.digest_of(self.canonical())

    def is_by(self, reviewer: str) -> bool:
        """Whether a name or address is one of its authors', however it is spaced and capitalised."""
        return _plain(reviewer) in map(_plain, self.authors)


def _plain(name: str) -> str:
    return " ".join(name.split()).casefold()


class Review(Schema):
    """That somebody else has read what was frozen and lets it run on cards.

    Attributes:
        reviewer: who.
        frozen: digest of the record of what was frozen.
    """

    file_schema: Annotated[Literal["pytest-laguna-review-v1"], pydantic.Field(alias="schema")] = (
        "pytest-laguna-review-v1"
    )
    reviewer: Name
    frozen: Sha256


@dataclasses.dataclass(frozen=True, slots=True)
class Reviewed:
    """Both records; None for one that is not there."""

    frozen: FrozenCampaign | None
    review: Review | None


def read_reviewed(frozen: Path, review: Path) -> Reviewed:
    """Read both records.

    Raises:
        UnusableEvidenceError: one of them is there and not of its form.
    """
    return Reviewed(
        read_model(frozen, FrozenCampaign) if os.path.lexists(frozen) else None,
        read_model(review, Review) if os.path.lexists(review) else None,
    )
