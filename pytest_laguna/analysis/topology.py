# SPDX-License-Identifier: Apache-2.0
"""What the target's breakable graph must look like, from the model's configuration file alone."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_laguna.evidence.diagnostic import Topology
from pytest_laguna.evidence.replay_profile import SegmentKind
from pytest_laguna.verdict import JSON, UnusableEvidenceError

ARCHITECTURE = "LagunaForCausalLM"


def target_layers(target_config: Mapping[str, JSON]) -> int:
    """Attention layers of the target: every decoder layer of this architecture has one.

    Args:
        target_config: the model's ``config.json``.

    Raises:
        UnusableEvidenceError: it is another architecture's, or does not say how many layers there are.
    """
    if target_config.get("architectures") != [ARCHITECTURE]:
        seen = target_config.get("architectures")
        message = f"config.json: architectures {seen!r}; expected ['{ARCHITECTURE}'], whose graph is known"
        raise UnusableEvidenceError(message)
    layers = target_config.get("num_hidden_layers")
    if type(layers) is not int or layers < 1:
        message = f"config.json: num_hidden_layers {layers!r}; expected a whole number from 1"
        raise UnusableEvidenceError(message)
    return layers


def expected_topology(
    target_config: Mapping[str, JSON], tensor_parallel_size: int, *, collective_breaks: bool
) -> Topology:
    """The segments of one captured forward of the target, in replay order.

    vLLM's breakable graph ends a segment at each attention call, which stays eager, and begins the next one after it:
    L layers give L breaks between L + 1 graphs. With tensor parallelism the vocabulary-parallel embedding is summed
    over the ranks, and so is each row-parallel projection that ends a half of a layer: attention's output, and the
    MLP's or the experts' output. That is one all-reduce for the embedding and two a layer. Where all-reduces are breaks
    too, the embedding's comes before the first attention, a layer's two before the next one, and the last layer's two
    before the last graph. On one rank there is nothing to sum, and vLLM makes no such call.

    For 48 layers on two ranks and more that is 146 graphs and 145 breaks, 48 of attention and 97 collective, in the
    order with the digest e5b64443…; without collective breaks, or on one rank, 49 and 48. Source: the published
    preregistration, and upstream vLLM 0.32.0 as measured.

    Args:
        target_config: the model's ``config.json``.
        tensor_parallel_size: ranks.
        collective_breaks: whether each all-reduce is a break of its own.

    Raises:
        UnusableEvidenceError: the configuration is not one whose graph is known.
    """
    layers = target_layers(target_config)
    reduces = collective_breaks and tensor_parallel_size > 1
    one_sum: list[SegmentKind] = ["graph", "collective"] if reduces else []
    attention: list[SegmentKind] = ["graph", "attention"]
    between = [*one_sum, *one_sum, *attention]
    return Topology(kinds=[*one_sum, *attention, *between * (layers - 1), *one_sum, *one_sum, "graph"])
