# SPDX-License-Identifier: Apache-2.0
"""Runs gates 2 and 3 of a device campaign inside its gate 1, on the cpu lane, as complete sessions with receipts.

Treatment, arms, rules and clauses are the campaign's own. Only the sizes in its table ``rehearsal.gates`` differ;
``shortened.json`` beside the rehearsal's sealed root lists them. In A/A a control fills the candidate's slot, so any
difference is noise.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import secrets
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_laguna.analysis.findings import Finding
from pytest_laguna.campaign import Bounds, Campaign, GateRehearsal
from pytest_laguna.evidence import files, reading, root
from pytest_laguna.evidence.aa.rehearsal import (
    SEALED,
    SHORTENED,
    STARTS,
    STARTS_DIRECTORY,
    NullAnalysis,
    sealed_root,
    start_directory,
)
from pytest_laguna.evidence.arms.arm_record import Arm, ArmRequest, Planted
from pytest_laguna.evidence.git import git
from pytest_laguna.evidence.machine.leased_cards import PROCESS
from pytest_laguna.evidence.machine.process import ProcessRecord, Reason
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.evidence.values import Lane
from pytest_laguna.experiments.aa import EXPERIMENT as AA
from pytest_laguna.experiments.experiment import derive_from_files, read_attempted
from pytest_laguna.experiments.plans import plan_null
from pytest_laguna.experiments.protocol import Protocol, read_protocol
from pytest_laguna.machine import leases
from pytest_laguna.machine.environment import PRIVATE_DIRECTORIES, SHORT_DIRECTORIES, inherited_runtime_variables
from pytest_laguna.run.arm_runner import ArmRunner
from pytest_laguna.run.engine_run import RUN_ERRORS, write_failure
from pytest_laguna.verdict import JSON, NotProvenError, Verdict, raise_verdict
from pytest_laguna.verify.verification import rehearsal_finding, verify_root

OWN_REHEARSAL = "on the cpu lane the campaign's own gates 2 and 3 are the rehearsal"
"""Statement proven on the cpu lane in place of a rehearsal."""

_CAMPAIGN, _PROTOCOL = "rehearsal.toml", "protocol.toml"
_MOST_SLOTS = 512
_ENV = "/usr/bin/env"
_NOT_HANDED_ON = inherited_runtime_variables(
    dict.fromkeys(("LAGUNA_LEASE", *PRIVATE_DIRECTORIES, *SHORT_DIRECTORIES), "")
)
"""Variables of a supervised program that its session must not inherit."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rehearsal:
    """Rehearses a campaign.

    Attributes:
        campaign_file: its folder is the base of the protocol's path.
        lane: device lane of gates 2 and 3.
        project: base of the node ids.
        run: starts supervised programs.
        evidence: the attempt's ``evidence`` directory.
        scratch: private directory for files outside the evidence.
    """

    campaign: Campaign
    campaign_file: Path
    lane: Lane
    project: Path
    run: ArmRunner
    evidence: Path
    scratch: Path

    @property
    def settings(self) -> GateRehearsal:
        """The campaign's table ``rehearsal.gates``.

        Raises:
            NotProvenError: it is missing.
        """
        rehearsal = self.campaign.rehearsal
        if rehearsal is None or rehearsal.gates is None:
            message = f"campaign {self.campaign.name}: no table rehearsal.gates; expected one for lane {self.lane}"
            raise NotProvenError(message)
        return rehearsal.gates

    def gates(self, *, null: bool) -> dict[str, JSON]:
        """Run the campaign's gates on the cpu lane, a session each, up to the first without PASS.

        With ``null`` a control fills the candidate's slot (A/A).

        Returns:
            Observations for a proof: reason and receipt's digest of each gate.

        Raises:
            FileExistsError: they have run before.
            NotProvenError: the campaign has no rehearsal, or git is missing.
            Exception: as ``raise_verdict``, of the first finding in these gates or those before them.
        """
        self._require_passed()
        directory = self._directory(null=null)
        directory.mkdir(mode=files.PRIVATE_DIRECTORY)
        shortened = rehearsed(self.campaign, self.lane, null=null)
        campaign_file = self._write(shortened, null=null)
        told = differences(self.campaign, self.lane, shortened)
        files.write_new(directory / SHORTENED, files.canonical_json(told))
        cards = ",".join(map(str, free_slots(self.settings.cards)))
        for gate in shortened.gates:
            if not self._session(gate, campaign_file, directory, cards):
                break
        against = self._against(null=null)
        if against is not None:
            raise_verdict(*against)
        reports = verify_root(directory / SEALED)
        return {
            "gates": {str(report.gate): report.reason for report in reports},
            "receipts": {str(report.gate): report.receipt for report in reports},
        }

    def _require_passed(self) -> None:
        """Run nothing after a failed rehearsal; raise its verdict."""
        for null in (False, True):
            against = self._against(null=null) if self._directory(null=null).exists() else None
            if against is not None:
                verdict, reason = against
                raise_verdict(verdict, f"did not run: {reason}")

    def _against(self, *, null: bool) -> Finding | None:
        """First finding of a rehearsal, with the end of its last session if that gave no verdict."""
        finding = rehearsal_finding(sealed_root(self.evidence, null=null), self.campaign.gates, null=null)
        ended = None if finding is None else _last_words(self._directory(null=null))
        return (finding[0], f"{finding[1]} ({ended})") if finding is not None and ended is not None else finding

    def _directory(self, *, null: bool) -> Path:
        return sealed_root(self.evidence, null=null).parent

    def null_starts(self) -> None:
        """Start the control as often as the campaign plans, each time in a fresh process, and keep the records.

        Raises:
            FileExistsError: they have run before.
            NotProvenError: a start left no record; its directory holds the reason.
            UnusableEvidenceError: the pair's configuration has no known graph.
            Exception: as ``raise_verdict``, if the gates before did not pass.
        """
        self._require_passed()
        directory = self.evidence / STARTS_DIRECTORY
        directory.mkdir(mode=files.PRIVATE_DIRECTORY)
        (directory / STARTS).mkdir(mode=files.PRIVATE_DIRECTORY)
        rehearsal, gates = self.campaign.rehearsal, self.settings
        if rehearsal is None or self.campaign.diagnostic is None:
            raise NotProvenError("no table diagnostic; expected one with the control to start")
        interpreter = Path(sys.executable)
        memory = self.run.bounds.memory_limit_bytes * gates.cards
        run = dataclasses.replace(self.run, bounds=self.run.bounds.model_copy(update={"memory_limit_bytes": memory}))
        pair = run.tiny_pair(
            self.scratch / "models",
            interpreter=interpreter,
            layers=gates.layers,
            tensor_parallel_size=gates.cards,
            vllm=rehearsal.vllm,
        )
        configuration = files.read_bytes(pair.target / reading.CONFIG, limit=reading.CONFIG_LIMIT)
        files.write_new(directory / reading.TARGET_CONFIG, configuration)
        target = reading.read_config(directory / reading.TARGET_CONFIG)
        plan = plan_null(self.campaign, self.lane, target)
        files.write_new(directory / reading.PLAN, files.canonical_json(plan.canonical()))
        request = ArmRequest(
            arm=Arm.GRAPH_CONTROL,
            lane="cpu",
            target=str(pair.target),
            draft=str(pair.draft),
            prompt=pair.prompts[rehearsal.prompt],
            tokens=plan.completion_tokens,
            tensor_parallel_size=plan.ranks,
            collective_breaks=plan.collective_breaks,
            planted=Planted.NONE,
            profile_samples=plan.samples,
            null=True,
        )
        for number in range(plan.starts):
            place = start_directory(directory, number)
            try:
                run.arm(request, place, interpreter=interpreter)
            except RUN_ERRORS as error:
                write_failure(place, error)
                message = f"start {number} of the control left no record: {error}"
                raise NotProvenError(message) from error

    def analyse_null(self) -> NullAnalysis:
        """Judge the starts and write their analysis beside them; errors as ``experiment.derive``."""
        derived = derive_from_files(AA, read_attempted(self.evidence.parent))
        files.write_new(self.evidence / STARTS_DIRECTORY / root.ANALYSIS, derived.content)
        return derived.analysis

    def _session(self, gate: int, campaign_file: Path, directory: Path, cards: str) -> bool:
        """Run one gate session; True if it passed."""
        place = directory / f"gate{gate}"
        place.mkdir(mode=files.PRIVATE_DIRECTORY)
        # A device gate refuses an inherited lease and an arm's private directories: the session makes its own.
        unset = [word for name in _NOT_HANDED_ON for word in ("-u", name)]
        argv = [_ENV, "-C", str(self.project), *unset, sys.executable, "-m", "pytest", f"--gate={gate}"]
        argv += [f"--campaign={campaign_file}", "--device=cpu", f"--sealed-root={directory / SEALED}", "--color=no"]
        argv += [f"--cards={cards}"] if gate > 1 else []
        process = dataclasses.replace(self.run, bounds=self._bounds)(argv, {}, place, self.settings.seconds)
        return process.is_clean

    @property
    def _bounds(self) -> Bounds:
        """Bounds of a whole session; its arms have their own."""
        bounds = self.run.bounds
        memory = bounds.memory_limit_bytes * (self.settings.cards + 1)
        return bounds.model_copy(update={"memory_limit_bytes": memory, "deadline_seconds": self.settings.seconds})

    def _write(self, shortened: Campaign, *, null: bool) -> Path:
        """Write the campaign and its protocol, and commit the protocol as gate 3 requires."""
        place = self.scratch / ("null" if null else "rehearsal")
        place.mkdir(mode=files.PRIVATE_DIRECTORY)
        files.write_new(place / _CAMPAIGN, to_toml(shortened.model_dump(by_alias=True, exclude_unset=True)).encode())
        if self.settings.protocol is not None:
            protocol = read_protocol(self.campaign_file.parent / self.settings.protocol)
            require_time(self.campaign, self.lane, protocol)
            content = to_toml(of_rehearsal(protocol, self.campaign, null=null).model_dump(by_alias=True))
            files.write_new(place / _PROTOCOL, content.encode())
            author = ("-c", "user.name=rehearsal", "-c", "user.email=rehearsal@localhost", "-c", "commit.gpgsign=false")
            for command in (("init", "--quiet"), ("add", "."), (*author, "commit", "--quiet", "--message", "-")):
                answer = git(place, *command)
                if answer is None or answer.returncode != 0:
                    reason = "git is not installed" if answer is None else " ".join(answer.stderr.split())
                    message = f"{place}: the rehearsal's protocol cannot be committed: {reason}"
                    raise NotProvenError(message)
        return place / _CAMPAIGN


