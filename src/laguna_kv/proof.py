# SPDX-License-Identifier: Apache-2.0
"""Describes one worker process from the layers that vLLM uses, not from its settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

from laguna_kv import compat
from laguna_kv.settings import read_flag

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"


def describe_worker(worker: Any) -> dict[str, JSON]:
    """Describe the classes and view counters of one rank's attention layers.

    Call it inside the worker process, for instance by a method of its ``worker_extension_cls``. With the flag off it
    shows vLLM's own classes and no state.

    Args:
        worker: vLLM's worker, whose ``model_runner`` has loaded its model.

    Returns:
        JSON values only. ``flag``; ``model_runner`` (V1 or V2); ``lane`` and ``validator`` (``null`` without a
            candidate
        layer); ``backends`` and ``implementations``, the distinct class paths of all attention layers;
        ``target_layers`` and ``draft_layers``, by name; ``target_layers_with_state`` and ``draft_layers_with_state``,
        counts; the totals over the target's layers of ``builds``, ``invalidations``, ``forward_hits`` and
        ``update_hits``; and ``layers``, the same counters by layer name.
    """
    config = worker.vllm_config
    layers = {name: layer for name, layer in compat.attention_layers(config).items() if hasattr(layer, "impl")}
    draft = {name for name, layer in layers.items() if compat.is_draft_layer(layer, config)}
    ours = {name: layer.impl for name, layer in layers.items() if hasattr(layer.impl, "views")}
    return {
        "flag": read_flag(),
        "model_runner": compat.model_runner_version(worker.model_runner),
        **_settings(ours),
        **_classes(layers),
        "target_layers": [name for name in layers if name not in draft],
        "draft_layers": [name for name in layers if name in draft],
        **_states(ours, draft),
    }


def _settings(ours: Mapping[str, Any]) -> dict[str, JSON]:
    settings = [impl.settings for impl in ours.values()]
    return {field: _only({str(getattr(each, field)) for each in settings}) for field in ("lane", "validator")}


def _classes(layers: Mapping[str, Any]) -> dict[str, JSON]:
    return {
        "backends": [*sorted({_path(layer.get_attn_backend()) for layer in layers.values()})],
        "implementations": [*sorted({_path(type(layer.impl)) for layer in layers.values()})],
    }


_COUNTED = ("builds", "invalidations", "forward_hits", "update_hits")


def _states(ours: Mapping[str, Any], draft: Collection[str]) -> dict[str, JSON]:
    target = {name: impl.views for name, impl in ours.items() if name not in draft}
    counters = {name: {field: getattr(views, field) for field in _COUNTED} for name, views in target.items()}
    return {
        "target_layers_with_state": sum(views.contract is not None for views in target.values()),
        "draft_layers_with_state": sum(impl.views.builds > 0 for name, impl in ours.items() if name in draft),
        **{field: sum(counter[field] for counter in counters.values()) for field in _COUNTED},
        "layers": {name: dict(counter) for name, counter in counters.items()},
    }


def _path(cls: type[object]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _only(values: set[str]) -> str | None:
    """Return the only value, or None without one.

    Raises:
        ValueError: the layers of one process disagree.
    """
    if len(values) > 1:
        raise ValueError(f"one process, one setting: seen {sorted(values)}; expected the same in every layer")
    return next(iter(values), None)
