# SPDX-License-Identifier: Apache-2.0
"""What ran in one worker process, read from the layers that vLLM uses and not from what was asked for."""

from __future__ import annotations

from typing import Any, TypeAlias

from laguna_kv import compat
from laguna_kv.settings import read_flag

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"


def describe_worker(worker: Any) -> dict[str, JSON]:
    """Say for one rank which classes serve its attention layers, and what became of each layer's views.

    To be called inside the worker process, for instance by a method of its ``worker_extension_cls``. Works
    with the flag off as well, and then shows vLLM's own classes and no state.

    Args:
        worker: vLLM's worker, whose ``model_runner`` has loaded its model.

    Returns:
        JSON values only. ``flag``; ``model_runner`` (V1 or V2); ``lane`` and ``validator`` (null where no
        candidate layer runs); ``backends`` and ``implementations``, the distinct class paths of all attention
        layers; ``target_layers`` and ``draft_layers``, by name; ``target_layers_with_state``; the totals over
        the target's layers of ``builds``, ``invalidations``, ``forward_hits`` and ``update_hits``; and
        ``layers``, the same counters by layer name.
    """
    config = worker.vllm_config
    layers = {name: layer for name, layer in compat.attention_layers(config).items() if hasattr(layer, "impl")}
    draft = {name for name, layer in layers.items() if compat.is_draft_layer(layer, config)}
    ours = {name: layer.impl for name, layer in layers.items() if hasattr(layer.impl, "views")}
    counters = {name: _counters(impl) for name, impl in ours.items() if name not in draft}
    return {
        "flag": read_flag(),
        "model_runner": compat.model_runner_version(worker.model_runner),
        "lane": _only({str(impl.settings.lane) for impl in ours.values()}),
        "validator": _only({str(impl.settings.validator) for impl in ours.values()}),
        "backends": sorted({_path(layer.get_attn_backend()) for layer in layers.values()}),
        "implementations": sorted({_path(type(layer.impl)) for layer in layers.values()}),
        "target_layers": [name for name in layers if name not in draft],
        "draft_layers": [name for name in layers if name in draft],
        "target_layers_with_state": sum(ours[name].views.contract is not None for name in counters),
        "draft_layers_with_state": sum(ours[name].views.builds > 0 for name in draft & ours.keys()),
        **{field: sum(counter[field] for counter in counters.values()) for field in _COUNTED},
        "layers": {name: dict(counter) for name, counter in counters.items()},
    }


_COUNTED = ("builds", "invalidations", "forward_hits", "update_hits")


def _counters(impl: Any) -> dict[str, int]:
    return {field: getattr(impl.views, field) for field in _COUNTED}


def _path(cls: type[object]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _only(values: set[str]) -> str | None:
    """The one value; None for none.

    Raises:
        ValueError: the layers of one process disagree.
    """
    if len(values) > 1:
        raise ValueError(f"one process, one setting: expected the same in every layer, seen {sorted(values)}")
    return next(iter(values), None)