def _last_words(directory: Path) -> str | None:
    """End of the last session and its last line; None if it ended by itself with a verdict."""
    ended = sorted(directory.glob(f"gate*/{PROCESS}"))
    if not ended:
        return None
    record = read_model(ended[-1], ProcessRecord)
    if record.reason is Reason.EXITED and record.exit_code in {verdict.exit_code for verdict in Verdict}:
        return None
    said = files.read_tail(ended[-1].with_name("stderr.log"))
    return f"{record}: {said[-1]}" if said else str(record)


def rehearsed(campaign: Campaign, lane: Lane, *, null: bool) -> Campaign:
    """Return the campaign's rehearsal: on the cpu lane, with the sizes of ``rehearsal.gates``, otherwise unchanged.

    With ``null`` a control fills the candidate's slot (A/A).

    Raises:
        NotProvenError: the table or the lane's engine is missing, or the opening names no file of gate 1.
    """
    rehearsal, settings = campaign.rehearsal, campaign.lanes[lane]
    if rehearsal is None or rehearsal.gates is None or settings.engine is None:
        message = f"campaign {campaign.name}: expected tables rehearsal.gates and lanes.{lane}.engine"
        raise NotProvenError(message)
    gates = rehearsal.gates
    model = {"generated": rehearsal.pair, "layers": gates.layers, "width": 1, "prompt": rehearsal.prompt}
    engine = settings.engine.model_dump(exclude_unset=True) | {
        "interpreter": None,
        "model": model,
        "protocol": None if gates.protocol is None else _PROTOCOL,
    }
    if "decides" in engine:
        engine["decides"] = "exactness"  # a CPU's times decide nothing
    bounds = rehearsal.bounds.model_dump()
    bounds["memory_limit_bytes"] *= gates.cards
    lanes = {
        "cpu": {
            "vllm": rehearsal.vllm,
            "bounds": bounds,
            "idle": settings.idle.model_dump() | _OF_SLOTS,
            "host": {"foreign_holders": True},
            "engine": engine,
        }
    }
    diagnostic = None if campaign.diagnostic is None else campaign.diagnostic.model_dump() | {"null": null}
    events = None if campaign.event_profile is None else campaign.event_profile.model_dump(exclude_none=True)
    if events is not None and "fitness" in events:
        events["fitness"]["slowdown_limit"] = _NO_SLOWDOWN
    first = campaign.gate_clauses(1).items()
    opening = {clause: nodeid for clause, nodeid in first if nodeid.partition("::")[0] == gates.opening}
    if not opening:
        message = f"rehearsal.gates.opening: seen {gates.opening!r}; expected the file of a clause of gate 1"
        raise NotProvenError(message)
    changed = {"lane": "cpu", "lanes": lanes, "diagnostic": diagnostic, "event_profile": events, "rehearsal": None}
    content = campaign.model_dump(by_alias=True, exclude_unset=True) | changed
    content["clauses"] = content["clauses"] | {"1": opening}
    return Campaign.model_validate(content)


