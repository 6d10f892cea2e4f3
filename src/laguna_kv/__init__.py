# SPDX-License-Identifier: Apache-2.0
"""Persistent KV-cache views for vLLM's FlashAttention backend: the candidate under test.

vLLM makes the same two aliases of every layer's KV cache on every call. With the flag
``VLLM_XPU_LAGUNA_M8_PERSISTENT_KV_CACHE_VIEWS=1`` they are made once for each attention layer of the target
and reused while a contract over the cache and the aliases holds; anything else raises. Importing this package imports
neither torch nor vLLM.
"""

from laguna_kv.errors import ContractError, EligibilityError, LagunaKVError, LifecycleError, SettingError
from laguna_kv.settings import FLAG, LANE, VALIDATOR, Settings, read_flag

__all__ = [
    "FLAG",
    "LANE",
    "VALIDATOR",
    "ContractError",
    "EligibilityError",
    "LagunaKVError",
    "LifecycleError",
    "SettingError",
    "Settings",
    "read_flag",
]
