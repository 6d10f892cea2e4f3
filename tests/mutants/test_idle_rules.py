# SPDX-License-Identifier: Apache-2.0
"""Every rule about idle cards has a mutant: a good record with one fact changed, refused by that rule."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.analysis.machine.idle import IDLE_RULES, judge_idle
from pytest_laguna.evidence import files
from pytest_laguna.evidence.machine.idle import IdleRecord, IdleRequirement
from pytest_laguna.evidence.schemas import parse_model
from pytest_laguna.verdict import UnusableEvidenceError, Verdict
from tests.caught_first import caught_first

DATA = Path(__file__).parents[1] / "data"
SAMPLE = (DATA / "record102-xpu-smi-ps-stdout.json").read_text()
OBSERVER = json.loads((DATA / "record102-idle-prestart-00.json").read_bytes())["child_identity"]["process_id"]
CARDS = ["0000:03:00.0", "0000:43:00.0", "0000:83:00.0", "0000:c3:00.0"]
BASELINE = 32 << 20
LAB = IdleRequirement(snapshots=13, seconds=60, memory_bytes=BASELINE, foreign_workers=False)

Facts = dict[str, Any]


def process(pid: int = 4711, *, ours: bool | None = False, seen_by: str = "xpu-smi") -> Facts:
    return {"pid": pid, "start_ticks": 99, "command": "python x.py", "carries_token": ours, "seen_by": seen_by}


def rows(*changes: Facts, keep: int = 4) -> str:
    """The laboratory's output with its first rows, and with one more row for each change of the first."""
    listed = json.loads(SAMPLE)["device_util_by_proc_list"]
    return json.dumps({"device_util_by_proc_list": listed[:keep] + [listed[0] | change for change in changes]})


def good(phase: str = "after") -> Facts:
    """Thirteen looks at four cards, six seconds apart, each with the laboratory's real output."""
    snapshots = [
        {
            "utc": f"2026-07-26T21:{43 + second // 60}:{second % 60:02d}.053676+00:00",
            "cards": [
                {
                    "identity": identity,
                    "ordinal": number,
                    "memory_used_bytes": 27787264,
                    "utilisation_percent": 100.0,
                    "holders": [],
                }
                for number, identity in enumerate(CARDS)
            ],
            "observer": {
                "command": ["/usr/bin/xpu-smi", "ps", "-j"],
                "executable": "/usr/bin/xpu-smi",
                "executable_sha256": "2b5b128edf28b38da8637413fe8bfe3a4a40e8113210ba9ddaed945bd56d826e",
                "pid": OBSERVER,
                "devices": [0, 1, 2, 3],
                "output": SAMPLE,
            },
            "workers": [],
        }
        for second in range(0, 78, 6)
    ]
    curve = [{"seconds": 0.0, "used_bytes": [30 << 30] * 4}, {"seconds": 3.5, "used_bytes": [27787264] * 4}]
    return {
        "schema": "pytest-laguna-idle-v1",
        "phase": phase,
        "lane": "xpu",
        "token": "0" * 32,
        "cards": CARDS,
        "settling": curve,
        "snapshots": snapshots,
    }


def recorded(facts: Facts) -> IdleRecord:
    """By way of the file's form, as from a sealed root."""
    return parse_model(json.loads(json.dumps(facts)), IdleRecord, "idle.json")


def judged(facts: Facts, requirement: IdleRequirement = LAB) -> tuple[Verdict, str]:
    return judge_idle(recorded(facts), requirement)


def _set(value: Any, *path: int | str) -> Callable[[Facts], None]:
    def change(facts: Facts) -> None:
        node: Any = facts
        for step in path[:-1]:
            node = node[step]
        node[path[-1]] = value

    return change


def _cut(facts: Facts) -> None:
    del facts["snapshots"][12]


def _faster(facts: Facts) -> None:
    for number, snapshot in enumerate(facts["snapshots"]):
        snapshot["utc"] = f"2026-07-26T21:43:{number + 10}.000000+00:00"


LOOK = ("snapshots", 5)
OBSERVED = (*LOOK, "observer", "output")
HELD = (*LOOK, "cards", 2, "holders")

