# SPDX-License-Identifier: Apache-2.0
"""Each decision of the crossover: which legs run when one fails, when phase 1 stops, and what is refused before them.

Legs are those of ``tests.endpoint_legs``, written where a server would have left them; everything else is the real one.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_laguna.endpoint.leg import LegPlace
from pytest_laguna.endpoint.suite import SUITES
from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.arms.arm_record import Arm
from pytest_laguna.evidence.arms.engine_identity import ModelFiles
from pytest_laguna.evidence.endpoint import reader
from pytest_laguna.evidence.endpoint.analysis import EndpointAnalysis
from pytest_laguna.evidence.endpoint.leg import LegRequest
from pytest_laguna.evidence.endpoint.plan import EndpointPlan, Repetition, leg_name, planned_legs
from pytest_laguna.evidence.git import git
from pytest_laguna.evidence.machine.idle import IdleRecord
from pytest_laguna.evidence.schemas import AttemptStart, Earlier, Identity, Schema, read_model
from pytest_laguna.experiments.protocol import read_protocol
from pytest_laguna.identity import models
from pytest_laguna.run import endpoint as crossover
from pytest_laguna.run.endpoint import _Legs, _take_protocol
from pytest_laguna.run.engine_run import EngineRun, Models
from pytest_laguna.verdict import NotProvenError, UnusableEvidenceError, Verdict
from tests import endpoint_legs as lab
from tests.sealed import idle_record

CAMPAIGNS = Path(__file__).parents[2] / "campaigns"
QUICK = CAMPAIGNS / "laguna-persistent-kv-views-quick-endpoint-cpu.toml"
PROTOCOL = read_protocol(QUICK)
TWO_BLOCKS = Repetition(blocks=2, margin_percent=0.5, confidence=0.95, sign_flip_level=0.25, effect_percent=1.0)
ORDER = [leg_name(place, leg) for place, (_, leg) in enumerate(planned_legs(lab.CAMPAIGN, 2), start=1)]

Fails = Mapping[str, Exception]


class Held:
    """One card, which is idle, or where nobody can see whether it is."""

    cards = ("card",)
    idle = SimpleNamespace()

    def __init__(self) -> None:
        self.unseen = False

    def take_idle(self, phase: Any, _: object) -> IdleRecord:
        if self.unseen:
            raise NotProvenError("no telemetry")
        return idle_record(phase)


@dataclasses.dataclass
class Run:
    """What the session holds, as far as the legs ask for it."""

    directory: Path
    lane: str = "cpu"
    campaign: Any = dataclasses.field(default_factory=lambda: SimpleNamespace(digest=lab.CAMPAIGN, diagnostic=None))
    held: Held = dataclasses.field(default_factory=Held)
    start: Any = dataclasses.field(
        default_factory=lambda: SimpleNamespace(bounds=SimpleNamespace(deadline_seconds=60.0), start=None)
    )
    busy: set[str] = dataclasses.field(default_factory=set)

    def look_at_cards(self, phase: Any, cards: object, path: Path) -> IdleRecord:
        if path.name in self.busy:
            raise NotProvenError(f"{path.name}: a process holds the card")
        record = self.held.take_idle(phase, cards)
        self.write(path, record)
        return record

    def write(self, path: Path, record: Schema) -> None:
        files.write_new(self.directory / path, files.canonical_json(record.canonical()))


class Case:
    """A campaign whose legs come to what the test says."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, plan: EndpointPlan, starts: Any) -> None:
        self.run = Run(directory)
        self.requests: list[LegRequest] = []
        self.looked_at: list[str] = []
        self.fails: Fails = {}
        self._legs = {leg["request"]["sequence"]: leg for leg in lab.blocks(starts, null=plan.null)}
        (directory / reader.LEGS).mkdir()
        files.write_new(directory / reader.TEACHER, files.canonical_json(lab.TEACHER.canonical()))
        monkeypatch.setattr(crossover, "run_leg", self._run_leg)
        monkeypatch.setattr(models, "check_models", self._look_at_models)
        monkeypatch.setattr(crossover, "ArmModels", lambda **looks: looks)
        pair = Models(Path("/models/target"), Path("/models/draft"), "-")
        self.legs = _Legs(
            cast("EngineRun", self.run), Path("/venv/bin/python"), plan, PROTOCOL, pair, cast("ModelFiles", None)
        )

    def _look_at_models(self, _: object) -> object:
        self.looked_at.append("models")
        return {}

    def _run_leg(self, request: LegRequest, directory: Path, place: LegPlace) -> None:
        """As the real one: the request first, and the record last."""
        name = directory.name
        directory.mkdir()
        files.write_new(directory / "request.json", files.canonical_json(request.canonical()))
        self.requests.append(request)
        self.looked_at.append(name)
        if name in self.fails:
            raise self.fails[name]
        assert place.idle_after() in {True, None}
        files.write_new(directory / "leg.json", files.canonical_json(self._legs[request.sequence]))

    def carry_out(self, fails: Fails | None = None) -> list[str]:
        """Which legs' servers were started."""
        self.fails = fails or {}
        self.legs.carry_out()
        return [leg_name(request.sequence, request.leg) for request in self.requests]

    @property
    def ended(self) -> Mapping[str, reader.EndedLeg]:
        return reader.read_legs(self.run.directory).ended

    @property
    def phase_1(self) -> EndpointAnalysis | None:
        path = self.run.directory / reader.PHASE_1
        return read_model(path, EndpointAnalysis) if path.exists() else None


