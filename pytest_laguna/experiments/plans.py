# SPDX-License-Identifier: Apache-2.0
"""Derives the plan of each experiment from the campaign and the cards: before anything runs, and in verification."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pytest_laguna.analysis.arms.topology import expected_topology, target_layers
from pytest_laguna.campaign import Campaign, Diagnostic, EventProfiling, GeneratedPair, ModelFolders
from pytest_laguna.engine import launch
from pytest_laguna.evidence import files
from pytest_laguna.evidence.aa.rehearsal import NullPlan
from pytest_laguna.evidence.arms.arm_record import DRAFT_TOKENS
from pytest_laguna.evidence.arms.parity import KV_HEADS
from pytest_laguna.evidence.arms.plan import ArmsPlan, FolderModels, GeneratedModels
from pytest_laguna.evidence.diagnostic.analysis import DiagnosticPlan
from pytest_laguna.evidence.events.analysis import EventPlan
from pytest_laguna.evidence.machine.idle import IdleRequirement
from pytest_laguna.evidence.reading import CONFIG, CONFIG_LIMIT
from pytest_laguna.evidence.schemas import Model
from pytest_laguna.verdict import JSON, UnusableEvidenceError

Plan = TypeVar("Plan", bound=ArmsPlan)


def cards_needed(target: Path) -> int:
    """Return the number of cards of a target under the candidate: the record has two KV heads a rank.

    Args:
        target: folder of the model.

    Raises:
        UnusableEvidenceError: its ``config.json`` cannot be read, or says of no such number.
    """
    path = target / CONFIG
    config = files.parse_json(files.read_bytes(path, limit=CONFIG_LIMIT), str(path))
    heads = config.get("num_key_value_heads") if isinstance(config, dict) else None
    if type(heads) is not int or heads < KV_HEADS or heads % KV_HEADS:
        message = f"{path}: num_key_value_heads {heads!r}; expected a multiple of {KV_HEADS}, as many as a rank has"
        raise UnusableEvidenceError(message)
    return heads // KV_HEADS


def filled(form: type[Model], *tables: object, **derived: object) -> Model:
    """Return a form of evidence with the values of the tables' fields of the same name.

    Args:
        form: a plan, or a part of one.
        tables: of the campaign or its protocol; the first that has a field gives its value.
        derived: values that no table has, and those that replace a table's.
    """
    named = {
        name: getattr(table, name) for table in reversed(tables) for name in form.model_fields if hasattr(table, name)
    }
    return form.model_validate(named | derived)


def plan_diagnostic(
    campaign: Campaign, lane: str, cards: Sequence[str], target_config: Mapping[str, JSON]
) -> DiagnosticPlan:
    """Return the plan of the exact diagnostic.

    Args:
        campaign: one with a diagnostic.
        lane: where it runs.
        cards: identities of the leased cards, in rank order.
        target_config: the target's ``config.json``.

    Raises:
        UnusableEvidenceError: the campaign has no diagnostic or no engine on that lane, its prompt is none of the
            pair's, or the configuration's graph is unknown.
    """
    asked = {"diagnostic": campaign.diagnostic}
    return _plan_arms(DiagnosticPlan, campaign, lane, cards, target_config, asked=asked, draft_tokens=DRAFT_TOKENS)


def plan_events(campaign: Campaign, lane: str, cards: Sequence[str], target_config: Mapping[str, JSON]) -> EventPlan:
    """Return the plan of the event profile; arguments and errors are those of ``plan_diagnostic``."""
    return _plan_arms(EventPlan, campaign, lane, cards, target_config, asked={"event_profile": campaign.event_profile})


def _plan_arms(  # noqa: PLR0913 - each is a fact of its own
    form: type[Plan],
    campaign: Campaign,
    lane: str,
    cards: Sequence[str],
    target_config: Mapping[str, JSON],
    *,
    asked: Mapping[str, Diagnostic | EventProfiling | None],
    **derived: object,
) -> Plan:
    """Return the plan of a table; ``asked`` gives it with its name."""
    settings = campaign.lane_settings(lane)
    ((name, table),) = asked.items()
    if table is None or settings.engine is None:
        raise UnusableEvidenceError(f"campaign {campaign.name}: expected tables {name} and lanes.{lane}.engine")
    return filled(
        form,
        table,
        settings.engine,
        settings,
        campaign.candidate,
        lane=lane,
        cards=list(cards),
        models=_models(settings.engine.model),
        topology=expected_topology(target_config, len(cards), collective_breaks=table.collective_breaks),
        target_layers=target_layers(target_config),
        idle=filled(IdleRequirement, settings.idle),
        **derived,
    )


def _models(model: GeneratedPair | ModelFolders) -> GeneratedModels | FolderModels:
    """Return the campaign's pair in the form of a plan."""
    if not isinstance(model, GeneratedPair):
        return filled(FolderModels, model)
    text = launch.TINY_PAIR_PROMPTS.get(model.prompt)
    if text is None:
        message = (
            f"campaign: prompt {model.prompt!r}; expected one of the pair's: {', '.join(launch.TINY_PAIR_PROMPTS)}"
        )
        raise UnusableEvidenceError(message)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return filled(GeneratedModels, model, hidden_size=launch.TINY_PAIR_HIDDEN * model.width, prompt_sha256=digest)


def plan_null(campaign: Campaign, lane: str, target_config: Mapping[str, JSON]) -> NullPlan:
    """Return the plan of the starts of the control, the measurement of the timing rules' noise.

    Args:
        campaign: one with a diagnostic and a table ``rehearsal.gates``.
        lane: the device lane.
        target_config: the ``config.json`` of the target that the starts load.

    Raises:
        UnusableEvidenceError: the campaign has none of these, or the configuration's graph is unknown.
    """
    engine, diagnostic = campaign.lane_settings(lane).engine, campaign.diagnostic
    gates = None if campaign.rehearsal is None else campaign.rehearsal.gates
    if engine is None or diagnostic is None or gates is None:
        message = f"campaign {campaign.name}: expected tables diagnostic, rehearsal.gates and lanes.{lane}.engine"
        raise UnusableEvidenceError(message)
    topology = expected_topology(target_config, gates.cards, collective_breaks=diagnostic.collective_breaks)
    layers = target_layers(target_config)
    return filled(
        NullPlan, engine, gates, campaign.candidate, diagnostic, topology, ranks=gates.cards, target_layers=layers
    )
