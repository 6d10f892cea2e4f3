# SPDX-License-Identifier: Apache-2.0
"""Checks before a gate opens: the call, the campaign, the sealed root, and the chain of attempts."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pytest_laguna.analysis.clauses import CAUSE_VERDICT
from pytest_laguna.analysis.machine.process import judge_cleanliness
from pytest_laguna.attempt import options
from pytest_laguna.campaign import Campaign, CampaignError, read_campaign
from pytest_laguna.evidence import files, journal, root
from pytest_laguna.evidence.machine.reader import read_processes
from pytest_laguna.evidence.reading import whole
from pytest_laguna.evidence.schema_v1 import read_raised
from pytest_laguna.evidence.schemas import Analysis, Earlier, Identity, Previous
from pytest_laguna.evidence.values import Lane
from pytest_laguna.experiments.experiment import recorded_verdicts
from pytest_laguna.verdict import JSON, UnusableEvidenceError, Verdict, worst
from pytest_laguna.verify import verification

KNOWN_PLUGINS = frozenset({
    "pytest-laguna", "pytest-xdist", "pytest-timeout", "pytest-cov", "pytest-httpserver", "hypothesis", "anyio",
    "syrupy",
})  # fmt: skip
"""Distributions with pytest plugins that do not touch a gate unless an option asks for it."""

DEVICE_RUNTIMES = ("torch", "vllm", "intel_extension_for_pytorch", "triton", "jax", "cupy")
"""Modules that may open a device; in gates 2 and 3 only child processes may load them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Gate:
    """Settled options, campaign and lane of a session, before pytest collects."""

    options: options.GateOptions
    campaign: Campaign
    lane: Lane
    clauses: Mapping[str, str]

    @property
    def lane_directory(self) -> Path:
        """Directory of the campaign's gates on this lane."""
        return self.options.sealed_root / self.campaign.name / self.lane


def settle(config: pytest.Config) -> Gate:
    """Check everything except earlier attempts.

    Raises:
        pytest.UsageError: an option, the campaign, a plugin or the sealed root is refused; one line.
    """
    options.check_arguments(config)
    _check_plugins(config)
    chosen = options.GateOptions.from_config(config)
    if config.getoption("campaign") is None and not chosen.campaign.exists():
        message = f"--campaign: not given, and there is no {chosen.campaign}; name the campaign's file"
        raise pytest.UsageError(message)
    try:
        campaign = read_campaign(chosen.campaign)
        root.check_root(chosen.sealed_root)
    except (CampaignError, root.RootError) as error:
        raise pytest.UsageError(str(error)) from error
    except OSError as error:
        message = f"--sealed-root: {error.strerror}: {str(error.filename)[:80]}..."
        raise pytest.UsageError(message) from error
    lane = next((name for name in campaign.lanes if name == (chosen.lane or campaign.lane)), None)
    if lane is None:
        message = (
            f"--device={chosen.lane}: campaign {campaign.name} has no such lane; it has {', '.join(campaign.lanes)}"
        )
        raise pytest.UsageError(message)
    if chosen.gate not in campaign.gates:
        message = f"--gate={chosen.gate}: campaign {campaign.name} declares gates {campaign.gates} only"
        raise pytest.UsageError(message)
    if chosen.junit is not None:
        _check_report(chosen.junit, chosen.sealed_root)
    clauses = campaign.gate_clauses(chosen.gate)
    _check_positionals(config, {config.rootpath / nodeid.partition("::")[0] for nodeid in clauses.values()})
    return Gate(chosen, campaign, lane, clauses)


