# SPDX-License-Identifier: Apache-2.0
"""Checks a leg's record against the files beside it: everything derivable must agree.

A row's times stand in the record alone; no kept file holds them.
"""

from __future__ import annotations

from pathlib import Path

import pydantic

from pytest_laguna.endpoint.client import Question, request_name, stream_name
from pytest_laguna.endpoint.facts import Observed, declare
from pytest_laguna.endpoint.leg import METRICS_AFTER, METRICS_BEFORE, RANKS, freshness_of
from pytest_laguna.endpoint.metrics import read_counters
from pytest_laguna.endpoint.suite import Suite
from pytest_laguna.endpoint.transport import ANSWER_LIMIT_BYTES, Read
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.rank_files import state_name
from pytest_laguna.evidence.endpoint.leg import (
    Counters,
    FinalGate,
    LegEnd,
    LegFacts,
    LegRecord,
    LegRequest,
    RankState,
    SuiteRow,
)
from pytest_laguna.evidence.endpoint.reader import END, LEG, require_end
from pytest_laguna.evidence.machine.leased_cards import HOST, PROCESS
from pytest_laguna.evidence.reading import REQUEST
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.verdict import UnusableEvidenceError


def require_kept(directory: Path, record: LegRecord, suite: Suite) -> None:
    """Require a leg's record and its files to agree, and no other files.

    Args:
        directory: the leg's.
        record: content of its ``leg.json``.
        suite: of the leg.

    Raises:
        UnusableEvidenceError: a file is missing, unexpected or malformed, or disagrees with the record.
    """
    try:
        _require_no_other(directory, record)
        _require_equal(record, _derive(directory, record, suite))
        require_end(directory, record.end)
    except UnusableEvidenceError as error:
        raise UnusableEvidenceError(f"{directory.name}: {error}") from error


def _require_no_other(directory: Path, record: LegRecord) -> None:
    """Refuse unexpected files: they were added later, and nothing can judge them."""
    expected = {REQUEST, LEG, END, METRICS_BEFORE, METRICS_AFTER, PROCESS, HOST, "stdout.log", "stderr.log", RANKS}
    for row in record.rows:
        expected |= {request_name(row.index), stream_name(row.index)}
    for states, moment in _moments(record):
        expected |= {f"{RANKS}/{state_name(state.rank, moment)}" for state in states}
    there = {path.relative_to(directory).as_posix() for path in directory.rglob("*")}
    other = sorted(there - expected)
    if other:
        raise UnusableEvidenceError(f"{other[0]}: seen in the leg's directory; expected only files that a leg leaves")


def _require_equal(record: LegRecord, derived: LegRecord) -> None:
    for field in LegRecord.model_fields:
        stated, kept = getattr(record, field), getattr(derived, field)
        if stated != kept:
            where = _first_difference(field, stated, kept)
            message = f"leg.json: {where}: seen another value than in the files beside it; expected the same"
            raise UnusableEvidenceError(message)


def _first_difference(name: str, stated: object, kept: object) -> str:
    """Dotted name of the innermost value that differs."""
    if isinstance(stated, list) and isinstance(kept, list) and len(stated) == len(kept):
        place = next(place for place, one in enumerate(stated) if one != kept[place])
        return _first_difference(f"{name}.{place}", stated[place], kept[place])
    if isinstance(stated, pydantic.BaseModel) and isinstance(kept, pydantic.BaseModel):
        field = next(field for field in type(stated).model_fields if getattr(stated, field) != getattr(kept, field))
        return _first_difference(f"{name}.{field}", getattr(stated, field), getattr(kept, field))
    return name


def _derive(directory: Path, record: LegRecord, suite: Suite) -> LegRecord:
    """The record, with everything derived again from its files."""
    rows = [_row(directory, record, suite, index) for index in range(len(suite.prompts))]
    ranks = [_rank_states(directory, states, moment) for states, moment in _moments(record)]
    before, after = (_counters(directory, name, record.request.model) for name in (METRICS_BEFORE, METRICS_AFTER))
    return record.model_copy(
        update={
            "request": read_model(directory / REQUEST, LegRequest),
            "ranks_captured": ranks[0],
            "ranks_served": ranks[1],
            "counters_before": before,
            "counters_after": after,
            "rows": rows,
            "freshness": freshness_of(suite, rows),
            "final_gate": FinalGate(
                rows=len(rows),
                completion_tokens=[row.usage.completion_tokens for row in rows],
                cached_tokens=[row.usage.cached_tokens for row in rows],
            ),
            "facts": _facts(directory, record, rows, before, after),
            "end": read_model(directory / END, LegEnd),
        }
    )


def _row(directory: Path, record: LegRecord, suite: Suite, index: int) -> SuiteRow:
    """A row from its kept request and answer, with times from the record."""
    question = Question(index, suite.prompts[index], record.server.nonce, record.request.model, suite.max_tokens)
    if files.read_bytes(directory / request_name(index), limit=ANSWER_LIMIT_BYTES) != question.body:
        message = f"{request_name(index)}: seen another request; expected that for {question.prompt.id} of the suite"
        raise UnusableEvidenceError(message)
    answer = files.read_bytes(directory / stream_name(index), limit=ANSWER_LIMIT_BYTES)
    row = question.row([Read(0, answer)], sent_ns=0, began_ns=0)
    if index >= len(record.rows):
        return row
    stated = record.rows[index]
    times = {"sent_ns": stated.sent_ns, "arrival_ns": stated.arrival_ns, "done_ns": stated.done_ns}
    return row.model_copy(update=times)


def _counters(directory: Path, name: str, model: str) -> Counters:
    return read_counters(files.read_bytes(directory / name, limit=ANSWER_LIMIT_BYTES), name, model)


def _moments(record: LegRecord) -> tuple[tuple[list[RankState], str], tuple[list[RankState], str]]:
    return (record.ranks_captured, "captured"), (record.ranks_served, "served")


def _rank_states(directory: Path, states: list[RankState], moment: str) -> list[RankState]:
    """Kept states of a moment, by rank."""
    count = max(len(states), len(list((directory / RANKS).glob(f"*-{moment}.json"))))
    return [read_model(directory / RANKS / state_name(rank, moment), RankState) for rank in range(count)]


def _facts(directory: Path, record: LegRecord, rows: list[SuiteRow], before: Counters, after: Counters) -> LegFacts:
    return declare(
        Observed(
            directory=directory,
            engine_arguments=record.request.engine_arguments,
            begun_ticks=record.begun_ticks,
            start_ticks=record.server.start_ticks,
            posted=record.posted,
            rows=rows,
            ranks=record.ranks_captured,
            before=before,
            after=after,
            looks=record.sockets,
        )
    )
