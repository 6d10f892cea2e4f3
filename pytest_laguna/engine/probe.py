# SPDX-License-Identifier: Apache-2.0
"""Methods for vLLM's ``collective_rpc``, added to every worker as its ``worker_extension_cls``."""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import Any

from laguna_kv.proof import describe_worker
from pytest_laguna.evidence.arms.arm_record import (
    AttentionDigest,
    EventReport,
    KernelSignatures,
    KernelViews,
    ProfileReport,
    RankReport,
)
from pytest_laguna.evidence.arms.arm_settings import VERIFIED_TOKENS

from . import event_settings, process_facts, profile_directory
from .allocations import ReplayAllocations
from .attention_watch import AttentionWatch
from .captures import captured_graphs
from .compat import introspection, replay
from .compat.sampled_tokens import SampledTokens
from .event_fitness import FitnessProfiler
from .event_profile import EventProfiler, Subject
from .event_settings import EventSettings
from .event_sparse import SparseProfiler
from .last_stack import LastStack
from .profile_directory import ProfileDirectory, ProfileSettings
from .replay_profile import ReplayProfiler
from .timeline import timeline
from .view_preparation import TimingSeam


class RankProbe:
    """Mixed into vLLM's worker class; its names must differ from the worker's own."""

    laguna_begun = False
    laguna_watch: AttentionWatch | None = None
    laguna_allocations: ReplayAllocations | None = None
    laguna_profiler: ReplayProfiler | None = None
    laguna_events: EventProfiler | FitnessProfiler | SparseProfiler | None = None
    laguna_last_stack: LastStack | None = None
    laguna_sampled: SampledTokens
    laguna_hooks: contextlib.ExitStack
    rank: int
    model_runner: Any

    def laguna_begin(self) -> None:
        """Observe the generation that follows; called once, before it.

        A profile asked for by the environment comes first; the watch starts after its last sample, so it is not timed.
        """
        if self.laguna_begun:
            raise RuntimeError("laguna_begin: seen a second call; expected one for the generation")
        self.laguna_begun = True
        self.laguna_step()
        self.laguna_sampled = SampledTokens(self, self.laguna_step)
        settings, events = profile_directory.settings_from(os.environ), event_settings.settings_from(os.environ)
        if settings is not None:
            self.laguna_profiler = _profiler(self, settings)
            self.laguna_profiler.start(self.laguna_start_watch)
        elif events is not None:
            self.laguna_events = _event_profiler(self, events)
            self.laguna_events.start(self.laguna_start_watch)
        else:
            self.laguna_start_watch()

    def laguna_step(self) -> None:
        """Reset the hang watchdog, which dumps the stack on expiry."""
        if self.laguna_last_stack is not None:
            self.laguna_last_stack.step()

    def laguna_start_watch(self) -> None:
        """Watch the target's attention, and count its replays' allocations, from now on."""
        layers = introspection.target_attention_layers(self)
        self.laguna_watch = AttentionWatch(layers, introspection.attention_kernels())
        self.laguna_allocations = ReplayAllocations()
        self.laguna_hooks = contextlib.ExitStack()  # as long as the worker lives
        if any(introspection.captures(self)):
            batch = replay.verification_batch(self, VERIFIED_TOKENS)
            self.laguna_hooks.enter_context(batch.around(self.laguna_allocations.replay))

    def laguna_report(self) -> dict[str, Any]:
        """This rank's ``RankReport`` as JSON values; called after the generation."""
        if not self.laguna_begun:
            raise RuntimeError("laguna_report: seen before laguna_begin; expected a generation to report")
        runner = type(self.model_runner)
        place = introspection.place(self)
        report = RankReport(
            rank=place.rank,
            world_size=place.world_size,
            tensor_parallel_rank=place.tensor_parallel_rank,
            process=process_facts.this_process(),
            model_runner=f"{runner.__module__}.{runner.__qualname__}",
            graphs=captured_graphs(self),
            **_watched(self.laguna_watch),
            allocations=self.laguna_allocations.counts if self.laguna_allocations else [],
            profile=_profiled(self.laguna_profiler),
            event_profile=_event_profiled(self.laguna_events),
            sampled_token_ids=self.laguna_sampled.token_ids(),
            mapped=process_facts.mapped_files(),
            candidate=describe_worker(self),
        )
        return report.model_dump(mode="json", by_alias=True)


def _profiler(worker: RankProbe, settings: ProfileSettings) -> ReplayProfiler:
    batch = replay.verification_batch(worker, VERIFIED_TOKENS)
    place = introspection.place(worker)
    states = introspection.candidate_states(worker)
    return ReplayProfiler(
        batch,
        [introspection.segment_kind(segment) for segment in batch.segments],
        TimingSeam(introspection.attention_class(), introspection.canonical_strides(), states),
        ProfileDirectory(settings.root, place.rank, place.world_size),
        (place.rank, place.world_size),
        settings.samples,
    )


def _event_profiler(worker: RankProbe, settings: EventSettings) -> EventProfiler | FitnessProfiler | SparseProfiler:
    batch = replay.verification_batch(worker, VERIFIED_TOKENS)
    place = introspection.place(worker)
    kinds = [introspection.segment_kind(segment) for segment in batch.segments]
    subject = Subject(batch, kinds, settings.order_sha256, (place.rank, place.world_size))
    directory = ProfileDirectory(settings.root, place.rank, place.world_size, event_settings.ROOT)
    if settings.rounds:
        return FitnessProfiler(subject, timeline(), directory, settings.rounds)
    if settings.replays:
        return SparseProfiler(subject, timeline(), directory, settings.replays)
    return EventProfiler(subject, timeline(), directory)


def _event_profiled(profiler: EventProfiler | FitnessProfiler | SparseProfiler | None) -> EventReport | None:
    if profiler is None:
        return None
    rounds = profiler.rounds if isinstance(profiler, FitnessProfiler) else 0
    replays = profiler.replays if isinstance(profiler, SparseProfiler) else 0
    return EventReport(rounds=rounds, replays=replays, sha256=profiler.sha256)


def _profiled(profiler: ReplayProfiler | None) -> ProfileReport | None:
    if profiler is None:
        return None
    return ProfileReport(samples=profiler.samples, taken=profiler.taken, sha256=profiler.sha256)


def _watched(watch: AttentionWatch | None) -> dict[str, Any]:
    if watch is None:  # the generation ended before the profile had its samples
        nothing = AttentionDigest(sha256=hashlib.sha256().hexdigest(), calls=0, layers=0)
        return {"attention": nothing, "kernel_views": {}, "kernel_signatures": {}}
    return {
        "attention": AttentionDigest(sha256=watch.sha256, calls=watch.calls, layers=watch.layers),
        "kernel_views": {
            layer: KernelViews(calls=seen.calls, same_objects=seen.same_objects, geometries=len(seen.geometries))
            for layer, seen in watch.handed.items()
        },
        "kernel_signatures": {
            layer: KernelSignatures(calls=seen.calls, distinct=len(seen.tensors), sha256=seen.sha256)
            for layer, seen in watch.signatures.items()
        },
    }
