# SPDX-License-Identifier: Apache-2.0
"""The campaign: what is measured and what decides, written down before anything runs."""

from __future__ import annotations

import datetime
import tomllib
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Literal

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arm_record import DRAFT_TOKENS, MOST_PROFILE_SAMPLES, Arm
from pytest_laguna.evidence.arm_settings import FLAG, PAIR_VERSIONS
from pytest_laguna.evidence.diagnostic import CLAUSES as DIAGNOSTIC_CLAUSES
from pytest_laguna.evidence.diagnostic import Decides
from pytest_laguna.evidence.endpoint_campaign import CLAUSES as ENDPOINT_CLAUSES
from pytest_laguna.evidence.event_analysis import CLAUSES as EVENT_CLAUSES
from pytest_laguna.evidence.event_analysis import Fitness
from pytest_laguna.evidence.host import HostLimits
from pytest_laguna.evidence.idle import IdleRequirement
from pytest_laguna.evidence.leased_cards import LeaseTerms
from pytest_laguna.evidence.placement import StorageRule
from pytest_laguna.evidence.rehearsal import CLAUSES as REHEARSAL_CLAUSES
from pytest_laguna.evidence.schemas import first_defect
from pytest_laguna.verdict import JSON, UnusableEvidenceError

SIZE_LIMIT = 1024 * 1024

Lane = Literal["cpu", "cuda", "xpu"]
Name = Annotated[str, pydantic.Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
Sha256 = Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{64}$")]
# Parts of the path begin with neither a dot nor a slash: a gate's tests lie in its project.
NodeId = Annotated[
    str,
    pydantic.Field(
        pattern=r"^([A-Za-z0-9_-][\x21-\x2e\x30-\x39\x3b-\x7e]*/)*[A-Za-z0-9_-][\x21-\x2e\x30-\x39\x3b-\x7e]*\.py"
        r"(::[\x21-\x7e]+)+$"
    ),
]
ImportName = Annotated[str, pydantic.Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$")]
Seconds = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]
ProtocolFile = Annotated[str, pydantic.Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]*\.toml$")]
GateNumber = Annotated[int, pydantic.Field(ge=1, le=3)]
CompletionTokens = Annotated[int, pydantic.Field(ge=16, lt=MOST_PROFILE_SAMPLES)]
"""Greedy tokens of one generation; the model of an arm holds no more, and the prompt takes at least one."""
Folder = Annotated[str, pydantic.Field(pattern=r"^[/A-Za-z0-9_]")]
Queries = Annotated[int, pydantic.Field(ge=1, le=DRAFT_TOKENS + 1)]
"""Of one verification: the drafts and one more."""


_NO_TOML = (tomllib.TOMLDecodeError, UnicodeDecodeError)


class CampaignError(Exception):
    """The campaign file is not one that a gate may run: one line that says what is wrong and where."""


class _Model(pydantic.BaseModel):
    model_config: ClassVar[pydantic.ConfigDict] = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)


class Preregistration(_Model):
    """The text that the campaign carries out.

    Attributes:
        title: its title.
        date: its date.
        sha256: digest of the text as published.
    """

    title: str
    date: datetime.date
    sha256: Sha256


class Amendment(_Model):
    """A dated change of the campaign, made before the attempt that it allows; it changes the campaign digest."""

    date: datetime.date
    reason: str


class Candidate(_Model):
    """The optimisation under test.

    Attributes:
        package: the import name of its package; its sources are part of the identity.
        flag: the environment variable that is the sole treatment.
        control: the flag's value in control arms.
        treatment: the flag's value in candidate arms.
        validator: which implementation of the contract runs.
    """

    package: ImportName
    flag: str
    control: str
    treatment: str
    validator: Literal["native", "python"]

    @pydantic.model_validator(mode="after")
    def _treats(self) -> Candidate:
        if self.control == self.treatment:
            message = f"control and treatment are both {self.control!r}; expected a flag that tells the arms apart"
            raise ValueError(message)
        return self


class Bounds(_Model):
    """Within which bounds a child process runs.

    Attributes:
        deadline_seconds: from its start until it is ended.
        settle_seconds: how long what it leaves behind may take to end by itself.
        interrupt_seconds: how long an interrupt may take to end it before it is terminated.
        terminate_seconds: how long that may take before it is killed.
        kill_seconds: how long that may take before something counts as a survivor.
        memory_limit_bytes: of the child and everything below it.
    """

    deadline_seconds: Seconds
    settle_seconds: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
    interrupt_seconds: Seconds
    terminate_seconds: Seconds
    kill_seconds: Seconds
    memory_limit_bytes: Annotated[int, pydantic.Field(ge=1)]


