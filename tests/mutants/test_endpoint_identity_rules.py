# SPDX-License-Identifier: Apache-2.0
"""Every rule over what ran in gate 3 has a mutant: the identity that gate 2 proved, and one fact changed.

The rules that it shares with the exact diagnostic have their own mutants; here it matters that gate 3 asks them.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.analysis.endpoint.identity import ENGINE_RULES, judge_identity
from pytest_laguna.analysis.findings import Finding
from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.arms.engine_identity import DiagnosticIdentity
from pytest_laguna.evidence.endpoint import reader
from pytest_laguna.evidence.schemas import AttemptStart, Previous, parse_model, read_model
from pytest_laguna.experiments.endpoint import EXPERIMENT
from pytest_laguna.experiments.experiment import derive_from_files, read_attempted
from pytest_laguna.verdict import Verdict
from tests import diagnostic_root
from tests.caught_first import caught_first
from tests.mutants.test_endpoint_derivation import derive, ran  # noqa: F401 - a fixture

PYTHON = "/engine/bin/python"
LEGS = {"01-A1": PYTHON, "02-B1": PYTHON, "03-B2": None}
"""The last left no record."""

Change = Callable[[dict[str, Any]], None]


def good() -> dict[str, Any]:
    """What ran in two legs."""
    value = copy.deepcopy(diagnostic_root.identity())
    around = next(iter(value["models_around"].values()))
    value["models_around"] = {leg: copy.deepcopy(around) for leg in LEGS}
    run_by(PYTHON, value)
    return value


def run_by(python: str, value: dict[str, Any]) -> None:
    """By the gate's own interpreter, before and after the legs."""
    value["python"] = value["engine"]["state"]["interpreter"] = value["engine_after"]["interpreter"] = python


def judged(value: dict[str, Any], proven: dict[str, Any] | None = None) -> dict[str, Finding | None]:
    proved = None if proven is None else identity(proven)
    return judge_identity(identity(value), LEGS, proved, "native", "engine/bin/python")


def identity(value: dict[str, Any]) -> DiagnosticIdentity:
    return parse_model(value, DiagnosticIdentity, "identity.json")


def put(path: str, value: Any) -> Change:
    """Set one field; the path is joined by bars."""

    def change(target: Any) -> None:
        *parents, last = [int(part) if part.isdigit() else part for part in path.split("|")]
        for part in parents:
            target = target[part]
        target[last] = value

    return change


def drop(path: str) -> Change:
    def change(target: Any) -> None:
        *parents, last = path.split("|")
        for part in parents:
            target = target[part]
        del target[last]

    return change


RUNTIME = {
    "host": {"kernel": "6.17.0", "driver": "built in", "packages": {}},
    "closure": {"libraries": [], "absent": []},
}
V, N = Verdict.VOID, Verdict.NOT_PROVEN
MUTANTS: list[tuple[str, Change, Verdict, str]] = [
    ("interpreter-planned", put("engine|state|interpreter", "/usr/bin/python3"), V, "engine's interpreter: seen /usr"),
    ("legs-interpreter", functools.partial(run_by, f"/a{PYTHON}"), V, "01-A1: seen a server started with /eng"),
    ("models-unchanged-around-legs", drop("models_around|02-B1"), N, "02-B1: seen no check of the models"),
    (
        "models-unchanged-around-legs",
        put("models_around|01-A1|after|looked_at", 2),
        N,
        "after 01-A1: seen 2 checked model fil",
    ),
    ("models-unchanged-around-legs", put("models_around|02-B1|before|changes", ["m: x"]), V, "before 02-B1: seen m: x"),
    ("as-in-gate-2", put("engine|content|program", "2" * 64), V, "the engine's program: seen other content"),
    ("as-in-gate-2", put("engine|runtime", RUNTIME), V, "libraries and host below Python: seen other content"),
    ("as-in-gate-2", put("models|folders|0|files|0|sha256", "2" * 64), V, "model file target/config.json: seen 2222"),
]


def test_what_gate_2_proved_is_not_spoken_against() -> None:
    own = ("legs-interpreter", "models-unchanged-around-legs", "as-in-gate-2")
    assert judged(good(), good()) == dict.fromkeys([*ENGINE_RULES, *own])


TOLD_FIRST = {"as-in-gate-2-6": "stack-fits"}
"""What stands on an XPU's libraries is judged as an XPU's engine before it is compared."""


@caught_first("rule change verdict reason", MUTANTS, TOLD_FIRST)
def test_the_mutant_is_caught_by_its_rule(rule: str, change: Change, verdict: Verdict, reason: str) -> list[str]:
    value = good()
    change(value)
    found = judged(value, good())
    finding = found[rule]
    assert finding is not None
    assert finding[0] is verdict
    assert finding[1].startswith(reason)
    return [name for name in found if found[name] is not None]


def test_without_gate_2s_identity_nothing_is_proven() -> None:
    found = judged(good())["as-in-gate-2"]
    assert found == (N, "gate 2's identity: seen none; expected it, to compare with")


