# SPDX-License-Identifier: Apache-2.0
"""Counters of a server, read from the text of ``/metrics``; source of the names: vLLM 0.26.0 to 0.33.0."""

from __future__ import annotations

import math
from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pytest_laguna.evidence import files
from pytest_laguna.evidence.endpoint.leg import Counters
from pytest_laguna.verdict import UnusableEvidenceError

_WHOLE = {
    "drafts": "vllm:spec_decode_num_drafts_total",
    "draft_tokens": "vllm:spec_decode_num_draft_tokens_total",
    "accepted": "vllm:spec_decode_num_accepted_tokens_total",
    "decode_count": "vllm:request_decode_time_seconds_count",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generated_tokens": "vllm:generation_tokens_total",
    "prefix_cache_queries": "vllm:prefix_cache_queries_total",
    "prefix_cache_hits": "vllm:prefix_cache_hits_total",
    "external_cache_queries": "vllm:external_prefix_cache_queries_total",
    "external_cache_hits": "vllm:external_prefix_cache_hits_total",
    "cached_prompt_tokens": "vllm:prompt_tokens_cached_total",
    "preemptions": "vllm:num_preemptions_total",
}
_DECODE_SECONDS = "vllm:request_decode_time_seconds_sum"
_PER_POSITION = ("vllm:spec_decode_num_accepted_tokens_per_pos_total", "position")
_FINISHED = ("vllm:request_success_total", "finished_reason")


def read_counters(content: bytes, file: str, model: str) -> Counters:
    """Parse the counters.

    Args:
        content: body of ``/metrics``.
        file: name of the kept body, for error messages.
        model: model id expected in every sample.

    Raises:
        UnusableEvidenceError: not the text format, or a counter is not finite, not whole, of another model, or exposed
            more than once, as several engines would.
    """
    try:
        text = content.decode("utf-8")
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except ValueError as error:
        message = f"{file}: seen no Prometheus text ({' '.join(str(error).split())[:120]}); expected that of /metrics"
        raise UnusableEvidenceError(message) from error
    found = _Found((sample for sample in samples if sample.name.startswith("vllm:")), file, model)
    return Counters(
        file=file,
        sha256=files.sha256_bytes(content),
        accepted_per_position=found.by_label(*_PER_POSITION),
        finished=found.by_label(*_FINISHED),
        decode_seconds=found.number(_DECODE_SECONDS),
        **{field: found.whole(name) for field, name in _WHOLE.items()},
    )


class _Found:
    """Samples of one reading, by name."""

    def __init__(self, samples: Iterable[Sample], file: str, model: str) -> None:
        self._file = file
        self._samples: dict[str, list[Sample]] = {}
        for sample in samples:
            self._samples.setdefault(sample.name, []).append(sample)
        self._model = model

    def number(self, name: str) -> float | None:
        """Value of a counter; None if it is not exposed."""
        samples = self._samples.get(name, [])
        if len(samples) > 1:
            raise UnusableEvidenceError(f"{self._file}: seen {name} {len(samples)} times; expected one engine's")
        return self._value(samples[0]) if samples else None

    def whole(self, name: str) -> int | None:
        """Value of a counter as an integer; None if it is not exposed."""
        value = self.number(name)
        return None if value is None else self._whole(name, value)

    def by_label(self, name: str, label: str) -> dict[str, int]:
        """Values of a counter by one of its labels."""
        values: dict[str, int] = {}
        for sample in self._samples.get(name, []):
            key = sample.labels.get(label, "")
            if key in values:
                message = f"{self._file}: seen {name} with {label} {key!r} twice; expected one engine's"
                raise UnusableEvidenceError(message)
            values[key] = self._whole(name, self._value(sample))
        return values

    def _value(self, sample: Sample) -> float:
        if sample.labels.get("model_name") != self._model:
            seen = sample.labels.get("model_name")
            raise UnusableEvidenceError(f"{self._file}: seen {sample.name} of model {seen!r}; expected {self._model!r}")
        value = float(sample.value)
        if not math.isfinite(value):
            raise UnusableEvidenceError(f"{self._file}: seen {sample.name} {value}; expected a finite number")
        return value

    def _whole(self, name: str, value: float) -> int:
        if not value.is_integer():
            raise UnusableEvidenceError(f"{self._file}: seen {name} {value}; expected a whole number")
        return int(value)
