# SPDX-License-Identifier: Apache-2.0
"""The engine's programs with a small engine: an interpreter that calls ``main`` with a stage and its own arguments.

An arm is the real ``pytest_laguna.engine.arm``, from its request to its record or its last line; only ``vllm`` is this
module's. Its ranks are two forks that do what vLLM's do as far as anybody outside sees it: they have the names of
vLLM's, end when the arm does, make the real file of their last stack, write their profile through the real
``ProfileDirectory``, and answer what they are asked. What they answer is a good record of the tests. In the phase that
the stage names the program says so, and waits for what becomes of it.
"""

from __future__ import annotations

import atexit
import gc
import json
import multiprocessing
import multiprocessing.connection
import os
import runpy
import sys
import time
import types
from pathlib import Path
from typing import Any

FORK = multiprocessing.get_context("fork")
SECONDS = 600.0
"""How long a phase waits for what a test does in it."""
BROKEN_START = (
    "WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause."
)
BROKEN = "Executor failed."
"""What vLLM 0.32.0 says when a rank dies while it starts, and one of the things that it says when one dies later."""
PROFILED_SECONDS = 0.1
"""More than the replays in a good profile take: they lie within the generation."""


def start_ticks() -> int:
    """When this process started, in clock ticks since boot."""
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


class Stage:
    """What a test wants of one gate.

    Attributes:
        records: directory of the good records, by place; a packet's is its own, an arm's is what its engine gives.
        phase: in which the program waits.
        place: whose program does.
        reached: the file in which it then says who it is.
    """

    def __init__(self, path: str, place: str) -> None:
        self._wanted = json.loads(Path(path).read_text())
        self._here = place == self._wanted["place"]
        self.profile = Path(self._wanted["records"]) / f"{place}-profile"
        self.record: dict[str, Any] = json.loads((Path(self._wanted["records"]) / f"{place}.json").read_text())

    def enter(self, phase: str, ranks: list[Any]) -> None:
        """Wait where this phase is the one; a rank that ends meanwhile ends the engine, as vLLM's monitor has it."""
        if not self._here or phase != self._wanted["phase"]:
            return
        reached = Path(self._wanted["reached"])
        part = reached.with_suffix(".part")
        part.write_text(json.dumps({"program": os.getpid(), "ranks": [rank.pid for rank in ranks]}))
        part.rename(reached)
        ended = multiprocessing.connection.wait([rank.sentinel for rank in ranks], SECONDS) if ranks else []
        if not ranks:
            time.sleep(SECONDS)
        if ended and phase == "loads":  # vLLM ends the other ranks then, and says no more
            for rank in ranks:
                rank.kill()
                rank.join()
            raise Exception(BROKEN_START)  # noqa: TRY002 - as vLLM
        if ended and phase != "ends":
            raise RuntimeError(BROKEN)


class LLM:
    """As much of ``vllm.LLM`` as an arm uses."""

    stage: Stage

    def __init__(self, **_: object) -> None:
        record = self.stage.record
        self.stage.enter("starts", [])
        reader, self._alive = os.pipe()
        self._ranks: list[Any] = []
        self._ends: list[Any] = []
        for report in record["ranks"]:
            ours, theirs = FORK.Pipe()
            name = f"VllmWorker-{report['rank']}"
            arguments = (theirs, reader, self._alive, report, self.stage.profile)
            self._ranks.append(FORK.Process(target=rank_main, args=arguments, name=name, daemon=True))
            self._ranks[-1].start()
            self._ends.append(ours)
        atexit.register(self._shut_down)
        self.collective_rpc("load")
        self.stage.enter("loads", self._ranks)
        if record["request"]["arm"].startswith("graph"):
            self.stage.enter("captures", self._ranks)
        gc.freeze()  # as vLLM does, before it asks its ranks once more
        self.stage.enter("resets", self._ranks)
        self.llm_engine = types.SimpleNamespace(vllm_config=resolved(record["configuration"]["resolved"]))

    def collective_rpc(self, method: str) -> list[Any]:
        answers = []
        for end in self._ends:
            end.send(method)
            answers.append(end.recv())
            if method == "laguna_report":
                self.stage.enter("reports", self._ranks)
        return answers

    def generate(self, prompts: list[str], *_: object, **__: object) -> list[Any]:
        assert len(prompts) == 1
        record = self.stage.record
        self.stage.enter("generates", self._ranks)
        for end in self._ends:
            end.send("profile")
            end.recv()
            self.stage.enter("profiles", self._ranks)
        time.sleep(PROFILED_SECONDS)
        tokens, reason = record["token_ids"], record["finish_reason"]
        completion = types.SimpleNamespace(token_ids=tokens, text="text", finish_reason=reason)
        prompt = range(record["prompt_tokens"])
        return [types.SimpleNamespace(outputs=[completion], prompt_token_ids=prompt, num_cached_tokens=0)]

    def get_metrics(self) -> list[Any]:
        counted = self.stage.record["acceptance"]
        names = {"drafts": "drafts", "draft_tokens": "draft_tokens", "accepted": "accepted_tokens"}
        metrics = [
            types.SimpleNamespace(name=f"vllm:spec_decode_num_{name}", value=counted[field])
            for field, name in names.items()
        ]
        each = "vllm:spec_decode_num_accepted_tokens_per_pos"
        return [*metrics, types.SimpleNamespace(name=each, values=counted["accepted_per_position"])]

    def _shut_down(self) -> None:
        """When the arm is over, its record written or not: the ranks are told by their pipe, and waited for."""
        self.stage.enter("ends", self._ranks)
        os.close(self._alive)
        for rank in self._ranks:
            rank.join()


