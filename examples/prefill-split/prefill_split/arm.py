# SPDX-License-Identifier: Apache-2.0
"""One arm: a fresh process, one cold greedy generation on vLLM, one record.

Arguments: the request file, and the record file, which must not exist.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from prefill_split import step_tokens


def main(request_file: Path, record_file: Path) -> None:
    """Run the requested generation and write its record."""
    request = json.loads(request_file.read_text())
    environment = dict(os.environ)  # before vLLM adds to it
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - it reads and writes the environment

    engine = LLM(
        model=request["model"],
        dtype="bfloat16",
        seed=1,
        max_model_len=512,
        max_num_seqs=1,
        block_size=64,
        max_num_batched_tokens=step_tokens(environment),
        enable_chunked_prefill=True,
        enable_prefix_caching=False,
        enforce_eager=True,
        kv_cache_memory_bytes=128 * 1024 * 1024,
    )
    began = time.perf_counter()
    sampling = SamplingParams(temperature=0.0, max_tokens=request["tokens"], ignore_eos=True)
    (output,) = engine.generate([request["prompt"]], sampling, use_tqdm=False)
    record = {
        "seconds": time.perf_counter() - began,
        "tokens": list(output.outputs[0].token_ids),
        "prompt_tokens": len(output.prompt_token_ids),
        "cached_tokens": output.num_cached_tokens,
        "step_tokens": engine.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens,
        "pid": os.getpid(),
        "environment": environment,
    }
    record_file.write_text(json.dumps(record))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