def one_file_less(value: Any) -> None:
    value["models"]["folders"][1]["files"].pop()
    for around in value["models_around"].values():
        for check in around.values():
            check["looked_at"] -= 1


def test_a_model_file_more_or_less_than_in_gate_2_is_named() -> None:
    less, folder = good(), good()["models"]["folders"][1]
    one_file_less(less)
    file = folder["files"][-1]
    named = f"model file {folder['directory'].rpartition('/')[2]}/{file['path']}"
    assert judged(less, good())["as-in-gate-2"] == (V, f"{named}: seen none; expected {file['sha256']}, as in gate 2")
    assert judged(good(), less)["as-in-gate-2"] == (V, f"{named}: seen {file['sha256']}; expected none, as in gate 2")


def test_the_campaigns_interpreter_and_validator_are_what_is_asked_for() -> None:
    other, bare = identity(good()), good()
    bare["engine"]["content"]["extensions"] = {}
    asked = judge_identity(other, LEGS, None, "native", "/other/python")["interpreter-planned"]
    assert asked == (V, f"engine's interpreter: seen {PYTHON}; expected /other/python")
    assert judge_identity(other, LEGS, None, "native", None)["interpreter-planned"] is None
    found = judged(bare)["extension-there"]
    assert found is not None
    assert found[0] is N
    assert judge_identity(identity(bare), LEGS, None, "python", None)["extension-there"] is None


def after_gate_2(place: Path, changed: Change = lambda _: None) -> None:
    """Gate 2's attempt beside gate 3's, which is bound to it; what ran in gate 3 differs by one fact."""
    before = place / "gate2" / "0001" / root.EVIDENCE / "diagnostic"
    before.mkdir(parents=True)
    files.write_new(before / "identity.json", files.canonical_json(good()))
    value = good()
    attempt = place / "gate3" / "0001"
    leg, _ = reader.read_legs(attempt / root.EVIDENCE / reader.DIRECTORY).legs
    run_by(leg.server.argv[0], value)
    changed(value)
    path = attempt / root.EVIDENCE / reader.DIRECTORY / "identity.json"
    path.write_bytes(files.canonical_json(value))
    start = read_model(attempt / root.ATTEMPT, AttemptStart)
    bound = start.model_copy(update={"previous": Previous(gate=2, attempt=1, receipt="0" * 64)})
    (attempt / root.ATTEMPT).write_bytes(files.canonical_json(bound.canonical()))


def clause(place: Path) -> tuple[Verdict, str] | None:
    return derive_from_files(EXPERIMENT, read_attempted(place / "gate3" / "0001")).clauses["identity-exact"]


def test_gate_3s_clause_is_judged_by_them(ran: Path, tmp_path: Path) -> None:  # noqa: F811
    derive(ran, tmp_path / "gate3", lambda _: None)
    after_gate_2(tmp_path)
    assert clause(tmp_path) is None
    (tmp_path / "gate2" / "0001" / root.EVIDENCE / "diagnostic" / "identity.json").unlink()
    (tmp_path / "gate2" / "0001" / root.EVIDENCE / "diagnostic").rmdir()
    assert clause(tmp_path) == (N, "as-in-gate-2: gate 2's identity: seen none; expected it, to compare with")


@pytest.mark.parametrize("rule", ["interpreter-planned", "models-unchanged-around-legs", "as-in-gate-2"])
def test_gate_3s_clause_names_the_rule(rule: str, ran: Path, tmp_path: Path) -> None:  # noqa: F811
    derive(ran, tmp_path / "gate3", lambda _: None)
    _, change, verdict, reason = next(mutant for mutant in MUTANTS if mutant[0] == rule)
    after_gate_2(tmp_path, change)
    found = clause(tmp_path)
    assert found is not None
    assert found[0] is verdict
    assert found[1].startswith(f"{rule}: {reason}")


def test_gate_3s_clause_looks_at_what_each_server_was_started_with(ran: Path, tmp_path: Path) -> None:  # noqa: F811
    derive(ran, tmp_path / "gate3", lambda _: None)
    after_gate_2(tmp_path, functools.partial(run_by, PYTHON))
    found = clause(tmp_path)
    assert found is not None
    assert found[0] is V
    assert found[1].startswith("legs-interpreter: 01-A1: seen a server started with /")
    assert found[1].endswith(f"expected {PYTHON}")


def test_the_models_around_a_leg_without_a_record_count_too(ran: Path, tmp_path: Path) -> None:  # noqa: F811
    derive(ran, tmp_path / "gate3", lambda _: None)
    after_gate_2(tmp_path, drop("models_around|02-B1"))
    endpoint = tmp_path / "gate3" / "0001" / root.EVIDENCE / reader.DIRECTORY
    leg = reader.leg_directory(endpoint, 2, "B1")
    (leg / "leg.json").unlink()
    (leg / "failure.json").write_bytes(b'{"reason":"r"}')
    (endpoint / reader.PHASE_1).unlink()
    assert clause(tmp_path) == (
        N,
        "models-unchanged-around-legs: 02-B1: seen no check of the models; expected one before and one after",
    )