_NO_SLOWDOWN = 1e9
"""Unreachable limit: an instrument's slowdown of a CPU says nothing of a card."""

_OF_SLOTS: dict[str, JSON] = {
    "snapshots": 2, "seconds": 0.5, "memory_bytes": 0, "settle_seconds": 5.0, "foreign_workers": True,
}  # fmt: skip
"""Idle limits of process slots: a slot without a process holds nothing, and others may use the host."""


def of_rehearsal(protocol: Protocol, campaign: Campaign, *, null: bool) -> Protocol:
    """Return the rehearsal's protocol; nothing of it is shortened."""
    changed = {"campaign": campaign.name, "authorised_by": None, "null": null}
    return protocol.model_copy(update=changed)


def differences(campaign: Campaign, lane: Lane, shortened: Campaign) -> dict[str, JSON]:
    """Settings of the rehearsal other than the lane's, by place in the campaign, with both values."""
    own = campaign.model_dump(mode="json", by_alias=True)
    here = shortened.model_dump(mode="json", by_alias=True)
    settings = {"lane": (own["lanes"][lane], here["lanes"]["cpu"])}
    tables = {name: (own[name], here[name]) for name in ("diagnostic", "event_profile")}
    return dict(itertools.chain.from_iterable(_differing(name, *pair) for name, pair in (settings | tables).items()))


