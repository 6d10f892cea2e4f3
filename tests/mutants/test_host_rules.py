# SPDX-License-Identifier: Apache-2.0
"""Every rule about the host around an arm has a mutant: a good audit with one fact changed, refused by that rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_laguna.analysis.machine.host import HOST_RULES, judge_host
from pytest_laguna.evidence.machine.host import HostAudit, HostLimits, HostState, difference
from pytest_laguna.evidence.schemas import parse_model
from pytest_laguna.verdict import UnusableEvidenceError, Verdict
from tests.caught_first import caught_first

LIMITS = HostLimits(
    temperature_celsius=90,
    throttle_events=2,
    kernel_patterns=["GPU HANG", r"\breset"],
    memory_available_bytes=8 << 30,
    load=1.5,
    foreign_holders=False,
)
NOTHING_JUDGED = HostLimits(
    temperature_celsius=None,
    throttle_events=None,
    kernel_patterns=None,
    memory_available_bytes=None,
    load=None,
    foreign_holders=True,
)

Facts = dict[str, Any]


def process(*, ours: bool | None) -> Facts:
    return {"pid": 77, "start_ticks": 5, "command": "python y.py", "carries_token": ours, "seen_by": "nvml"}


def state(second: int, **changed: Any) -> Facts:
    card = {
        "identity": "GPU-1",
        "ordinal": 0,
        "memory_used_bytes": 1,
        "utilisation_percent": None,
        "holders": [process(ours=True)],
    }
    facts = {
        "utc": f"2026-07-26T21:43:{second:02d}.000000+00:00",
        "boot_id": "b0",
        "temperatures_celsius": {"thermal_zone0 x86_pkg_temp": 60.0, "hwmon1 xe pkg": 71.25},
        "throttle_counts": {"cpu0 core_throttle_count": 4, "cpu1 core_throttle_count": 0},
        "kernel_log": {"state": "read", "reason": "", "last": 100, "complete": True, "lines": []},
        "memory_available_bytes": 64 << 30,
        "load": [0.5, 0.4, 0.3],
        "cards": [card],
    }
    return facts | changed


def audit(before: Facts, after: Facts) -> HostAudit:
    first, last = (parse_model(facts, HostState, "host.json") for facts in (before, after))
    return HostAudit(before=first, after=last, difference=difference(first, last))


def judged(before: Facts, after: Facts, limits: HostLimits = LIMITS) -> tuple[Verdict, str]:
    return judge_host(audit(before, after), limits)


def log(**changed: Any) -> Facts:
    return {"kernel_log": {"state": "read", "reason": "", "last": 101, "complete": True, "lines": ["quiet"]} | changed}


ABSENT = log(state="absent", reason="/dev/kmsg: Permission denied", last=None, complete=False, lines=[])
FOREIGN = {
    "cards": [
        {
            "identity": "GPU-2",
            "ordinal": 1,
            "memory_used_bytes": 1,
            "utilisation_percent": None,
            "holders": [process(ours=False)],
        }
    ]
}
SAME = {"cpu0 core_throttle_count": 4, "cpu1 core_throttle_count": 0}

MUTANTS: list[tuple[str, Facts, Facts, str, str]] = [
    ("same-start", {}, {"boot_id": "b1"}, "VOID", "host: seen boot b1; expected still b0"),
    ("same-start", {}, {"utc": "2026-07-26T21:43:00.000000+00:00"}, "VOID", "seen 0.0 s between its states"),
    ("temperature-within", {"temperatures_celsius": {}}, {}, "NOT_PROVEN", "host: seen no temperature"),
    ("temperature-within", {"temperatures_celsius": {"a": 90.1}}, {}, "VOID", "a: seen 90.1 C; expected at most 90.0"),
    ("temperature-within", {}, {"temperatures_celsius": {"a": 1.0, "b": 91.0}}, "VOID", "b: seen 91.0 C"),
    ("temperature-within", {}, {"temperatures_celsius": {"a": 91.0, "b": 1.0}}, "VOID", "a: seen 91.0 C"),
    ("not-throttled", {"throttle_counts": {}}, {}, "NOT_PROVEN", "host: seen no throttle counter"),
    ("not-throttled", {}, {"throttle_counts": SAME | {"cpu0 core_throttle_count": 7}}, "VOID", "3 throttle events"),
    (
        "not-throttled",
        {},
        {"throttle_counts": {"cpu0 core_throttle_count": 4}},
        "VOID",
        "expected none lost and none to fall",
    ),
    (
        "not-throttled",
        {},
        {"throttle_counts": SAME | {"cpu0 core_throttle_count": 3}},
        "VOID",
        "expected none lost and none to fall",
    ),
    ("kernel-log-quiet", {}, ABSENT, "NOT_PROVEN", "seen absent (/dev/kmsg: Permission denied)"),
    ("kernel-log-quiet", ABSENT, log(), "NOT_PROVEN", "kernel log: seen absent"),
    ("kernel-log-quiet", {}, log(complete=False), "NOT_PROVEN", "kernel log: seen overwritten lines"),
    ("kernel-log-quiet", {}, log(lines=["xe 0000:03:00.0: GT reset done"]), "VOID", "GT reset done"),
    ("kernel-log-quiet", {}, log(lines=["a", "i915: GPU HANG: ecode 12"]), "VOID", "matching 'GPU HANG'"),
    ("memory-free", {"memory_available_bytes": 1}, {}, "VOID", "memory: seen 1 bytes free"),
    ("memory-free", {}, {"memory_available_bytes": 2}, "VOID", "memory: seen 2 bytes free"),
    ("load-low", {"load": [1.6, 0.0, 0.0]}, {}, "VOID", "load: seen 1.6 before the arm; expected at most 1.5"),
    ("no-foreign-holder", FOREIGN, {}, "VOID", "card GPU-2: seen held by process 77 (python y.py); expected no"),
    ("no-foreign-holder", {}, FOREIGN, "VOID", "card GPU-2: seen held by process 77"),
]


def test_the_good_audit_passes() -> None:
    busy = state(30, load=[9.0, 1.0, 0.5], **log())  # what the arm itself did
    assert judged(state(0), busy) == (Verdict.PASS, "the host stayed within its limits for 30.0 s")


def test_a_value_at_its_limit_passes() -> None:
    edge = {"temperatures_celsius": {"a": 90.0}, "memory_available_bytes": 8 << 30, "load": [1.5, 0.0, 0.0]}
    counted = {"throttle_counts": SAME | {"cpu0 core_throttle_count": 6}}
    assert judged(state(0, **edge), state(30, **edge, **counted))[0] is Verdict.PASS


def test_an_arm_may_take_less_than_a_second() -> None:
    assert judged(state(0), state(0, utc="2026-07-26T21:43:00.500000+00:00"))[0] is Verdict.PASS


def test_every_rule_has_a_mutant() -> None:
    assert {rule for rule, *_ in MUTANTS} == HOST_RULES.keys()


@caught_first("rule before after verdict reason", MUTANTS)
def test_the_mutant_is_caught_by_its_rule(
    rule: str, before: Facts, after: Facts, verdict: str, reason: str
) -> list[str]:
    made = audit(state(0, **before), state(30, **after))
    found, text = judge_host(made, LIMITS)
    assert found == verdict
    assert text.startswith(f"{rule}: ")
    assert reason in text
    return [name for name, says in HOST_RULES.items() if says(made, LIMITS) is not None]


def test_what_a_campaign_does_not_limit_is_recorded_and_not_judged() -> None:
    for rule, before, after, _, _ in MUTANTS:
        if rule != "same-start":
            assert judged(state(0, **before), state(30, **after), NOTHING_JUDGED)[0] is Verdict.PASS


def test_a_process_that_may_be_anybodys_is_foreign() -> None:
    facts = state(0)
    facts["cards"][0]["holders"] = [process(ours=None)]
    assert judged(facts, state(30))[1].startswith("no-foreign-holder: ")


def _falsify(audit: Facts) -> None:
    audit["difference"]["memory_available_bytes"] = 1


def _replace_state(audit: Facts) -> None:
    audit["after"]["memory_available_bytes"] += 1


@pytest.mark.parametrize("change", [_falsify, _replace_state])
def test_a_difference_that_is_not_that_of_the_states_is_unusable(change: Callable[[Facts], None]) -> None:
    first, last = (parse_model(state(second), HostState, "host.json") for second in (0, 30))
    audit = HostAudit(before=first, after=last, difference=difference(first, last)).model_dump(
        by_alias=True, mode="json"
    )
    assert parse_model(audit, HostAudit, "host.json").difference.seconds == 30
    change(audit)
    with pytest.raises(UnusableEvidenceError, match="difference: seen other values; expected after minus before"):
        parse_model(audit, HostAudit, "host.json")


def test_the_difference_says_what_changed_and_what_got_lost() -> None:
    before = parse_model(state(0), HostState, "host.json")
    changed = {
        "temperatures_celsius": {"hwmon1 xe pkg": 80.5004},
        "throttle_counts": SAME | {"cpu1 core_throttle_count": 9},
    }
    after = parse_model(state(9, memory_available_bytes=60 << 30, **changed), HostState, "host.json")
    found = difference(before, after)
    assert found.temperatures_celsius == {"hwmon1 xe pkg": 9.25}
    assert found.throttle_counts == {"cpu0 core_throttle_count": 0, "cpu1 core_throttle_count": 9}
    assert (found.seconds, found.memory_available_bytes) == (9.0, -(4 << 30))
    assert found.lost == ["thermal_zone0 x86_pkg_temp"]
