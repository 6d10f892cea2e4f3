# SPDX-License-Identifier: Apache-2.0
"""Host time of preparing the KV views: vLLM's own expressions and the candidate, side by side.

``python -m benchmarks.hot_path`` prints a table, ``--json`` the raw figures as well. It repeats the preregistered
microbenchmark: BF16 caches of [256, 2, 16, 256], 48 layers (so 48 states), 31 repeats, one thread, inference mode. All
variants run interleaved in one process, in an order that rotates from repeat to repeat, so that a drift of the
host meets all of them alike; each timed sweep follows an untimed one of its own kind, as it would if it ran alone.
Needs the ``cpu`` extra and a checkout.

The figures, each for 48 layers:

* ``incumbent``: vLLM's expressions with vLLM's canonicalisation helper, as ``FlashAttentionImpl`` has them.
* ``native``, ``python``: a use of the contract, which checks everything and returns the seam.
* ``to aliases``: that use, and the seam's transposition and split, until the two aliases are held.
* ``equal work``: all of that, and vLLM's forward asking for both canonical forms: what the incumbent's expressions do,
  done by the candidate.
* ``floor``: returning a stored tuple, a lower bound for every check.
* ``cold``: update and forward of a layer, from the cache to all canonical aliases, after memory the size of several
  second-level caches was read: between two uses of a layer run launches and all other layers. Each layer is timed for
  itself, and an interval in which nothing is done, ``clock cold``, is taken off both sides of the ratio.
* ``path``: the whole methods as vLLM calls them, on real layers of the real classes, with both kernels replaced by
  functions that do nothing, equally for the stock class and the candidate's.

The ratios are of medians over the repeats. ``ratio_forward`` is candidate over incumbent for the forward preparation
alone, which is all that a replay runs; ``ratio_forward_update`` for both. It ends with the seam, where the incumbent's
ends with canonical aliases, so ``ratio_forward_to_aliases`` and ``ratio_forward_equal_work`` stand beside it, over the
same incumbent. ``ratio_forward_update_cold`` is of equal work too, for both methods on cold layers.

``ratio_path`` is what is left of the incumbent's preparation when the candidate's whole path is
counted, with its method frame, its check, its seam and the answers to vLLM's canonicalisation:
1 - median(stock path - candidate path) / incumbent preparation, forward only; ``ratio_path_forward_update`` the same
for both methods.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import vllm.v1.attention.backends.flash_attn as upstream
from vllm.utils.torch_utils import canonicalize_singleton_dim_strides

from gates import vllm_classes as support
from laguna_kv import _contract
from laguna_kv.backend import LagunaFlashAttentionBackend
from laguna_kv.contract import Contract, load_validator
from laguna_kv.settings import VALIDATOR, Validator
from laguna_kv.views import build_views

LAYERS = 48
REPEATS = 31
WARM_UP = 5
BLOCKS, KV_HEADS, BLOCK_SIZE, HEAD_SIZE = 256, 2, 16, 128
NANOSECONDS_IN_A_MILLISECOND = 1_000_000
OTHER_MEMORY = 8 * 2**20
"""Bytes read between two cold layers: four times the largest second-level cache known here, 2 MiB."""
HELPER = canonicalize_singleton_dim_strides.__name__
"""Name in the backend's module under which vLLM's forward looks its helper up."""

Sweep = Callable[[], object]
TimedSweep = Callable[[], int]
"""Over all layers; returns the timed nanoseconds."""
Canonicalize = Callable[[torch.Tensor], torch.Tensor]


def incumbent_sweeps(caches: list[torch.Tensor]) -> dict[str, Sweep]:
    """Run vLLM's own expressions over all layers: forward, update, and the two in turn."""

    def forward() -> None:
        for kv_cache in caches:
            key_cache, value_cache = kv_cache.transpose(1, 2).split(HEAD_SIZE, dim=-1)
            fixed_k = canonicalize_singleton_dim_strides(key_cache)
            fixed_v = canonicalize_singleton_dim_strides(value_cache)
            if fixed_k is not key_cache or fixed_v is not value_cache:
                raise AssertionError("these caches are canonical as they are")

    def forward_update() -> None:
        for kv_cache in caches:
            _key_cache, _value_cache = kv_cache.transpose(1, 2).split(HEAD_SIZE, dim=-1)
            key_cache, value_cache = kv_cache.transpose(1, 2).split(HEAD_SIZE, dim=-1)
            fixed_k = canonicalize_singleton_dim_strides(key_cache)
            fixed_v = canonicalize_singleton_dim_strides(value_cache)
            if fixed_k is not key_cache or fixed_v is not value_cache:
                raise AssertionError("these caches are canonical as they are")

    return {"incumbent forward": forward, "incumbent forward+update": forward_update}


def make_contracts(validator: Validator, caches: list[torch.Tensor]) -> list[tuple[Contract, torch.Tensor]]:
    """A state of its own for each layer."""
    make_contract = load_validator(validator)
    return [
        (make_contract(kv_cache, build_views(kv_cache, HEAD_SIZE), HEAD_SIZE, f"layer {number}"), kv_cache)
        for number, kv_cache in enumerate(caches)
    ]


