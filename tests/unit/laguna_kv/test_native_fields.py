# SPDX-License-Identifier: Apache-2.0
"""Each field that the native contract compares, changed alone.

Torch cannot change some of them without changing others. So the contract is given an exchange table that reads torch's
own and then alters one field of what it read, for which the module is loaded anew, as in another process; and where it
reads torch's memory itself, a word is altered there.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from gates.vllm_classes import HEAD_SIZE, make_cache
from laguna_kv import _contract as installed
from laguna_kv import layout
from laguna_kv.errors import ContractError
from laguna_kv.views import build_views

NAME = b"dlpack_exchange_api"


class Description(ctypes.Structure):
    """DLPack's ``DLTensor``."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


Describe = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Description))


class Table(ctypes.Structure):
    """DLPack's ``DLPackExchangeAPI``."""

    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p), ("managed_from", ctypes.c_void_p), ("managed_to", ctypes.c_void_p),
        ("describe", Describe), ("stream", ctypes.c_void_p),
    ]  # fmt: skip


class Exchange:
    """An exchange table that tells of one tensor something else than torch does, once asked to.

    Attributes:
        target: the tensor that is altered.
        alter: what is done to its description.
        fail: whether describing it fails instead.
        asked: how often a tensor was described.
        undo: what puts a tensor right that had to be altered itself.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, major: int | None = None) -> None:
        take = ctypes.pythonapi.PyCapsule_GetPointer
        take.restype, take.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self.asked = 0
        self.target: object = None
        self.alter: Callable[[Description], object] = lambda _description: None
        self.fail = False
        self.undo: list[Callable[[], object]] = []
        self._kept: list[Any] = []
        torchs = Table.from_address(take(torch.Tensor.__dlpack_c_exchange_api__, NAME))
        self._torchs_describe = torchs.describe
        table = Table.from_buffer_copy(torchs)
        table.describe = Describe(self._describe)
        table.major = table.major if major is None else major
        self._kept = [table, table.describe]
        capsule = make(ctypes.addressof(table), NAME, None)
        monkeypatch.setattr(torch.Tensor, "__dlpack_c_exchange_api__", capsule)

    def _describe(self, tensor: object, description: Any) -> int:
        self.asked += 1
        if self.fail and tensor is self.target:
            return -1
        status: int = self._torchs_describe(tensor, description)
        if tensor is self.target:
            self.alter(description.contents)
        return status

    def replaced(self, pointer: Any, position: int, value: int) -> Any:
        """A copy of a shape or of strides with one number changed; it lives as long as this object."""
        numbers = (ctypes.c_int64 * 4)(*pointer[:4])
        numbers[position] = value
        self._kept.append(numbers)
        return ctypes.cast(numbers, ctypes.POINTER(ctypes.c_int64))


def load() -> Any:
    """The native module once more, with the exchange table that torch shows now."""
    spec = importlib.util.spec_from_file_location("laguna_kv._contract", installed.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def unknown_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that lays its tensors out otherwise: all is read at every use."""
    monkeypatch.setattr(layout, "find_words", lambda _read: 0)


@pytest.fixture
def exchange(monkeypatch: pytest.MonkeyPatch) -> Iterator[Exchange]:
    yield Exchange(monkeypatch)
    assert sys.modules["laguna_kv._contract"] is installed


def native(cache: torch.Tensor) -> tuple[Any, dict[str, torch.Tensor]]:
    """A contract with a Python check that finds nothing, and the five tensors that it holds."""
    module, views = load(), build_views(cache, HEAD_SIZE)
    raw = module.Seam((views.raw_key, views.raw_value), HEAD_SIZE, "layer 7")
    canonical = module.Seam((views.canonical_key, views.canonical_value), HEAD_SIZE, "layer 7")
    return module.Contract(cache, raw, canonical, lambda _source: None, "layer 7"), {"source": cache, **views._asdict()}


