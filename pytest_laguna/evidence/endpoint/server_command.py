# SPDX-License-Identifier: Apache-2.0
"""The command of a leg's server, from the leg's request: the same in its start and in its analysis."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pydantic

HOST = "127.0.0.1"
"""Servers listen on the loopback address alone."""

PROGRAM = "vllm.entrypoints.openai.api_server"
"""Module behind ``vllm serve``; the command itself requires a distribution named vllm, unlike the CPU build."""

TEXT_DRAFTERS = ("ngram", "ngram_gpu", "suffix")
"""Proposers of vLLM without a model. Source: ``SpeculativeConfig.method``, 0.26.0 to 0.33.0."""


def server_argv(
    interpreter: str, engine_arguments: Mapping[str, pydantic.JsonValue], names: Sequence[str], port: int
) -> list[str]:
    """Return the program and its arguments, those of the engine by name: a record's give the same again.

    Args:
        interpreter: path of the Python with the lane's vLLM.
        engine_arguments: by the names of vLLM's engine arguments, with the values of ``vllm.LLM``.
        names: of the served model; the first is the one in every answer.
        port: on the loopback address.
    """
    argv = [interpreter, "-P", "-m", PROGRAM, f"--host={HOST}", f"--port={port}"]
    # Without the details no answer gives the number of cached prompt tokens.
    argv += ["--enable-prompt-tokens-details", "--served-model-name", *names]
    return argv + [_option(name, value) for name, value in sorted(engine_arguments.items())]


def _option(name: str, value: pydantic.JsonValue) -> str:
    """Return one engine argument in the form of vLLM's command line."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag}={value if isinstance(value, str) else json.dumps(value, sort_keys=True)}"
