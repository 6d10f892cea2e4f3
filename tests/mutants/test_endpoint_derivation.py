# SPDX-License-Identifier: Apache-2.0
"""The analysis of gate 3 follows from the raw files of its attempt, or the attempt is void: one change a time.

Two legs of the small server, in an attempt that is otherwise as a session leaves it.
"""

from __future__ import annotations

import datetime
import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import rfc8785

from pytest_laguna.analysis.endpoint import analyse_endpoint
from pytest_laguna.analysis.findings import Finding
from pytest_laguna.campaign import parse_campaign
from pytest_laguna.endpoint.suite import pin_suite, read_suite
from pytest_laguna.evidence import files, reading, root
from pytest_laguna.evidence.endpoint import reader
from pytest_laguna.evidence.endpoint.leg import LegEnd
from pytest_laguna.evidence.endpoint.plan import Teacher, TeacherRow
from pytest_laguna.evidence.machine.host import HostAudit, HostState, KernelLog, difference
from pytest_laguna.evidence.schemas import AttemptStart, Earlier, Identity, read_model
from pytest_laguna.experiments.endpoint import EXPERIMENT
from pytest_laguna.experiments.experiment import derive_from_files, read_attempted
from pytest_laguna.experiments.protocol import parse_protocol, plan_endpoint
from pytest_laguna.verdict import NotProvenError, UnusableEvidenceError, Verdict
from tests import diagnostic_root
from tests.sealed import TOKEN, idle_record, write_lease
from tests.unit.endpoint.test_leg import Case

CAMPAIGNS = Path(__file__).parents[2] / "campaigns"
CAMPAIGN = (CAMPAIGNS / "laguna-persistent-kv-views-quick.toml").read_bytes()
QUICK = (CAMPAIGNS / "laguna-persistent-kv-views-quick-endpoint-cpu.toml").read_text()
CONFIG: dict[str, Any] = {"architectures": ["LagunaForCausalLM"], "num_hidden_layers": 12}

SECONDS_BETWEEN_LEGS = 0.8
"""In which there is time for the looks at the cards."""

Change = Callable[[Path], object]


