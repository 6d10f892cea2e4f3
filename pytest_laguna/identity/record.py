# SPDX-License-Identifier: Apache-2.0
"""The identity record of an attempt, as far as a process without torch and vLLM can see."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

from pytest_laguna.campaign import Campaign
from pytest_laguna.evidence import files
from pytest_laguna.evidence.schemas import Identity
from pytest_laguna.identity import source
from pytest_laguna.verdict import JSON

ENVIRONMENT_PREFIXES = (
    "VLLM", "LAGUNA", "ZE_", "ZES_", "SYCL", "UR_", "CCL_", "FI_", "ONEAPI_", "IPEX_", "TORCH", "PYTORCH_", "TRITON_",
    "LD_", "CUDA_", "NCCL_", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "PYTHON",
)  # fmt: skip
"""Prefixes of variables that can affect a runtime; of others, which may hold secrets, only the count is recorded."""


def take_identity(campaign: Campaign, project: Path) -> tuple[Identity, dict[str, JSON]]:
    """Return the digests shared by the gates of a campaign, and the full record.

    Raises:
        IdentityError: the candidate's package is not installed.
        OSError: a source file cannot be read.
    """
    candidate = source.candidate_sources(campaign.candidate.package)
    harness = source.harness_sources(project, campaign.nodeids)
    identity = Identity(
        campaign=campaign.digest, candidate=files.digest_of(dict(candidate)), harness=files.digest_of(dict(harness))
    )
    record: dict[str, JSON] = {
        "schema": "pytest-laguna-identity-v1",
        "candidate": dict(candidate),
        "harness": dict(harness),
        "binaries": dict(source.package_files(campaign.candidate.package, source.BINARY_SUFFIXES)),
        "git": source.git_state(project),
        "python": {"version": sys.version, "executable": sys.executable},
        "packages": dict(_packages()),
        "environment": _environment(os.environ),
        "host": {"system": platform.platform(), "processors": os.cpu_count()},
    }
    return identity, record


def _packages() -> dict[str, str]:
    """Versions of all installed distributions by name; each access to a metadata parses it anew."""
    found = [distribution.metadata for distribution in importlib.metadata.distributions()]
    named = [(metadata["Name"], metadata["Version"]) for metadata in found]
    return dict(sorted(named, key=lambda entry: entry[0].lower()))


def _environment(environment: Mapping[str, str]) -> dict[str, JSON]:
    recorded: dict[str, JSON] = {
        _text(name): _text(environment[name]) for name in sorted(environment) if name.startswith(ENVIRONMENT_PREFIXES)
    }
    others = sorted({_text(name) for name in environment} - recorded.keys())
    return {"recorded": recorded, "others": len(others), "names_sha256": files.digest_of(list(others))}


def _text(value: str) -> str:
    """A name or value of any bytes as valid UTF-8."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8")