class Idle(_Model, IdleRequirement):
    """When cards count as idle, before and after their lease.

    Attributes:
        settle_seconds: how long memory may take to come back after an arm.
    """

    settle_seconds: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]


class GeneratedPair(_Model):
    """A target and its draft that the project makes itself.

    Attributes:
        generated: which.
        layers: of the target.
        width: times the hidden size; the function stays the same.
        prompt: which of the pair's prompts is continued.
    """

    generated: Literal["tiny-laguna"]
    layers: Annotated[int, pydantic.Field(ge=8, multiple_of=4)]
    width: Literal[1, 4, 16, 64] = 1
    prompt: Name


class ModelFolders(_Model):
    """A target and its draft that are there; their files are hashed in every attempt.

    Attributes:
        target: folder, an absolute path or one that starts from the project.
        draft: folder, likewise.
        prompt: the text that is continued.
    """

    target: Folder
    draft: Folder
    prompt: Annotated[str, pydantic.Field(min_length=1)]


class Engine(_Model):
    """What a lane's engine runs and what decides there.

    Attributes:
        interpreter: the Python that has the lane's vLLM, relative to the project; None is the one that runs pytest.
        model: the pair.
        decides: whether timing decides, or exactness alone while timing is reported.
        identical: the pairs of arms whose tokens must be equal bit for bit; all others are reported. Between q1 and a
            speculating arm upstream vLLM does not promise it. None of an event profile, whose arms must all equal q1.
        protocol: gate 3's endpoint protocol, relative to the campaign's file; None where gate 3 has none yet.
    """

    interpreter: str | None = None
    model: GeneratedPair | ModelFolders
    decides: Decides = "exactness"
    identical: list[tuple[Arm, Arm]] = []
    protocol: ProtocolFile | None = None

    @pydantic.field_validator("interpreter")
    @classmethod
    def _names_a_program(cls, interpreter: str | None) -> str | None:
        if interpreter is not None and PurePosixPath(interpreter).name in {"", ".."}:
            message = (
                f"{interpreter!r} names no program; expected a path, or no interpreter for the one that runs pytest"
            )
            raise ValueError(message)
        return interpreter

    @pydantic.field_validator("identical")
    @classmethod
    def _two_arms(cls, pairs: list[tuple[Arm, Arm]]) -> list[tuple[Arm, Arm]]:
        for first, second in pairs:
            if first is second:
                message = f"the pair of {first} with itself; expected two arms, since one is identical in any case"
                raise ValueError(message)
        return pairs

    @pydantic.field_validator("identical", mode="before")
    @classmethod
    def _from_toml(cls, value: Any) -> Any:
        """TOML has neither tuples nor enumerations."""
        names = {arm.value: arm for arm in Arm}
        if isinstance(value, list) and all(isinstance(pair, list) for pair in value):
            return [tuple(names.get(name, name) for name in pair) for pair in value]
        return value


class Storage(_Model, StorageRule):
    """What models, evidence and temporary files may lie on; as ``evidence.placement.StorageRule``."""


class LaneSettings(_Model):
    """What a lane runs.

    Attributes:
        vllm: the version whose classes gate 1 tests and whose engine gates 2 and 3 run.
        bounds: of each arm in gates 2 and 3.
        idle: of the lane's cards.
        host: the limits of the host around each arm.
        card: what every leased card is called, as its vendor's tool names it; None for any.
        storage: what models, evidence and temporary files may lie on; None for anything.
        engine: what gates 2 and 3 run; a campaign whose gates run no vLLM has none.
    """

    vllm: str
    bounds: Bounds
    idle: Idle
    host: HostLimits
    card: Annotated[str, pydantic.Field(min_length=1)] | None = None
    storage: Storage | None = None
    engine: Engine | None = None

    @pydantic.model_validator(mode="after")
    def _known_version(self) -> LaneSettings:
        generated = self.engine is not None and isinstance(self.engine.model, GeneratedPair)
        if generated and self.vllm not in PAIR_VERSIONS:
            message = (
                f"vllm is {self.vllm!r}; expected one of {', '.join(PAIR_VERSIONS)}, which a generated pair is for"
            )
            raise ValueError(message)
        return self

    @property
    def terms(self) -> LeaseTerms:
        """What is asked of cards and disks."""
        storage = None if self.storage is None else StorageRule.model_validate(self.storage.model_dump())
        return LeaseTerms(card=self.card, storage=storage)


