# SPDX-License-Identifier: Apache-2.0
"""vLLM's FlashAttention backend with the candidate in it; vLLM imports it by name if the flag is on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from laguna_kv import compat
from laguna_kv.contract import load_validator
from laguna_kv.eligibility import require_cache, require_engine, require_layer
from laguna_kv.errors import ContractError
from laguna_kv.settings import Settings
from laguna_kv.state import ViewState

if TYPE_CHECKING:
    import torch

    from laguna_kv.contract import Contract


JUDGED = frozenset({"attn_type", "kv_cache_dtype", "kv_sharing_target_layer_name", "num_kv_heads"})
"""Layer attributes checked for eligibility and on no later use; the seam checks the head size on every use."""

OWN = frozenset({"_config", "settings", "views"})
"""A layer's attributes from its making, which nothing may replace."""


class LagunaFlashAttentionImpl(compat.FlashAttentionImpl):
    """FlashAttention whose target layers reuse stored aliases instead of making them anew.

    Both methods hand vLLM's own code a seam in place of the cache tensor, and leave everything else to it; the native
    contract answers the forward's question whether each alias is canonical (see ``load_validator``). The drafter's
    layers use the same class, because vLLM picks one backend for both, and are passed through.

    Attributes:
        settings: lane and validator, as read when the layer was made.
        views: the layer's state and its counters.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.settings = Settings.from_environment()
        self.views = ViewState(load_validator(self.settings.validator))
        # Judged at the first use: vLLM resolves some of it, such as the graph mode, only later.
        self._config = compat.get_current_vllm_config()
        self._is_draft: bool | None = None

    @property
    def is_draft(self) -> bool | None:
        """True if the layer is the drafter's; None until its first use."""
        return self._is_draft

    @property
    def _k_scale_cache(self) -> None:
        """Always None: the lifecycle hook, which vLLM sets to None wherever it clears a layer's cache.

        Both of vLLM's clearing paths (``clear_layer_kv_caches``: 0.32.0, 0.33.0; the V1 runner's
        ``_cleanup_profiling_kv_cache``: 0.26.0, 0.32.0, 0.33.0) do so for an implementation with the attribute, on some
        paths twice for one layer and at shutdown too: hence idempotent, and hence it never raises. A vLLM without the
        convention is noticed on the first use of the final cache, which then differs from the recorded one.
        """
        return None

    @_k_scale_cache.setter
    def _k_scale_cache(self, value: None) -> None:
        # Another value is no clearing: an implementation with its own scales would receive them here.
        if value is not None:
            raise ContractError(
                self.views.owner, "_k_scale_cache", "None, as vLLM clears a cache", type(value).__name__
            )
        self.views.invalidate()

    @override
    def __setattr__(self, name: str, value: object) -> None:
        # Here and not on every use, because each comparison costs time.
        if name in OWN and name in self.__dict__:
            raise ContractError(self.views.owner, f"layer.{name}", "what the layer was made with", type(value).__name__)
        if name == "_is_draft" and self.__dict__.get(name) not in {None, value}:
            raise ContractError(self.views.owner, "layer.is_draft", self._is_draft, value)
        if name in JUDGED and "views" in self.__dict__ and self.views.builds and value != getattr(self, name):
            raise ContractError(self.views.owner, f"layer.{name}", getattr(self, name), value)
        super().__setattr__(name, value)

    @override
    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run vLLM's forward on the canonical aliases; arguments and result as vLLM's.

        Raises:
            LagunaKVError: the layer is the target's and not eligible, or its cache or views drifted.
        """
        cache: Any = kv_cache
        # vLLM's memory-profiling run has no metadata and uses no view.
        if attn_metadata is not None:
            contract = self.views.contract or self._first_use(layer, kv_cache)
            if contract is not None:
                cache = contract.forward(kv_cache)
        # Named and not super(): that lookup costs a fifteenth of the time that this class saves (Python 3.11).
        return compat.FlashAttentionImpl.forward(
            self, layer, query, key, value, cache, attn_metadata, output, output_scale, output_block_scale
        )

    @override
    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Run vLLM's cache update on the raw aliases; arguments as vLLM's.

        Raises:
            LagunaKVError: the layer is the target's and not eligible, or its cache or views drifted.
        """
        cache: Any = kv_cache
        contract = self.views.contract or self._first_use(layer, kv_cache)
        if contract is not None:
            cache = contract.update(kv_cache)
        compat.FlashAttentionImpl.do_kv_cache_update(self, layer, key, value, cache, slot_mapping)

    def _first_use(self, layer: Any, kv_cache: torch.Tensor) -> Contract | None:
        """Build the layer's state, or return None if the layer is the drafter's.

        Judged here and not when the layer is made: here the layer has its name, and vLLM has resolved its configuration
        and its cache.
        """
        if self._is_draft is None:
            self.views.owner = str(layer.layer_name)
            self._is_draft = compat.is_draft_layer(layer, self._config)
        if self._is_draft:
            return None
        owner = self.views.owner
        require_engine(owner, compat.engine_facts(self._config), self.settings.lane)
        require_layer(owner, self._layer_facts(), self.kv_cache_dtype)
        require_cache(owner, kv_cache, self.settings.lane)
        return self.views.build(kv_cache, self.head_size)

    def _layer_facts(self) -> dict[str, object]:
        return {
            "attention type": str(getattr(self.attn_type, "value", self.attn_type)),
            "head size": self.head_size,
            "local KV heads": self.num_kv_heads,
            "shared KV cache of": self.kv_sharing_target_layer_name,
        }


class LagunaFlashAttentionBackend(compat.FlashAttentionBackend):
    """vLLM's FlashAttention backend, name included, with the implementation above."""

    @staticmethod
    def get_impl_cls() -> type[LagunaFlashAttentionImpl]:
        """Return the candidate's implementation class."""
        return LagunaFlashAttentionImpl
