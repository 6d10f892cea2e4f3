# SPDX-License-Identifier: Apache-2.0
"""From a host audit to a verdict.

A host beyond its limits makes the arm's evidence unusable (VOID); a limit on what the host does not show is NOT_PROVEN.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

from pytest_laguna.analysis.findings import Finding, decide
from pytest_laguna.evidence.machine.host import HostAudit, HostLimits
from pytest_laguna.verdict import Verdict

Rule: TypeAlias = Callable[[HostAudit, HostLimits], Finding | None]


def same_start(audit: HostAudit, _: HostLimits) -> Finding | None:
    """Rule ``same-start``: the host was not restarted, and time went forward."""
    if audit.before.boot_id != audit.after.boot_id:
        return Verdict.VOID, f"the host was restarted: {audit.before.boot_id} became {audit.after.boot_id}"
    if audit.difference.seconds <= 0:
        return Verdict.VOID, f"{audit.difference.seconds} s passed; expected the state after to be later"
    return None


def temperature_within(audit: HostAudit, limits: HostLimits) -> Finding | None:
    """Rule ``temperature-within``: no sensor is above the limit, before or after."""
    if limits.temperature_celsius is None:
        return None
    for state in (audit.before, audit.after):
        if not state.temperatures_celsius:
            return Verdict.NOT_PROVEN, "the host shows no temperature; expected at least one sensor"
        name, value = max(state.temperatures_celsius.items(), key=lambda item: item[1])
        if value > limits.temperature_celsius:
            return Verdict.VOID, f"{name} at {value} C; expected at most {limits.temperature_celsius}"
    return None


def not_throttled(audit: HostAudit, limits: HostLimits) -> Finding | None:
    """Rule ``not-throttled``: the throttle counters did not grow by more than the limit, and none got lost or fell."""
    if limits.throttle_events is None:
        return None
    grown = audit.difference.throttle_counts
    if not audit.before.throttle_counts:
        return Verdict.NOT_PROVEN, "the host shows no throttle counter; expected at least one"
    if grown.keys() != audit.before.throttle_counts.keys() or min(grown.values()) < 0:
        return Verdict.VOID, f"a throttle counter was lost or fell: {grown}; expected all to stay or grow"
    events = sum(grown.values())
    if events > limits.throttle_events:
        return Verdict.VOID, f"{events} throttle events during the arm; expected at most {limits.throttle_events}"
    return None


def kernel_log_quiet(audit: HostAudit, limits: HostLimits) -> Finding | None:
    """Rule ``kernel-log-quiet``: no line since the arm's start matches a pattern; a reset voids the root."""
    if limits.kernel_patterns is None:
        return None
    log = audit.after.kernel_log
    if "absent" in {audit.before.kernel_log.state, log.state}:
        return Verdict.NOT_PROVEN, f"the kernel's log is absent ({log.reason}); expected to read it"
    if not log.complete:
        return Verdict.NOT_PROVEN, "lines of the kernel's log were overwritten; expected all since the arm's start"
    for pattern in limits.kernel_patterns:
        for line in log.lines:
            if re.search(pattern, line):
                return Verdict.VOID, f"the kernel's log matches {pattern!r}: {line}"
    return None


def memory_free(audit: HostAudit, limits: HostLimits) -> Finding | None:
    """Rule ``memory-free``: enough memory is free, before and after."""
    least = min(audit.before.memory_available_bytes, audit.after.memory_available_bytes)
    if limits.memory_available_bytes is not None and least < limits.memory_available_bytes:
        return Verdict.VOID, f"{least} bytes of memory free; expected at least {limits.memory_available_bytes}"
    return None


def load_low(audit: HostAudit, limits: HostLimits) -> Finding | None:
    """Rule ``load-low``: the host was not busy with something else when the arm started."""
    if limits.load is not None and audit.before.load[0] > limits.load:
        return Verdict.VOID, f"load {audit.before.load[0]} before the arm; expected at most {limits.load}"
    return None


def no_foreign_holder(audit: HostAudit, limits: HostLimits) -> Finding | None:
    """Rule ``no-foreign-holder``: nobody else holds any card of the lane, leased or not."""
    if limits.foreign_holders:
        return None
    for state in (audit.before, audit.after):
        for card in state.cards:
            for holder in card.holders:
                if not holder.carries_token:
                    return Verdict.VOID, f"process {holder.pid} holds card {card.identity}: {holder.command}"
    return None


HOST_RULES: Mapping[str, Rule] = {
    "same-start": same_start,
    "temperature-within": temperature_within,
    "not-throttled": not_throttled,
    "kernel-log-quiet": kernel_log_quiet,
    "memory-free": memory_free,
    "load-low": load_low,
    "no-foreign-holder": no_foreign_holder,
}


def judge_host(audit: HostAudit, limits: HostLimits) -> Finding:
    """Whether the host was within the frozen limits around an arm.

    Returns:
        The worst verdict of all rules with the reason of the first that found it; a reason begins with the rule's id.
    """
    found = {name: rule(audit, limits) for name, rule in HOST_RULES.items()}
    return decide(found, f"the host stayed within its limits for {audit.difference.seconds} s")