MUTANTS: list[tuple[str, str, Callable[[Facts], None], str, str]] = [
    ("cards-observed", "after", _set(CARDS[:3], "cards"), "VOID", "snapshot 0: seen cards"),
    ("cards-observed", "after", _set("0000:43:00.1", *LOOK, "cards", 1, "identity"), "VOID", "snapshot 5: seen cards"),
    ("cards-observed", "after", _set([CARDS[0]] * 4, "cards"), "VOID", "expected each once"),
    (
        "telemetry-present",
        "after",
        _set(None, *LOOK, "cards", 3, "memory_used_bytes"),
        "NOT_PROVEN",
        "snapshot 5: seen no memory of card 0000:c3:00.0",
    ),
    ("clock-rises", "after", _set("2026-07-26T21:43:24.053676+00:00", *LOOK, "utc"), "VOID", "strictly rising"),
    ("interval-covered", "after", _cut, "NOT_PROVEN", "12 over 66.0 s; expected at least 13 over 60.0 s"),
    ("interval-covered", "after", _faster, "NOT_PROVEN", "13 over 12.0 s"),
    ("interval-covered", "after", _set([], "snapshots"), "NOT_PROVEN", "0 over 0.0 s"),
    ("observer-accounted", "after", _set(None, *LOOK, "observer"), "VOID", "snapshot 5: seen no observer"),
    ("observer-accounted", "after", _set(rows(keep=3), *OBSERVED), "VOID", "on devices [0, 1, 2]; expected none, or"),
    ("observer-accounted", "after", _set(rows({}), *OBSERVED), "VOID", "on devices [0, 0, 1, 2, 3]"),
    ("observer-accounted", "after", _set(rows({"device_id": 4}), *OBSERVED), "VOID", "on devices [0, 1, 2, 3, 4]"),
    (
        "observer-accounted",
        "after",
        _set(rows({"device_id": 3, "process_name": "python"}, keep=3), *OBSERVED),
        "VOID",
        "row named 'python'; expected 'xpu-smi'",
    ),
    (
        "observer-accounted",
        "after",
        _set("f" * 64, *LOOK, "observer", "executable_sha256"),
        "VOID",
        "2 files of xpu-smi; expected one, with one digest",
    ),
    (  # an xpu-smi that is not our child
        "observer-accounted",
        "after",
        _set(rows({"process_id": 5}), *OBSERVED),
        "VOID",
        "seen process 5 on device 0 by xpu-smi; expected it among the holders",
    ),
    (
        "no-holder",
        "before",
        _set([process()], *HELD),
        "NOT_PROVEN",
        "started at tick 99: seen holding card 0000:83:00.0",
    ),
    ("no-holder", "after", _set([process()], *HELD), "VOID", "process 4711"),
    ("no-holder", "after", _set([process(ours=None)], *HELD), "VOID", "process 4711"),
    ("no-holder", "after", _set([process(8), process(9, ours=True)], *HELD), "FAIL", "process 9"),
    (
        "no-worker",
        "before",
        _set([process(seen_by="vllm serve")], *LOOK, "workers"),
        "NOT_PROVEN",
        "seen running (vllm serve)",
    ),
    ("no-worker", "after", _set([process(seen_by="torchrun")], *LOOK, "workers"), "VOID", "seen running (torchrun)"),
    ("no-worker", "after", _set([process(ours=True)], *LOOK, "workers"), "FAIL", "process 4711"),
    (
        "memory-returned",
        "after",
        _set([0, 0, BASELINE + 1, 0], "settling", 1, "used_bytes"),
        "FAIL",
        f"card {CARDS[2]}: seen {BASELINE + 1} bytes used after 3.5 s; expected at most {BASELINE}",
    ),
    ("memory-returned", "before", _set([BASELINE + 1] * 4, "settling", 1, "used_bytes"), "NOT_PROVEN", "after 3.5 s"),
    (
        "memory-returned",
        "after",
        _set([0, None, 0, 0], "settling", 1, "used_bytes"),
        "NOT_PROVEN",
        "card 0000:43:00.0: seen no memory",
    ),
    ("memory-returned", "after", _set([0, 0, 0], "settling", 1, "used_bytes"), "VOID", "seen 3 values at its end"),
    (
        "memory-at-baseline",
        "after",
        _set(BASELINE + 1, *LOOK, "cards", 0, "memory_used_bytes"),
        "FAIL",
        f"card {CARDS[0]}: seen {BASELINE + 1} bytes used in snapshot 5; expected at most {BASELINE}",
    ),
    (
        "memory-at-baseline",
        "before",
        _set(BASELINE + 1, *LOOK, "cards", 0, "memory_used_bytes"),
        "NOT_PROVEN",
        "in snapshot 5",
    ),
]


@pytest.mark.parametrize("phase", ["before", "after"])
def test_the_good_record_passes_whatever_its_utilisation(phase: str) -> None:
    assert judged(good(phase)) == (Verdict.PASS, f"4 cards idle {phase} the lease in 13 snapshots")