Make = Callable[..., Case]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def make_case(starts: Any = None, **changed: Any) -> Case:
        monkeypatch.setattr(crossover, "judge_idle", lambda *_: (Verdict.PASS, ""))
        return Case(tmp_path, monkeypatch, lab.plan(**changed), starts or [lab.metadata_starts()])

    return make_case


def test_all_four_legs_run_in_their_order_each_with_its_own_arm(make: Make) -> None:
    case = make()
    assert case.carry_out() == ["01-A1", "02-B1", "03-B2", "04-A2"]
    control, candidate = Arm.GRAPH_CONTROL, Arm.GRAPH_CANDIDATE
    assert [request.arm for request in case.requests] == [control, candidate, candidate, control]
    assert [(request.block, request.suite) for request in case.requests] == [(1, lab.SUITE)] * 4
    assert {request.model for request in case.requests} == {PROTOCOL.model}
    assert case.ended == {}
    assert case.legs.analyse().phase_1 is not None


def test_in_a_null_campaign_every_leg_is_a_control(make: Make) -> None:
    case = make([lab.null_starts()], null=True)
    assert len(case.carry_out()) == 4
    assert {request.arm for request in case.requests} == {Arm.GRAPH_CONTROL}


def test_the_server_gets_what_the_protocol_says(make: Make) -> None:
    case = make()
    case.carry_out()
    [arguments, *_] = [request.engine_arguments for request in case.requests]
    assert arguments["max_model_len"] == PROTOCOL.server.max_model_tokens
    assert "distributed_executor_backend" not in arguments
    place = case.legs._place(1)
    bounds = (place.bounds.ready_seconds, place.bounds.row_seconds, place.bounds.deadline_seconds)
    assert bounds == (PROTOCOL.server.ready_seconds, PROTOCOL.server.row_seconds, 60.0)


def test_the_protocol_names_the_way_of_running_several_ranks(make: Make) -> None:
    case = make()
    server = PROTOCOL.server.model_copy(update={"executor_backend": "ray"})
    legs = dataclasses.replace(case.legs, protocol=PROTOCOL.model_copy(update={"server": server}))
    assert legs._request(1, 1, "A1").engine_arguments["distributed_executor_backend"] == "ray"


