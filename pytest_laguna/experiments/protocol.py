# SPDX-License-Identifier: Apache-2.0
"""The endpoint protocol: the measurements and the rules of gate 3, in a file of its own.

It is written after gate 2 has passed, and committed before gate 3 runs. If timing decides, it names the receipt of gate
2, which nobody can know before.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

import pydantic

from pytest_laguna.analysis.arms.topology import expected_topology, target_layers
from pytest_laguna.campaign import SIZE_LIMIT, Campaign, Name, Table
from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.arms.arm_record import Arm
from pytest_laguna.evidence.endpoint import reader as endpoint_reader
from pytest_laguna.evidence.endpoint.leg import SuitePin
from pytest_laguna.evidence.endpoint.plan import CaptureCounts, EndpointPlan, EndpointThresholds, Repetition, Selector
from pytest_laguna.evidence.endpoint.reader import ProtocolCommit
from pytest_laguna.evidence.git import git
from pytest_laguna.evidence.schemas import AttemptStart, Sha256, first_defect
from pytest_laguna.evidence.values import Positive, PositiveCount, SchemaName
from pytest_laguna.experiments.plans import filled
from pytest_laguna.verdict import JSON, NotProvenError, UnusableEvidenceError

_File = Annotated[str, pydantic.Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]*\.json$")]


class SuiteFile(Table):
    """The prompts, with the pin of their file.

    Attributes:
        file: beside the protocol, or one of the shipped suites.
    """

    file: _File
    pin: SuitePin


class TeacherFile(Table):
    """The canonical q1 answers.

    Attributes:
        file: as the suite's.
        sha256: digest of its canonical form.
    """

    file: _File
    sha256: Sha256


class ServerBounds(Table):
    """Settings and bounds of a leg's server.

    Attributes:
        max_model_tokens: prompt and answer together, for the longest row.
        ready_seconds: from its start until it answers.
        row_seconds: bound of one row.
        executor_backend: vLLM's way of running several ranks; None for its own choice.
    """

    max_model_tokens: PositiveCount
    ready_seconds: Positive
    row_seconds: Positive
    executor_backend: Literal["mp", "ray"] | None = None


class Protocol(Table):
    """A protocol file's content.

    Attributes:
        campaign: name of the campaign of this gate 3.
        authorised_by: digest of gate 2's receipt; needed if timing decides.
        model: the id under which the server must answer.
        null: True for A/A, a control in every leg.
        teacher: None if the first leg is the teacher: on a lane that does not promise q1's tokens to a speculating arm.
        repetition: None for one block.
    """

    protocol_schema: SchemaName[Literal["pytest-laguna-endpoint-protocol-v1"]]
    campaign: Name
    authorised_by: Sha256 | None = None
    model: Name
    null: bool
    suite: SuiteFile
    teacher: TeacherFile | None = None
    server: ServerBounds
    thresholds: EndpointThresholds
    repetition: Repetition | None = None

    @pydantic.model_validator(mode="after")
    def _reachable(self) -> Self:
        self.thresholds.require_reachable(self.suite.pin.prompts)
        return self


def parse_protocol(content: bytes, name: str) -> Protocol:
    """Read a protocol from TOML.

    Raises:
        UnusableEvidenceError: not UTF-8, not TOML, or an unknown, missing or mistyped key; the first is named.
    """
    try:
        return Protocol.model_validate(tomllib.loads(content.decode("utf-8")))
    except pydantic.ValidationError as error:
        raise UnusableEvidenceError(f"{name}: {first_defect(error, 'protocol')}") from error
    except (ValueError, RecursionError) as error:
        raise UnusableEvidenceError(f"{name}: {' '.join(str(error).split())}") from error


def read_protocol(path: Path) -> Protocol:
    """Read a protocol file; raises as ``parse_protocol``, and if it cannot be read."""
    return parse_protocol(files.read_bytes(path, limit=SIZE_LIMIT), path.name)


def commit_of(path: Path, content: bytes) -> ProtocolCommit:
    """Return the commit and the blob of a protocol, compared byte by byte: otherwise it could change after the fact.

    Args:
        path: the protocol's.
        content: its bytes.

    Raises:
        NotProvenError: the checked out commit does not hold exactly that.
    """
    commit = _git_name(path, "HEAD^{commit}")
    blob = None if commit is None else _git_name(path, f"{commit}:./{path.name}")
    if commit is not None and blob is not None:
        found = ProtocolCommit(commit=commit, blob=blob)
        if found.holds(content):
            return found
    raise NotProvenError(f"protocol {path}: not committed as it lies there; commit it before gate 3")


def _git_name(path: Path, revision: str) -> str | None:
    answer = git(path.parent, "--no-replace-objects", "rev-parse", "--verify", "--quiet", revision)
    return None if answer is None or answer.returncode != 0 else answer.stdout.strip()


def require_frozen(content: bytes, attempt: Path, start: AttemptStart) -> None:
    """Refuse a protocol unlike the one of an earlier attempt of the campaign with a started server.

    Args:
        content: the protocol's.
        attempt: directory of its attempt.
        start: of that attempt.

    Raises:
        NotProvenError: an earlier attempt could have measured, and had another protocol.
        UnusableEvidenceError: an earlier attempt's protocol cannot be read.
    """
    for earlier in start.earlier:
        directory = root.attempt_directory(attempt.parent, earlier.attempt)
        place = directory / root.EVIDENCE / endpoint_reader.DIRECTORY
        if earlier.campaign not in {None, start.identity.campaign} or not endpoint_reader.started_legs(place):
            continue
        if files.read_bytes(place / endpoint_reader.PROTOCOL, limit=SIZE_LIMIT) != content:
            message = (
                f"protocol: not the one of attempt {directory.name}, which had started a server; expected the same in"
                " every attempt of a campaign: commit that one again, or preregister another campaign"
            )
            raise NotProvenError(message)


def plan_endpoint(  # noqa: PLR0913 - each is a fact of its own
    campaign: Campaign,
    lane: str,
    protocol: Protocol,
    *,
    ranks: int,
    target_config: Mapping[str, JSON],
    authorised_by: str | None,
) -> EndpointPlan:
    """Return the plan of gate 3.

    Args:
        campaign: of the gate.
        lane: where it runs.
        protocol: of the gate.
        ranks: number of leased cards.
        target_config: the target's ``config.json``.
        authorised_by: digest of the receipt that opened the gate.

    Raises:
        UnusableEvidenceError: the protocol is another campaign's; timing decides and the protocol was not written after
            the pass that opened the gate; the campaign has no engine on the lane, or requires q1's tokens while the
            protocol has no teacher; or the configuration's graph is unknown.
    """
    engine = campaign.lane_settings(lane).engine
    if engine is None or protocol.campaign != campaign.name:
        message = f"protocol of campaign {protocol.campaign}: expected {campaign.name}'s, with an engine on {lane}"
        raise UnusableEvidenceError(message)
    if engine.decides != "exactness" and protocol.authorised_by != authorised_by:
        message = (
            f"protocol: authorised_by is {protocol.authorised_by}; expected {authorised_by}, the receipt of gate 2's"
            " pass: where timing decides it is written after that"
        )
        raise UnusableEvidenceError(message)
    if protocol.teacher is None and any(Arm.Q1 in pair for pair in engine.identical):
        message = f"protocol: no [teacher]; expected q1's, which campaign {campaign.name} requires the arms to equal"
        raise UnusableEvidenceError(message)
    candidate, diagnostic = campaign.candidate, campaign.diagnostic
    if diagnostic is not None and diagnostic.null and not protocol.null:
        raise UnusableEvidenceError("protocol: seen `null` = false; expected true, as in gate 2")
    breaks = diagnostic is not None and diagnostic.collective_breaks
    topology = expected_topology(target_config, ranks, collective_breaks=breaks)
    layers = target_layers(target_config)
    return filled(
        EndpointPlan,
        protocol,
        candidate,
        engine,
        suite=protocol.suite.pin,
        teacher_sha256=None if protocol.teacher is None else protocol.teacher.sha256,
        selector=filled(Selector, candidate),
        topology=filled(CaptureCounts, topology, ranks=ranks, target_layers=layers),
    )