def candidate_sweeps(validator: Validator, caches: list[torch.Tensor], canonicalize: Canonicalize) -> dict[str, Sweep]:
    """The candidate's preparation over all layers, each with a state of its own."""
    contracts = make_contracts(validator, caches)

    def forward() -> None:
        for contract, kv_cache in contracts:
            contract.forward(kv_cache)

    def forward_update() -> None:
        for contract, kv_cache in contracts:
            contract.update(kv_cache)
            contract.forward(kv_cache)

    def to_aliases() -> None:
        for contract, kv_cache in contracts:
            seam: Any = contract.forward(kv_cache)
            _key_cache, _value_cache = seam.transpose(1, 2).split(HEAD_SIZE, dim=-1)

    def equal_work() -> None:
        for contract, kv_cache in contracts:
            seam: Any = contract.forward(kv_cache)
            key_cache, value_cache = seam.transpose(1, 2).split(HEAD_SIZE, dim=-1)
            fixed_k = canonicalize(key_cache)
            fixed_v = canonicalize(value_cache)
            if fixed_k is not key_cache or fixed_v is not value_cache:
                raise AssertionError("these aliases are canonical as they are")

    return {
        f"{validator} forward": forward,
        f"{validator} forward+update": forward_update,
        f"{validator} to aliases": to_aliases,
        f"{validator} equal work": equal_work,
    }


def floor_sweeps(caches: list[torch.Tensor]) -> dict[str, Sweep]:
    """A stored tuple over all layers."""
    stored = [(kv_cache, kv_cache) for kv_cache in caches]

    def fetch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return stored[number]

    def forward() -> None:
        for number in range(LAYERS):
            fetch(number)

    def forward_update() -> None:
        for number in range(LAYERS):
            fetch(number)
            fetch(number)

    return {"floor forward": forward, "floor forward+update": forward_update}


def path_sweeps(name: str, backend: Any, caches: list[torch.Tensor], canonicalize: Canonicalize) -> dict[str, Sweep]:
    """The methods that vLLM calls, on real layers, with kernels that do nothing."""
    config = support.registered_engine()
    layers: list[Any] = [support.make_layer(config, backend, number) for number in range(LAYERS)]
    query, key, value = support.projections(layers[0], tokens=8, seed=0)
    output = torch.empty_like(query)
    step = support.metadata(tokens=8, context=24, blocks=2)
    bound = list(zip(layers, caches, strict=True))

    def forward() -> None:
        setattr(upstream, HELPER, canonicalize)
        for layer, kv_cache in bound:
            layer.impl.forward(layer, query, key, value, kv_cache, step, output=output)

    def forward_update() -> None:
        setattr(upstream, HELPER, canonicalize)
        for layer, kv_cache in bound:
            layer.impl.do_kv_cache_update(layer, key, value, kv_cache, step.slot_mapping)
            layer.impl.forward(layer, query, key, value, kv_cache, step, output=output)

    return {f"{name} path forward": forward, f"{name} path forward+update": forward_update}


def cold_sweeps(caches: list[torch.Tensor], canonicalize: Canonicalize) -> dict[str, TimedSweep]:
    """Update and forward of each layer after other memory was read, by vLLM's expressions and by the candidate's."""
    contracts = make_contracts(Validator.NATIVE, caches)
    other = bytearray(b"\1") * OTHER_MEMORY  # written: pages that never were are one and the same
    now = time.perf_counter_ns

    def clock() -> int:
        total = 0
        for _ in caches:
            other.find(b"\0")
            begin = now()
            total += now() - begin
        return total

    def incumbent() -> int:
        total = 0
        for kv_cache in caches:
            other.find(b"\0")
            begin = now()
            key_cache, value_cache = kv_cache.transpose(1, 2).split(HEAD_SIZE, dim=-1)
            key_cache, value_cache = kv_cache.transpose(1, 2).split(HEAD_SIZE, dim=-1)
            _fixed = canonicalize_singleton_dim_strides(key_cache), canonicalize_singleton_dim_strides(value_cache)
            total += now() - begin
        return total

    def native() -> int:
        total = 0
        for contract, kv_cache in contracts:
            other.find(b"\0")
            begin = now()
            raw: Any = contract.update(kv_cache)
            key_cache, value_cache = raw.transpose(1, 2).split(HEAD_SIZE, dim=-1)
            canonical: Any = contract.forward(kv_cache)
            key_cache, value_cache = canonical.transpose(1, 2).split(HEAD_SIZE, dim=-1)
            _fixed = canonicalize(key_cache), canonicalize(value_cache)
            total += now() - begin
        return total

    return {"clock cold": clock, "incumbent cold": incumbent, "native cold": native}


