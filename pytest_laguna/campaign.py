# SPDX-License-Identifier: Apache-2.0
"""The campaign: its measurements and its deciding rules, written down before anything runs."""

from __future__ import annotations

import datetime
import tomllib
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Literal

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.evidence.aa.rehearsal import CLAUSES as REHEARSAL_CLAUSES
from pytest_laguna.evidence.arms.arm_record import DRAFT_TOKENS, MOST_PROFILE_SAMPLES, Arm
from pytest_laguna.evidence.arms.arm_settings import FLAG, PAIR_VERSIONS
from pytest_laguna.evidence.events.analysis import Fitness
from pytest_laguna.evidence.experiments import rows_asked
from pytest_laguna.evidence.machine.host import HostLimits
from pytest_laguna.evidence.machine.idle import IdleRequirement
from pytest_laguna.evidence.machine.leased_cards import LeaseTerms
from pytest_laguna.evidence.machine.placement import StorageRule
from pytest_laguna.evidence.schemas import Sha256, first_defect
from pytest_laguna.evidence.values import Decides, Lane, NonNegative, Positive, PositiveCount, Text, Validator
from pytest_laguna.verdict import JSON, UnusableEvidenceError

SIZE_LIMIT = 1024 * 1024

Name = Annotated[str, pydantic.Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
# Parts of the path begin with neither a dot nor a slash: a gate's tests lie in its project.
NodeId = Annotated[
    str,
    pydantic.Field(
        pattern=r"^([A-Za-z0-9_-][\x21-\x2e\x30-\x39\x3b-\x7e]*/)*[A-Za-z0-9_-][\x21-\x2e\x30-\x39\x3b-\x7e]*\.py"
        r"(::[\x21-\x7e]+)+$"
    ),
]
ImportName = Annotated[str, pydantic.Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$")]
ProtocolFile = Annotated[str, pydantic.Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]*\.toml$")]
GateNumber = Annotated[int, pydantic.Field(ge=1, le=3)]
CompletionTokens = Annotated[int, pydantic.Field(ge=16, lt=MOST_PROFILE_SAMPLES)]
"""Greedy tokens of an arm's one generation, fewer than its model holds: the prompt takes at least one."""
Layers = Annotated[int, pydantic.Field(ge=8, multiple_of=4)]
"""Layers of the generated target."""
Folder = Annotated[str, pydantic.Field(pattern=r"^[/A-Za-z0-9_]")]
"""Absolute path, or one relative to the project."""
Queries = Annotated[int, pydantic.Field(ge=1, le=DRAFT_TOKENS + 1)]
"""Queries of one verification: the drafts and one more."""


_NO_TOML = (tomllib.TOMLDecodeError, UnicodeDecodeError)


class CampaignError(Exception):
    """An unusable campaign file; the message is one line with the place of the defect."""


class Table(pydantic.BaseModel):
    """A table of a TOML file: frozen, nothing extra, types as TOML spells them."""

    model_config: ClassVar[pydantic.ConfigDict] = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)


class Preregistration(Table):
    """The published text behind the campaign, with its digest."""

    title: str
    date: datetime.date
    sha256: Sha256


class Amendment(Table):
    """A dated change of the campaign and of its digest, before the attempt under it."""

    date: datetime.date
    reason: str


class Candidate(Table):
    """The optimisation under test.

    Attributes:
        package: import name; its sources are part of the identity.
        flag: the environment variable of the treatment, with its values in control and candidate arms.
    """

    package: ImportName
    flag: str
    control: str
    treatment: str
    validator: Validator

    @pydantic.model_validator(mode="after")
    def _treats(self) -> Candidate:
        if self.control == self.treatment:
            raise ValueError(f"control and treatment are both {self.control!r}; expected two values")
        return self


class Bounds(Table):
    """Bounds of a child process.

    Attributes:
        deadline_seconds: from its start to its forced end.
        settle_seconds: for its leftovers to end by themselves.
        interrupt_seconds: from the interrupt to SIGTERM.
        terminate_seconds: from SIGTERM to SIGKILL.
        kill_seconds: from SIGKILL until a process counts as a survivor.
        memory_limit_bytes: of the child and everything below it.
    """

    deadline_seconds: Positive
    settle_seconds: NonNegative
    interrupt_seconds: Positive
    terminate_seconds: Positive
    kill_seconds: Positive
    memory_limit_bytes: PositiveCount


class Idle(Table, IdleRequirement):
    """The definition of idle cards, before and after their lease.

    Attributes:
        settle_seconds: time for memory to come back after an arm.
    """

    settle_seconds: NonNegative


class GeneratedPair(Table):
    """A target and its draft, made by the project.

    Attributes:
        width: factor of the hidden size; the function stays the same.
    """

    generated: Literal["tiny-laguna"]
    layers: Layers
    width: Literal[1, 4, 16, 64] = 1
    prompt: Name


class ModelFolders(Table):
    """Folders of a target and its draft, hashed in every attempt, and the text of the prompt."""

    target: Folder
    draft: Folder
    prompt: Text


class LaneEngine(Table):
    """The engine of a lane, and its deciding rules.

    Attributes:
        interpreter: the Python with the lane's vLLM, relative to the project; None for pytest's own.
        identical: pairs of arms with tokens equal bit for bit; all others are reported. Between q1 and a speculating
            arm upstream vLLM does not promise it. Empty for an event profile, whose arms must all equal q1.
        protocol: gate 3's endpoint protocol, relative to the campaign's file; None if gate 3 has none yet.
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
            raise ValueError(f"{interpreter!r} names no program; expected a path, or no interpreter for pytest's own")
        return interpreter

    @pydantic.field_validator("identical")
    @classmethod
    def _two_arms(cls, pairs: list[tuple[Arm, Arm]]) -> list[tuple[Arm, Arm]]:
        for first, second in pairs:
            if first is second:
                message = f"pair of {first} and {second}; expected two arms: an arm cannot be paired with itself"
                raise ValueError(message)
        return pairs

    @pydantic.field_validator("identical", mode="before")
    @classmethod
    def _from_toml(cls, value: Any) -> Any:
        """Turn lists into pairs and names into arms: TOML has neither tuples nor enumerations."""
        names = {arm.value: arm for arm in Arm}
        if isinstance(value, list) and all(isinstance(pair, list) for pair in value):
            return [tuple(names.get(name, name) for name in pair) for pair in value]
        return value


class LaneSettings(Table):
    """The settings of a lane.

    Attributes:
        vllm: version for gate 1's classes and for the engine of gates 2 and 3.
        card: name of every leased card in its vendor's tool; None for any.
        storage: None for any disk.
        engine: of gates 2 and 3; None if they run no vLLM.
    """

    vllm: str
    bounds: Bounds
    idle: Idle
    host: HostLimits
    card: Text | None = None
    storage: StorageRule | None = None
    engine: LaneEngine | None = None

    @pydantic.model_validator(mode="after")
    def _known_version(self) -> LaneSettings:
        generated = self.engine is not None and isinstance(self.engine.model, GeneratedPair)
        if generated and self.vllm not in PAIR_VERSIONS:
            raise ValueError(f"vllm is {self.vllm!r}; expected one of {', '.join(PAIR_VERSIONS)} for a generated pair")
        return self

    @property
    def terms(self) -> LeaseTerms:
        """Terms of the lease: cards and disks."""
        return LeaseTerms(card=self.card, storage=self.storage)


class Diagnostic(Table):
    """The exact diagnostic of gate 2.

    Attributes:
        samples: replays in the profile of each rank of both graph arms; a replay yields at least one token.
        collective_breaks: True if each all-reduce is a break of its own.
        acceptance_rate_difference: maximum difference of accepted / proposed between speculating arms.
        accepted_per_cycle: minimum of accepted tokens a draft cycle in every speculating arm.
        queries: of each case of a parity packet.
        null: True for A/A, a control in the candidate's slot; gate 3 must then be A/A as well.
    """

    completion_tokens: CompletionTokens
    samples: Annotated[int, pydantic.Field(ge=2)]
    collective_breaks: bool
    acceptance_rate_difference: NonNegative
    accepted_per_cycle: NonNegative
    queries: Annotated[list[Queries], pydantic.Field(min_length=1)]
    null: bool = False

    @pydantic.field_validator("queries")
    @classmethod
    def _each_once(cls, queries: list[int]) -> list[int]:
        if len(set(queries)) != len(queries):
            raise ValueError(f"queries is {queries}; expected each number once")
        return queries

    @pydantic.model_validator(mode="after")
    def _yields_its_samples(self) -> Diagnostic:
        if self.samples > self.completion_tokens:
            message = f"samples is {self.samples}; expected at most the {self.completion_tokens} completion_tokens"
            raise ValueError(message)
        return self


class EventProfiling(Table):
    """The event profile of gate 2.

    Attributes:
        material_percent: minimum share of the largest category to dominate, above 50: of two categories the larger has
            half in any case.
        fitness: None without a trial of the instrument, as in the published campaign.
        sparse_replays: replays with a few measured intervals each, in an arm of their own; 0 for none.
    """

    completion_tokens: CompletionTokens
    collective_breaks: bool
    material_percent: Annotated[float, pydantic.Field(gt=50, lt=100, allow_inf_nan=False)]
    fitness: Fitness | None = None
    sparse_replays: Annotated[int, pydantic.Field(ge=0, le=128)] = 0


class GateRehearsal(Table):
    """The rehearsal of gates 2 and 3 of a device lane on the cpu lane, inside gate 1.

    These values replace the lane's own: they are the shortening.

    Attributes:
        opening: the test file of the clauses in the rehearsal's own gate 1.
        cards: process slots, one a rank.
        protocol: gate 3's endpoint protocol, relative to the campaign's file; None without a gate 3.
        seconds: bound of all sessions together.
        starts: processes of the control alone for the noise of the timing rules, an even number; 0 without a timing
            rule.
        effect_percent: the preregistered effect on the whole replay; None if none is expected.
    """

    opening: Text
    cards: Annotated[int, pydantic.Field(ge=1, le=4)]
    layers: Layers
    protocol: ProtocolFile | None = None
    seconds: Positive
    starts: Annotated[int, pydantic.Field(ge=0, multiple_of=2)] = 0
    effect_percent: Positive | None = None


class EngineRehearsal(Table):
    """The engine run of gate 1, always on a CPU.

    Attributes:
        graphs: graph segments of the target's capture, per rank.
        breaks: eager boundaries of the target's capture, per rank.
        target_layers: attention layers of the target, each with one view state.
        gates: None without a device lane.
    """

    vllm: str
    pair: Literal["tiny-laguna"]
    prompt: Name
    completion_tokens: CompletionTokens
    graphs: PositiveCount
    breaks: PositiveCount
    target_layers: PositiveCount
    bounds: Bounds
    gates: GateRehearsal | None = None


class Campaign(Table):
    """The content of a campaign file; its ``digest`` binds every receipt.

    Attributes:
        name: part of the evidence path.
        lane: default of ``--device``.
        gates: declared gates, in order.
        clauses: by gate number (as text, as TOML spells keys), clause ids with their node ids, in order.
        rehearsal: None if gate 1 runs no engine.
        diagnostic: None if gate 2 is something else.
        event_profile: None likewise.
    """

    campaign_schema: Annotated[Literal["pytest-laguna-campaign-v1"], pydantic.Field(alias="schema")]
    name: Name
    lane: Lane
    gates: Annotated[list[GateNumber], pydantic.Field(min_length=1)]
    preregistration: Preregistration
    candidate: Candidate
    lanes: dict[Lane, LaneSettings]
    rehearsal: EngineRehearsal | None = None
    diagnostic: Diagnostic | None = None
    event_profile: EventProfiling | None = None
    clauses: dict[Literal["1", "2", "3"], dict[Name, NodeId]]
    amendments: list[Amendment] = []

    @pydantic.model_validator(mode="after")
    def _hangs_together(self) -> Campaign:
        if self.lane not in self.lanes:
            raise ValueError(f"lane is {self.lane!r}; expected one of the tables under lanes: {', '.join(self.lanes)}")
        if self.gates != list(range(1, len(self.gates) + 1)):
            raise ValueError(f"gates is {self.gates}; expected 1, 2, ... without a gap")
        if self.diagnostic is not None and self.event_profile is not None:
            raise ValueError("tables diagnostic and event_profile; expected one of them, for gate 2")
        for gate, clauses in self.clauses.items():
            if int(gate) not in self.gates:
                raise ValueError(f"clauses.{gate}: no such gate; expected one of gates, {self.gates}")
            if len(set(clauses.values())) != len(clauses):
                raise ValueError(f"clauses.{gate} names a test twice; expected one test a clause")
        if self._on_devices and (self.rehearsal is None or self.rehearsal.gates is None):
            raise ValueError("no table rehearsal.gates; expected one: gate 1 rehearses gates on devices")
        for number in self.gates:
            missing = [clause for clause in self._judged_clauses(number) if clause not in self.gate_clauses(number)]
            if missing:
                message = f"clauses.{number} lacks {', '.join(missing)}; expected each clause of the gate's analysis"
                raise ValueError(message)
        return self

    @pydantic.model_validator(mode="after")
    def _treats_by_its_flag(self) -> Campaign:
        """Require the flag of this project's candidate: gate 2's arms set no other."""
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

    def _require_decision(self, lane: str, where: str, engine: LaneEngine) -> None:
        """Require identical tokens of candidate and control; an event profile has no candidate."""
        told = sorted({"decides", "identical"} & engine.model_fields_set)
        if self.event_profile is not None:
            if told:
                message = f"{where}.{told[0]}: seen in an event profile; expected none: each of its arms must equal q1"
                raise ValueError(message)
            return
        if "decides" not in told:
            raise ValueError(f"{where}: no decides; expected 'exactness' or 'exactness+timing'")
        if lane == "cpu" and engine.decides != "exactness":
            message = f"{where}.decides: {engine.decides}; expected 'exactness': times of a CPU do not predict a card's"
            raise ValueError(message)
        required = {Arm.GRAPH_CONTROL, Arm.GRAPH_CANDIDATE}
        if not any(set(pair) == required for pair in engine.identical):
            pair = f"{Arm.GRAPH_CONTROL} and {Arm.GRAPH_CANDIDATE}"
            raise ValueError(f"{where}.identical: expected the pair of {pair} among them")

    @property
    def _on_devices(self) -> bool:
        """True if a lane other than the cpu lane has an engine."""
        return any(lane != "cpu" and settings.engine is not None for lane, settings in self.lanes.items())

    def _judged_clauses(self, gate: int) -> tuple[str, ...]:
        """Return the clauses of a gate's own analysis; a campaign may add clauses, but drop none.

        Gate 1 rehearses gates on devices, and there compares a candidate and a control with noise.
        """
        if gate == 1 and self._on_devices:
            return REHEARSAL_CLAUSES if self.diagnostic is not None else REHEARSAL_CLAUSES[:1]
        rows = [row for lane in self.lanes for row in rows_asked(self, gate, lane)]
        return tuple(dict.fromkeys(clause for row in rows for clause in row.clauses))

    def protocol_of(self, lane: str) -> str | None:
        """Name of a lane's endpoint protocol, or None."""
        engine = self.lane_settings(lane).engine
        return None if engine is None else engine.protocol

    def gate_clauses(self, gate: int) -> dict[str, str]:
        """Return clause id to node id of one gate, in the order of running."""
        return next((dict(clauses) for number, clauses in self.clauses.items() if int(number) == gate), {})

    def lane_settings(self, lane: str) -> LaneSettings:
        """Return the settings of a lane.

        Raises:
            UnusableEvidenceError: the campaign has no such lane.
        """
        for name, settings in self.lanes.items():
            if name == lane:
                return settings
        raise UnusableEvidenceError(f"campaign {self.name}: no lane {lane}; expected one of {', '.join(self.lanes)}")

    def folders(self, lane: str) -> list[str]:
        """Return the folders of a lane's target and draft by the campaign's names; none for a generated pair."""
        engine = self.lane_settings(lane).engine
        model = None if engine is None else engine.model
        return [model.target, model.draft] if isinstance(model, ModelFolders) else []

    @property
    def nodeids(self) -> list[str]:
        """Node ids of all gates."""
        return [nodeid for clauses in self.clauses.values() for nodeid in clauses.values()]

    def canonical(self) -> JSON:
        """Return the campaign as a JSON value, free of comments, order of tables and spelling."""
        value: JSON = self.model_dump(mode="json", by_alias=True)
        return value

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON."""
        return files.digest_of(self.canonical())


def parse_campaign(content: bytes, name: str) -> Campaign:
    """Read a campaign from TOML; errors call it ``name``.

    Raises:
        CampaignError: not UTF-8, not TOML (a doubled key), nested too deeply, an unknown, missing or mistyped key (the
            first is named), or a number without a canonical JSON form.
    """
    try:
        campaign = Campaign.model_validate(tomllib.loads(content.decode("utf-8")))
        files.canonical_json(campaign.canonical())
    except pydantic.ValidationError as error:
        raise CampaignError(f"{name}: {first_defect(error, 'campaign')}") from error
    except RecursionError as error:
        raise CampaignError(f"{name}: nested too deeply; expected the tables of a campaign") from error
    except (ValueError, UnusableEvidenceError) as error:
        reason = " ".join(str(error).split())
        told = f"not TOML in UTF-8 ({reason})" if isinstance(error, _NO_TOML) else reason
        raise CampaignError(f"{name}: {told}") from error
    return campaign


def read_campaign(path: Path) -> Campaign:
    """Read a campaign file.

    Raises:
        CampaignError: it cannot be read, or ``parse_campaign`` refuses it.
    """
    try:
        content = files.read_bytes(path, limit=SIZE_LIMIT)
    except UnusableEvidenceError as error:
        raise CampaignError(f"campaign {path}: {error}") from error
    return parse_campaign(content, path.name)
