# SPDX-License-Identifier: Apache-2.0
"""Settings of each arm, re-exported from ``evidence.arm_settings``, where the analysis finds them too."""

from __future__ import annotations

from pytest_laguna.evidence.arms.arm_settings import (
    FLAG,
    LEASE,
    PLACES,
    SEED,
    STACKS,
    VERIFIED_TOKENS,
    engine_arguments,
    environment,
    last_stacks,
    profile,
    profile_root,
)

__all__ = [
    "FAILED",
    "FLAG",
    "LEASE",
    "PLACES",
    "SEED",
    "STACKS",
    "VERIFIED_TOKENS",
    "engine_arguments",
    "environment",
    "last_stacks",
    "profile",
    "profile_root",
]

FAILED = "laguna-arm failed: "
"""Start of the line on standard error with the reason for a missing record."""