@pytest.mark.parametrize("error", [UnusableEvidenceError("no"), OSError("no"), NotProvenError("no")])
@pytest.mark.parametrize(
    ("failing", "started"),
    [
        ("01-A1", ["01-A1"]),
        ("02-B1", ["01-A1", "02-B1"]),
        ("03-B2", ["01-A1", "02-B1", "03-B2", "04-A2"]),  # whatever B2 gave, its control is owed
        ("04-A2", ["01-A1", "02-B1", "03-B2", "04-A2"]),
    ],
)
def test_the_first_leg_that_fails_ends_the_campaign(
    failing: str, started: list[str], error: Exception, make: Make
) -> None:
    case = make()
    assert case.carry_out({failing: error}) == started
    assert {name: leg.reason for name, leg in case.ended.items()} == {failing: "no"}
    assert (case.phase_1 is not None) == (failing in {"03-B2", "04-A2"})


def test_a_leg_that_ended_keeps_its_place_when_the_legs_are_judged(make: Make) -> None:
    case = make()
    case.carry_out({"03-B2": UnusableEvidenceError("no")})
    found = {finding.rule: finding for finding in case.legs.analyse().findings}
    assert found["legs-as-planned"].verdict is Verdict.PASS
    assert re.fullmatch("block 1 B2.*; expected all of 4 legs", found["legs-complete"].reason)


def test_a_defect_of_our_own_is_no_ended_leg(make: Make) -> None:
    case = make()
    with pytest.raises(ZeroDivisionError):
        case.carry_out({"02-B1": ZeroDivisionError()})


