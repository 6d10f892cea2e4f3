# SPDX-License-Identifier: Apache-2.0
"""What a diagnostic runs, one after the other, each once in a fresh process, and what is observed around it.

Nothing is run again: the first run that leaves no record ends all, with the reason in its place.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pytest_laguna.campaign import Campaign
from pytest_laguna.engine import launch
from pytest_laguna.engine_run import RUN_ERRORS, EngineRun, Models, write_failure
from pytest_laguna.evidence import diagnostic_reader as reader
from pytest_laguna.evidence.arm_record import Arm, ArmRequest, MappedFile, Planted
from pytest_laguna.evidence.arms_plan import ArmsPlan
from pytest_laguna.evidence.diagnostic_evidence import present
from pytest_laguna.evidence.engine_identity import ArmModels, Binary, ModelFiles
from pytest_laguna.evidence.parity import PacketRequest
from pytest_laguna.identity import binaries, models
from pytest_laguna.machine.cards import Card
from pytest_laguna.verdict import JSON

Plan = TypeVar("Plan", bound=ArmsPlan)


class _EndedError(Exception):
    """A run left no record; the reason is written in its place."""


@dataclasses.dataclass(frozen=True, slots=True)
class Runs:
    """What runs, in the order in which it is asked for.

    Attributes:
        engine: what the session holds.
        interpreter: the engine's Python.
        frozen: the models' files.
        models_around: the looks at them around each arm that was started.
        binaries: what has been mapped so far.
    """

    engine: EngineRun
    interpreter: Path
    frozen: ModelFiles
    models_around: dict[str, ArmModels] = dataclasses.field(default_factory=dict)
    binaries: list[Binary] = dataclasses.field(default_factory=list)

    def arm(self, name: str, request: ArmRequest) -> None:
        """Run an arm on all cards; where it leaves no record, the block of ``observed`` ends here."""
        with self._recorded(f"{reader.ARMS}/{name}") as directory:
            before = models.check_models(self.frozen)
            try:
                record = self.engine.start.arm(request, directory, interpreter=self.interpreter)
            finally:
                self.models_around[name] = ArmModels(before=before, after=models.check_models(self.frozen))
            self._map(file for report in record.ranks for file in report.mapped)
            self.engine.look_at_cards("after", self.engine.held.cards, directory / reader.IDLE)

    def packet(self, card: Card, request: PacketRequest) -> None:
        """Run a parity packet on one card; likewise."""
        with self._recorded(f"{reader.PACKETS}/{request.rank}") as directory:
            record = self.engine.start.on_card(card).packet(request, directory, interpreter=self.interpreter)
            self._map(record.mapped)
            self.engine.look_at_cards("after", [card], directory / reader.IDLE)

    def _map(self, mapped: Iterable[MappedFile]) -> None:
        self.binaries[:] = binaries.hash_mapped(list(mapped), self.binaries)

    @contextlib.contextmanager
    def _recorded(self, place: str) -> Iterator[Path]:
        directory = self.engine.directory / place
        try:
            yield directory
        except RUN_ERRORS as error:
            # What left something running may have a record, which stands; its process speaks against it.
            if not (isinstance(error, launch.ArmSurvivedError) and (directory / reader.RECORD).exists()):
                write_failure(directory, error)
            raise _EndedError from error


def run_planned(
    engine: EngineRun,
    plan_for: Callable[[Campaign, str, Sequence[str], Mapping[str, JSON]], Plan],
    run_all: Callable[[Runs, Plan, Models], None],
) -> tuple[Plan, Runs]:
    """Plan a campaign from the cards and the models at hand, run what it plans, and look at all of it again.

    Args:
        engine: what the session holds.
        plan_for: makes the plan of a campaign on a lane, of the leased cards and the target's ``config.json``.
        run_all: asks for what the plan has, in its order.

    Returns:
        The plan, which is written down as ``plan.json``, and what was run of it.

    Raises:
        Exception: whatever ``EngineRun.models``, the plan and ``observed`` raise, before anything has run.
    """
    interpreter = engine.interpreter
    with engine.models(interpreter) as pair:
        engine.copy_configurations(pair)
        config = present(reader.read_configuration(engine.directory, "target-config.json"))
        plan = plan_for(engine.campaign, engine.lane, [card.identity for card in engine.held.cards], config)
        engine.write(Path("plan.json"), plan)
        with observed(engine, interpreter, pair) as runs:
            run_all(runs, plan, pair)
    engine.look_after()
    return plan, runs


def asked_of_every_arm(plan: ArmsPlan, pair: Models, arm: Arm) -> dict[str, Any]:
    """The fields of an arm's request that are the same in every campaign."""
    return {
        "arm": arm,
        "lane": plan.lane,
        "target": str(pair.target),
        "draft": str(pair.draft) if arm.speculates else None,
        "prompt": pair.prompt,
        "tokens": plan.completion_tokens,
        "tensor_parallel_size": plan.ranks,
        "collective_breaks": plan.collective_breaks,
        "planted": Planted.NONE,
    }


@contextlib.contextmanager
def observed(engine: EngineRun, interpreter: Path, pair: Models) -> Iterator[Runs]:
    """Runs whose engine and models are looked at before and after, and whose cards are looked at before.

    Args:
        engine: what the session holds.
        interpreter: the engine's Python.
        pair: the models.

    Raises:
        Exception: whatever ``EngineRun.require_frozen``, ``describe`` and ``look_at_cards`` raise, before anything ran.
    """
    frozen = models.freeze_models([pair.target, pair.draft])
    engine.require_frozen(frozen)
    before = engine.describe(interpreter, frozen)
    engine.look_at_cards("before", engine.held.cards, Path("idle-before.json"))
    runs = Runs(engine, interpreter, frozen)
    with contextlib.suppress(_EndedError):
        yield runs
    identity = engine.identity(
        before,
        engine.look_again(interpreter),
        frozen=frozen,
        models_around=runs.models_around,
        arm_directories={arm: str(engine.directory / reader.ARMS / arm) for arm in runs.models_around},
        binaries=runs.binaries,
    )
    engine.write(Path("identity.json"), identity)