def protocol_of(suite: Path, teacher: Teacher) -> bytes:
    """The quick campaign's protocol with another suite and another teacher."""
    head, _, rest = QUICK.partition("[suite]")
    _, _, rest = rest.partition("[server]")
    pin = pin_suite(suite).model_dump()
    lines = [f"{name} = {json.dumps(value)}" for name, value in pin.items()]
    tables = ["[suite]", 'file = "suite.json"', "[suite.pin]", *lines]
    tables += ["[teacher]", 'file = "teacher.json"', f'sha256 = "{teacher.digest}"', "[server]"]
    return (head + "\n".join(tables) + rest).replace("rows_won = 10", "rows_won = 3").encode()


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An attempt with two legs."""
    directory = tmp_path_factory.mktemp("derivation")
    attempt = directory / "0001"
    endpoint = attempt / root.EVIDENCE / reader.DIRECTORY
    (endpoint / reader.LEGS).mkdir(parents=True)
    for sequence, leg in ((1, "A1"), (2, "B1")):
        case = Case(directory, "good")
        case.leg, case.sequence = leg, sequence  # type: ignore[assignment]
        case.directory = reader.leg_directory(endpoint, sequence, case.leg)
        case.looks_seconds = 1.0  # as long as the looks of ``surround`` take
        case.run()
        time.sleep(SECONDS_BETWEEN_LEGS)
    write_attempt(attempt, [])
    (endpoint / reader.SUITE).write_bytes(case.suite.read_bytes())
    suite = read_suite(case.suite, pin_suite(case.suite))
    rows = [
        TeacherRow(prompt_index=place, prompt_id=prompt.id, prompt_sha256=prompt.sha256, token_ids=[5, 6, 7, 8, 9])
        for place, prompt in enumerate(suite.prompts)
    ]
    teacher = Teacher(source_sha256="0" * 64, rows=rows)
    files.write_new(endpoint / reader.TEACHER, files.canonical_json(teacher.canonical()))
    content = protocol_of(case.suite, teacher)
    (endpoint / reader.PROTOCOL).write_bytes(content)
    commit(endpoint)
    files.write_new(endpoint / reading.TARGET_CONFIG, files.canonical_json(CONFIG))
    files.write_new(endpoint / "identity.json", files.canonical_json(diagnostic_root.identity()))
    plan = plan_endpoint(
        parse_campaign(CAMPAIGN, "c"),
        "cpu",
        parse_protocol(content, "p"),
        ranks=1,
        target_config=CONFIG,
        authorised_by=None,
    )
    files.write_new(endpoint / reading.PLAN, files.canonical_json(plan.canonical()))
    legs = reader.read_legs(endpoint).legs
    phase_1 = analyse_endpoint(plan, legs, teacher=teacher, campaign=parse_campaign(CAMPAIGN, "c").digest)
    files.write_new(endpoint / reader.PHASE_1, files.canonical_json(phase_1.canonical()))
    return attempt


def commit(endpoint: Path) -> None:
    """As if git held the protocol as it lies there."""
    content = (endpoint / reader.PROTOCOL).read_bytes()
    blob = files.sha256_bytes(b"blob %d\0" % len(content) + content)
    record = reader.ProtocolCommit(commit="0" * 40, blob=blob)
    (endpoint / reader.PROTOCOL_COMMIT).write_bytes(files.canonical_json(record.canonical()))


def write_attempt(attempt: Path, earlier: list[Earlier]) -> None:
    """What a session has written by then."""
    campaign = parse_campaign(CAMPAIGN, "c")
    start = AttemptStart(
        campaign_name=campaign.name,
        lane="cpu",
        gate=3,
        attempt=len(earlier) + 1,
        sealed_root="sealed",
        nonce="0" * 32,
        clauses=[],
        plugins=[],
        arguments=[],
        cards=["0"],
        identity=Identity(campaign=campaign.digest, candidate="0" * 64, harness="0" * 64),
        record="0" * 64,
        previous=None,
        earlier=earlier,
    )
    (attempt / root.ATTEMPT).write_bytes(files.canonical_json(start.canonical()))
    (attempt / root.CAMPAIGN).write_bytes(CAMPAIGN)
    write_lease(attempt / root.EVIDENCE, idle_record("before"))


def derive(ran: Path, place: Path, change: Change) -> Mapping[str, Finding | None]:
    shutil.copytree(ran, place / "0001")
    change(place / "0001" / root.EVIDENCE / reader.DIRECTORY)
    return derive_from_files(EXPERIMENT, read_attempted(place / "0001")).clauses


def test_the_unchanged_attempt_is_judged(ran: Path, tmp_path: Path) -> None:
    """The small server keeps few rules; here it matters that there is a judgement, and that rows and teacher agree."""
    clauses = derive(ran, tmp_path, lambda _: None)
    missing = "campaign: legs-complete: block 1 B2: seen no record; expected all of 4 legs"
    assert clauses["legs-in-order"] == (Verdict.NOT_PROVEN, missing)
    assert clauses["teacher-exact"] == (Verdict.NOT_PROVEN, f"seen some legs only: {missing}")


def surround(endpoint: Path) -> None:
    """Idle cards and a quiet host around both legs, in the order of what ran; times are those of the legs."""
    for leg in reader.read_legs(endpoint).legs:
        sequence, name = leg.request.sequence, leg.request.leg
        begun, ended = (datetime.datetime.fromisoformat(moment) for moment in (leg.started, leg.ended))
        looks = {"before": (begun, -0.7, -0.1), "after": (ended, -0.7, -0.1)}
        for phase in reader.PHASES:
            moment, *seconds = looks[phase]
            record = idle_record(phase, looks=[_utc(moment, second) for second in seconds])
            files.write_new(reader.idle_file(endpoint, sequence, phase), files.canonical_json(record.canonical()))
        host = _audit(_utc(begun, 0.001), _utc(ended, -0.8))
        path = reader.leg_directory(endpoint, sequence, name) / "host.json"
        files.write_new(path, files.canonical_json(host.canonical()))


def _utc(moment: datetime.datetime, seconds: float) -> str:
    return (moment + datetime.timedelta(seconds=seconds)).isoformat(timespec="microseconds")


def _audit(first: str, last: str) -> HostAudit:
    log = KernelLog(state="absent", reason="", last=None, complete=False, lines=[])
    before, after = (
        HostState(
            utc=utc,
            boot_id="b",
            temperatures_celsius={},
            throttle_counts={},
            kernel_log=log,
            memory_available_bytes=1,
            load=(0.0, 0.0, 0.0),
            cards=[],
        )
        for utc in (first, last)
    )
    return HostAudit(before=before, after=after, difference=difference(before, after))


def looks_of_another_time(endpoint: Path) -> None:
    """Two good looks, four months before the legs."""
    surround(endpoint)
    path = reader.idle_file(endpoint, 2, "before")
    path.write_bytes(files.canonical_json(idle_record("before").canonical()))


def looks_of_2020(endpoint: Path) -> None:
    """Before the first leg, and before its lease."""
    surround(endpoint)
    path = reader.idle_file(endpoint, 1, "before")
    looks = [f"2020-01-01T00:00:0{second}.000000+00:00" for second in (1, 2)]
    path.write_bytes(files.canonical_json(idle_record("before", looks=looks).canonical()))


def looks_of_another_leg(endpoint: Path) -> None:
    surround(endpoint)
    content = reader.idle_file(endpoint, 1, "before").read_bytes()
    reader.idle_file(endpoint, 2, "before").write_bytes(content)


def looks_of_another_lease(endpoint: Path) -> None:
    surround(endpoint)
    path = reader.idle_file(endpoint, 2, "after")
    path.write_bytes(path.read_bytes().replace(TOKEN.encode(), b"f" * 32))


def no_look(endpoint: Path) -> None:
    surround(endpoint)
    reader.idle_file(endpoint, 1, "after").unlink()


def no_host(endpoint: Path) -> None:
    surround(endpoint)
    (endpoint / reader.LEGS / "01-A1" / "host.json").unlink()


def test_the_surroundings_of_both_legs_speak_against_nothing(ran: Path, tmp_path: Path) -> None:
    assert derive(ran, tmp_path, surround)["cards-idle"] is None


@pytest.mark.parametrize(
    ("change", "verdict", "reason"),
    [
        (
            lambda _: None,
            Verdict.NOT_PROVEN,
            "cards-around-legs: before 01-A1: seen no snapshot of the cards; expected the cam",
        ),
        (looks_of_another_time, Verdict.VOID, "looks-around-legs: before 02-B1, snapshot 0: seen 2026-07-25T00:00:00"),
        (looks_of_2020, Verdict.VOID, "looks-around-legs: before 01-A1, snapshot 0: seen 2020-01-01T00:00:01"),
        (looks_of_another_leg, Verdict.VOID, "looks-around-legs: before 02-B1, snapshot 0: seen "),
        (looks_of_another_lease, Verdict.VOID, "cards-around-legs: after 02-B1: seen ['cpu-slot-0'] after a run;"),
        (no_look, Verdict.NOT_PROVEN, "cards-around-legs: after 01-A1: seen no snapshot of the cards"),
        (no_host, Verdict.NOT_PROVEN, "host-around-legs: 01-A1: seen no record of the host"),
    ],
)
def test_looks_that_were_not_taken_around_their_leg_prove_nothing(
    change: Change, verdict: Verdict, reason: str, ran: Path, tmp_path: Path
) -> None:
    found = derive(ran, tmp_path, change)["cards-idle"]
    assert found is not None
    assert found[0] is verdict
    assert found[1].startswith(reason)


def put(file: str, path: str, value: object) -> Change:
    def change(endpoint: Path) -> None:
        content: Any = json.loads((endpoint / file).read_bytes())
        target, (*parents, last) = content, [int(part) if part.isdigit() else part for part in path.split(".")]
        for part in parents:
            target = target[part]
        target[last] = value
        (endpoint / file).write_bytes(rfc8785.dumps(content))

    return change


def looser(endpoint: Path) -> None:
    path = endpoint / reader.PROTOCOL
    path.write_bytes(path.read_bytes().replace(b"rows_won = 3", b"rows_won = 1"))


def committed_looser(endpoint: Path) -> None:
    looser(endpoint)
    commit(endpoint)


def write(file: str, content: bytes) -> Change:
    return lambda endpoint: (endpoint / file).write_bytes(content)


def remove(file: str) -> Change:
    return lambda endpoint: (endpoint / file).unlink()


def rename(old: str, new: str) -> Change:
    return lambda endpoint: (endpoint / reader.LEGS / old).rename(endpoint / reader.LEGS / new)


def ended_elsewhere(endpoint: Path) -> None:
    """The first leg left no record, and lies where it does not belong."""
    leg = reader.leg_directory(endpoint, 1, "A1")
    (leg / "leg.json").unlink()
    (leg / "failure.json").write_bytes(b'{"reason":"r"}')
    leg.rename(endpoint / reader.LEGS / "03-B2")


def ended_otherwise(endpoint: Path) -> None:
    """The second leg left no record, and says that its server was stopped; the supervisor saw its deadline."""
    leg = reader.leg_directory(endpoint, 2, "B1")
    (leg / "leg.json").unlink()
    (leg / "failure.json").write_bytes(b'{"reason":"r"}')
    put("legs/02-B1/process.json", "reason", "deadline")(endpoint)


def first_ended(endpoint: Path, *, leftover: bool = False) -> None:
    """The first leg left no record."""
    leg = reader.leg_directory(endpoint, 1, "A1")
    (leg / "leg.json").unlink()
    (leg / "failure.json").write_bytes(b'{"reason":"r"}')
    (endpoint / reader.PHASE_1).unlink()
    if leftover:
        left = [{"pid": 7, "command": "worker", "start_ticks": 9}]
        put("legs/01-A1/process.json", "leftovers", left)(endpoint)
        put("legs/01-A1/end.json", "process.leftovers", left)(endpoint)


def test_a_leg_without_a_record_keeps_its_place(ran: Path, tmp_path: Path) -> None:
    clauses = derive(ran, tmp_path, first_ended)
    end = read_model(reader.leg_directory(ran / root.EVIDENCE / reader.DIRECTORY, 1, "A1") / "end.json", LegEnd)
    why = f"01-A1: r; its server: {end.process}"
    missing = f"campaign: legs-complete: block 1 A1: seen no record; expected all of 4 legs; {why}"
    assert clauses["legs-in-order"] == (Verdict.NOT_PROVEN, missing)


def test_what_a_server_without_a_record_left_running_is_a_broken_contract(ran: Path, tmp_path: Path) -> None:
    clauses = derive(ran, tmp_path, lambda endpoint: first_ended(endpoint, leftover=True))
    found = clauses["legs-fresh"]
    assert found is not None
    assert found[0] is Verdict.FAIL
    assert found[1].startswith("01-A1: legs-ended: nothing-left: left behind: pid 7")


def without_second_leg(endpoint: Path) -> None:
    shutil.rmtree(reader.leg_directory(endpoint, 2, "B1"))


UNUSABLE: dict[str, tuple[Change, str]] = {
    "another protocol": (looser, r"protocol\.toml: not the bytes that protocol-commit\.json names"),
    "another protocol, committed": (committed_looser, r"plan\.json: not what the campaign, the lease"),
    "no commit": (remove("protocol-commit.json"), r"protocol-commit\.json: cannot be read"),
    "no suite": (remove("suite.json"), r"suite\.json: cannot be read"),
    "another suite": (put("suite.json", "prompts.0.text", "other"), r"suite\.json: seen sha256"),
    "another teacher": (put("teacher.json", "rows.0.token_ids.0", 4), r"teacher\.json: seen digest"),
    "no teacher": (remove("teacher.json"), r"teacher\.json: cannot be read"),
    "an error in a stream": (
        write("legs/01-A1/row-00.sse", b'data: {"error":{"message":"no"}}\n\ndata: [DONE]\n\n'),
        r"01-A1: row 0 \(one\): seen an error event",
    ),
    "no end by the supervisor": (
        remove("legs/02-B1/process.json"), r"02-B1: process\.json: cannot be read",
    ),
    "another end by the supervisor": (
        put("legs/02-B1/process.json", "reason", "deadline"), r"02-B1: process\.json in 02-B1: another end of",
    ),
    "an ended leg whose supervisor tells another end": (
        ended_otherwise, r"process\.json in 02-B1: another end of the server than in the leg's record",
    ),
    "an answer too many": (write("legs/02-B1/row-03.sse", b"x"), r"02-B1: row-03\.sse: seen in the leg's directory"),
    "no end": (write("legs/02-B1/end.json", b"no"), r"02-B1: end\.json: not JSON"),
    "a leg under another name": (rename("02-B1", "02-B2"), r"legs/02-B2: its leg is number 2, B1; expected it in"),
    "an ended leg under another name": (ended_elsewhere, r"legs/03-B2: its leg is number 1, A1; expected it in 01-A1"),
    "no phase 1": (remove("phase1-analysis.json"), r"phase1-analysis\.json: cannot be read"),
    "another phase 1": (
        put("phase1-analysis.json", "reason", "better"), r"phase1-analysis\.json: does not follow from the first",
    ),
    "phase 1 without its legs": (without_second_leg, r"phase1-analysis\.json: there though 1 of its 2 legs"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNUSABLE)
def test_what_does_not_follow_from_the_raw_files_is_void(name: str, ran: Path, tmp_path: Path) -> None:
    change, reason = UNUSABLE[name]
    with pytest.raises(UnusableEvidenceError, match=reason):
        derive(ran, tmp_path, change)


def test_a_protocol_that_an_earlier_attempt_did_not_have_proves_nothing(ran: Path, tmp_path: Path) -> None:
    shutil.copytree(ran, tmp_path / "0001")
    shutil.copytree(ran, tmp_path / "0002")
    campaign = parse_campaign(CAMPAIGN, "c").digest
    shutil.rmtree(tmp_path / "0002" / root.EVIDENCE / "cards")
    earlier = Earlier(attempt=1, receipt=None, tree=None, campaign=campaign, verdict=Verdict.VOID)
    write_attempt(tmp_path / "0002", [earlier])
    derive_from_files(EXPERIMENT, read_attempted(tmp_path / "0002"))
    looser(tmp_path / "0001" / root.EVIDENCE / reader.DIRECTORY)
    with pytest.raises(NotProvenError, match="not the one of attempt 0001, which had started a server"):
        derive_from_files(EXPERIMENT, read_attempted(tmp_path / "0002"))