@pytest.mark.parametrize("failing", [name for name in ORDER if name.endswith(("A1", "B1", "B2"))])
def test_in_each_block_its_own_b2_owes_its_own_a2(failing: str, make: Make) -> None:
    case = make([lab.metadata_starts()] * 2, repetition=TWO_BLOCKS, decides="exactness")
    place = ORDER.index(failing)
    block = ORDER[place // 4 * 4 : place // 4 * 4 + 4]
    [control] = [name for name in block if name.endswith("A2")]
    owed = [control] if failing.endswith("B2") and ORDER.index(control) > place else []
    assert case.carry_out({failing: UnusableEvidenceError("no")}) == [*ORDER[: place + 1], *owed]


@pytest.mark.parametrize("sequence", [1, 2, 3, 4])
def test_no_leg_starts_on_cards_that_are_not_idle(sequence: int, make: Make) -> None:
    """A B2 that was refused has not run, and owes nothing."""
    case = make()
    case.run.busy = {f"idle-{sequence:02d}-before.json"}
    names = ["01-A1", "02-B1", "03-B2", "04-A2"]
    assert case.carry_out() == names[: sequence - 1]
    [(name, ended)] = case.ended.items()
    assert (name, ended.end) == (names[sequence - 1], None)
    assert ended.reason.endswith("a process holds the card")


def test_cards_are_looked_at_before_and_after_and_models_around_every_leg(make: Make) -> None:
    case = make()
    names = case.carry_out()
    looks = {f"idle-{place:02d}-{phase}.json" for place in range(1, 5) for phase in ("before", "after")}
    assert {path.name for path in case.run.directory.glob("idle-*")} == looks
    assert case.looked_at == [look for name in names for look in ("models", name, "models")]
    assert list(case.legs.models_around) == names


def test_cards_that_cannot_be_seen_afterwards_are_not_called_idle(make: Make) -> None:
    case = make()
    assert case.legs._idle_after(1) is True
    case.run.held.unseen = True
    assert case.legs._idle_after(2) is None
    assert not reader.idle_file(case.run.directory, 2, "after").exists()


def test_cards_that_are_busy_afterwards_are_told(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make()
    monkeypatch.setattr(crossover, "judge_idle", lambda *_: (Verdict.FAIL, "busy"))
    assert case.legs._idle_after(1) is False


def slower() -> Any:
    """Candidates that lose."""
    return [lab.scaled(lab.metadata_starts(), B1=0.9, B2=0.9)]


def test_where_timing_decides_a_failed_phase_1_ends_the_campaign(make: Make) -> None:
    case = make(slower())
    assert case.carry_out() == ["01-A1", "02-B1"]
    assert case.phase_1 is not None
    assert case.phase_1.phase_1 is not None
    assert case.phase_1.phase_1.stops


def test_where_exactness_decides_a_failed_phase_1_is_reported(make: Make) -> None:
    case = make(slower(), decides="exactness")
    assert len(case.carry_out()) == 4
    assert case.phase_1 is not None
    assert case.phase_1.phase_1 is not None
    assert (case.phase_1.phase_1.passed, case.phase_1.phase_1.stops) == (False, False)


def test_phase_1_is_judged_by_the_first_two_legs_alone(make: Make) -> None:
    case = make()
    case.carry_out()
    assert case.phase_1 is not None
    assert [leg.leg for leg in case.phase_1.legs] == ["A1", "B1"]


# What is refused before the first leg


def start_of(attempt: int = 1, earlier: list[Earlier] | None = None) -> AttemptStart:
    return AttemptStart(
        campaign_name=PROTOCOL.campaign,
        lane="cpu",
        gate=3,
        attempt=attempt,
        sealed_root="sealed",
        nonce="0" * 32,
        clauses=[],
        plugins=[],
        arguments=[],
        cards=["0"],
        identity=Identity(campaign="c" * 64, candidate="0" * 64, harness="0" * 64),
        record="0" * 64,
        previous=None,
        earlier=earlier or [],
    )


class Project:
    """A repository with a campaign and its protocol, and an attempt."""

    def __init__(self, directory: Path) -> None:
        self.repository = directory / "project"
        self.protocol = self.repository / "campaigns" / "p.toml"
        self.protocol.parent.mkdir(parents=True)
        self.gate = directory / "gate3"
        self.git("init", "--quiet")
        self.commit(QUICK.read_bytes())
        self.attempt(1)

    def git(self, *arguments: str) -> None:
        who = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
        answer = git(self.repository, *who, *arguments)
        assert answer is not None
        assert answer.returncode == 0, answer.stderr

    def named(self, revision: str) -> str:
        answer = git(self.repository, "rev-parse", revision)
        assert answer is not None
        return answer.stdout.strip()

    def commit(self, content: bytes) -> None:
        self.protocol.write_bytes(content)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "m")

    def attempt(self, number: int, earlier: list[Earlier] | None = None) -> None:
        self.directory = root.attempt_directory(self.gate, number)
        self.endpoint = self.directory / root.EVIDENCE / reader.DIRECTORY
        (self.endpoint / reader.LEGS).mkdir(parents=True)
        start = start_of(number, earlier)
        files.write_new(self.directory / root.ATTEMPT, files.canonical_json(start.canonical()))

    def another_attempt(self, *, started: bool, campaign: str | None = "c" * 64) -> None:
        """After one that took the protocol, and that started a server or did not."""
        self.take()
        leg = reader.leg_directory(self.endpoint, 1, "A1")
        leg.mkdir()
        (leg / ("request.json" if started else "failure.json")).touch()
        self.attempt(2, [Earlier(attempt=1, receipt=None, tree=None, campaign=campaign, verdict=Verdict.VOID)])

    def take(self) -> None:
        engine = SimpleNamespace(
            engine=SimpleNamespace(protocol="p.toml"),
            lane="cpu",
            directory=self.endpoint,
            attempt=SimpleNamespace(directory=self.directory),
            write=Run(self.endpoint).write,
        )
        start = read_model(self.directory / root.ATTEMPT, AttemptStart)
        _take_protocol(cast("EngineRun", engine), self.protocol.parent / "campaign.toml", start)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


LOOSER = QUICK.read_bytes().replace(b"rows_won = 10", b"rows_won = 1")


def test_a_committed_protocol_is_kept_with_its_suite_its_teacher_and_its_commit(project: Project) -> None:
    project.take()
    assert (project.endpoint / reader.PROTOCOL).read_bytes() == QUICK.read_bytes()
    for kept, shipped in ((reader.SUITE, PROTOCOL.suite.file), (reader.TEACHER, "tiny-laguna.teacher.json")):
        assert (project.endpoint / kept).read_bytes() == (SUITES / shipped).read_bytes()
    commit = read_model(project.endpoint / reader.PROTOCOL_COMMIT, reader.ProtocolCommit)
    assert commit.holds(QUICK.read_bytes())
    assert not commit.holds(LOOSER)
    project.git("cat-file", "-e", f"{commit.commit}^{{commit}}")


def test_a_campaign_without_a_protocol_is_told_what_is_missing(project: Project) -> None:
    project.protocol.unlink()
    with pytest.raises(NotProvenError, match=r"p\.toml: no such file; write it after gate 2 has passed"):
        project.take()


def nothing(_: Project) -> None:
    """The protocol is changed, and nobody hides it."""


def assumed_unchanged(project: Project) -> None:
    project.git("update-index", "--assume-unchanged", "campaigns/p.toml")


def skipped(project: Project) -> None:
    project.git("update-index", "--skip-worktree", "campaigns/p.toml")


def cleaned(project: Project) -> None:
    """A filter makes of the changed protocol the committed one before git compares."""
    (project.repository / ".git" / "info" / "attributes").write_text("*.toml filter=f\n")
    project.git("config", "filter.f.clean", "sed s/rows_won.=.1$/rows_won=10/")


def added(project: Project) -> None:
    project.protocol.write_bytes(LOOSER)
    project.git("add", "campaigns/p.toml")


def replaced(project: Project) -> None:
    """Git shows another commit under the name of the checked out one."""
    committed = project.named("HEAD")
    project.protocol.write_bytes(LOOSER)
    project.git("commit", "--quiet", "--all", "--amend", "--message", "m")
    looser = project.named("HEAD")
    project.git("reset", "--quiet", "--hard", committed)
    project.git("replace", committed, looser)


@pytest.mark.parametrize("hide", [nothing, assumed_unchanged, skipped, cleaned, added, replaced])
def test_a_protocol_that_git_does_not_hold_byte_by_byte_is_refused(
    hide: Callable[[Project], None], project: Project
) -> None:
    hide(project)
    project.protocol.write_bytes(LOOSER)
    with pytest.raises(NotProvenError, match=r"p\.toml: not committed as it lies there"):
        project.take()


def test_a_protocol_outside_of_any_commit_is_refused(project: Project) -> None:
    project.git("rm", "--quiet", "--cached", "campaigns/p.toml")
    project.git("commit", "--quiet", "--message", "m")
    with pytest.raises(NotProvenError, match="not committed as it lies there"):
        project.take()


def test_looser_thresholds_after_a_started_attempt_are_refused(project: Project) -> None:
    project.another_attempt(started=True)
    project.commit(LOOSER)
    with pytest.raises(NotProvenError, match="not the one of attempt 0001, which had started a server"):
        project.take()


@pytest.mark.parametrize("campaign", [None, "d" * 64])
def test_only_an_attempt_of_another_campaign_may_have_had_another_protocol(
    campaign: str | None, project: Project
) -> None:
    project.another_attempt(started=True, campaign=campaign)
    project.commit(LOOSER)
    if campaign is None:  # nobody can say whose it was
        with pytest.raises(NotProvenError, match="not the one of attempt 0001"):
            project.take()
    else:
        project.take()


def test_the_same_protocol_may_be_attempted_again(project: Project) -> None:
    project.another_attempt(started=True)
    project.take()


def test_a_protocol_may_be_mended_until_a_server_was_started(project: Project) -> None:
    project.another_attempt(started=False)
    project.commit(LOOSER)
    project.take()


def test_another_suite_under_the_shipped_name_is_refused(project: Project) -> None:
    suite = json.loads((SUITES / PROTOCOL.suite.file).read_bytes())
    suite["prompts"][0]["text"] += "!"
    (project.protocol.parent / PROTOCOL.suite.file).write_text(json.dumps(suite))
    with pytest.raises(UnusableEvidenceError, match=r"suite\.json: seen sha256"):
        project.take()


@pytest.mark.parametrize("content", [b"{}", b"[]", b"", b"\xff"])
def test_what_is_no_teacher_is_refused_before_the_first_leg(content: bytes, project: Project) -> None:
    (project.protocol.parent / "tiny-laguna.teacher.json").write_bytes(content)
    with pytest.raises(UnusableEvidenceError, match=r"teacher\.json: "):
        project.take()
