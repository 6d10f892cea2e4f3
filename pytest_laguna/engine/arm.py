# SPDX-License-Identifier: Apache-2.0
"""One arm in a fresh process: ``python -m pytest_laguna.engine.arm REQUEST.json RECORD.json``.

Makes exactly one cold greedy generation and writes its record. If it fails there is no record: the last line of
standard error gives the reason, and the traceback lies beside the record's place.
"""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms import arm_settings, rank_stacks
from pytest_laguna.evidence.arms.arm_record import Acceptance, ArmRecord, ArmRequest, RankReport, token_digest
from pytest_laguna.evidence.schemas import read_model

from . import network, process_facts, program

_ENDING_SECONDS = 1.0
"""A killed rank closes its connections before it has ended, so the error may come first."""


def main(arguments: list[str]) -> int:
    """Run the arm; return 0 only if its record is on disk."""
    if len(arguments) != 2:  # noqa: PLR2004
        sys.stderr.write(f"{arm_settings.FAILED}seen {len(arguments)} arguments; expected REQUEST.json RECORD.json\n")
        return 2
    program.end_quickly()
    request_path, record_path = (Path(argument) for argument in arguments)
    try:
        record = run(read_model(request_path, ArmRequest), Path(os.path.realpath(record_path.parent)))
        files.write_new(record_path, files.canonical_json(record.canonical()))
    except Exception as error:  # noqa: BLE001 - every failure is told in one line
        record_path.with_suffix(".traceback").write_text(traceback.format_exc())
        told = "; ".join([f"{type(error).__name__}: {' '.join(str(error).split())}", *_ended_children()])
        sys.stderr.write(f"{arm_settings.FAILED}{told}\n")
        return 1
    return 0


def _ended_children() -> Iterator[str]:
    """Ranks that ended badly; vLLM's own message does not name them.

    ``multiprocessing`` lists live children only, but the parent still holds the objects of dead ones. vLLM freezes its
    heap after start-up, and the collector does not list frozen objects.
    """
    gc.unfreeze()
    children = {held for held in gc.get_objects() if issubclass(type(held), BaseProcess)}
    started = [child for child in children - {multiprocessing.current_process()} if child.pid is not None]
    for child in sorted(started, key=lambda child: child.name):
        child.join(_ENDING_SECONDS)
        code = child.exitcode
        if code:
            yield f"{child.name} ended {f'by {signal.Signals(-code).name}' if code < 0 else f'with exit code {code}'}"


def run(request: ArmRequest, directory: Path) -> ArmRecord:
    """Load the pair, generate once, and return the record.

    Args:
        request: arm, models and prompt.
        directory: the arm's own.

    Raises:
        RuntimeError: the environment is not the arm's.
    """
    started = time.monotonic()
    isolation = network.isolate() if request.isolated else None
    environment = program.require_environment(
        arm_settings.environment(request) | arm_settings.profile(request, directory)
    )
    with program.importing():
        from vllm import LLM, SamplingParams  # noqa: PLC0415 - after the environment has been checked

    arguments = arm_settings.engine_arguments(request)
    engine = LLM(**arguments)
    engine.collective_rpc("laguna_begin")
    sampling = SamplingParams(temperature=0.0, seed=arm_settings.SEED, max_tokens=request.tokens, ignore_eos=True)
    ready = time.monotonic()
    [output] = engine.generate([request.prompt], sampling, use_tqdm=False)
    done = time.monotonic()
    [completion] = output.outputs
    # The record refuses what vLLM leaves out: a prompt without tokens, and cached tokens of None.
    prompt_token_ids = output.prompt_token_ids or []
    cached_tokens: Any = output.num_cached_tokens
    token_ids = [int(token) for token in completion.token_ids]
    reports = [RankReport.model_validate(report) for report in engine.collective_rpc("laguna_report")]
    rank_stacks.remove_unwritten(directory)
    return ArmRecord(
        request=request,
        token_ids=token_ids,
        token_sha256=token_digest(token_ids),
        text_sha256=hashlib.sha256(completion.text.encode()).hexdigest(),
        finish_reason=str(completion.finish_reason),
        prompt_tokens=len(prompt_token_ids),
        prompt_token_sha256=token_digest(prompt_token_ids),
        cached_tokens=cached_tokens,
        generation_seconds=done - ready,
        start_seconds=ready - started,
        acceptance=_acceptance(engine) if request.arm.speculates else None,
        ranks=sorted(reports, key=lambda report: report.rank),
        versions=process_facts.versions(),
        configuration={"arguments": arguments, "resolved": _resolved(engine.llm_engine.vllm_config)},
        environment=environment,
        network=isolation,
    )


def _acceptance(engine: Any) -> Acceptance:
    from .compat.speculation import acceptance  # noqa: PLC0415 - after the environment has been checked

    return acceptance(engine)


def _resolved(config: Any) -> dict[str, Any]:
    """vLLM's resolved configuration as plain values, copied now because it is a live object."""
    compilation, speculative = config.compilation_config, config.speculative_config
    return {
        "architecture": config.model_config.architecture,
        "dtype": str(config.model_config.dtype),
        "enforce_eager": config.model_config.enforce_eager,
        "block_size": config.cache_config.block_size,
        "num_gpu_blocks": config.cache_config.num_gpu_blocks,
        "prefix_caching": config.cache_config.enable_prefix_caching,
        "async_scheduling": config.scheduler_config.async_scheduling,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "compilation_mode": compilation.mode.name,
        "cudagraph_mode": compilation.cudagraph_mode.name,
        "cudagraph_capture_sizes": list(compilation.cudagraph_capture_sizes),
        "speculative_method": speculative.method if speculative else None,
        "speculative_tokens": speculative.num_speculative_tokens if speculative else 0,
        "hybrid_kv_cache_manager": not config.scheduler_config.disable_hybrid_kv_cache_manager,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
