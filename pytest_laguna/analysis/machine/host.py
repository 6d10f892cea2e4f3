# SPDX-License-Identifier: Apache-2.0
"""Rules over a host audit.

A host beyond its limits makes the arm's evidence unusable (VOID); a limit on a quantity missing from the audit is
NOT_PROVEN.
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
        return Verdict.VOID, f"host: seen boot {audit.after.boot_id}; expected still {audit.before.boot_id}"
    if audit.difference.seconds <= 0:
        return Verdict.VOID, f"host: seen {audit.difference.seconds} s between its states; expected more than 0"
    return None


def temperature_within(audit: HostAudit, limits: HostLimits) -> Finding | None:
    """Rule ``temperature-within``: no sensor is above the limit, before or after."""
    if limits.temperature_celsius is None:
        return None
    for state in (audit.before, audit.after):
        if not state.temperatures_celsius:
            return Verdict.NOT_PROVEN, "host: seen no temperature; expected at least one sensor"
        name, value = max(state.temperatures_celsius.items(), key=lambda item: item[1])
        if value > limits.temperature_celsius:
            return Verdict.VOID, f"{name}: seen {value} C; expected at most {limits.temperature_celsius}"
    return None


def not_throttled(audit: HostAudit, limits: HostLimits) -> Finding | None:
    """Rule ``not-throttled``: no throttle counter is lost or falls, and together they grow by at most the limit."""
    if limits.throttle_events is None:
        return None
    grown = audit.difference.throttle_counts
    if not audit.before.throttle_counts:
        return Verdict.NOT_PROVEN, "host: seen no throttle counter; expected at least one"
    if grown.keys() != audit.before.throttle_counts.keys() or min(grown.values()) < 0:
        return Verdict.VOID, f"throttle counters: seen growth {grown}; expected none lost and none to fall"
    events = sum(grown.values())
    if events > limits.throttle_events:
        return Verdict.VOID, f"host: seen {events} throttle events; expected at most {limits.throttle_events}"
    return None


def kernel_log_quiet(audit: HostAudit, limits: HostLimits) -> Finding | None:
    """Rule ``kernel-log-quiet``: no line since the arm's start matches a pattern; a reset voids the root."""
    if limits.kernel_patterns is None:
        return None
    log = audit.after.kernel_log
    if "absent" in {audit.before.kernel_log.state, log.state}:
        return Verdict.NOT_PROVEN, f"kernel log: seen absent ({log.reason}); expected a readable one"
    if not log.complete:
        return Verdict.NOT_PROVEN, "kernel log: seen overwritten lines; expected all since the arm's start"
    for pattern in limits.kernel_patterns:
        for line in log.lines:
            if re.search(pattern, line):
                return Verdict.VOID, f"kernel log: seen {line!r}, matching {pattern!r}; expected no match"
    return None


def memory_free(audit: HostAudit, limits: HostLimits) -> Finding | None:
    """Rule ``memory-free``: enough memory is free, before and after."""
    least = min(audit.before.memory_available_bytes, audit.after.memory_available_bytes)
    if limits.memory_available_bytes is not None and least < limits.memory_available_bytes:
        return Verdict.VOID, f"memory: seen {least} bytes free; expected at least {limits.memory_available_bytes}"
    return None


def load_low(audit: HostAudit, limits: HostLimits) -> Finding | None:
    """Rule ``load-low``: the host was not busy with other work when the arm started."""
    if limits.load is not None and audit.before.load[0] > limits.load:
        return Verdict.VOID, f"load: seen {audit.before.load[0]} before the arm; expected at most {limits.load}"
    return None


def no_foreign_holder(audit: HostAudit, limits: HostLimits) -> Finding | None:
    """Rule ``no-foreign-holder``: nobody else holds any card of the lane, leased or not."""
    if limits.foreign_holders:
        return None
    for state in (audit.before, audit.after):
        for card in state.cards:
            for holder in card.holders:
                if not holder.carries_token:
                    told = f"held by process {holder.pid} ({holder.command})"
                    return Verdict.VOID, f"card {card.identity}: seen {told}; expected no foreign holder"
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
    """Return the worst verdict of all rules and the first reason for it, which begins with the rule's id."""
    found = {name: rule(audit, limits) for name, rule in HOST_RULES.items()}
    return decide(found, f"the host stayed within its limits for {audit.difference.seconds} s")