def _shape(position: int) -> Callable[[Exchange, Description], None]:
    def alter(exchange: Exchange, description: Description) -> None:
        # In the tensor itself, because another address alone is drift.
        address = ctypes.cast(description.shape, ctypes.c_void_p).value
        assert address is not None
        numbers = (ctypes.c_int64 * 4).from_address(address)
        numbers[position] += 1
        exchange.undo.append(lambda: numbers.__setitem__(position, numbers[position] - 1))

    return alter


def _stride(position: int) -> Callable[[Exchange, Description], None]:
    def alter(exchange: Exchange, description: Description) -> None:
        description.strides = exchange.replaced(description.strides, position, 99)

    return alter


def _field(name: str, value: int) -> Callable[[Exchange, Description], None]:
    def alter(_exchange: Exchange, description: Description) -> None:
        assert getattr(description, name) != value
        setattr(description, name, value)

    return alter


def _copied_shape(exchange: Exchange, description: Description) -> None:
    description.shape = exchange.replaced(description.shape, 0, description.shape[0])


def _no_strides(_exchange: Exchange, description: Description) -> None:
    description.strides = ctypes.POINTER(ctypes.c_int64)()


ALTERATIONS: dict[str, Callable[[Exchange, Description], None]] = {
    "data": _field("data", 64),
    "byte offset": _field("byte_offset", 2),
    "device type": _field("device_type", 14),
    "device number": _field("device_id", 1),
    "rank": _field("ndim", 3),
    "dtype code": _field("code", 0),
    "dtype bits": _field("bits", 32),
    "dtype lanes": _field("lanes", 2),
    "address of the shape": _copied_shape,
    "no strides": _no_strides,
    **{f"shape {position}": _shape(position) for position in range(4)},
    **{f"stride {position}": _stride(position) for position in range(4)},
}


NAMES = ("source", "raw_key", "raw_value", "canonical_key", "canonical_value")
SEEN = r"validators: seen drift in the native check only"


