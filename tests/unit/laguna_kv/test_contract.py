# SPDX-License-Identifier: Apache-2.0
"""The contract's rules, each made to fire, in both implementations and with the same words."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.vllm_classes import HEAD_SIZE, make_cache
from laguna_kv import contract as contract_module
from laguna_kv.contract import Contract, PythonContract, load_validator
from laguna_kv.errors import ContractError, SettingError
from laguna_kv.seam import Seam
from laguna_kv.settings import Validator
from laguna_kv.views import build_views, verify_views

Build = Callable[[torch.Tensor], Contract]
Change = Callable[[torch.Tensor], object]

GEOMETRIES: dict[str, dict[str, Any]] = {
    "record": {"blocks": 256},
    "one local head": {"kv_heads": 1},
    "one block, HND": {"blocks": 1, "layout": "HND"},
    "second group in a shared buffer": {"offset": 4096},
}


def tensors(contract: Contract, cache: torch.Tensor) -> dict[str, torch.Tensor]:
    raw, canonical = contract.raw.views, contract.canonical.views
    return {
        "source": cache,
        "raw_key": raw[0],
        "raw_value": raw[1],
        "canonical_key": canonical[0],
        "canonical_value": canonical[1],
    }


def point_at(tensor: torch.Tensor, other: torch.Tensor) -> None:
    tensor.set_(other.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def shorten_storage(tensor: torch.Tensor) -> None:
    """The same memory from the same start, through a storage that ends one element earlier."""
    storage = tensor.untyped_storage()
    tensor.set_(
        storage[: storage.nbytes() - tensor.element_size()], tensor.storage_offset(), tensor.shape, tensor.stride()
    )


def swap_implementation(tensor: torch.Tensor) -> None:
    """Another C++ tensor, equal in everything, under the same Python object."""
    equal = tensor.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    torch._C._swap_tensor_impl(tensor, equal)


# Each changes one field of a tensor in place, as code that had a reference to it could.
CHANGES: dict[str, tuple[str, Change]] = {
    "another storage": ("data_ptr", lambda t: point_at(t, torch.empty(2**20, dtype=t.dtype))),
    "offset": ("data_ptr", lambda t: t.as_strided_(t.shape, t.stride(), t.storage_offset() + 8)),
    "shape": ("shape", lambda t: t.as_strided_((t.shape[0], t.shape[1], 1, t.shape[3]), t.stride())),
    "rank": ("shape", lambda t: t.as_strided_((t.shape[0], 8), (1, 1))),
    "stride": ("stride", lambda t: t.as_strided_(t.shape, (t.stride(0), t.stride(1), 7, 1))),
    "first stride": ("stride", lambda t: t.as_strided_(t.shape, (0, *t.stride()[1:]))),
    "last stride": ("stride", lambda t: t.as_strided_(t.shape, (*t.stride()[:3], 0))),
    "resize": ("shape", lambda t: t.resize_(1, 2, 3, 4)),
    "data": ("data_ptr", lambda t: setattr(t, "data", t.clone(memory_format=torch.preserve_format))),
    "dtype": ("dtype", lambda t: setattr(t, "data", t.view(torch.float16))),
    "storage": ("storage_bytes", shorten_storage),
    "implementation": ("implementation", swap_implementation),
}


@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
def test_stable_use_returns_the_same_objects(build: Build, geometry: dict[str, Any]) -> None:
    cache = make_cache(**geometry)
    contract = build(cache)
    canonical, raw = contract.forward(cache), contract.update(cache)
    for _ in range(3):
        assert contract.forward(cache) is canonical is contract.canonical
        assert contract.update(cache) is raw is contract.raw
    assert (contract.forward_hits, contract.update_hits) == (4, 4)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["source", "raw_key", "raw_value", "canonical_key", "canonical_value"])
@pytest.mark.parametrize("method", ["forward", "update"])
def test_every_field_of_every_tensor_is_compared(build: Build, name: str, change: str, method: str) -> None:
    # With one local head the canonical aliases are objects of their own, so all five are told apart.
    cache = make_cache(kv_heads=2 if change == "shape" else 1, blocks=1, layout="HND")
    contract = build(cache)
    use = getattr(contract, method)
    use(cache)
    field, apply = CHANGES[change]
    apply(tensors(contract, cache)[name])
    with pytest.raises(ContractError) as caught:
        use(cache)
    assert caught.value.field == f"{name}.{field}"
    assert str(caught.value).startswith(f"layer 7: KV-view contract broken at {name}.{field}: seen ")
    assert caught.value.expected != caught.value.seen
    assert contract.forward_hits + contract.update_hits == 1


def test_a_storage_offset_that_drifts_under_the_same_address_is_seen(build: Build) -> None:
    cache = make_cache(offset=1024)
    contract = build(cache)
    elsewhere = cache.untyped_storage()[2048:]  # the same memory, another storage that begins at the cache
    before = cache.data_ptr()
    cache.set_(elsewhere, 0, cache.shape, cache.stride())
    assert cache.data_ptr() == before
    with pytest.raises(ContractError, match=r"source.storage_offset: seen 0; expected 1024"):
        contract.forward(cache)


def test_a_storage_offset_that_drifts_with_the_object_behind_the_tensor_is_seen(build: Build) -> None:
    cache = make_cache(offset=512)
    contract = build(cache)
    other = torch.empty(0, dtype=cache.dtype).set_(cache.untyped_storage()[1024:], 0, cache.shape, cache.stride())
    assert other.data_ptr() == cache.data_ptr()
    torch._C._swap_tensor_impl(cache, other)
    with pytest.raises(ContractError, match=r"source.storage_offset: seen 0; expected 512"):
        contract.forward(cache)


def test_another_storage_object_over_the_same_memory_is_the_same_storage(build: Build) -> None:
    """What ``storage`` means here; docs/limits.md says so."""
    cache = make_cache()
    contract = build(cache)
    cache.set_(cache.untyped_storage()[0:], cache.storage_offset(), cache.shape, cache.stride())
    assert contract.forward(cache) is contract.canonical


def test_views_of_a_negated_cache_are_never_built(make_contract: Any) -> None:
    cache = make_cache()._neg_view()
    with pytest.raises(ContractError, match=r"raw_key.negative: seen True; expected False"):
        make_contract(cache, build_views(cache, HEAD_SIZE), HEAD_SIZE, "layer 7")


def swap_device(tensor: torch.Tensor) -> None:
    other = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    torch.utils.swap_tensors(tensor, other)


def test_a_device_that_drifts_and_nothing_else_is_seen() -> None:
    # No elements, so no address either: on any device it is zero. Such a cache is never built on, hence by hand.
    cache = make_cache(blocks=0)
    raw_key, raw_value, _, _ = build_views(cache, HEAD_SIZE)
    pair = Seam((raw_key, raw_value), HEAD_SIZE, "layer 7")
    contract = PythonContract(cache, pair, pair, "layer 7")
    swap_device(cache)
    with pytest.raises(ContractError, match=r"source.device: seen meta; expected cpu"):
        contract.forward(cache)


@pytest.mark.parametrize("name", ["source", "raw_key", "raw_value", "canonical_key", "canonical_value"])
def test_nothing_can_be_swapped_under_a_native_contract(name: str) -> None:
    """The only way to another device in place; torch refuses it for a tensor that has a second owner."""
    cache = make_cache(kv_heads=1)
    contract = load_validator(Validator.NATIVE)(cache, build_views(cache, HEAD_SIZE), HEAD_SIZE, "layer 7")
    with pytest.raises(RuntimeError):
        swap_device(tensors(contract, cache)[name])
    assert contract.forward(cache) is contract.canonical


def test_a_rank_that_grows_by_one_and_nothing_else_is_seen(build: Build) -> None:
    cache = make_cache()
    contract = build(cache)
    cache.as_strided_((*cache.shape, 1), (*cache.stride(), 1))
    with pytest.raises(ContractError, match=r"source.shape: seen \(4, 2, 16, 256, 1\); expected \(4, 2, 16, 256\)"):
        contract.forward(cache)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (lambda cache: cache.view(cache.shape), "seen another object;"),
        (
            lambda cache: cache.clone(),
            r"another object, data_ptr \d+ instead of \d+, storage_bytes \d+ instead of \d+;",
        ),
        (lambda cache: cache.to("meta"), "device meta instead of cpu"),
        (lambda cache: cache.float(), "dtype torch.float32 instead of torch.bfloat16"),
        (lambda cache: cache[:1], r"shape \(1, 2, 16, 256\) instead of \(4, 2, 16, 256\)"),
        (lambda _cache: torch.tensor([]), r"shape \(0,\)"),
        (lambda _cache: None, "seen another object;"),
        (lambda _cache: "cache", "seen another object;"),
    ],
    ids=["view", "copy", "device", "dtype", "shape", "placeholder", "none", "text"],
)
def test_another_source_object_is_refused_whatever_it_looks_like(build: Build, other: Any, told: str) -> None:
    cache = make_cache()
    contract = build(cache)
    with pytest.raises(ContractError, match=rf"^layer 7: .*source.identity: .*{told}.*expected the cache tensor"):
        contract.forward(other(cache))
    assert contract.forward(cache) is contract.canonical, "a refusal changes nothing"


@pytest.mark.parametrize("path", ["raw", "canonical"])
@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize("method", ["forward", "update"])
def test_a_replaced_view_is_refused_even_if_it_is_equal(build: Build, path: str, part: str, method: str) -> None:
    cache = make_cache()
    contract = build(cache)
    seam = getattr(contract, path)
    key, value = seam.views
    seam.views = (key.view(key.shape), value) if part == "key" else (key, value.view(value.shape))
    with pytest.raises(
        ContractError, match=f"^layer 7: .*{path}_{part}.identity: seen another object; expected the alias built"
    ):
        getattr(contract, method)(cache)


def test_the_same_aliases_in_another_tuple_are_the_same(build: Build) -> None:
    """The native contract knows where the tuples lay, and must not need them to lie there still."""
    cache = make_cache(kv_heads=1)
    contract = build(cache)
    for seam in (contract.raw, contract.canonical):
        key, value = seam.views
        seam.views = (key, value)
    assert contract.forward(cache) is contract.canonical
    assert contract.update(cache) is contract.raw


class Liar:
    """Holds the aliases that were built, and hands out others."""

    def __init__(self, views: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.views = views


@pytest.mark.parametrize("path", ["raw", "canonical"])
def test_a_seam_cannot_be_replaced(build: Build, path: str) -> None:
    cache = make_cache()
    contract = build(cache)
    seam = getattr(contract, path)
    with pytest.raises(AttributeError):
        setattr(contract, path, Liar(seam.views))
    assert (contract.forward(cache), contract.update(cache)) == (contract.canonical, contract.raw)
    assert getattr(contract, path) is seam


class Pair(tuple[torch.Tensor, ...]):
    """A tuple that could answer differently each time."""

    __slots__ = ()


@pytest.mark.parametrize("path", ["raw", "canonical"])
@pytest.mark.parametrize("partial", [None, (), "one", "three", "list", "subclass"])
def test_partial_state_is_refused(build: Build, path: str, partial: Any) -> None:
    cache = make_cache()
    contract = build(cache)
    seam = getattr(contract, path)
    views = seam.views
    seam.views = {
        "one": views[:1], "three": (*views, views[0]), "list": list(views), "subclass": Pair(views),
    }.get(partial, partial)  # fmt: skip
    seen = "none" if seam.views is None else f"{type(seam.views).__name__} of {len(seam.views)}"
    with pytest.raises(ContractError, match=rf"^layer 7: .* at {path}.views: seen {seen}; expected a key"):
        contract.forward(cache)
    del seam.views
    with pytest.raises(ContractError, match=rf"^layer 7: .* at {path}.views: seen none;"):
        contract.update(cache)


@pytest.mark.parametrize("name", ["raw_key", "raw_value", "canonical_key", "canonical_value"])
@pytest.mark.parametrize(
    ("field", "spoil"),
    [
        ("data_ptr", lambda view: view.as_strided(view.shape, view.stride(), view.storage_offset() + HEAD_SIZE)),
        ("data_ptr", lambda view: view.clone()),
        ("shape", lambda view: view[:1]),
        ("stride", lambda view: view.as_strided(view.shape, (*view.stride()[:2], 1, 1))),
        ("dtype", lambda view: view.view(torch.float16)),
    ],
    ids=["offset", "copy", "shape", "stride", "dtype"],
)
def test_a_state_born_wrong_is_never_built(make_contract: Any, name: str, field: str, spoil: Any) -> None:
    cache = make_cache()
    views = build_views(cache, HEAD_SIZE)
    spoilt = views._replace(**{name: spoil(getattr(views, name))})
    with pytest.raises(ContractError, match=f"^layer 7: .*{name}.{field}"):
        make_contract(cache, spoilt, HEAD_SIZE, "layer 7")


def test_the_key_to_value_offset_is_one_head_exactly(make_contract: Any) -> None:
    cache = make_cache()
    views = build_views(cache, HEAD_SIZE)
    with pytest.raises(ContractError, match=r"raw_value.data_ptr"):
        make_contract(cache, views._replace(raw_value=views.raw_key), HEAD_SIZE, "layer 7")
    assert views.raw_value.storage_offset() - views.raw_key.storage_offset() == HEAD_SIZE


def test_a_head_of_one_element_has_canonical_aliases_too() -> None:
    cache = make_cache(head_size=1)
    verify_views(build_views(cache, 1), cache, 1, "layer 7")


@pytest.mark.parametrize("shape", [(4, 2, 16, 128), (4, 2, 16, 512), (0,), (2, 4, 2, 16, 256)])
def test_another_split_width_is_refused(shape: tuple[int, ...]) -> None:
    cache = torch.zeros(shape, dtype=torch.bfloat16)
    good = make_cache()
    with pytest.raises(
        ContractError, match=rf"^layer 7: .*source.shape: seen .*{shape[-1]}\]; expected .* {2 * HEAD_SIZE}\]"
    ):
        verify_views(build_views(good, HEAD_SIZE), cache, HEAD_SIZE, "layer 7")


@settings(max_examples=60, deadline=None)
@given(
    blocks=st.integers(1, 5),
    kv_heads=st.integers(1, 3),
    block_size=st.sampled_from([1, 16]),
    layout=st.sampled_from(["NHD", "HND"]),
    offset=st.integers(0, 512),
    native=st.booleans(),
)
def test_any_geometry_that_vllm_makes_is_recorded_as_the_incumbent_makes_it(  # noqa: PLR0913, PLR0917 - drawn
    blocks: int, kv_heads: int, block_size: int, layout: str, offset: int, native: bool
) -> None:
    from vllm.utils.torch_utils import canonicalize_singleton_dim_strides

    with torch.inference_mode():
        cache = make_cache(blocks=blocks, kv_heads=kv_heads, block_size=block_size, layout=layout, offset=offset)
        make = load_validator(Validator.NATIVE if native else Validator.PYTHON)
        contract = make(cache, build_views(cache, HEAD_SIZE), HEAD_SIZE, "layer 7")
        raw = cache.transpose(1, 2).split(HEAD_SIZE, dim=-1)
        canonical = tuple(canonicalize_singleton_dim_strides(view) for view in raw)
        for held, incumbent in ((contract.update(cache).views, raw), (contract.forward(cache).views, canonical)):
            for view, other in zip(held, incumbent, strict=True):
                assert view.data_ptr() == other.data_ptr()
                assert (view.shape, view.stride()) == (other.shape, other.stride())
                assert view.storage_offset() == other.storage_offset()


def both(cache: torch.Tensor) -> list[Contract]:
    views = build_views(cache, HEAD_SIZE)
    return [load_validator(validator)(cache, views, HEAD_SIZE, "layer 7") for validator in Validator]


@pytest.mark.parametrize("change", CHANGES)
def test_both_validators_say_the_same(change: str) -> None:
    cache = make_cache()
    contracts = both(cache)
    CHANGES[change][1](cache)
    messages = []
    for contract in contracts:
        with pytest.raises(ContractError) as caught:
            contract.forward(cache)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "\n" not in messages[0]


def test_a_native_check_that_stands_alone_is_refused() -> None:
    from laguna_kv import _contract

    cache = make_cache()
    views = build_views(cache, HEAD_SIZE)
    raw = _contract.Seam((views.raw_key, views.raw_value), HEAD_SIZE, "layer 7")
    contract = _contract.Contract(cache, raw, raw, lambda _source: None, "layer 7")
    assert contract.forward(cache) is raw
    with pytest.raises(ContractError, match=r"^layer 7: .*validators: seen drift in the native check only; expected"):
        contract.forward(cache.clone())


@pytest.mark.parametrize(
    "arguments",
    [
        (), (None,) * 5, (1, 2, 3, 4, 5), ("cache", "raw", "raw", "explain", 3.5),
        ("flat", "raw", "raw", "explain", "owner"),
        ("cache", "raw", "raw", "explain", 3),
    ],
)  # fmt: skip
def test_the_native_contract_takes_tensors_of_a_caches_rank_only(arguments: tuple[Any, ...]) -> None:
    from laguna_kv import _contract

    cache = make_cache()
    views = build_views(cache, HEAD_SIZE)
    known: dict[Any, Any] = {
        "raw": _contract.Seam((views.raw_key, views.raw_value), HEAD_SIZE, "layer 7"),
        "explain": lambda _source: None,
        "flat": torch.zeros(8),
    }
    with pytest.raises((TypeError, ValueError)):
        _contract.Contract(*(known.get(argument, argument) for argument in arguments))


def test_native_is_never_replaced_by_python_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "laguna_kv._contract", None)
    monkeypatch.delattr("laguna_kv._contract", raising=False)
    told = r"^LAGUNA_KV_VALIDATOR: seen 'native'; expected laguna_kv._contract to load; "
    with pytest.raises(SettingError, match=rf"{told}.* or set LAGUNA_KV_VALIDATOR=python$") as caught:
        load_validator(Validator.NATIVE)
    assert "\n" not in str(caught.value)
    assert load_validator(Validator.PYTHON) is contract_module.python_contract


def test_torch_without_the_exchange_api_is_told_in_one_line() -> None:
    import subprocess

    code = (
        "import torch\n"
        "from laguna_kv.contract import load_validator\n"
        "from laguna_kv.settings import Validator\n"
        "class Missing:\n"
        "    def __get__(self, *_): raise AttributeError('no __dlpack_c_exchange_api__')\n"
        "torch.Tensor.__dlpack_c_exchange_api__ = Missing()\n"
        "load_validator(Validator.NATIVE)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "torch 2.10 or newer" in last
    assert last.endswith("or set LAGUNA_KV_VALIDATOR=python")


def test_a_discarded_contract_frees_the_cache_at_once(build: Build) -> None:
    gc.disable()
    try:
        cache = make_cache()
        gone = weakref.ref(cache)
        contract = build(cache)
        contract.forward(cache)
        with pytest.raises(ContractError):
            contract.forward(cache.clone())
        del cache
        assert gone() is not None
        del contract
        assert gone() is None, "by reference count, without the collector"
    finally:
        gc.enable()


def test_layers_in_any_order_and_with_some_gone_are_checked_as_before(build: Build) -> None:
    """A contract asks the processor for what the one reads that followed it, which may be gone."""
    caches = [make_cache(kv_heads=1 + layer % 2) for layer in range(6)]
    contracts = dict(enumerate(map(build, caches)))
    for order in ("012345", "012345", "531", "0", "0", "42"):
        for layer in map(int, order):
            contract = contracts[layer]
            assert (contract.update(caches[layer]), contract.forward(caches[layer])) == (
                contract.raw,
                contract.canonical,
            )
        # The last that was used, and others in the middle; a new one may lie where it lay.
        del contracts[int(order[-1])], contract
        gc.collect()
        contracts[int(order[-1])] = build(caches[int(order[-1])])
    change_one = tensors(contracts[3], caches[3])["raw_key"]
    change_one.as_strided_(change_one.shape, change_one.stride(), change_one.storage_offset() + 8)
    for layer in range(3):
        contracts[layer].forward(caches[layer])
    with pytest.raises(ContractError, match=r"raw_key\.data_ptr"):
        contracts[3].forward(caches[3])


def test_all_hits_are_those_of_every_contract_that_has_been(build: Build) -> None:
    caches = [make_cache(), make_cache()]
    contracts = [build(cache) for cache in caches]
    before = contracts[0].all_hits()
    for contract, cache in zip(contracts, caches, strict=True):
        contract.forward(cache)
        contract.update(cache)
    with pytest.raises(ContractError):
        contracts[0].forward(caches[1])
    kind = type(contracts.pop())
    del contract
    assert (kind.all_hits() - before, contracts[0].all_hits() - before) == (4, 4)


def test_a_cycle_through_a_python_contract_is_collected() -> None:
    cache = make_cache()
    contract = load_validator(Validator.PYTHON)(cache, build_views(cache, HEAD_SIZE), HEAD_SIZE, "layer 7")
    gone = weakref.ref(cache)
    cache.loop = contract  # type: ignore[attr-defined]
    del cache, contract
    gc.collect()
    assert gone() is None


def test_a_cycle_through_a_native_contract_is_collected() -> None:
    from laguna_kv import _contract

    class Loop:
        contract: object = None

        def explain(self, _source: torch.Tensor) -> None:
            """Keep the loop alive from the contract."""

    cache = make_cache()
    views = build_views(cache, HEAD_SIZE)
    raw = _contract.Seam((views.raw_key, views.raw_value), HEAD_SIZE, "layer 7")
    loop = Loop()
    loop.contract = _contract.Contract(cache, raw, raw, loop.explain, "layer 7")
    gone, tensor_gone = weakref.ref(loop), weakref.ref(cache)
    del loop, cache, views, raw
    gc.collect()
    assert (gone(), tensor_gone()) == (None, None)


def test_the_native_check_does_not_leak() -> None:
    cache = make_cache(offset=100_000)  # an offset that Python does not keep as a ready-made integer
    native = both(cache)[0]
    storages = [cache.untyped_storage()[0:], native.raw.views[0].untyped_storage()]

    def use(source: Any) -> None:
        with contextlib.suppress(ContractError):
            native.forward(source).transpose(1, 2).split(HEAD_SIZE, dim=-1)  # type: ignore[attr-defined]
        with contextlib.suppress(ContractError):
            native.update(source).transpose(1, 2).split(64, dim=-1)  # type: ignore[attr-defined]

    use(cache)
    use(None)
    gc.collect()
    watched = [cache, native, native.canonical, native.raw, *native.raw.views]
    before = [sys.getrefcount(each) for each in watched]
    blocks = sys.getallocatedblocks()
    for _ in range(1000):
        for storage in storages:
            cache.set_(storage, cache.storage_offset(), cache.shape, cache.stride())
            use(cache)  # which takes its images anew
        use(None)
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 100
    assert [sys.getrefcount(each) for each in watched] == before


def test_a_python_contract_checks_an_alias_that_is_two_once() -> None:
    cache = make_cache()
    contract = contract_module.python_contract(cache, build_views(cache, HEAD_SIZE), HEAD_SIZE, "layer 7")
    assert isinstance(contract, PythonContract)
    assert isinstance(contract.raw, Seam)
    assert [name for name, _, _ in contract._recorded] == ["source", "raw_key", "raw_value"]
