# SPDX-License-Identifier: Apache-2.0
"""What an engine counted of its drafts becomes the record's acceptance, or nothing does."""

from __future__ import annotations

import pytest
from vllm.v1.metrics.reader import Counter, Metric, Vector

from pytest_laguna.engine.compat.speculation import acceptance
from pytest_laguna.evidence.arms.arm_record import Acceptance


class Engine:
    """Tells vLLM's own metrics, as ``vllm.LLM.get_metrics`` does."""

    def __init__(self, *metrics: Metric) -> None:
        self._metrics = list(metrics)

    def get_metrics(self) -> list[Metric]:
        return self._metrics


def counter(name: str, value: int) -> Counter:
    return Counter(name=f"vllm:{name}", labels={}, value=value)


TOLD: tuple[Metric, ...] = (
    counter("spec_decode_num_drafts", 3),
    counter("spec_decode_num_draft_tokens", 21),
    counter("spec_decode_num_accepted_tokens", 4),
    Vector(name="vllm:spec_decode_num_accepted_tokens_per_pos", labels={}, values=[2, 1, 1, 0, 0, 0, 0]),
    counter("generation_tokens", 7),
)


def test_the_counters_are_the_acceptance() -> None:
    expected = Acceptance(drafts=3, draft_tokens=21, accepted=4, accepted_per_position=[2, 1, 1, 0, 0, 0, 0])
    assert acceptance(Engine(*TOLD)) == expected


@pytest.mark.parametrize("missing", range(4))
def test_a_counter_that_is_not_told_once_is_refused_by_name(missing: int) -> None:
    name = TOLD[missing].name
    for told, count in ((TOLD[:missing] + TOLD[missing + 1 :], 0), ((*TOLD, TOLD[missing]), 2)):
        with pytest.raises(RuntimeError, match=f"vLLM: seen {count} counters {name}; expected one; see"):
            acceptance(Engine(*told))


def test_counters_that_do_not_add_up_are_no_acceptance() -> None:
    wrong = [*TOLD[:2], counter("spec_decode_num_accepted_tokens", 5), *TOLD[3:]]
    with pytest.raises(ValueError, match="expected counts that fall"):
        acceptance(Engine(*wrong))
