# SPDX-License-Identifier: Apache-2.0
"""Identity, cards, processes and host of an attempt."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_laguna.analysis.machine.host import judge_host
from pytest_laguna.campaign import Campaign
from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.machine import leased_cards
from pytest_laguna.evidence.machine.host import HostAudit
from pytest_laguna.evidence.machine.process import ProcessRecord
from pytest_laguna.evidence.machine.reader import MachineEvidence, read_machine
from pytest_laguna.evidence.reading import Missing, whole
from pytest_laguna.report.clauses import badge
from pytest_laguna.report.markup import Markup, code, details, element, facts, joined, table
from pytest_laguna.report.shown import ShownAttempt
from pytest_laguna.verdict import JSON

_GIB = 2**30
_LINES = 40
"""Lines of the kernel's log to show."""


def machine_section(shown: ShownAttempt) -> Markup:
    """Identity and host audit of an attempt."""
    machine = read_machine(shown.directory / root.EVIDENCE)
    return joined([
        element("h3", "Identity"),
        _identity(shown),
        *_cards(machine),
        *_processes(machine),
        *_host(machine, shown.attempted.campaign, shown.start.lane),
    ])


def _identity(shown: ShownAttempt) -> Markup:
    start = shown.start
    record = files.read_canonical_json(shown.directory / root.IDENTITY)
    found = record if isinstance(record, dict) else {}
    pairs = [
        ("campaign", code(start.identity.campaign)),
        ("candidate", code(start.identity.candidate)),
        ("harness", code(start.identity.harness)),
        ("receipt", code(shown.report.receipt or "none")),
        ("nonce", code(start.nonce)),
        ("command", code("pytest " + " ".join(start.arguments))),
        *_told(found),
    ]
    packages = _mapping(found, "packages")
    listed = ", ".join(f"{name} {version}" for name, version in sorted(packages.items()))
    sources = [
        (code(name), code(str(digest)))
        for part in ("candidate", "harness", "binaries")
        for name, digest in sorted(_mapping(found, part).items())
    ]
    return joined([
        facts(pairs),
        details(f"{len(packages)} packages", element("p", listed)),
        details(f"{len(sources)} frozen files of campaign, candidate and harness", table(("file", "SHA-256"), sources)),
    ])


def _told(record: dict[str, JSON]) -> Iterator[tuple[str, str]]:
    """Source control, interpreter and system, from the identity record."""
    git = _mapping(record, "git")
    if git:
        state = "with uncommitted changes" if git.get("dirty") else "clean"
        yield "commit", joined([code(str(git.get("commit"))), f" {state}"])
    python, host = _mapping(record, "python"), _mapping(record, "host")
    yield "Python", str(python.get("version", "unknown"))
    yield "system", f"{host.get('system', 'unknown')}, {host.get('processors', '?')} processors"


def _mapping(record: dict[str, JSON], name: str) -> dict[str, JSON]:
    value = record.get(name)
    return value if isinstance(value, dict) else {}


def _cards(machine: MachineEvidence) -> Iterator[Markup]:
    if isinstance(machine.lease, Missing):
        return
    yield element("h3", "Cards")
    yield table(
        ("rank", "card", "name", "memory"),
        [
            (str(rank), code(card.identity), card.name, f"{card.memory_bytes / _GIB:.1f} GiB")
            for rank, card in enumerate(machine.lease.cards)
        ],
    )
    records = [record for record in (machine.before, machine.after) if not isinstance(record, Missing)]
    snapshots = [(record.phase, str(len(record.snapshots))) for record in records]
    yield element("p", *(f"{count} snapshots {phase} the lease. " for phase, count in snapshots), class_="soft")


def _processes(machine: MachineEvidence) -> Iterator[Markup]:
    rows = [_process(path, record) for path, record in whole(machine.processes).items()]
    if not rows:
        return
    yield element("h3", "Processes")
    yield table(("process", "end", "exit status", "seconds", "left running"), rows)


def _process(path: str, record: ProcessRecord) -> tuple[str, ...]:
    left = [*record.leftovers, *record.survivors]
    told = joined(element("div", str(found)) for found in left) if left else "nothing"
    status = "none" if record.exit_code is None else str(record.exit_code)
    return (
        code(path.removesuffix(f"/{leased_cards.PROCESS}")),
        record.reason,
        status,
        f"{record.wall_seconds:.1f}",
        told,
    )


def _host(machine: MachineEvidence, campaign: Campaign, lane: str) -> Iterator[Markup]:
    audits = whole(machine.audits)
    if not audits:
        return
    limits = campaign.lane_settings(lane).host
    yield element("h3", "Host")
    yield table(
        (
            "run",
            "within limits",
            "seconds",
            "load before",
            "free memory",
            "hottest sensor",
            "throttlings",
            "kernel log",
        ),
        [
            (code(path.removesuffix(f"/{leased_cards.HOST}")), badge(judge_host(audit, limits)[0]), *_audit(audit))
            for path, audit in audits.items()
        ],
    )
    unset = [name for name, value in limits.model_dump().items() if value is None]
    if unset:
        told = f"Recorded but not judged, for lack of a limit in the campaign: {', '.join(unset).replace('_', ' ')}."
        yield element("p", told, class_="soft")


def _audit(audit: HostAudit) -> tuple[str, ...]:
    heat = [*audit.before.temperatures_celsius.values(), *audit.after.temperatures_celsius.values()]
    free = min(audit.before.memory_available_bytes, audit.after.memory_available_bytes)
    counts = audit.difference.throttle_counts
    log = audit.after.kernel_log
    lines = f"{len(log.lines)} new lines" if log.state == "read" else f"absent: {log.reason}"
    return (
        f"{audit.difference.seconds:.1f}",
        f"{audit.before.load[0]:.2f}",
        f"{free / _GIB:.1f} GiB",
        f"{max(heat):.0f} °C" if heat else "no sensor",
        str(sum(counts.values())) if counts else "no counter",
        details(lines, element("pre", "\n".join(log.lines[:_LINES]))) if log.lines else lines,
    )
