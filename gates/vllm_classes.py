# SPDX-License-Identifier: Apache-2.0
"""vLLM's real attention classes on a CPU: layers, caches, metadata and reference kernels.

Runs under vLLM 0.26.0, 0.32.0 and 0.33.0. Only the two kernels without a CPU build in vLLM are ours; they replace the
FlashAttention version that vLLM would detect on a card.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import os
import textwrap
import warnings
from types import SimpleNamespace
from typing import Any

import torch

# vLLM's import emits torch's deprecation warnings; as errors they would prevent the collection.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import vllm
    import vllm.v1.attention.backends.flash_attn as upstream
    from vllm.compilation import breakable_cudagraph
    from vllm.config import CompilationMode, CUDAGraphMode, VllmConfig, set_current_vllm_config
    from vllm.forward_context import set_forward_context
    from vllm.model_executor.layers.attention import Attention
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

HEAD_SIZE = 128
TARGET_LAYERS = 48
ENGINE_ENVIRONMENT = {
    "VLLM_USE_BREAKABLE_CUDAGRAPH": "1",
    "LAGUNA_KV_LANE": "cpu",
}


@dataclasses.dataclass
class Recorded:
    """The kernels' cache tensors, in order of their calls."""

    attention: list[tuple[torch.Tensor, torch.Tensor]] = dataclasses.field(default_factory=list)
    update: list[tuple[torch.Tensor, torch.Tensor]] = dataclasses.field(default_factory=list)


