# SPDX-License-Identifier: Apache-2.0
"""What each rank is asked through vLLM's ``collective_rpc``: it is in every worker, as its ``worker_extension_cls``."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

from laguna_kv.proof import describe_worker
from pytest_laguna.evidence.arm_record import AttentionDigest, CapturedGraph, KernelViews, RankReport

from .attention_watch import AttentionWatch
from .compat import introspection


class RankProbe:
    """Mixed into vLLM's worker class; its names must not be among the worker's own."""

    laguna_watch: AttentionWatch | None = None
    rank: int
    model_runner: Any

    def laguna_watch_attention(self) -> None:
        """Watch the target's attention from now on; to be called once, before the generation."""
        if self.laguna_watch is not None:
            raise RuntimeError("laguna_watch_attention was called twice; the outputs would be counted twice")
        layers = introspection.target_attention_layers(self)
        self.laguna_watch = AttentionWatch(layers, introspection.attention_kernels())

    def laguna_report(self) -> dict[str, Any]:
        """This rank's ``RankReport`` as JSON values; to be called after the generation."""
        watch = self.laguna_watch
        if watch is None:
            raise RuntimeError("laguna_report was called before laguna_watch_attention; there is nothing to report")
        runner = type(self.model_runner)
        report = RankReport(
            rank=self.rank,
            model_runner=f"{runner.__module__}.{runner.__qualname__}",
            graphs=[_described(capture) for capture in introspection.captures(self)],
            attention=AttentionDigest(sha256=watch.sha256, calls=watch.calls, layers=watch.layers),
            kernel_views={
                layer: KernelViews(calls=seen.calls, same_objects=seen.same_objects, geometries=len(seen.geometries))
                for layer, seen in watch.handed.items()
            },
            candidate=describe_worker(self),
        )
        return report.model_dump(mode="json", by_alias=True)


def _described(capture: introspection.Capture) -> CapturedGraph:
    kinds = [introspection.segment_kind(segment) for segment in capture.segments]
    counted = Counter(kinds)
    return CapturedGraph(
        model=capture.model,
        descriptor=capture.descriptor,
        graphs=counted["graph"],
        breaks=len(kinds) - counted["graph"],
        kinds={str(kind): count for kind, count in counted.items()},
        order_sha256=hashlib.sha256(",".join(kinds).encode()).hexdigest(),
    )
