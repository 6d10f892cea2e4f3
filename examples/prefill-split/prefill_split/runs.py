# SPDX-License-Identifier: Apache-2.0
"""Start an arm from a gate: on a leased card, under supervision, with only the variables listed here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import prefill_split
from pytest_laguna.run.arm_runner import ArmRunner
from pytest_laguna.verdict import NotProvenError

TOKENS = 48
VARIABLES = {
    "LAGUNA_LANE": "cpu",  # vLLM's own FlashAttention backend, over kernels that a CPU has
    "VLLM_KV_CACHE_LAYOUT": "NHD",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
}


def run_arm(runner: ArmRunner, directory: Path, flag: str, model: Path, prompt: str) -> dict[str, Any]:
    """Run one arm in a new directory; raises NotProvenError when it leaves no record."""
    directory.mkdir(mode=0o700)
    request, record = directory / "request.json", directory / "record.json"
    request.write_text(json.dumps({"model": str(model), "prompt": prompt, "tokens": TOKENS}))
    package = Path(prefill_split.__file__).parent
    variables = VARIABLES | {prefill_split.FLAG: flag, "PYTHONPATH": str(package.parent)}
    argv = [sys.executable, str(package / "arm.py"), str(request), str(record)]
    ended = runner(argv, variables, directory, runner.bounds.deadline_seconds)
    if ended.exit_code != 0 or not record.exists():
        message = f"{directory.name}: exit code {ended.exit_code}; see {directory / 'stderr.log'}"
        raise NotProvenError(message)
    read: dict[str, Any] = json.loads(record.read_text())
    return read