def install_kernels(monkeypatch: Any) -> Recorded:
    """Replace the two kernels that vLLM's module imports on a card by reference kernels."""
    recorded = Recorded()

    def reshape_and_cache_flash(
        key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor,
        slot_mapping: torch.Tensor, *_scales: object,
    ) -> None:  # fmt: skip
        recorded.update.append((key_cache, value_cache))
        block_size = key_cache.shape[1]
        for row, slot in enumerate(slot_mapping.tolist()):
            if slot >= 0:
                key_cache[slot // block_size, slot % block_size] = key[row]
                value_cache[slot // block_size, slot % block_size] = value[row]

    def flash_attn_varlen_func(**arguments: Any) -> Any:
        keys, values = arguments["k"], arguments["v"]
        recorded.attention.append((keys, values))
        starts = arguments["cu_seqlens_q"].tolist()
        for row, (start, stop) in enumerate(itertools.pairwise(starts)):
            tokens = int(arguments["seqused_k"][row])
            output = arguments["out"][start:stop]
            output.copy_(
                _attend(arguments["q"][start:stop], (keys, values), tokens, arguments["block_table"][row], arguments)
            )
        return arguments["out"]

    monkeypatch.setattr(upstream, "reshape_and_cache_flash", reshape_and_cache_flash, raising=False)
    monkeypatch.setattr(upstream, "flash_attn_varlen_func", flash_attn_varlen_func, raising=False)
    monkeypatch.setattr(upstream, "get_flash_attn_version", lambda *_a, **_k: 2)
    monkeypatch.setattr(upstream, "flash_attn_supports_quant_query_input", lambda: False, raising=False)
    return recorded


def _attend(
    query: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor], tokens: int, blocks: torch.Tensor, arguments: Any
) -> torch.Tensor:
    """Causal attention of one sequence; query [tokens, heads, head_size], caches [blocks, tokens, heads, head_size]."""
    keys, values = cache
    rows = torch.arange(tokens)
    block = blocks[rows // keys.shape[1]].long()
    groups = query.shape[1] // keys.shape[2]
    key = keys[block, rows % keys.shape[1]].float().repeat_interleave(groups, 1)
    value = values[block, rows % keys.shape[1]].float().repeat_interleave(groups, 1)
    scores = torch.einsum("qhd,khd->hqk", query.float(), key) * arguments["softmax_scale"]
    position = torch.arange(tokens - len(query), tokens)[:, None]
    visible = rows[None] <= position
    window = arguments["window_size"]
    if window is not None and window[0] >= 0:
        visible &= rows[None] >= position - window[0]
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, value).to(query.dtype)


def registered_engine(**changes: Any) -> VllmConfig:
    """vLLM's configuration of the registered experiment, with a few facts for the model and the drafter.

    Args:
        **changes: ``section__field=value`` sets one field of a section, ``section=value`` a whole section.
    """
    config = VllmConfig()
    config.compilation_config.mode = CompilationMode.NONE
    config.compilation_config.cudagraph_mode = CUDAGraphMode.PIECEWISE
    config.compilation_config.cudagraph_capture_sizes = [8]
    config.scheduler_config.max_num_seqs = 1
    config.model_config = SimpleNamespace(
        get_total_num_hidden_layers=lambda: TARGET_LAYERS, dtype=torch.bfloat16, is_mm_prefix_lm=False
    )  # type: ignore[assignment]
    config.speculative_config = SimpleNamespace(
        method="dflash", num_speculative_tokens=7, draft_sample_method="greedy", rejection_sample_method="standard"
    )  # type: ignore[assignment]
    for name, value in changes.items():
        section, _, field = name.partition("__")
        if field:
            setattr(getattr(config, section), field, value)
        else:
            setattr(config, section, value)
    return config


def make_layer(  # noqa: PLR0913 - one for each fact of a layer
    config: VllmConfig, backend: Any, number: int = 0, *, kv_heads: int = 2, head_size: int = HEAD_SIZE,
    window: int | None = None, **arguments: Any,
) -> Any:  # fmt: skip
    """A real vLLM attention layer, known to the configuration by its name, in the model's BF16."""
    with set_current_vllm_config(config):
        return Attention(
            6 * kv_heads,
            head_size,
            head_size**-0.5,
            num_kv_heads=kv_heads,
            prefix=f"model.layers.{number}.self_attn.attn",
            attn_backend=backend,
            per_layer_sliding_window=window,
            **arguments,
        )


def make_cache(  # noqa: PLR0913 - one for each fact of a cache
    *, blocks: int = 4, kv_heads: int = 2, block_size: int = 16, head_size: int = HEAD_SIZE, layout: str = "NHD",
    dtype: torch.dtype = torch.bfloat16, offset: int = 0,
) -> torch.Tensor:  # fmt: skip
    """A cache as vLLM's allocator shapes it: [blocks, kv_heads, block_size, 2 * head_size] over a flat buffer.

    Args:
        blocks: number of blocks.
        kv_heads: heads on one rank.
        block_size: tokens in a block.
        head_size: in elements.
        layout: NHD (token outside head) or HND (head outside token) in memory.
        dtype: of the elements.
        offset: elements before the cache in the buffer.
    """
    content = 2 * head_size
    elements = blocks * kv_heads * block_size * content
    # vLLM's layers share one buffer, so memory goes on after a cache's end.
    buffer = torch.randn(offset + elements + content).to(dtype)[offset : offset + elements]
    if layout == "HND":
        return buffer.view(blocks, kv_heads, block_size, content)
    return buffer.view(blocks, block_size, kv_heads, content).transpose(1, 2)


def metadata(tokens: int, context: int, blocks: int = 4) -> Any:
    """vLLM's metadata for one request: the last ``tokens`` of ``context``, in blocks 0, 1, ... of the cache."""
    fields = [field.name for field in dataclasses.fields(upstream.FlashAttentionMetadata)]
    values: dict[str, Any] = {
        "num_actual_tokens": tokens,
        "max_query_len": tokens,
        "query_start_loc": torch.tensor([0, tokens], dtype=torch.int32),
        "max_seq_len": context,
        "seq_lens": torch.tensor([context], dtype=torch.int32),
        "block_table": torch.arange(blocks, dtype=torch.int32)[None],
        "slot_mapping": torch.arange(context - tokens, context),
        "use_cascade": False,
        "common_prefix_len": 0,
        "max_num_splits": 0,
        "causal": True,
    }
    known: dict[str, Any] = {name: values.get(name) for name in fields}
    return upstream.FlashAttentionMetadata(**known)


def projections(layer: Any, tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query, key and value of a layer, [tokens, heads, head_size], BF16."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(tokens, heads, layer.head_size, generator=generator).bfloat16()
        for heads in (layer.num_heads, layer.num_kv_heads, layer.num_kv_heads)
    )  # type: ignore[return-value]


def run_step(config: VllmConfig, layer: Any, tokens: int = 8, context: int = 24, seed: int = 0) -> torch.Tensor:
    """One step of one layer through vLLM's own custom ops: cache update, then attention, with output in BF16."""
    query, key, value = projections(layer, tokens, seed)
    step = metadata(tokens, context)
    with set_forward_context(
        {layer.layer_name: step}, config, num_tokens=tokens, slot_mapping={layer.layer_name: step.slot_mapping}
    ):
        return layer(query.flatten(1), key.flatten(1), value.flatten(1))  # type: ignore[no-any-return]


def set_engine_environment(monkeypatch: Any, **changes: str) -> None:
    """The registered engine's environment variables, with changes."""
    for name in [name for name in os.environ if name.startswith(("LAGUNA_KV_", "VLLM_XPU_LAGUNA"))]:
        monkeypatch.delenv(name)
    for name, value in {**ENGINE_ENVIRONMENT, **changes}.items():
        monkeypatch.setenv(name, value)


def do_without_a_device(monkeypatch: Any) -> None:
    """Let vLLM's cleanup run without an accelerator; all but these two calls is vLLM's."""
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: None)


