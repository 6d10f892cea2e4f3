# SPDX-License-Identifier: Apache-2.0
"""A parity packet under a version of FlashAttention that vLLM would not choose by itself.

``python -m benchmarks.parity --device cuda --flash-attention 2 --json`` runs gate 2's packet of q2 to q8 in a process
of its own, with that one engine argument more, and prints in how many cases all bytes are equal.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from pytest_laguna.engine import packets
from pytest_laguna.evidence.arms import arm_settings
from pytest_laguna.evidence.arms.arm_record import Planted
from pytest_laguna.evidence.arms.parity import PacketRequest
from pytest_laguna.evidence.values import Lane
from tests.runner import runner

QUERIES = [2, 3, 4, 5, 6, 7, 8]
VLLM = {"cuda": "0.26.0", "xpu": "0.32.0"}


def main() -> int:
    """Measure and print, or be the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parity", description="A packet under another version.")
    parser.add_argument("--device", choices=sorted(VLLM), default="cuda")
    parser.add_argument("--flash-attention", type=int, choices=(2, 3), required=True)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--measure", metavar="PAIR", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        print(json.dumps(measure(_request(chosen.device, Path(chosen.measure)), chosen.flash_attention)))
        return 0
    figures = run(chosen.device, chosen.flash_attention)
    print(json.dumps(figures) if chosen.json else "\n".join(f"{name:24} {value}" for name, value in figures.items()))
    return 0


def run(device: Lane, flash_attention: int) -> dict[str, Any]:
    """Build the pair, whose configuration the packet reads, and start the process."""
    with tempfile.TemporaryDirectory(prefix="laguna-parity-") as directory:
        pair = (
            runner()
            .tiny_pair(Path(directory) / "pair", interpreter=Path(sys.executable), layers=48, vllm=VLLM[device])
            .target.parent
        )
        private = {"PATH": os.environ["PATH"], "HOME": directory, "TMPDIR": directory, "LC_ALL": "C.UTF-8"}
        private |= {name: os.environ[name] for name in arm_settings.LEASE & os.environ.keys()}  # its card
        argv = [sys.executable, "-m", "benchmarks.parity", f"--device={device}"]
        argv += [f"--flash-attention={flash_attention}", "--measure", str(pair)]
        variables = private | packets.environment(_request(device, pair))
        seen = subprocess.run(argv, env=variables, capture_output=True, check=False, text=True)
    if seen.returncode:
        raise RuntimeError(f"exit code {seen.returncode}: {seen.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(seen.stdout.splitlines()[-1])
    return figures


def _request(device: Lane, pair: Path) -> PacketRequest:
    return PacketRequest(
        lane=device,
        rank=0,
        target=str(pair / "target"),
        draft=str(pair / "draft"),
        queries=QUERIES,
        planted=Planted.NONE,
    )


def measure(request: PacketRequest, flash_attention: int) -> dict[str, Any]:
    """One process: run the packet, and record its kernel's arguments."""
    from pytest_laguna.engine.parity_packet import run_packet  # noqa: PLC0415 - a process of its own

    arguments = packets.engine_arguments(request) | {"attention_config": {"flash_attn_version": flash_attention}}
    with mock.patch.object(packets, "engine_arguments", return_value=arguments):
        record = run_packet(request, dict(os.environ))
    from vllm.vllm_flash_attn import flash_attn_interface  # noqa: PLC0415 - there on a device only

    return {
        "cases": len(record.cases),
        "equal": sum(case.off == case.on for case in record.cases),
        "differing_output_bytes": sum(case.differing_output_bytes for case in record.cases),
        "differing_cache_bytes": sum(case.differing_cache_bytes for case in record.cases),
        "outputs_sha256": [case.off.outputs[0] for case in record.cases],
        "kernels": record.kernels.model_dump(mode="json"),
        "flash_attention": flash_attention,
        "supported": {str(version): bool(flash_attn_interface.is_fa_version_supported(version)) for version in (2, 3)},
        "versions": record.versions,
    }


if __name__ == "__main__":
    sys.exit(main())