def warm(sweep: Sweep) -> TimedSweep:
    """A sweep timed after an untimed one of its own, because another variant has emptied the processor's caches."""

    def timed() -> int:
        sweep()
        begin = time.perf_counter_ns()
        sweep()
        return time.perf_counter_ns() - begin

    return timed


def measure(sweeps: dict[str, TimedSweep]) -> dict[str, list[float]]:
    """Time every sweep once in each repeat, in rotating order; milliseconds."""
    names = list(sweeps)
    timings: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()
    try:
        for repeat in range(-WARM_UP, REPEATS):
            shift = repeat % len(names)
            for name in names[shift:] + names[:shift]:
                elapsed = sweeps[name]()
                if repeat >= 0:
                    timings[name].append(elapsed / NANOSECONDS_IN_A_MILLISECOND)
    finally:
        gc.enable()
    return timings


def ratios(timings: dict[str, list[float]]) -> dict[str, float]:
    """Judged figures, from the repeats in milliseconds.

    The path's saving is the median over the repeats' savings, not the difference of two medians: stock and candidate of
    one repeat are close in time, so most disturbances hit both.
    """
    result = {}
    for suffix, methods in (("forward", "forward"), ("forward_update", "forward+update")):
        incumbent = statistics.median(timings[f"incumbent {methods}"])
        for validator, ending in (("native", ""), ("python", "_python")):
            result[f"ratio_{suffix}{ending}"] = statistics.median(timings[f"{validator} {methods}"]) / incumbent
            pairs = zip(timings[f"stock path {methods}"], timings[f"{validator} path {methods}"], strict=True)
            saved = statistics.median(stock - candidate for stock, candidate in pairs)
            path = "ratio_path" if suffix == "forward" else "ratio_path_forward_update"
            result[path + ending] = 1 - saved / incumbent
    incumbent = statistics.median(timings["incumbent forward"])
    for validator, ending in (("native", ""), ("python", "_python")):
        for work in ("to aliases", "equal work"):
            figure = f"ratio_forward_{work.replace(' ', '_')}{ending}"
            result[figure] = statistics.median(timings[f"{validator} {work}"]) / incumbent
    clock, incumbent, native = (statistics.median(timings[f"{name} cold"]) for name in ("clock", "incumbent", "native"))
    result["ratio_forward_update_cold"] = (native - clock) / (incumbent - clock)
    return result


def run() -> dict[str, Any]:
    """Measure everything once."""
    torch.set_num_threads(1)
    stock = canonicalize_singleton_dim_strides
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        support.set_engine_environment(patch)
        support.install_kernels(patch)
        patch.setattr(upstream, "flash_attn_varlen_func", lambda **_arguments: None)
        patch.setattr(upstream, "reshape_and_cache_flash", lambda *_arguments: None)
        caches = [
            support.make_cache(blocks=BLOCKS, kv_heads=KV_HEADS, block_size=BLOCK_SIZE, head_size=HEAD_SIZE)
            for _ in range(LAYERS)
        ]
        sweeps = incumbent_sweeps(caches) | floor_sweeps(caches)
        patch.setattr(upstream, HELPER, stock)  # and back to what it was when all is measured
        sweeps |= path_sweeps("stock", upstream.FlashAttentionBackend, caches, stock)
        for validator, canonicalize in ((Validator.NATIVE, _contract.Canonicalize(stock)), (Validator.PYTHON, stock)):
            patch.setenv(VALIDATOR, validator)
            sweeps |= candidate_sweeps(validator, caches, canonicalize)
            sweeps |= path_sweeps(validator, LagunaFlashAttentionBackend, caches, canonicalize)
        timings = measure({name: warm(sweep) for name, sweep in sweeps.items()})
        timings |= measure(cold_sweeps(caches, _contract.Canonicalize(stock)))
    medians = {name: statistics.median(values) for name, values in timings.items()}
    return {
        "schema": "laguna-hot-path-v1",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "shape": [BLOCKS, KV_HEADS, BLOCK_SIZE, 2 * HEAD_SIZE],
        "layers": LAYERS,
        "repeats": REPEATS,
        **ratios(timings),
        "median_ms": medians,
        "p90_ms": {name: statistics.quantiles(values, n=10)[-1] for name, values in timings.items()},
        "raw_ms": timings,
    }


def table(result: dict[str, Any]) -> str:
    """The result as text."""
    lines = [f"{'48 layers, milliseconds':32} {'median':>9} {'p90':>9}"]
    lines += [f"{name:32} {median:9.4f} {result['p90_ms'][name]:9.4f}" for name, median in result["median_ms"].items()]
    lines += ["", *(f"{name:32} {value:9.4f}" for name, value in result.items() if name.startswith("ratio_"))]
    return "\n".join(lines)


def main() -> int:
    """Print the table, or the JSON document with ``--json``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hot_path", description="Cost of the KV views.")
    parser.add_argument("--json", action="store_true", help="print the raw figures as one JSON document")
    arguments = parser.parse_args()
    result = run()
    print(json.dumps(result, indent=1) if arguments.json else table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
