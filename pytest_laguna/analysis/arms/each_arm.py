# SPDX-License-Identifier: Apache-2.0
"""Rules over each arm of any campaign: fresh, cold and whole, as its request says, and in order.

Source: the preregistrations of the persistent KV-cache views, Gate 2, and of the current-stream event profile, first
execution ladder.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Mapping, Sequence

from pytest_laguna.analysis import root_cause
from pytest_laguna.analysis.arms.case import AnyCase, AnyRule
from pytest_laguna.analysis.arms.engine_identity import public_version
from pytest_laguna.analysis.findings import RuleFinding
from pytest_laguna.analysis.machine.process import judge_process
from pytest_laguna.evidence.arms.arm_record import ArmRecord, ArmRequest, Planted, RankProcess
from pytest_laguna.evidence.arms.plan import FolderModels, GeneratedModels
from pytest_laguna.evidence.reading import Missing, present
from pytest_laguna.verdict import Verdict


def ended_clean(case: AnyCase) -> RuleFinding:
    """Rule ``ended-clean``: the process of each arm ended by itself with exit code 0 and left nothing behind."""
    for arm, run in case.evidence.arms.items():
        if isinstance(run.process, Missing):
            case.piece(run.record)  # raises the root cause if the arm left nothing at all
        verdict, reason = judge_process(present(run.process))
        if verdict is not Verdict.PASS:
            return verdict, f"{arm}: {reason}{root_cause.told(run)}"
    return None


def judge_requests(case: AnyCase, own: Mapping[str, Mapping[str, object]]) -> RuleFinding:
    """Judge if each arm answers its own request, and the request is the plan's, without a planted defect.

    ``own`` holds by arm the expected fields beside those common to all arms.
    """
    common: dict[str, object] = {
        "lane": case.plan.lane,
        "tokens": case.plan.completion_tokens,
        "tensor_parallel_size": case.plan.ranks,
        "collective_breaks": case.plan.collective_breaks,
        "planted": Planted.NONE,
    }
    for arm, run in case.evidence.arms.items():
        record, request = case.piece(run.record), present(run.request)
        if record.request != request:
            return Verdict.VOID, f"{arm}: seen a record of another request; expected its own"
        for name, expected in {**common, **own[arm]}.items():
            if (seen := getattr(request, name)) != expected:
                return Verdict.VOID, f"{arm}: seen {name} {seen!r}; expected {expected!r}"
    return None


def same_models_and_prompt(case: AnyCase) -> RuleFinding:
    """Rule ``same-models-and-prompt``: one target, one draft, and the same prompt tokens in all arms.

    The first arm is the teacher and has no draft.
    """
    records = [*case.records()]
    (_, teacher), (_, drafting), *_ = records
    for arm, record in records:
        pairs = {
            "target": (teacher.request.target, record.request.target),
            "prompt": (teacher.request.prompt, record.request.prompt),
            "prompt tokens": (_prompt(teacher), _prompt(record)),
            "draft": (None if record is teacher else drafting.request.draft, record.request.draft),
        }
        for name, (expected, seen) in pairs.items():
            if seen != expected:
                return Verdict.VOID, f"{arm}: seen {name} {seen!r}; expected {expected!r} as in the other arms"
    return None


def _prompt(record: ArmRecord) -> tuple[int, str]:
    return record.prompt_tokens, record.prompt_token_sha256


def judge_models(request: ArmRequest, planned: GeneratedModels | FolderModels) -> RuleFinding:
    """Judge the models and the prompt of an arm with both models.

    A generated pair lies in another folder each time; rule ``plan-derived`` knows it by its layers and its width.
    """
    if isinstance(planned, GeneratedModels):
        seen = hashlib.sha256(request.prompt.encode()).hexdigest()
        if seen != planned.prompt_sha256:
            told = f"prompt: seen digest {seen}"
            return Verdict.VOID, f"{told}; expected {planned.prompt_sha256} of {planned.prompt!r}"
        return None
    for name in FolderModels.model_fields:
        seen, expected = getattr(request, name), getattr(planned, name)
        if seen != expected and not (name != "prompt" and _starts_elsewhere(seen, expected)):
            return Verdict.VOID, f"{name}: seen {seen!r}; expected {expected!r}"
    return None


def _starts_elsewhere(folder: str | None, planned: str) -> bool:
    """True if a folder is the planned one below the project's own path."""
    return folder is not None and not planned.startswith("/") and folder.endswith(f"/{planned}")


def vllm_planned(case: AnyCase) -> RuleFinding:
    """Rule ``vllm-planned``: every arm ran the campaign's vLLM version, whatever its build suffix."""
    for arm, record in case.records():
        seen = record.versions.get("vllm", "")
        if public_version(seen) != case.plan.vllm:
            return Verdict.VOID, f"{arm}: vLLM {seen or 'not recorded'}; expected {case.plan.vllm}"
    return None


def own_processes(case: AnyCase) -> RuleFinding:
    """Rule ``own-processes``: every rank of every arm ran in a process of its own."""
    seen: dict[RankProcess, str] = {}
    for arm, record in case.records():
        for report in record.ranks:
            process, where = report.process, f"{arm} rank {report.rank}"
            if process in seen:
                told = f"process {process.pid}, started at tick {process.start_ticks}, as {seen[process]}"
                return Verdict.VOID, f"{where}: seen {told}; expected a fresh one"
            seen[process] = where
    return None


def in_order(case: AnyCase) -> RuleFinding:
    """Rule ``in-order``: the processes of each arm started after all of the arm before it."""
    return judge_order(started(case))


def started(case: AnyCase) -> list[tuple[str, Collection[int]]]:
    """Return the start of each rank by arm, in clock ticks since the host's start."""
    return [(arm, [report.process.start_ticks for report in record.ranks]) for arm, record in case.records()]


def judge_order(ticks: Sequence[tuple[str, Collection[int]]]) -> RuleFinding:
    """Find the first entry with a start not after all starts of the one before it."""
    for (earlier, before), (later, after) in itertools.pairwise(ticks):
        if min(after) <= max(before):
            told = f"started at tick {min(after)}"
            return Verdict.VOID, f"{later}: seen {told}; expected after {earlier} at {max(before)}"
    return None


def one_generation(case: AnyCase) -> RuleFinding:
    """Rule ``one-generation``: one generation of the frozen length, ended by its length alone."""
    for arm, record in case.records():
        seen, expected = (len(record.token_ids), record.finish_reason), (case.plan.completion_tokens, "length")
        if seen != expected:
            return Verdict.FAIL, f"{arm}: seen tokens and finish {seen}; expected {expected}"
    return None


def nothing_cached(case: AnyCase) -> RuleFinding:
    """Rule ``nothing-cached``: no token of the prompt came from a cache."""
    for arm, record in case.records():
        if record.cached_tokens != 0:
            return Verdict.FAIL, f"{arm}: seen {record.cached_tokens} cached tokens; expected 0"
    return None


def difference(first: ArmRecord, second: ArmRecord) -> str | None:
    """Return the first difference between two generations, or None if they are equal bit for bit."""
    tokens = itertools.zip_longest(first.token_ids, second.token_ids)
    for position, (one, other) in enumerate(tokens):
        if one != other:
            return f"differ at token {position}: {one} and {other}"
    return "differ in text but not in tokens" if first.text_sha256 != second.text_sha256 else None


CACHE_COLD: Mapping[str, AnyRule] = {"nothing-cached": nothing_cached}