class Diagnostic(_Model):
    """The exact diagnostic of gate 2.

    Attributes:
        completion_tokens: greedy tokens of each arm's one generation.
        samples: replays that each rank of both graph arms profiles; a replay yields at least one token.
        collective_breaks: whether each all-reduce is a break of its own.
        acceptance_rate_difference: the most by which accepted / proposed may differ between speculating arms.
        accepted_per_cycle: the least accepted tokens a draft cycle in every speculating arm.
        queries: how many queries each case of a parity packet verifies.
        null: whether the candidate's slot holds a control too; gate 3 must then be a null one as well.
    """

    completion_tokens: CompletionTokens
    samples: Annotated[int, pydantic.Field(ge=2)]
    collective_breaks: bool
    acceptance_rate_difference: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
    accepted_per_cycle: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
    queries: Annotated[list[Queries], pydantic.Field(min_length=1)]
    null: bool = False

    @pydantic.field_validator("queries")
    @classmethod
    def _each_once(cls, queries: list[int]) -> list[int]:
        if len(set(queries)) != len(queries):
            message = f"{queries} names one twice; expected each number of queries once"
            raise ValueError(message)
        return queries

    @pydantic.model_validator(mode="after")
    def _yields_its_samples(self) -> Diagnostic:
        if self.samples > self.completion_tokens:
            message = f"samples is {self.samples}; expected at most the {self.completion_tokens} completion_tokens"
            raise ValueError(message)
        return self


class EventFitness(_Model, Fitness):
    """How the instrument itself is tried; as ``evidence.event_analysis.Fitness``."""


class EventProfile(_Model):
    """The event profile of gate 2.

    Attributes:
        completion_tokens: greedy tokens of each arm's one generation.
        collective_breaks: whether each all-reduce is a break of its own.
        material_percent: the least share with which the largest category dominates. Of two categories the larger has
            half in any case: from there on nothing may be material too.
        fitness: None where the campaign does not try its instrument, as the published one did not.
        sparse_replays: of which a few intervals each are measured in an arm of its own; 0 for none.
    """

    completion_tokens: CompletionTokens
    collective_breaks: bool
    material_percent: Annotated[float, pydantic.Field(gt=50, lt=100, allow_inf_nan=False)]
    fitness: EventFitness | None = None
    sparse_replays: Annotated[int, pydantic.Field(ge=0, le=128)] = 0


class GateRehearsal(_Model):
    """How gates 2 and 3 of a device lane are rehearsed on the cpu lane, inside gate 1.

    What stands here in place of the lane's own value is what the rehearsal shortens.

    Attributes:
        opening: the test file whose clauses the rehearsal's own gate 1 keeps; the others are what it is a part of.
        cards: process slots, one a rank.
        layers: of the generated target.
        protocol: gate 3's endpoint protocol, relative to the campaign's file; None where no gate 3 is declared.
        seconds: how long all sessions together may take.
        starts: processes of the control alone from which the timing rules' noise is measured, an even number; 0 for
            none, where no timing rule compares a candidate with a control.
        effect_percent: the preregistered effect on the whole replay; None where none is expected.
    """

    opening: Annotated[str, pydantic.Field(min_length=1)]
    cards: Annotated[int, pydantic.Field(ge=1, le=4)]
    layers: Annotated[int, pydantic.Field(ge=8, multiple_of=4)]
    protocol: ProtocolFile | None = None
    seconds: Seconds
    starts: Annotated[int, pydantic.Field(ge=0, multiple_of=2)] = 0
    effect_percent: Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)] | None = None


class Rehearsal(_Model):
    """The engine run of gate 1, always on a CPU.

    Attributes:
        vllm: the vLLM version that runs it.
        pair: the generated target and draft.
        prompt: which of the pair's prompts is continued.
        completion_tokens: greedy tokens of each arm's one generation.
        graphs: graph segments of the target's capture, per rank.
        breaks: eager boundaries of the target's capture, per rank.
        target_layers: attention layers of the target, each with one view state.
        bounds: of each arm.
        gates: how the gates of a device lane are rehearsed; None where the campaign has no such lane.
    """

    vllm: str
    pair: Literal["tiny-laguna"]
    prompt: Name
    completion_tokens: CompletionTokens
    graphs: Annotated[int, pydantic.Field(ge=1)]
    breaks: Annotated[int, pydantic.Field(ge=1)]
    target_layers: Annotated[int, pydantic.Field(ge=1)]
    bounds: Bounds
    gates: GateRehearsal | None = None


