# SPDX-License-Identifier: Apache-2.0
"""What each arm is. Settings stand in the evidence, because the analysis looks for them; see ``arm_settings``."""

from __future__ import annotations

from pytest_laguna.evidence.arm_settings import (
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
"""How the one line begins in which an arm says on standard error why it left no record."""
