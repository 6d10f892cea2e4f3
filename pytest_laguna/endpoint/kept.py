# SPDX-License-Identifier: Apache-2.0
"""A leg's record against the files beside it: whatever can be read again must say the same.

The times of a row are the record's alone: nothing that is kept holds them.
"""

from __future__ import annotations

from pathlib import Path

import pydantic

from pytest_laguna.endpoint.client import Question, request_name, stream_name
from pytest_laguna.endpoint.facts import Observed, declare
from pytest_laguna.endpoint.leg import END, METRICS_AFTER, METRICS_BEFORE, RANKS, RECORD, REQUEST, freshness_of
from pytest_laguna.endpoint.metrics import read_counters
from pytest_laguna.endpoint.suite import Suite
from pytest_laguna.endpoint.transport import ANSWER_LIMIT_BYTES, Read
from pytest_laguna.evidence import files
from pytest_laguna.evidence.endpoint_reader import require_end
from pytest_laguna.evidence.leased_cards import HOST, PROCESS
from pytest_laguna.evidence.leg import (
    Counters,
    FinalGate,
    LegEnd,
    LegFacts,
    LegRecord,
    LegRequest,
    RankState,
    SuiteRow,
)
from pytest_laguna.evidence.rank_files import state_name
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.verdict import UnusableEvidenceError


def require_kept(directory: Path, record: LegRecord, suite: Suite) -> None:
    """Hold a leg's record against its own files, which are those that a leg leaves and no others.

    Args:
        directory: the leg's.
        record: its ``leg.json``.
        suite: that it passed.

    Raises:
        UnusableEvidenceError: a file is missing or is not what its name says, or the record says something else.
    """
    try:
        _require_no_other(directory, record)
        _require_equal(record, _derive(directory, record, suite))
        require_end(directory, record.end)
    except UnusableEvidenceError as error:
        message = f"{directory.name}: {error}"
        raise UnusableEvidenceError(message) from error


def _require_no_other(directory: Path, record: LegRecord) -> None:
    """A file that no leg leaves was put there by somebody, and what it stands for nobody can say."""
    expected = {REQUEST, RECORD, END, METRICS_BEFORE, METRICS_AFTER, PROCESS, HOST, "stdout.log", "stderr.log", RANKS}
    for row in record.rows:
        expected |= {request_name(row.index), stream_name(row.index)}
    for states, moment in _moments(record):
        expected |= {f"{RANKS}/{state_name(state.rank, moment)}" for state in states}
    there = {path.relative_to(directory).as_posix() for path in directory.rglob("*")}
    other = sorted(there - expected)
    if other:
        message = f"{other[0]}: no file that a leg leaves; expected none but the leg's own"
        raise UnusableEvidenceError(message)


def _require_equal(record: LegRecord, derived: LegRecord) -> None:
    for field in LegRecord.model_fields:
        stated, kept = getattr(record, field), getattr(derived, field)
        if stated != kept:
            where = _first_difference(field, stated, kept)
            message = f"leg.json: {where} is not what the files beside it give; expected a record of these files"
            raise UnusableEvidenceError(message)


def _first_difference(name: str, stated: object, kept: object) -> str:
    """The name of the innermost value that differs."""
    if isinstance(stated, list) and isinstance(kept, list) and len(stated) == len(kept):
        place = next(place for place, one in enumerate(stated) if one != kept[place])
        return _first_difference(f"{name}.{place}", stated[place], kept[place])
    if isinstance(stated, pydantic.BaseModel) and isinstance(kept, pydantic.BaseModel):
        field = next(field for field in type(stated).model_fields if getattr(stated, field) != getattr(kept, field))
        return _first_difference(f"{name}.{field}", getattr(stated, field), getattr(kept, field))
    return name


def _derive(directory: Path, record: LegRecord, suite: Suite) -> LegRecord:
    """The record with everything in it that its files tell again."""
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
    """A row from its kept request and answer, with the record's times."""
    question = Question(index, suite.prompts[index], record.server.nonce, record.request.model, suite.max_tokens)
    if files.read_bytes(directory / request_name(index), limit=ANSWER_LIMIT_BYTES) != question.body:
        message = f"{request_name(index)}: not the request for {question.prompt.id}; expected it as the suite gives it"
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
    """The states of that moment that lie there, by rank."""
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
