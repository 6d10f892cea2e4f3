# SPDX-License-Identifier: Apache-2.0
"""The contract in Python, the reference for the native one, and the choice between the two."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from laguna_kv import compat
from laguna_kv.errors import ContractError, SettingError
from laguna_kv.seam import Seam
from laguna_kv.settings import VALIDATOR, Validator
from laguna_kv.views import FIELD_NAMES, Views, fields, verify_views

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


class SeamLike(Protocol):
    """The common interface of both seams."""

    views: tuple[torch.Tensor, torch.Tensor]


class Contract(Protocol):
    """One complete state: the cache, its raw and canonical aliases, and their recorded fields."""

    @property
    def forward_hits(self) -> int:
        """Successful uses by the attention forward."""

    @property
    def update_hits(self) -> int:
        """Successful uses by the cache update."""

    @property
    def raw(self) -> SeamLike:
        """Hands out the raw aliases."""

    @property
    def canonical(self) -> SeamLike:
        """Hands out the canonical aliases."""

    @classmethod
    def all_hits(cls) -> int:
        """Successful uses of both kinds by all contracts of this process so far."""

    def forward(self, source: torch.Tensor, /) -> SeamLike:
        """Return the canonical seam if everything holds for this cache, else raise ContractError."""

    def update(self, source: torch.Tensor, /) -> SeamLike:
        """Return the raw seam if everything holds for this cache, else raise ContractError."""


class PythonContract:
    """The contract in Python: its checks are the definition, and its messages also the native one's.

    Every use checks that the cache is the very tensor recorded, that both seams still hold the very aliases
    recorded, and that address, storage offset and length, shape, strides, data type, device and C++ object of the
    cache and of every alias are those recorded. This includes the key-to-value offset: both addresses and both
    storage offsets are compared, and ``verify_views`` established the offset between them. The seam checks the
    head size.
    """

    _all_hits: ClassVar = 0

    __slots__ = ("_canonical", "_held", "_owner", "_raw", "_recorded", "_source", "forward_hits", "update_hits")

    def __init__(self, source: torch.Tensor, raw: SeamLike, canonical: SeamLike, owner: str) -> None:
        self._raw = raw
        self._canonical = canonical
        self.forward_hits = 0
        self.update_hits = 0
        self._owner = owner
        self._source = source
        self._held = Views(*raw.views, *canonical.views)
        tensors = {"source": source, **self._held._asdict()}
        # A raw alias that is already canonical appears twice: checked once, under its raw name.
        distinct = {id(tensor): (name, tensor) for name, tensor in reversed(tensors.items())}
        self._recorded = [(name, tensor, fields(tensor)) for name, tensor in reversed(distinct.values())]

    @property
    def raw(self) -> SeamLike:
        """The raw seam; read-only, as in the native contract."""
        return self._raw

    @property
    def canonical(self) -> SeamLike:
        """The canonical seam; read-only, as in the native contract."""
        return self._canonical

    @classmethod
    def all_hits(cls) -> int:
        """Successful uses of both kinds by all contracts of this process so far."""
        return cls._all_hits

    def forward(self, source: torch.Tensor, /) -> SeamLike:
        """Return the canonical seam; raise ContractError on drift."""
        self.check(source)
        self.forward_hits += 1
        PythonContract._all_hits += 1
        return self._canonical

    def update(self, source: torch.Tensor, /) -> SeamLike:
        """Return the raw seam; raise ContractError on drift."""
        self.check(source)
        self.update_hits += 1
        PythonContract._all_hits += 1
        return self._raw

    def check(self, source: torch.Tensor, /) -> None:
        """Compare everything with the record.

        Raises:
            ContractError: names the first field that differs.
        """
        if source is not self._source:
            self._refuse_source(source)
        self._check_held()
        for name, tensor, recorded in self._recorded:
            now = fields(tensor)
            if now != recorded:
                self._refuse_fields(name, recorded, now)

    def _check_held(self) -> None:
        for path, seam, held in (
            ("raw", self._raw, self._held[:2]),
            ("canonical", self._canonical, self._held[2:]),
        ):
            views = getattr(seam, "views", None)
            # A subclass of tuple may answer differently at each read.
            if type(views) is not tuple or len(views) != len(held):
                seen = "none" if views is None else f"{type(views).__name__} of {len(views)}"
                raise ContractError(self._owner, f"{path}.views", "a key and a value alias (a complete state)", seen)
            for part, view, recorded in zip(("key", "value"), views, held, strict=True):
                if view is not recorded:
                    raise ContractError(self._owner, f"{path}_{part}.identity", "the alias built", "another object")

    def _refuse_source(self, source: object) -> None:
        """Raise for another cache tensor, and name its differing fields."""
        recorded = fields(self._source)
        try:
            now = fields(source)  # type: ignore[arg-type]
        except (AttributeError, TypeError, RuntimeError):
            now = recorded
        differing = [
            f"{field} {seen} instead of {known}"
            for field, known, seen in zip(FIELD_NAMES, recorded, now, strict=True)
            if seen != known and field != "implementation"  # another for every object
        ]
        seen = ", ".join(["another object", *differing])
        raise ContractError(self._owner, "source.identity", "the cache tensor the views were built on", seen)

    def _refuse_fields(self, name: str, recorded: tuple[object, ...], now: tuple[object, ...]) -> None:
        for field, known, seen in zip(FIELD_NAMES, recorded, now, strict=True):
            if seen != known:
                raise ContractError(self._owner, f"{name}.{field}", known, seen)


def python_contract(source: torch.Tensor, views: Views, head_size: int, owner: str) -> Contract:
    """Return a contract checked in Python.

    Raises:
        ContractError: an alias does not match the cache's geometry.
    """
    verify_views(views, source, head_size, owner)
    return PythonContract(
        source,
        Seam((views.raw_key, views.raw_value), head_size, owner),
        Seam((views.canonical_key, views.canonical_value), head_size, owner),
        owner,
    )


def load_validator(validator: Validator) -> Callable[[torch.Tensor, Views, int, str], Contract]:
    """Return the function that makes contracts of this kind.

    The native one also tells vLLM's helper if the aliases just handed out are canonical. The Python one, which saves no
    time anyway, leaves that question to the helper.

    Raises:
        SettingError: the native one was asked for and cannot be loaded here.
    """
    if validator is Validator.PYTHON:
        return python_contract
    try:
        from laguna_kv import _contract  # noqa: PLC0415 - it may be absent if the Python one runs
    except (ImportError, AttributeError, ValueError) as error:
        remedy = (
            f"build the extension with a C compiler and run it on torch 2.10 or newer ({error}), or set"
            f" {VALIDATOR}=python"
        )
        raise SettingError(VALIDATOR, "laguna_kv._contract to load", "native", remedy) from error

    compat.ask_before_canonicalizing(_contract.Canonicalize)

    def native_contract(source: torch.Tensor, views: Views, head_size: int, owner: str) -> Contract:
        verify_views(views, source, head_size, owner)
        raw = _contract.Seam((views.raw_key, views.raw_value), head_size, owner)
        canonical = _contract.Seam((views.canonical_key, views.canonical_value), head_size, owner)
        # On drift the native check asks this one to name the field.
        explain = PythonContract(source, raw, canonical, owner).check
        return _contract.Contract(source, raw, canonical, explain, owner)

    return native_contract