def rank_main(connection: Any, alive: int, parents: int, report: dict[str, Any], profile: Path) -> None:
    """A rank: does what it is told until its parent has ended or closed the pipe."""
    os.close(parents)
    from pytest_laguna.engine import last_stack  # after the environment has been checked
    from pytest_laguna.engine.profile_directory import ProfileDirectory, settings_from

    worker = types.SimpleNamespace()
    process = {"pid": os.getpid(), "start_ticks": start_ticks()}
    place, written = report["rank"], dict(report["profile"] or {})
    while alive not in multiprocessing.connection.wait([connection, alive]):
        method = connection.recv()
        if method == "load":
            last_stack.write_before_the_end(worker, place)
        settings = settings_from(os.environ)
        if method == "profile" and settings is not None:
            directory = ProfileDirectory(settings.root, place, report["world_size"])
            content = Path(f"{profile}-{place}.json").read_bytes()
            written["sha256"] = directory.write(content)
        answer = report | {"process": process, "profile": written or None}
        connection.send(answer if method == "laguna_report" else None)


def resolved(told: dict[str, Any]) -> Any:
    """A configuration of vLLM's of which an arm reads back these values."""
    named = types.SimpleNamespace
    return named(
        model_config=named(architecture=told["architecture"], dtype=told["dtype"], enforce_eager=told["enforce_eager"]),
        cache_config=named(
            block_size=told["block_size"],
            num_gpu_blocks=told["num_gpu_blocks"],
            enable_prefix_caching=told["prefix_caching"],
        ),
        scheduler_config=named(
            async_scheduling=told["async_scheduling"],
            max_num_seqs=told["max_num_seqs"],
            max_num_batched_tokens=told["max_num_batched_tokens"],
            disable_hybrid_kv_cache_manager=not told["hybrid_kv_cache_manager"],
        ),
        parallel_config=named(tensor_parallel_size=told["tensor_parallel_size"]),
        compilation_config=named(
            mode=named(name=told["compilation_mode"]),
            cudagraph_mode=named(name=told["cudagraph_mode"]),
            cudagraph_capture_sizes=told["cudagraph_capture_sizes"],
        ),
        speculative_config=told["speculative_method"]
        and named(method=told["speculative_method"], num_speculative_tokens=told["speculative_tokens"]),
    )


def packet(stage: Stage, request: str, record: str) -> None:
    """A packet: what the engine compares is of no matter here, so the good record answers the request."""
    import rfc8785  # an arm does not need it

    stage.enter("compares", [])
    answer = stage.record | {
        "request": json.loads(Path(request).read_bytes()),
        "process": {"pid": os.getpid(), "start_ticks": start_ticks()},
        "environment": dict(os.environ),
    }
    Path(record).write_bytes(rfc8785.dumps(answer))


def main(path: str, _: str, __: str, module: str, request: str, record: str) -> None:
    """Run a program of the engine, as ``STAGE.json -P -m MODULE REQUEST.json RECORD.json`` asks for it."""
    stage = Stage(path, Path(request).parent.name)
    if module == "pytest_laguna.engine.parity":
        packet(stage, request, record)
        return
    LLM.stage = stage
    engine: Any = types.ModuleType("vllm")
    engine.LLM, engine.SamplingParams = LLM, types.SimpleNamespace
    for name, version in stage.record["versions"].items():
        if name != "python":
            sys.modules[name] = engine if name == "vllm" else types.ModuleType(name)
            sys.modules[name].__version__ = version  # type: ignore[attr-defined]
    sys.argv = [module, request, record]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