@pytest.mark.usefixtures("unknown_layout")
@pytest.mark.parametrize("method", ["forward", "update"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("alteration", ALTERATIONS)
def test_one_field_of_one_tensor_is_seen(exchange: Exchange, alteration: str, name: str, method: str) -> None:
    cache = make_cache(kv_heads=1)
    contract, tensors = native(cache)
    use = getattr(contract, method)
    use(cache)
    exchange.target = tensors[name]
    use(cache)  # seen through the table, and unaltered
    exchange.alter = lambda description: ALTERATIONS[alteration](exchange, description)
    try:
        with pytest.raises(ContractError, match=SEEN):
            use(cache)
    finally:
        for undo in exchange.undo:
            undo()
    exchange.alter = lambda _description: None
    use(cache)


@pytest.mark.usefixtures("unknown_layout")
def test_a_tensor_that_cannot_be_read_is_drift(exchange: Exchange) -> None:
    cache = make_cache()
    contract, tensors = native(cache)
    contract.forward(cache)
    exchange.target, exchange.fail = tensors["raw_value"], True
    with pytest.raises(ContractError, match="validators: "):
        contract.forward(cache)


Alter = Callable[[ctypes.Array[ctypes.c_int64]], object]


def words_of(tensor: torch.Tensor) -> ctypes.Array[ctypes.c_int64]:
    """The words of a tensor's C++ object from the number of its dimensions on, up to its kind."""
    leads_to = layout.Words(*installed.read_words(tensor, tensor.untyped_storage()._cdata)).binding[0]
    whole = (ctypes.c_int64 * 22).from_address(leads_to)
    (start,) = [word for word in range(18) if tuple(whole[word : word + 5]) == (4, *tensor.shape)]
    return (ctypes.c_int64 * 14).from_address(leads_to + 8 * start)


def at(position: int, change: int) -> Alter:
    return lambda words: words.__setitem__(position, words[position] ^ change)


WORDS: dict[str, Alter] = {
    "rank": at(0, 4 ^ 3),
    **{f"shape {position}": at(1 + position, 1) for position in range(4)},
    **{f"stride {position}": at(6 + position, 1) for position in range(4)},
    "storage offset": at(11, 8),
    "dtype": at(13, 0xF ^ 0x5),  # bfloat16, float16
}


@pytest.mark.parametrize("method", ["forward", "update"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("word", WORDS)
def test_one_word_of_one_tensors_memory_is_seen(word: str, name: str, method: str) -> None:
    cache = make_cache(kv_heads=1)
    contract, tensors = native(cache)
    use = getattr(contract, method)
    use(cache)
    words = words_of(tensors[name])
    before = bytes(words)
    WORDS[word](words)
    try:
        assert bytes(words) != before
        with pytest.raises(ContractError, match=SEEN):
            use(cache)
    finally:
        ctypes.memmove(words, before, len(before))
    use(cache)


@pytest.mark.parametrize("word", [2, 6], ids=["address", "length"])
def test_one_word_of_the_storages_memory_is_seen(word: int) -> None:
    cache = make_cache()
    contract, _ = native(cache)
    contract.forward(cache)
    words = (ctypes.c_int64 * 7).from_address(cache.untyped_storage()._cdata)
    words[word] += 64
    try:
        with pytest.raises(ContractError, match=SEEN):
            contract.forward(cache)
    finally:
        words[word] -= 64
    contract.forward(cache)


def test_a_storage_whose_memory_torch_copies_when_it_is_asked_for_is_seen() -> None:
    cache = make_cache()
    contract, _ = native(cache)
    contract.forward(cache)
    _copy = torch._lazy_clone(cache)
    with pytest.raises(ContractError, match=SEEN):
        contract.forward(cache)


def test_a_tensor_that_stands_for_another_is_read_through_torch(exchange: Exchange) -> None:
    stands = torch._to_functional_tensor(make_cache())
    torch._enable_functionalization(reapply_views=True)
    try:
        contract, tensors = native(stands)
    finally:
        torch._disable_functionalization()
    assert len({tensor.untyped_storage()._cdata for tensor in tensors.values()}) == 1
    contract.forward(stands)
    before = exchange.asked
    contract.forward(stands)
    assert exchange.asked - before == 3
    torch._functionalize_replace(stands, make_cache().transpose(1, 2))
    with pytest.raises(ContractError, match=SEEN):
        contract.forward(stands)


def test_a_storage_that_is_resized_in_place_is_seen() -> None:
    cache = make_cache()
    contract, _ = native(cache)
    contract.forward(cache)
    cache.untyped_storage().resize_(cache.untyped_storage().nbytes() + 4096)
    with pytest.raises(ContractError, match=SEEN):
        contract.forward(cache)


def test_torch_is_asked_again_when_its_memory_has_changed_and_not_before(exchange: Exchange) -> None:
    cache = make_cache()
    contract, _ = native(cache)

    def asked_for(uses: int) -> int:
        before = exchange.asked
        for _ in range(uses):
            assert contract.forward(cache) is contract.canonical
        return exchange.asked - before

    assert (asked_for(1), asked_for(9)) == (3, 0)
    another_object_over_the_same_memory = cache.untyped_storage()[0:]
    cache.set_(another_object_over_the_same_memory, cache.storage_offset(), cache.shape, cache.stride())
    # The views have the first one still, so there is none that all of them share, and no image of it.
    assert (asked_for(1), asked_for(2)) == (3, 6)
    cache.set_(contract.raw.views[0].untyped_storage(), cache.storage_offset(), cache.shape, cache.stride())
    assert (asked_for(1), asked_for(9)) == (3, 0)


@pytest.mark.usefixtures("unknown_layout")
def test_torch_is_asked_at_every_use_where_its_memory_is_unknown(exchange: Exchange) -> None:
    cache = make_cache()
    contract, _ = native(cache)
    before = exchange.asked
    for _ in range(4):
        contract.forward(cache)
    assert exchange.asked - before == 12


@pytest.mark.parametrize("major", [0, 2])
def test_another_major_version_of_the_table_is_refused(monkeypatch: pytest.MonkeyPatch, major: int) -> None:
    Exchange(monkeypatch, major)
    with pytest.raises(ImportError, match=rf"seen version {major}\..*; expected 1 with unmanaged tensors"):
        load()