def _differing(place: str, own: JSON, here: JSON) -> Iterator[tuple[str, JSON]]:
    if isinstance(own, dict) and isinstance(here, dict):
        for name in own.keys() | here.keys():
            yield from _differing(f"{place}.{name}", own.get(name), here.get(name))
    elif own != here:
        yield place, {"lane": own, "rehearsal": here}


def require_time(campaign: Campaign, lane: Lane, protocol: Protocol) -> None:
    """Require a server deadline of at least its time limits for readiness and one row.

    Raises:
        NotProvenError: it is shorter, so that no leg could begin.
    """
    server, deadline = protocol.server, campaign.lanes[lane].bounds.deadline_seconds
    least = server.ready_seconds + server.row_seconds
    if deadline < least:
        message = f"lanes.{lane}.bounds.deadline_seconds: seen {deadline}; expected at least the {least} of"
        raise NotProvenError(f"{message} server.ready_seconds and server.row_seconds of the protocol")


def free_slots(count: int) -> list[int]:
    """Draw adjacent process slots of the cpu lane, none of them leased.

    Their gate leases them later: rehearsals begun at once must draw different ones.

    Raises:
        NotProvenError: there are none.
    """
    held = {state.record.identity for state in leases.states() if state.held}
    places = [range(first, first + count) for first in range(0, _MOST_SLOTS - count + 1, count)]
    free = [slots for slots in places if held.isdisjoint(f"cpu-slot-{slot}" for slot in slots)]
    if not free:
        raise NotProvenError(
            f"cpu: no {count} of {_MOST_SLOTS} process slots are free; laguna doctor shows who has them"
        )
    return list(secrets.choice(free))


def to_toml(value: Mapping[str, Any]) -> str:
    """Return a campaign or protocol as TOML, without its None values."""
    return "".join(f"{_key(name)} = {_toml(entry)}\n" for name, entry in value.items() if entry is not None)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        entries = (f"{_key(name)} = {_toml(entry)}" for name, entry in value.items() if entry is not None)
        return f"{{ {', '.join(entries)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, datetime.date):
        return value.isoformat()
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    return json.dumps(name)
