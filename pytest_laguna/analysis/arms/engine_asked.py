# SPDX-License-Identifier: Apache-2.0
"""Rules over each arm of any campaign: it ran the engine of its request.

A comparison of the arms does not show a mistake common to all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from pytest_laguna.analysis.arms.case import AnyCase
from pytest_laguna.analysis.findings import RuleFinding
from pytest_laguna.evidence.arms import arm_settings
from pytest_laguna.evidence.arms.arm_record import ArmRecord
from pytest_laguna.verdict import UnusableEvidenceError, Verdict


def configuration(record: ArmRecord) -> tuple[Mapping[str, object], Mapping[str, object]]:
    """Return an engine's arguments and resolved values; UnusableEvidenceError if the record lacks either."""
    arguments, resolved = (record.configuration.get(part) for part in ("arguments", "resolved"))
    if not isinstance(arguments, dict) or not isinstance(resolved, dict) or "cudagraph_mode" not in resolved:
        message = f"{record.request.arm}: seen an incomplete configuration; expected arguments and resolved values"
        raise UnusableEvidenceError(message)
    return arguments, resolved


def arguments_as_asked(case: AnyCase) -> RuleFinding:
    """Rule ``arguments-as-asked``: each engine had the arguments of its request and resolved them accordingly."""
    for arm, record in case.records():
        arguments, resolved = configuration(record)
        asked = arm_settings.engine_arguments(record.request)
        decided = _resolved(asked)
        finding = (
            _unlike("argument", arguments, asked, arguments.keys() | asked.keys())
            or _unlike("resolved", resolved, decided, decided.keys())
        )  # fmt: skip
        if finding:
            return Verdict.VOID, f"{arm}: {finding}"
    return None


def _unlike(kind: str, seen: Mapping[str, object], expected: Mapping[str, object], names: Iterable[str]) -> str | None:
    """Describe the first name with an unexpected value."""
    for name in sorted(names):
        if seen.get(name) != expected.get(name):
            return f"{kind} {name}: seen {seen.get(name)!r}; expected {expected.get(name)!r}"
    return None


def _resolved(arguments: Mapping[str, Any]) -> dict[str, object]:
    """Return vLLM's expected resolution of the deciding arguments, with the keys of an arm's record."""
    speculative = arguments.get("speculative_config", {"method": None, "num_speculative_tokens": 0})
    return {
        "dtype": f"torch.{arguments['dtype']}",
        "prefix_caching": arguments["enable_prefix_caching"],
        "tensor_parallel_size": arguments["tensor_parallel_size"],
        "cudagraph_mode": arguments["compilation_config"]["cudagraph_mode"],
        "speculative_method": speculative["method"],
        "speculative_tokens": speculative["num_speculative_tokens"],
    }


def environment_as_asked(case: AnyCase) -> RuleFinding:
    """Rule ``environment-as-asked``: each arm began with the variables of its request, and with no others of effect.

    Places, cards, lease and the times of stack dumps follow from the run.
    """
    return judge_environments(case, frozenset())


def judge_environments(case: AnyCase, elsewhere: AbstractSet[str]) -> RuleFinding:
    """Find the first arm with other variables at its start; other rules judge those named in ``elsewhere``."""
    aside = arm_settings.PLACES | arm_settings.LEASE | arm_settings.STACKS | elsewhere
    for arm, record in case.records():
        seen = record.environment
        own = Path(seen.get("HOME", "")).parent  # the arm's own directory
        expected = arm_settings.environment(record.request) | arm_settings.profile(record.request, own)
        finding = _unlike("environment", seen, expected, (seen.keys() | expected.keys()) - aside)
        if finding:
            return Verdict.VOID, f"{arm}: {finding}"
    return None