class Campaign(_Model):
    """A campaign file's content; ``digest`` is what every receipt is bound to.

    Attributes:
        name: part of the evidence path.
        lane: the lane of ``--device`` when it is not given.
        gates: the gates that the campaign declares, in order.
        clauses: for each gate number (as text, the way TOML spells keys) the clause ids with their node ids, in order.
        rehearsal: the engine run of gate 1; None where gate 1 runs none.
        diagnostic: the exact diagnostic of gate 2; None where gate 2 is something else.
        event_profile: the event profile of gate 2; None likewise.
        amendments: dated changes since the preregistration.
    """

    campaign_schema: Annotated[Literal["pytest-laguna-campaign-v1"], pydantic.Field(alias="schema")]
    name: Name
    lane: Lane
    gates: Annotated[list[GateNumber], pydantic.Field(min_length=1)]
    preregistration: Preregistration
    candidate: Candidate
    lanes: dict[Lane, LaneSettings]
    rehearsal: Rehearsal | None = None
    diagnostic: Diagnostic | None = None
    event_profile: EventProfile | None = None
    clauses: dict[Literal["1", "2", "3"], dict[Name, NodeId]]
    amendments: list[Amendment] = []

    @pydantic.model_validator(mode="after")
    def _hangs_together(self) -> Campaign:
        if self.lane not in self.lanes:
            message = f"lane is {self.lane!r}; expected one of the tables under lanes: {', '.join(self.lanes)}"
            raise ValueError(message)
        if self.gates != list(range(1, len(self.gates) + 1)):
            message = f"gates is {self.gates}; expected 1, 2, ... without a gap"
            raise ValueError(message)
        if self.diagnostic is not None and self.event_profile is not None:
            raise ValueError("tables diagnostic and event_profile; expected one of them: gate 2 is one thing")
        for gate, clauses in self.clauses.items():
            if int(gate) not in self.gates:
                message = f"clauses.{gate} belongs to a gate that gates does not declare"
                raise ValueError(message)
            if len(set(clauses.values())) != len(clauses):
                message = f"clauses.{gate} names a test twice; expected one test a clause"
                raise ValueError(message)
        if self._on_devices and (self.rehearsal is None or self.rehearsal.gates is None):
            raise ValueError("no table rehearsal.gates; expected one: what runs on devices is rehearsed in gate 1")
        for number in self.gates:
            missing = [clause for clause in self._judged_clauses(number) if clause not in self.gate_clauses(number)]
            if missing:
                message = f"clauses.{number} lacks {', '.join(missing)}; expected each clause that its analysis judges"
                raise ValueError(message)
        return self

    @pydantic.model_validator(mode="after")
    def _treats_by_its_flag(self) -> Campaign:
        """Gate 2's arms set the flag of this project's candidate, which reads no other."""
        candidate = self.candidate
        if self.diagnostic is not None and candidate.package == "laguna_kv":
            seen, expected = (candidate.flag, candidate.control, candidate.treatment), (FLAG, "0", "1")
            if seen != expected:
                message = f"candidate: flag, control and treatment {seen}; expected those of laguna_kv, {expected}"
                raise ValueError(message)
        return self

    @pydantic.model_validator(mode="after")
    def _says_what_decides(self) -> Campaign:
        for lane, settings in self.lanes.items():
            if settings.engine is not None:
                self._require_decision(lane, f"lanes.{lane}.engine", settings.engine)
        return self

    def _require_decision(self, lane: str, where: str, engine: Engine) -> None:
        """The candidate's tokens must be the control's, whatever else is required; an event profile has none."""
        told = sorted({"decides", "identical"} & engine.model_fields_set)
        if self.event_profile is not None:
            if told:
                message = f"{where}.{told[0]}: expected none: every arm of an event profile must equal q1"
                raise ValueError(message)
            return
        if "decides" not in told:
            message = f"{where}: nothing decides; expected decides, 'exactness' or 'exactness+timing'"
            raise ValueError(message)
        if lane == "cpu" and engine.decides != "exactness":
            message = f"{where}.decides: {engine.decides}; expected 'exactness': time on a CPU says nothing of a card"
            raise ValueError(message)
        required = {Arm.GRAPH_CONTROL, Arm.GRAPH_CANDIDATE}
        if not any(set(pair) == required for pair in engine.identical):
            pair = f"{Arm.GRAPH_CONTROL} and {Arm.GRAPH_CANDIDATE}"
            message = f"{where}.identical: expected the pair of {pair} among them"
            raise ValueError(message)

    @property
    def _on_devices(self) -> bool:
        """Whether a lane other than the cpu lane has an engine."""
        return any(lane != "cpu" and settings.engine is not None for lane, settings in self.lanes.items())

    def _judged_clauses(self, gate: int) -> tuple[str, ...]:
        """What a gate's own analysis judges: a campaign may add clauses, and drops none.

        What runs on devices is rehearsed in gate 1; a candidate and a control are compared with noise there as well.
        """
        if gate == 1 and self._on_devices:
            return REHEARSAL_CLAUSES if self.diagnostic is not None else REHEARSAL_CLAUSES[:1]
        if gate == 2 and self.diagnostic is not None:  # noqa: PLR2004 - the diagnostic is gate 2's
            return DIAGNOSTIC_CLAUSES
        if gate == 2 and self.event_profile is not None:  # noqa: PLR2004 - likewise
            return EVENT_CLAUSES
        engines = [settings.engine for settings in self.lanes.values()]
        endpoint = any(engine is not None and engine.protocol is not None for engine in engines)
        return ENDPOINT_CLAUSES if gate == 3 and endpoint else ()  # noqa: PLR2004 - likewise

    def gate_clauses(self, gate: int) -> dict[str, str]:
        """Clause id to node id of one gate, in the order in which they run; empty when the gate has none."""
        for number, clauses in self.clauses.items():
            if int(number) == gate:
                return dict(clauses)
        return {}

    def lane_settings(self, lane: str) -> LaneSettings:
        """What a lane runs.

        Raises:
            UnusableEvidenceError: the campaign has no such lane.
        """
        for name, settings in self.lanes.items():
            if name == lane:
                return settings
        message = f"campaign {self.name} has no lane {lane}; it has {', '.join(self.lanes)}"
        raise UnusableEvidenceError(message)

    def folders(self, lane: str) -> list[str]:
        """Target and draft of a lane by their folders, as they are named; none where its pair is generated."""
        engine = self.lane_settings(lane).engine
        model = None if engine is None else engine.model
        return [model.target, model.draft] if isinstance(model, ModelFolders) else []

    @property
    def nodeids(self) -> list[str]:
        """The node ids of all gates."""
        return [nodeid for clauses in self.clauses.values() for nodeid in clauses.values()]

    def canonical(self) -> JSON:
        """The campaign as a JSON value; comments, order of tables and spelling of the file do not enter it."""
        value: JSON = self.model_dump(mode="json", by_alias=True)
        return value

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON."""
        return files.digest_of(self.canonical())


def parse_campaign(content: bytes, name: str) -> Campaign:
    """Read a campaign from TOML.

    Args:
        content: the file's bytes.
        name: what an error calls the file.

    Raises:
        CampaignError: not UTF-8, not TOML (a doubled key), nested too deeply, an unknown, missing or mistyped key (the
            first is named), or a number that has no canonical JSON form.
    """
    try:
        campaign = Campaign.model_validate(tomllib.loads(content.decode("utf-8")))
        files.canonical_json(campaign.canonical())
    except pydantic.ValidationError as error:
        raise CampaignError(f"{name}: {first_defect(error, 'campaign')}") from error
    except RecursionError as error:
        message = f"{name}: nested too deeply to be read; expected the tables of a campaign"
        raise CampaignError(message) from error
    except (ValueError, UnusableEvidenceError) as error:
        reason = " ".join(str(error).split())
        told = f"not TOML in UTF-8 ({reason})" if isinstance(error, _NO_TOML) else reason
        message = f"{name}: {told}"
        raise CampaignError(message) from error
    return campaign


def read_campaign(path: Path) -> Campaign:
    """Read a campaign file.

    Raises:
        CampaignError: it cannot be read, or ``parse_campaign`` refuses it.
    """
    try:
        content = files.read_bytes(path, limit=SIZE_LIMIT)
    except UnusableEvidenceError as error:
        message = f"campaign {path}: {error}"
        raise CampaignError(message) from error
    return parse_campaign(content, path.name)