def test_a_lane_whose_telemetry_opens_no_device_has_no_observer() -> None:
    facts = good() | {"lane": "cuda"}
    for snapshot in facts["snapshots"]:
        snapshot["observer"] = None
    assert judged(facts)[0] is Verdict.PASS


def test_what_is_just_enough_passes() -> None:
    facts = good()
    _set([BASELINE] * 4, "settling", 1, "used_bytes")(facts)
    _set(BASELINE, *LOOK, "cards", 2, "memory_used_bytes")(facts)
    exact = LAB.model_copy(update={"seconds": 72.0})
    assert judged(facts, exact)[0] is Verdict.PASS


def test_the_other_idle_form_passes_too() -> None:
    facts = good()
    for snapshot in facts["snapshots"]:
        snapshot["observer"]["output"] = rows(keep=0)
    assert judged(facts)[0] is Verdict.PASS


def test_looks_may_be_less_than_a_second_apart() -> None:
    record = good()
    _set("2026-07-26T21:43:24.553676+00:00", *LOOK, "utc")(record)
    assert record["snapshots"][4]["utc"] < record["snapshots"][5]["utc"]
    assert judged(record)[0] is Verdict.PASS


def test_the_curve_is_judged_where_it_ends() -> None:
    settled = good("after")
    settled["settling"] = [
        settled["settling"][0],
        {"seconds": 1.0, "used_bytes": [30 << 30] * 4},
        settled["settling"][1],
    ]
    assert judged(settled)[0] is Verdict.PASS


def test_every_rule_has_a_mutant() -> None:
    assert {rule for rule, *_ in MUTANTS} == IDLE_RULES.keys()


@caught_first("rule phase change verdict reason", MUTANTS)
def test_the_mutant_is_caught_by_its_rule(
    rule: str, phase: str, change: Callable[[Facts], None], verdict: str, reason: str
) -> list[str]:
    facts = copy.deepcopy(good(phase))
    change(facts)
    found, text = judged(facts)
    assert found == verdict
    assert text.startswith(f"{rule}: ")
    assert reason in text
    return [name for name, says in IDLE_RULES.items() if says(recorded(facts), LAB) is not None]


def test_foreign_workers_are_let_be_only_where_the_campaign_says_so() -> None:
    lenient = LAB.model_copy(update={"foreign_workers": True})
    facts = good()
    _set([process(seen_by="vllm serve")], *LOOK, "workers")(facts)
    assert judged(facts, lenient)[0] is Verdict.PASS
    _set([process(ours=None)], *LOOK, "workers")(facts)
    assert judged(facts, lenient)[0] is Verdict.VOID
    _set([process(ours=True)], *LOOK, "workers")(facts)
    assert judged(facts, lenient)[0] is Verdict.FAIL


def test_a_holder_of_a_card_that_is_not_leased_is_no_matter_of_this_lease() -> None:
    facts = good()
    facts["cards"] = CARDS[:3]
    for snapshot in facts["snapshots"]:
        snapshot["cards"] = snapshot["cards"][:3]
        snapshot["observer"]["output"] = rows({"device_id": 3, "process_id": 5})
    for point in facts["settling"]:
        point["used_bytes"] = point["used_bytes"][:3]
    assert judged(facts)[0] is Verdict.PASS
    for snapshot in facts["snapshots"]:
        snapshot["observer"]["output"] = rows({"device_id": 2, "process_id": 5})
    assert judged(facts)[1].startswith("observer-accounted: snapshot 0: seen process 5 on device 2 by xpu-smi")


def test_output_of_another_form_is_unusable() -> None:
    facts = good()
    _set(SAMPLE.replace('"mem_size": 2784', '"mem_size": NaN'), *OBSERVED)(facts)
    with pytest.raises(UnusableEvidenceError, match="NaN is not a number"):
        judged(facts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("2026-07-26 21:43:45", *LOOK, "utc"), "snapshots.5.utc"),
        (_set(-1, *LOOK, "cards", 0, "memory_used_bytes"), "memory_used_bytes"),
        (_set([], "settling"), "settling"),
        (_set("later", "phase"), "phase"),
        (_set(1, "surprise"), "surprise"),
    ],
)
def test_a_record_of_another_form_is_unusable(change: Callable[[Facts], None], message: str) -> None:
    facts = good()
    change(facts)
    with pytest.raises(UnusableEvidenceError, match=message):
        judged(facts)


def test_a_record_comes_back_from_its_file(tmp_path: Path) -> None:
    record = parse_model(good(), IdleRecord, "idle.json")
    files.write_new(tmp_path / "idle.json", files.canonical_json(record.canonical()))
    assert parse_model(files.read_canonical_json(tmp_path / "idle.json"), IdleRecord, "idle.json") == record
