# SPDX-License-Identifier: Apache-2.0
"""What a plan says of every arm of a campaign: where it runs, what it loads, and which graph it must capture."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.evidence.host import HostLimits
from pytest_laguna.evidence.idle import IdleRequirement
from pytest_laguna.evidence.replay_profile import SegmentKind, order_sha256
from pytest_laguna.evidence.schemas import Schema, Sha256


class Topology(Schema):
    """The segments of the target's breakable graph, in replay order, the same on every rank."""

    kinds: Annotated[list[SegmentKind], pydantic.Field(min_length=1)]

    @property
    def graphs(self) -> int:
        """Graph segments."""
        return self.kinds.count("graph")

    @property
    def breaks(self) -> int:
        """Eager segments."""
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
    """A pair that the project makes itself: its weights and its prompts are a part of the frozen harness.

    Attributes:
        generated: which.
        layers: of the target.
        width: times the hidden size.
        hidden_size: of the target, at that width.
        prompt: the name of the prompt that is continued.
        prompt_sha256: of its text in UTF-8.
    """

    generated: Literal["tiny-laguna"]
    layers: pydantic.PositiveInt
    width: pydantic.PositiveInt
    hidden_size: pydantic.PositiveInt
    prompt: str
    prompt_sha256: Sha256


class FolderModels(Schema):
    """A pair that is there.

    Attributes:
        target: folder.
        draft: folder.
        prompt: the text that is continued.
    """

    target: str
    draft: str
    prompt: str


class ArmsPlan(Schema):
    """What the campaign, the cards and the models' configuration files say of every arm before anything runs.

    Attributes:
        lane: where it runs.
        cards: the identities of the leased cards, in rank order.
        vllm: the version that everything runs.
        interpreter: the Python that runs it, as the campaign names it; None for the one that runs the gate.
        models: what the arms load, and what they continue.
        validator: which implementation of the candidate's contract runs, where the candidate does.
        completion_tokens: of each arm's one generation.
        collective_breaks: whether each all-reduce is a break of its own.
        topology: of the target's graph.
        target_layers: attention layers of the target.
        idle: of the cards before and after the lease.
        host: around each run.
    """

    lane: Literal["cpu", "cuda", "xpu"]
    cards: Annotated[list[str], pydantic.Field(min_length=1)]
    vllm: str
    interpreter: str | None
    models: GeneratedModels | FolderModels
    validator: Literal["native", "python"]
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
