# SPDX-License-Identifier: Apache-2.0
"""How a server is called follows from what its leg was told, and from nothing else."""

from __future__ import annotations

import json

import pydantic

from pytest_laguna.evidence.endpoint.server_command import server_argv

NAMES = ("tiny", "0" * 32)


def test_engine_arguments_become_options_of_the_program() -> None:
    arguments: dict[str, pydantic.JsonValue] = {
        "model": "/m",
        "max_model_len": 1024,
        "enable_prefix_caching": False,
        "enforce_eager": True,
        "compilation_config": {"mode": 0, "level": 1},
    }
    argv = server_argv("/python", arguments, NAMES, 18080)
    assert argv == [
        "/python",
        "-P",
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--host=127.0.0.1",
        "--port=18080",
        "--enable-prompt-tokens-details",
        "--served-model-name",
        *NAMES,
        '--compilation-config={"level": 1, "mode": 0}',
        "--no-enable-prefix-caching",
        "--enforce-eager",
        "--max-model-len=1024",
        "--model=/m",
    ]
    read_back = json.loads(json.dumps(arguments, sort_keys=True))
    assert server_argv("/python", read_back, NAMES, 18080) == argv
