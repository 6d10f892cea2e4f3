# SPDX-License-Identifier: Apache-2.0
"""Environment and engine arguments of each arm, from its request alone.

The engine sets them, and the analysis compares an arm's record with them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_laguna.evidence.arms import rank_files
from pytest_laguna.evidence.arms.arm_record import DRAFT_TOKENS, ArmRequest
from pytest_laguna.evidence.machine.card_masks import MASK, ORDER

FLAG = "VLLM_XPU_LAGUNA_M8_PERSISTENT_KV_CACHE_VIEWS"
VERIFIED_TOKENS = DRAFT_TOKENS + 1
"""Tokens of one verification, and so the size of the one captured graph."""
BLOCK_TOKENS = 64
MAX_MODEL_TOKENS = 512
SEED = 1
PAIR_VERSIONS = ("0.26.0", "0.32.0", "0.33.0")
"""vLLM versions of a generated pair: the known forms of ``config.json``."""
FAILED = "laguna-arm failed: "
"""Start of the line on standard error with the reason for a missing record."""
_CACHE_BYTES = 128 * 1024 * 1024
_PROFILE = "profile"

REPLAY_ROOT = "LAGUNA_REPLAY_PROFILE_ROOT"
REPLAY_SAMPLES = "LAGUNA_REPLAY_PROFILE_SAMPLES"
EVENT_ROOT = "LAGUNA_EVENT_PROFILE_ROOT"
EVENT_ORDER = "LAGUNA_EVENT_PROFILE_ORDER"
EVENT_ROUNDS = "LAGUNA_EVENT_FITNESS_ROUNDS"
EVENT_REPLAYS = "LAGUNA_EVENT_SPARSE_REPLAYS"

PLACES = frozenset({
    "PATH", "TZ", "LANG", "LC_ALL", "HOME", "TMPDIR", "HF_HOME", "NUMBA_CACHE_DIR", "PYTHONPYCACHEPREFIX",
    "SYCL_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "VLLM_CACHE_ROOT", "VLLM_RPC_BASE_PATH",
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME",
})  # fmt: skip
"""The other variables of an arm: places, time zone and character set; they decide no result."""

LEASE = frozenset({"LAGUNA_LEASE", *MASK.values(), *(name for name, _ in ORDER.values())})
"""The variables of its lease: the token, and the visible cards."""

STACKS = frozenset({rank_files.STACKS, rank_files.STACKS_BEFORE})
"""The variables for the place and time of the ranks' last stacks; they decide no result either."""


def profile_root(directory: Path) -> Path:
    """Directory of the profiles of an arm's ranks, made by the launcher with mode 0700."""
    return directory / _PROFILE


def profile(request: ArmRequest, directory: Path) -> dict[str, str]:
    """Return the variables of a profile, by host times or by events; none without a profile.

    ``directory`` is the arm's own, an absolute path.
    """
    if request.event_profile is not None:
        numbers = {EVENT_ROUNDS: request.event_fitness_rounds, EVENT_REPLAYS: request.event_sparse_replays}
        return {
            EVENT_ROOT: str(profile_root(directory)),
            EVENT_ORDER: request.event_profile,
            **{name: str(number) for name, number in numbers.items() if number},
        }
    if not request.profile_samples:
        return {}
    return {REPLAY_ROOT: str(profile_root(directory)), REPLAY_SAMPLES: str(request.profile_samples)}


def last_stacks(directory: Path, before: float) -> dict[str, str]:
    """Return the variables for the last stack of each rank, written before its arm is ended.

    ``directory`` is the arm's own, an absolute path; ``before`` is the time of the end on the host's monotonic clock.
    """
    return {rank_files.STACKS: str(directory), rank_files.STACKS_BEFORE: repr(before)}


def environment(request: ArmRequest) -> dict[str, str]:
    """Return every variable with an effect on results; the launcher sets them, and the arm refuses others."""
    variables = {
        FLAG: request.flag,
        "LAGUNA_LANE": request.lane,
        "LAGUNA_KV_LANE": request.lane,
        "LAGUNA_PLANTED": request.planted.value,
        "LAGUNA_COLLECTIVE_BREAKS": "1" if request.collective_breaks else "0",
        "VLLM_USE_BREAKABLE_CUDAGRAPH": "1" if request.arm.graphs else "0",
        "VLLM_KV_CACHE_LAYOUT": "NHD",
        # One rank runs inside the arm's own process: it starts sooner, and there is no second process to lose.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if request.tensor_parallel_size == 1 else "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    return variables | _LANE_ENVIRONMENTS[request.lane]


_LANE_ENVIRONMENTS: dict[str, dict[str, str]] = {
    "cpu": {
        # One thread: no reduction is split differently from run to run, and several arms share a small machine.
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        # vLLM would bind each rank to a NUMA node of its own, and refuses to start with fewer nodes than ranks.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # The engine's core runs in the arm's own process and its ranks are forks of it: a process of its own would
        # import all of vLLM again, and could be lost without being a rank.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_WORKER_MULTIPROC_METHOD": "fork",
        # Small functions around the model would each be compiled by a C++ compiler, in every arm and rank.
        "TORCHDYNAMO_DISABLE": "1",
    },
    "cuda": {
        # Greedy choice needs no sampler of another library, which may be absent.
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        # NCCL sums ranks on the cards themselves: a switch adds in an order of its own, and its multicast, used from a
        # virtual machine, can hang the cards of others.
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "NVSHMEM_DISABLE_NVLS": "1",
        "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
        # All ranks are on one host, and no other host may reach them while they find each other.
        "NCCL_SOCKET_IFNAME": "lo",
        "GLOO_SOCKET_IFNAME": "lo",
        "VLLM_HOST_IP": "127.0.0.1",
    },
    "xpu": {},
}


def engine_arguments(request: ArmRequest) -> dict[str, Any]:
    """Return the keyword arguments of ``vllm.LLM``, JSON values only."""
    arguments: dict[str, Any] = {
        "model": request.target,
        "dtype": "bfloat16",
        "seed": SEED,
        "max_model_len": MAX_MODEL_TOKENS,
        "max_num_batched_tokens": MAX_MODEL_TOKENS,
        "max_num_seqs": 1,
        "block_size": BLOCK_TOKENS,
        "kv_cache_memory_bytes": _CACHE_BYTES,
        "enable_prefix_caching": False,
        "tensor_parallel_size": request.tensor_parallel_size,
        # The communication library sums ranks: vLLM's own kernel adds differently, and only if cards reach each other's
        # memory.
        "disable_custom_all_reduce": True,
        "compilation_config": _compilation(graphs=request.arm.graphs),
        "worker_extension_cls": "pytest_laguna.engine.probe.RankProbe",
        # vLLM counts accepted drafts for the whole engine, in every version; q1 does the same as the others.
        "disable_log_stats": False,
    }
    if request.draft is not None:
        arguments["speculative_config"] = {
            "method": "dflash",
            "model": request.draft,
            "num_speculative_tokens": DRAFT_TOKENS,
        }
    return arguments


def _compilation(*, graphs: bool) -> dict[str, Any]:
    """Compilation settings; by default a uniform batch would run as one whole graph, hence PIECEWISE by name."""
    if not graphs:
        return {"mode": 0, "cudagraph_mode": "NONE"}
    return {
        "mode": 0,
        "cudagraph_mode": "PIECEWISE",
        "cudagraph_capture_sizes": [VERIFIED_TOKENS],
        "max_cudagraph_capture_size": VERIFIED_TOKENS,
    }
