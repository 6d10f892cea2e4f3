# SPDX-License-Identifier: Apache-2.0
"""The ``vllm.general_plugins`` entry point, called by vLLM once in each of its processes.

vLLM logs and swallows failures of an entry point's import, and passes on those of its function. So this module imports
nothing that could fail, and everything strict happens inside ``register``.
"""

from __future__ import annotations

import os

from laguna_kv.settings import FLAG, Settings, read_flag

BACKEND = "laguna_kv.backend.LagunaFlashAttentionBackend"
"""Class path of the candidate's backend for vLLM."""


def register() -> None:
    """Put the candidate in vLLM's FLASH_ATTN place if the flag is 1; leave vLLM as it is if it is 0 or unset.

    A set flag is entered in vLLM's table of known variables, whatever its value: the control arm sets it to 0, and
    ``--fail-on-environ-validation`` must treat both arms alike. An unset flag touches nothing. With flag 1 a layer for
    which vLLM selects any other backend raises EligibilityError: it would silently run stock code.

    Raises:
        SettingError: the flag, the lane or the validator has an invalid value.
    """
    enabled = read_flag()
    if FLAG not in os.environ:
        return
    from laguna_kv import compat  # noqa: PLC0415 - imports vLLM

    compat.make_variable_known(FLAG, os.environ[FLAG])
    if not enabled:
        return
    Settings.from_environment()
    compat.override_flash_attention(BACKEND)
    compat.refuse_other_backends(BACKEND)
