# SPDX-License-Identifier: Apache-2.0
"""The plan of every arm of a campaign: its lane, its models, and the graph of its capture."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.replay_profile import SegmentKind, order_sha256
from pytest_laguna.evidence.machine.host import HostLimits
from pytest_laguna.evidence.machine.idle import IdleRequirement
from pytest_laguna.evidence.schemas import Schema, Sha256
from pytest_laguna.evidence.values import Lane, Validator


class Topology(Schema):
    """The segments of the target's breakable graph, in replay order, the same on every rank."""

    kinds: Annotated[list[SegmentKind], pydantic.Field(min_length=1)]

    @property
    def graphs(self) -> int:
        """Number of graph segments."""
        return self.kinds.count("graph")

    @property
    def breaks(self) -> int:
        """Number of eager segments."""
        return len(self.kinds) - self.graphs

    @property
    def counts(self) -> dict[str, int]:
        """Segments by kind."""
        return dict(Counter(self.kinds))

    @property
    def order_sha256(self) -> str:
        """Digest of the order."""
        return order_sha256(self.kinds)


class GeneratedModels(Schema):
    """A generated pair of models; its weights and prompts are a part of the frozen harness.

    Attributes:
        width: factor of the hidden size.
        hidden_size: of the target, at this width.
        prompt_sha256: of its text in UTF-8.
    """

    generated: Literal["tiny-laguna"]
    layers: pydantic.PositiveInt
    width: pydantic.PositiveInt
    hidden_size: pydantic.PositiveInt
    prompt: str
    prompt_sha256: Sha256


class FolderModels(Schema):
    """The folders of a pair of models, and the text of the prompt."""

    target: str
    draft: str
    prompt: str


class ArmsPlan(Schema):
    """The plan of every arm, from the campaign, the cards and the models' configuration files, before anything runs.

    Attributes:
        cards: identities of the leased cards, in rank order.
        interpreter: the Python of the arms, as the campaign names it; None for the gate's own.
    """

    lane: Lane
    cards: Annotated[list[str], pydantic.Field(min_length=1)]
    vllm: str
    interpreter: str | None
    models: GeneratedModels | FolderModels
    validator: Validator
    completion_tokens: pydantic.PositiveInt
    collective_breaks: bool
    topology: Topology
    target_layers: pydantic.PositiveInt
    idle: IdleRequirement
    host: HostLimits

    @property
    def ranks(self) -> int:
        """Tensor parallel size: one rank a card."""
        return len(self.cards)

    @property
    def sha256(self) -> str:
        """Digest of ``plan.json``."""
        return files.digest_of(self.canonical())
