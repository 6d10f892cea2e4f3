# SPDX-License-Identifier: Apache-2.0
"""Builds and verifies the four aliases of one layer's cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from laguna_kv.compat import canonicalize_singleton_dim_strides
from laguna_kv.errors import ContractError

if TYPE_CHECKING:
    import torch


class Views(NamedTuple):
    """Aliases of one cache, each [num_blocks, block_size, num_kv_heads, head_size]; no data of their own.

    The canonical ones are the raw ones wherever vLLM's helper has nothing to change.
    """

    raw_key: torch.Tensor
    raw_value: torch.Tensor
    canonical_key: torch.Tensor
    canonical_value: torch.Tensor


def build_views(kv_cache: torch.Tensor, head_size: int) -> Views:
    """Make the aliases as vLLM's FlashAttention does on every call, with vLLM's own helper.

    The cache is [num_blocks, num_kv_heads, block_size, 2 * head_size], keys then values in the last; ``head_size``
    counts elements.
    """
    raw_key, raw_value = kv_cache.transpose(1, 2).split(head_size, dim=-1)
    return Views(
        raw_key,
        raw_value,
        canonicalize_singleton_dim_strides(raw_key),
        canonicalize_singleton_dim_strides(raw_value),
    )


def verify_views(views: Views, kv_cache: torch.Tensor, head_size: int, owner: str) -> None:
    """Check new aliases against arithmetic on the cache's own geometry, before their first use.

    This establishes the offset from key to value: exactly one head in elements. A later use compares the data pointers
    and storage offsets of both with the record, and so the offset with them.

    Raises:
        ContractError: the cache has another split width, or an alias differs; names the field.
    """
    if kv_cache.dim() != 4 or kv_cache.shape[-1] != 2 * head_size:  # noqa: PLR2004 - the cache's rank
        expected = f"[num_blocks, num_kv_heads, block_size, {2 * head_size}]"
        raise ContractError(owner, "source.shape", expected, list(kv_cache.shape))
    blocks, heads, block_size, _ = kv_cache.shape
    by_block, by_head, by_token, by_element = kv_cache.stride()
    shape = (blocks, block_size, heads, head_size)
    raw_stride = (by_block, by_token, by_head, by_element)
    canonical_stride = _canonical_stride(shape, raw_stride)
    for name, view in views._asdict().items():
        offset = 0 if name.endswith("key") else head_size
        expected_fields = {
            "data_ptr": kv_cache.data_ptr() + offset * kv_cache.element_size(),
            "storage_offset": kv_cache.storage_offset() + offset,
            "shape": shape,
            "stride": raw_stride if name.startswith("raw") else canonical_stride,
            "dtype": kv_cache.dtype,
            "device": kv_cache.device,
            "storage_bytes": kv_cache.untyped_storage().nbytes(),
            # Not read on every use: see docs/limits.md.
            "negative": False,
        }
        now = {**dict(zip(FIELD_NAMES, fields(view), strict=True)), "negative": view.is_neg()}
        for field, expected_value in expected_fields.items():
            if now[field] != expected_value:
                raise ContractError(owner, f"{name}.{field}", expected_value, now[field])


FIELD_NAMES = (
    "data_ptr", "storage_offset", "shape", "stride", "dtype", "device", "storage_bytes", "implementation",
)  # fmt: skip
"""Fields recorded of a tensor and compared on every use, in the order of ``fields``.

A storage is a stretch of memory here, known by its start (address and offset together) and its length; another
storage object over the same stretch is the same storage. The implementation is the C++ object behind the Python one.
"""


def fields(tensor: torch.Tensor) -> tuple[object, ...]:
    """A tensor's present fields: address and storage in bytes, offset and strides in elements."""
    return (
        tensor.data_ptr(),
        tensor.storage_offset(),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
        tensor.device,
        tensor.untyped_storage().nbytes(),
        tensor._cdata,  # noqa: SLF001 - torch has no public name for it
    )


def _canonical_stride(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in which each dimension of size one steps over exactly the extent of its inner neighbour.

    Rule: ``vllm.utils.torch_utils.canonicalize_singleton_dim_strides``, written again from its description so
    that the helper's result has an independent check.
    """
    canonical = list(stride)
    inner_extent = 1
    for dimension in reversed(range(len(shape))):
        if shape[dimension] == 1:
            canonical[dimension] = inner_extent
        inner_extent = canonical[dimension] * shape[dimension]
    return tuple(canonical)
