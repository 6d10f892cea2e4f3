# SPDX-License-Identifier: Apache-2.0
"""What a campaign expects of a gate on the cards at hand: derived before anything runs, and again by verification."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_laguna.analysis.topology import expected_topology, target_layers
from pytest_laguna.campaign import Campaign, Diagnostic, Engine, EventProfile, GeneratedPair, ModelFolders
from pytest_laguna.engine import launch
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arm_record import DRAFT_TOKENS
from pytest_laguna.evidence.arms_plan import ArmsPlan, FolderModels, GeneratedModels
from pytest_laguna.evidence.diagnostic import DiagnosticPlan
from pytest_laguna.evidence.event_analysis import EventPlan, Fitness
from pytest_laguna.evidence.idle import IdleRequirement
from pytest_laguna.evidence.parity import KV_HEADS
from pytest_laguna.evidence.rehearsal import NullPlan
from pytest_laguna.verdict import JSON, UnusableEvidenceError

_CONFIG_LIMIT = 1024 * 1024


def cards_needed(target: Path) -> int:
    """Cards that a target must be spread over for the candidate to serve it: the record has two KV heads a rank.

    Args:
        target: folder of the model.

    Raises:
        UnusableEvidenceError: its ``config.json`` cannot be read, or says of no such number.
    """
    path = target / "config.json"
    config = files.parse_json(files.read_bytes(path, limit=_CONFIG_LIMIT), str(path))
    heads = config.get("num_key_value_heads") if isinstance(config, dict) else None
    if type(heads) is not int or heads < KV_HEADS or heads % KV_HEADS:
        message = f"{path}: num_key_value_heads {heads!r}; expected a multiple of {KV_HEADS}, as many as a rank has"
        raise UnusableEvidenceError(message)
    return heads // KV_HEADS


def plan_diagnostic(
    campaign: Campaign, lane: str, cards: Sequence[str], target_config: Mapping[str, JSON]
) -> DiagnosticPlan:
    """The plan of gate 2.

    Args:
        campaign: one with a diagnostic.
        lane: where it runs.
        cards: identities of the leased cards, in rank order.
        target_config: the target's ``config.json``.

    Raises:
        UnusableEvidenceError: the campaign has no diagnostic, or no engine on that lane, or a prompt that the pair has
            not, or the configuration is not one whose graph is known.
    """
    engine, diagnostic = campaign.lane_settings(lane).engine, campaign.diagnostic
    if diagnostic is None or engine is None:
        message = f"campaign {campaign.name}: expected tables diagnostic and lanes.{lane}.engine"
        raise UnusableEvidenceError(message)
    return DiagnosticPlan(
        **dict(_arms(campaign, lane, cards, target_config, engine=engine, asked=diagnostic)),
        flag=campaign.candidate.flag,
        control=campaign.candidate.control,
        treatment=campaign.candidate.treatment,
        draft_tokens=DRAFT_TOKENS,
        samples=diagnostic.samples,
        decides=engine.decides,
        identical=engine.identical,
        acceptance_rate_difference=diagnostic.acceptance_rate_difference,
        accepted_per_cycle=diagnostic.accepted_per_cycle,
        queries=diagnostic.queries,
        null=diagnostic.null,
    )


def _arms(  # noqa: PLR0913 - each says a part of it
    campaign: Campaign,
    lane: str,
    cards: Sequence[str],
    target_config: Mapping[str, JSON],
    *,
    engine: Engine,
    asked: Diagnostic | EventProfile,
) -> ArmsPlan:
    """What a plan says of every arm; raises as the plans that begin with it."""
    settings = campaign.lane_settings(lane)
    return ArmsPlan(
        lane=next(name for name in campaign.lanes if name == lane),
        cards=list(cards),
        vllm=settings.vllm,
        interpreter=engine.interpreter,
        models=_models(engine.model),
        validator=campaign.candidate.validator,
        completion_tokens=asked.completion_tokens,
        collective_breaks=asked.collective_breaks,
        topology=expected_topology(target_config, len(cards), collective_breaks=asked.collective_breaks),
        target_layers=target_layers(target_config),
        idle=IdleRequirement.model_validate(settings.idle.model_dump(include=set(IdleRequirement.model_fields))),
        host=settings.host,
    )


def _models(model: GeneratedPair | ModelFolders) -> GeneratedModels | FolderModels:
    """The campaign's pair in the form of a plan."""
    if not isinstance(model, GeneratedPair):
        return FolderModels.model_validate(model.model_dump())
    text = launch.TINY_PAIR_PROMPTS.get(model.prompt)
    if text is None:
        message = (
            f"campaign: prompt {model.prompt!r}; expected one of the pair's: {', '.join(launch.TINY_PAIR_PROMPTS)}"
        )
        raise UnusableEvidenceError(message)
    return GeneratedModels(
        generated=model.generated,
        layers=model.layers,
        width=model.width,
        hidden_size=launch.TINY_PAIR_HIDDEN * model.width,
        prompt=model.prompt,
        prompt_sha256=hashlib.sha256(text.encode()).hexdigest(),
    )


def plan_null(campaign: Campaign, lane: str, target_config: Mapping[str, JSON]) -> NullPlan:
    """The plan of the starts of the control from which the timing rules' noise is measured.

    Args:
        campaign: one with a diagnostic and a table ``rehearsal.gates``.
        lane: the device lane.
        target_config: the ``config.json`` of the target that the starts load.

    Raises:
        UnusableEvidenceError: the campaign has none of these, or the configuration is not one whose graph is known.
    """
    engine, diagnostic = campaign.lane_settings(lane).engine, campaign.diagnostic
    gates = None if campaign.rehearsal is None else campaign.rehearsal.gates
    if engine is None or diagnostic is None or gates is None:
        message = f"campaign {campaign.name}: expected tables diagnostic, rehearsal.gates and lanes.{lane}.engine"
        raise UnusableEvidenceError(message)
    topology = expected_topology(target_config, gates.cards, collective_breaks=diagnostic.collective_breaks)
    return NullPlan(
        decides=engine.decides,
        starts=gates.starts,
        ranks=gates.cards,
        flag=campaign.candidate.flag,
        control=campaign.candidate.control,
        validator=campaign.candidate.validator,
        completion_tokens=diagnostic.completion_tokens,
        collective_breaks=diagnostic.collective_breaks,
        graphs=topology.graphs,
        breaks=topology.breaks,
        target_layers=target_layers(target_config),
        samples=diagnostic.samples,
        effect_percent=gates.effect_percent,
    )


def plan_events(campaign: Campaign, lane: str, cards: Sequence[str], target_config: Mapping[str, JSON]) -> EventPlan:
    """The plan of gate 2 of an event profile campaign.

    Args:
        campaign: one with an event profile.
        lane: where it runs.
        cards: identities of the leased cards, in rank order.
        target_config: the target's ``config.json``.

    Raises:
        UnusableEvidenceError: the campaign has no event profile, or no engine on that lane, or a prompt that the pair
            has not, or the configuration is not one whose graph is known.
    """
    engine, events = campaign.lane_settings(lane).engine, campaign.event_profile
    if events is None or engine is None:
        message = f"campaign {campaign.name}: expected tables event_profile and lanes.{lane}.engine"
        raise UnusableEvidenceError(message)
    return EventPlan(
        **dict(_arms(campaign, lane, cards, target_config, engine=engine, asked=events)),
        material_percent=events.material_percent,
        fitness=None if events.fitness is None else Fitness.model_validate(events.fitness.model_dump()),
        sparse_replays=events.sparse_replays,
    )
