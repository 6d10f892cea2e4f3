# SPDX-License-Identifier: Apache-2.0
"""What must hold before a gate opens: the call, the campaign, the sealed root, and the chain of attempts."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_laguna import options, verification
from pytest_laguna.campaign import Campaign, CampaignError, Lane, read_campaign
from pytest_laguna.evidence import root
from pytest_laguna.evidence.schemas import Earlier, Identity, Previous
from pytest_laguna.verdict import Verdict

KNOWN_PLUGINS = frozenset({
    "pytest-laguna", "pytest-xdist", "pytest-timeout", "pytest-cov", "pytest-httpserver", "hypothesis", "anyio",
    "syrupy",
})  # fmt: skip
"""Distributions whose pytest plugins leave a gate alone when none of their options is given."""

DEVICE_RUNTIMES = ("torch", "vllm", "intel_extension_for_pytorch", "triton", "jax", "cupy")
"""Modules that may open a device; in gates 2 and 3 they belong into child processes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Gate:
    """What a session has settled before pytest collects: options, campaign, lane."""

    options: options.GateOptions
    campaign: Campaign
    lane: Lane
    clauses: Mapping[str, str]

    @property
    def lane_directory(self) -> Path:
        """Where the campaign's gates of this lane lie."""
        return self.options.sealed_root / self.campaign.name / self.lane


def settle(config: pytest.Config) -> Gate:
    """Check everything that needs no look at earlier attempts.

    Raises:
        pytest.UsageError: an option, the campaign, a plugin or the sealed root is refused; one line.
    """
    options.check_arguments(config)
    _check_plugins(config)
    chosen = options.GateOptions.from_config(config)
    try:
        campaign = read_campaign(chosen.campaign)
        root.check_root(chosen.sealed_root)
    except (CampaignError, root.RootError) as error:
        raise pytest.UsageError(str(error)) from error
    lane = next((name for name in campaign.lanes if name == (chosen.lane or campaign.lane)), None)
    if lane is None:
        message = (
            f"--device={chosen.lane}: campaign {campaign.name} has no such lane; it has {', '.join(campaign.lanes)}"
        )
        raise pytest.UsageError(message)
    if chosen.gate not in campaign.gates:
        message = f"--gate={chosen.gate}: campaign {campaign.name} declares gates {campaign.gates} only"
        raise pytest.UsageError(message)
    if chosen.junit is not None and chosen.junit.exists():
        message = f"--junitxml={chosen.junit}: exists already; an old report must not pass for a new one: remove it"
        raise pytest.UsageError(message)
    clauses = campaign.gate_clauses(chosen.gate)
    _check_positionals(config, {config.rootpath / nodeid.partition("::")[0] for nodeid in clauses.values()})
    return Gate(chosen, campaign, lane, clauses)


def _check_plugins(config: pytest.Config) -> None:
    for _, distribution in config.pluginmanager.list_plugin_distinfo():
        name = str(distribution.project_name).lower().replace("_", "-")
        if name not in KNOWN_PLUGINS:
            message = f"pytest plugin {name} is not known to leave a gate alone; run in an environment without it"
            raise pytest.UsageError(message)


def _check_positionals(config: pytest.Config, expected: set[Path]) -> None:
    for argument in config.getoption("file_or_dir"):
        if config.invocation_params.dir / argument not in expected:
            message = f"{argument}: a gate runs its frozen list and no other tests; drop it"
            raise pytest.UsageError(message)


def find_previous(gate: Gate, identity: Identity) -> Previous | None:
    """The attempt of the gate before that opens this one, verified again from its raw files.

    Raises:
        pytest.UsageError: there is none, it is anything but PASS, or campaign, candidate or harness have changed since.
    """
    before = gate.options.gate - 1
    if before == 0:
        return None
    where = f"gate {gate.options.gate} of {gate.campaign.name} on lane {gate.lane}"
    if not gate.lane_directory.is_dir():
        message = f"{where} needs gate {before}'s PASS; there is no attempt under {gate.lane_directory}"
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
    """The earlier attempts of this gate.

    A passed gate 1 may run again: it measures nothing that could be selected.

    Raises:
        pytest.UsageError: one of them closes the campaign digest on this lane, or a number is missing.
    """
    earlier = verification.look_back(gate.lane_directory, gate.options.gate)
    numbers = [attempt.attempt for attempt in earlier]
    if numbers != list(range(1, len(numbers) + 1)):
        message = (
            f"gate {gate.options.gate}: attempts {numbers} have a gap; put the missing one back: nothing may vanish"
        )
        raise pytest.UsageError(message)
    for attempt in earlier:
        final = attempt.verdict.closes or (attempt.verdict is Verdict.PASS and gate.options.gate > 1)
        if final and attempt.campaign == identity.campaign:
            message = (
                f"gate {gate.options.gate}: attempt {attempt.attempt:04d} ended {attempt.verdict}, which closes this"
                f" campaign digest on lane {gate.lane}; only a dated amendment in the campaign file opens another"
            )
            raise pytest.UsageError(message)
    return earlier


def loaded_runtime() -> str | None:
    """An accelerator runtime that is loaded in this process, if any."""
    return next((name for name in DEVICE_RUNTIMES if name in sys.modules), None)
