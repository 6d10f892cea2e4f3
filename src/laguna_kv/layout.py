# SPDX-License-Identifier: Apache-2.0
"""Tests if this torch lays its tensors out in memory as the native contract reads them.

DLPack and torch's C shim report all compared fields, but one call of theirs costs more than all comparisons. So the
native contract keeps the words of torch's objects that hold these fields, and calls again only after a word has
changed. Their places are torch's own business: seen in torch 2.11 to 2.14, and tested anew in every process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

BYTES = 2_000
"""Size of each test storage: more than its tensors reach, and no multiple of their numbers."""

DTYPES = (torch.int16, torch.bfloat16, torch.float16)
"""Of one size, so that nothing else distinguishes them."""

DEVICE, CPU = 0xFF_FFFF << 16, 0x01_FF00 << 16
"""Bits of the device in a kind, and a present CPU (the highest byte) without a number."""

GEOMETRIES = ((17, (2, 3, 5, 7), (401, 103, 11, 1)), (29, (3, 2, 7, 4), (307, 211, 13, 2)))
"""Storage offset, shape and strides in elements of two bytes: numbers found in no other word of a tensor."""


class Words(NamedTuple):
    """A tensor's fields as its memory holds them; addresses and words as integers.

    Attributes:
        binding: the words that lead from the Python object to the C++ object.
        storage: address of the storage's C++ object.
        at: bytes from the tensor's C++ object to the words from ``dimensions`` on.
        dimensions: count.
        shape: in elements.
        strides: in elements.
        storage_offset: in elements.
        kind: data type, device and torch's flags, in one word.
        data: address of the storage's memory.
        storage_bytes: its length.
        storage_flags: with the flag that makes torch copy the memory, or refuse, when asked for its address.
    """

    binding: tuple[int, int]
    storage: int
    at: int
    dimensions: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    storage_offset: int
    kind: int
    data: int
    storage_bytes: int
    storage_flags: int


def find_words(read: Callable[[torch.Tensor, int], tuple[Any, ...]]) -> int:
    """Return the bytes from a tensor's C++ object to its words; 0 if unknown.

    They are known if memory and torch agree, and if every change of a compared field changes memory. ``read`` is the
    native module's ``read_words``: of a tensor of four dimensions and the address of its storage.
    """

    def words(tensor: torch.Tensor) -> Words:
        return Words(*read(tensor, tensor.untyped_storage()._cdata))  # noqa: SLF001 - torch has no public name for it

    try:
        one, other = (_tensor(*geometry) for geometry in GEOMETRIES)
        kinds = {words(one.view(dtype)).kind for dtype in DTYPES}
        at = words(one).at
        known = (
            _is_said(one, words(one), at)
            and _is_said(other, words(other), at)
            and len(kinds) == len(DTYPES)
            and _is_bound(words)
            and _is_flagged(words, one)
        )
    except Exception:  # noqa: BLE001 - from another torch: unknown is not known
        return 0
    return at if known else 0


def _tensor(offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    storage = torch.UntypedStorage(BYTES)  # on the CPU, whichever device is the default
    return torch.tensor([], dtype=DTYPES[0], device="cpu").set_(storage, offset, shape, strides)


def _is_said(tensor: torch.Tensor, seen: Words, at: int) -> bool:
    storage = tensor.untyped_storage()
    return seen == Words(
        seen.binding,
        storage._cdata,  # noqa: SLF001
        at,
        tensor.dim(),
        tuple(tensor.shape),
        tensor.stride(),
        int(tensor.storage_offset()),
        (seen.kind & ~DEVICE) | CPU,
        storage.data_ptr(),
        storage.nbytes(),
        seen.storage_flags,
    )


def _is_bound(words: Callable[[torch.Tensor], Words]) -> bool:
    """True if the Python object shows that another C++ object was put under it."""
    one, other = (_tensor(*geometry) for geometry in GEOMETRIES)
    bindings = words(one).binding, words(other).binding
    torch.utils.swap_tensors(one, other)
    return bindings == (words(other).binding, words(one).binding) and bindings[0] != bindings[1]


def _is_flagged(words: Callable[[torch.Tensor], Words], tensor: torch.Tensor) -> bool:
    """True if a storage shows that torch copies its memory when asked for the address."""
    before = words(tensor).storage_flags
    _copy = torch._lazy_clone(tensor)  # noqa: SLF001 - torch has no public name for it
    return words(tensor).storage_flags != before