def clear_with_v1(config: Any, layers: dict[str, Any]) -> None:
    """Run the V1 runner's own cleanup of its profiling cache."""
    runner: Any = object.__new__(GPUModelRunner)
    runner.kv_caches = [layer.kv_cache for layer in layers.values()]
    runner.attn_groups, runner.kv_cache_config = [], object()
    runner.cache_config, runner.compilation_config = config.cache_config, config.compilation_config
    runner._cleanup_profiling_kv_cache()


def clear_with_v2(config: Any, layers: dict[str, Any]) -> None:
    """Run the V2 runner's own teardown of its profiling state; it reaches each layer twice."""
    from vllm.v1.worker.gpu import cudagraph_utils

    runner: Any = SimpleNamespace(
        model_state=SimpleNamespace(supports_mm_inputs=False),
        kv_caches=[],
        attn_groups=[],
        kv_cache_config=object(),
        cudagraph_manager=object(),
        compilation_config=config.compilation_config,
        model=torch.nn.ModuleList(layers.values()),
        cache_config=config.cache_config,
        lora_config=None,
        maybe_remove_all_loras=lambda _lora: None,
    )
    cudagraph_utils._teardown_profiling_state(runner)


def captured_graph(*, complete: bool = True) -> Any:
    """vLLM's own wrapper with one entry, made without its constructor, to need no graph pool."""
    wrapper: Any = object.__new__(breakable_cudagraph.BreakableCUDAGraphWrapper)
    capture = breakable_cudagraph.BreakableCUDAGraphCapture() if complete else None
    entry = breakable_cudagraph._BreakableEntry(batch_descriptor=None, capture=capture)  # type: ignore[arg-type]
    wrapper.entries = {8: entry}
    breakable_cudagraph.BreakableCUDAGraphWrapper._all_instances.add(wrapper)
    return wrapper


CLEARINGS = {"V1": clear_with_v1, "V2": clear_with_v2}
if vllm.__version__.startswith("0.26."):
    del CLEARINGS["V2"]  # its V2 runner has no profiling cache to clear


def uses_of_the_cache_argument(method: Any) -> list[str]:
    """Expressions of a method that read the name ``kv_cache``, as source text."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    reading = {id(node) for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "kv_cache"}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and _count(node.value, reading)]
    count = sum(_count(node.value, reading) for node in calls)
    assert count == len(reading), "the cache is used outside the assignments found"
    return [ast.unparse(node.value) for node in calls]


def _count(tree: ast.AST, wanted: set[int]) -> int:
    return sum(id(node) in wanted for node in ast.walk(tree))
