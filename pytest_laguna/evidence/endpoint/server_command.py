# SPDX-License-Identifier: Apache-2.0
"""How a leg's server is called, from what the leg was told: it is started so, and the analysis expects it so."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pydantic

HOST = "127.0.0.1"
"""Servers listen on the loopback address, and nowhere else."""

PROGRAM = "vllm.entrypoints.openai.api_server"
"""What ``vllm serve`` runs. The command itself asks for a distribution of the name vllm, which the CPU build is not."""

TEXT_DRAFTERS = ("ngram", "ngram_gpu", "suffix")
"""vLLM's proposers that have no model. Source: ``SpeculativeConfig.method``, 0.26.0 to 0.33.0."""


def server_argv(
    interpreter: str, engine_arguments: Mapping[str, pydantic.JsonValue], names: Sequence[str], port: int
) -> list[str]:
    """The program and its arguments; those of the engine by their names, so that a record's give the same again.

    Args:
        interpreter: path of the Python that has the lane's vLLM.
        engine_arguments: by the names of vLLM's engine arguments, with the values that ``vllm.LLM`` takes.
        names: under which the model is served; the first is the one in every answer.
        port: on the loopback address.
    """
    argv = [interpreter, "-P", "-m", PROGRAM, f"--host={HOST}", f"--port={port}"]
    # Without the details no answer says how many prompt tokens came from a cache.
    argv += ["--enable-prompt-tokens-details", "--served-model-name", *names]
    return argv + [_option(name, value) for name, value in sorted(engine_arguments.items())]


def _option(name: str, value: pydantic.JsonValue) -> str:
    """One engine argument as vLLM's command line takes it."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag}={value if isinstance(value, str) else json.dumps(value, sort_keys=True)}"