def _check_report(path: Path, sealed_root: Path) -> None:
    """Refuse a ``--junitxml`` that exists, lies among the evidence, or cannot be written."""
    if path.exists():
        message = f"--junitxml={path}: exists already; remove it, so that no old report passes for a new one"
        raise pytest.UsageError(message)
    if path.is_relative_to(sealed_root):
        message = f"--junitxml={path}: inside the sealed root; name a file elsewhere"
        raise pytest.UsageError(message)
    existing = next(parent for parent in path.parents if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        message = f"--junitxml={path}: {existing} is not a directory that can be written to; name another file"
        raise pytest.UsageError(message)


def _check_plugins(config: pytest.Config) -> None:
    for _, distribution in config.pluginmanager.list_plugin_distinfo():
        name = str(distribution.project_name).lower().replace("_", "-")
        if name not in KNOWN_PLUGINS:
            message = f"pytest plugin {name} is not on the list of harmless ones; run in an environment without it"
            raise pytest.UsageError(message)


def _check_positionals(config: pytest.Config, expected: set[Path]) -> None:
    for argument in config.getoption("file_or_dir"):
        if config.invocation_params.dir / argument not in expected:
            message = f"{argument}: not of this gate; a gate runs its frozen list only; drop it"
            raise pytest.UsageError(message)


def find_previous(gate: Gate, identity: Identity) -> Previous | None:
    """Verify the previous gate's newest attempt again from its raw files, and return it; None for gate 1.

    Raises:
        pytest.UsageError: there is none, it is not PASS, or campaign, candidate or harness have changed since.
    """
    before = gate.options.gate - 1
    if before == 0:
        return None
    where = f"gate {gate.options.gate} of {gate.campaign.name} on lane {gate.lane}"
    if not gate.lane_directory.is_dir():
        message = (
            f"{where} needs gate {before}'s PASS; there is no attempt under {gate.lane_directory}; run --gate={before}"
        )
        raise pytest.UsageError(message)
    report = verification.verify_gate(gate.lane_directory, before)
    if report.verdict is not Verdict.PASS or report.start is None or report.receipt is None:
        message = f"{where} needs gate {before}'s PASS; its newest attempt is {report.verdict}: {report.reason}"
        raise pytest.UsageError(message)
    for name in Identity.model_fields:
        if getattr(report.start.identity, name) != getattr(identity, name):
            message = f"{where}: the {name} has changed since gate {before} passed; run --gate={before} again"
            raise pytest.UsageError(message)
    return Previous(gate=before, attempt=report.attempt, receipt=report.receipt)


def find_earlier(gate: Gate, identity: Identity) -> list[Earlier]:
    """Return the earlier attempts at this gate.

    A passed gate 1 may run again: it measures nothing that could be selected.

    Raises:
        pytest.UsageError: one of them closes the campaign digest on this lane, or a number is missing.
    """
    earlier = verification.look_back(gate.lane_directory, gate.options.gate)
    numbers = [attempt.attempt for attempt in earlier]
    if numbers != list(range(1, len(numbers) + 1)):
        message = f"gate {gate.options.gate}: attempts {numbers} have a gap; put the missing one back"
        raise pytest.UsageError(message)
    for attempt in earlier:
        directory = root.attempt_directory(gate.lane_directory / f"gate{gate.options.gate}", attempt.attempt)
        ended: Verdict | None = attempt.verdict
        if attempt.verdict is Verdict.PASS:
            ended = Verdict.PASS if gate.options.gate > 1 else None
        elif not attempt.verdict.closes:
            ended = _recorded_negative(directory)
        if ended is not None and attempt.campaign in {identity.campaign, None}:
            message = (
                f"gate {gate.options.gate}: attempt {attempt.attempt:04d} ended {ended}, which closes this"
                f" campaign digest on lane {gate.lane}; only a dated amendment in the campaign file opens another"
            )
            raise pytest.UsageError(message)
    return earlier


def _recorded_negative(attempt: Path) -> Verdict | None:
    """Return a STOP or FAIL found in any readable file of an attempt, or None.

    An interrupt, a crash or a file damaged afterwards must not buy another attempt.
    """
    found = [*_of_journal(attempt / root.JOURNAL), *_of_verdicts(attempt)]
    found += [verdict for verdict in recorded_verdicts(attempt / root.EVIDENCE) if verdict.closes]
    found += [Verdict.FAIL for _ in left_behind(attempt / root.EVIDENCE)]
    return worst(found) if found else None


def _of_journal(path: Path) -> Iterator[Verdict]:
    """Negatives in every readable line."""
    with contextlib.suppress(UnusableEvidenceError):
        for line in files.read_bytes(path, limit=journal.SIZE_LIMIT).splitlines():
            with contextlib.suppress(UnusableEvidenceError):
                yield from _of_event(files.parse_json(line, root.JOURNAL))


def _of_event(event: JSON) -> Iterator[Verdict]:
    data = event.get("data") if isinstance(event, dict) else None
    if not isinstance(event, dict) or not isinstance(data, dict):
        return
    verdict = CAUSE_VERDICT.get(str(data.get("cause")))
    # An assertion outside the test's call is a defect of the harness; a measured negative counts in any phase.
    if verdict is Verdict.STOP or (verdict is Verdict.FAIL and data.get("when") == "call"):
        yield verdict
    if event.get("kind") == "problem" and data.get("verdict") == Verdict.FAIL:
        yield Verdict.FAIL


def _of_verdicts(attempt: Path) -> Iterator[Verdict]:
    """Negatives of the gate and its clauses, as the session derived them."""
    stated: list[JSON] = []
    with contextlib.suppress(UnusableEvidenceError):
        analysis = read_raised(attempt / root.ANALYSIS, Analysis)
        stated += [analysis.verdict.value, *(clause.verdict.value for clause in analysis.clauses)]
    with contextlib.suppress(UnusableEvidenceError):
        receipt = files.read_canonical_json(attempt / root.RECEIPT)
        predicate = receipt.get("predicate") if isinstance(receipt, dict) else None
        stated += [predicate.get("verdict")] if isinstance(predicate, dict) else []
    yield from (verdict for verdict in Verdict if verdict.closes and verdict.value in stated)


def left_behind(evidence: Path) -> Iterator[str]:
    """Leftovers of supervised processes, one line each, from every readable record below ``evidence``."""
    for place, process in whole(read_processes(evidence)).items():  # the analysis judges the damaged ones
        verdict, reason = judge_cleanliness(process)
        if verdict is Verdict.FAIL:
            yield f"{place}: {reason}"


def loaded_runtime() -> str | None:
    """Name of an accelerator runtime loaded in this process, or None."""
    return next((name for name in DEVICE_RUNTIMES if name in sys.modules), None)
