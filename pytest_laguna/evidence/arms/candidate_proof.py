# SPDX-License-Identifier: Apache-2.0
"""A rank's statement about the candidate in its process; the form of ``laguna_kv.proof.describe_worker``."""

from __future__ import annotations

from pytest_laguna.evidence.schemas import Schema
from pytest_laguna.evidence.values import Count


class LayerCounters(Schema):
    """Counters of one target layer's views.

    Attributes:
        invalidations: calls of the lifecycle hook with a state to discard.
        forward_hits: uses of the canonical views by attention.
        update_hits: uses of the raw views by the KV-cache update.
    """

    builds: Count
    invalidations: Count
    forward_hits: Count
    update_hits: Count


class CandidateProof(LayerCounters):
    """The classes behind attention on one rank, and the counters summed over the target's layers.

    Attributes:
        lane: None if no layer runs the candidate's class.
        validator: None likewise.
        layers: by layer name; empty likewise.
    """

    flag: bool
    model_runner: str
    lane: str | None
    validator: str | None
    backends: list[str]
    implementations: list[str]
    target_layers: list[str]
    draft_layers: list[str]
    target_layers_with_state: Count
    draft_layers_with_state: Count
    layers: dict[str, LayerCounters]
