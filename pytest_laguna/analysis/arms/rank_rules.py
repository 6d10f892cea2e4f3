# SPDX-License-Identifier: Apache-2.0
"""Rules over the ranks of each arm of any campaign: each answers, and all sample the same tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from pytest_laguna.analysis.arms.case import AnyCase
from pytest_laguna.analysis.arms.hung_ranks import hung_ranks
from pytest_laguna.analysis.findings import RuleFinding
from pytest_laguna.evidence.arms.arm_record import ArmRecord
from pytest_laguna.evidence.reading import Missing
from pytest_laguna.verdict import Verdict


def ranks_answered(case: AnyCase) -> RuleFinding:
    """Rule ``ranks-answered``: no arm was ended while a rank kept the others waiting."""
    for arm, run in case.evidence.arms.items():
        if isinstance(run.record, Missing):
            hung = hung_ranks(run.stacks, case.plan.ranks)
            if hung is not None:
                return Verdict.VOID, f"{arm}: {hung}"
            case.piece(run.record)  # raises the root cause
    return None


def ranks_sampled_alike(case: AnyCase) -> RuleFinding:
    """Rule ``ranks-sampled-alike``: each rank of each arm sampled the arm's tokens, and all ranks the same.

    The engine asks the first rank alone: another rank's other tokens may leave the arm's unchanged.
    """
    return judge_samples(case.records())


def judge_samples(records: Iterable[tuple[str, ArmRecord]]) -> RuleFinding:
    """Find the first rank of a named arm with another sample.

    The last step may yield more tokens than the length allows: there the first rank gives the expected ones.
    """
    for arm, record in records:
        given, first = record.token_ids, record.ranks[0].sampled_token_ids
        for report in record.ranks:
            pairs = itertools.zip_longest(report.sampled_token_ids, [*given, *first[len(given) :]])
            for position, (seen, expected) in enumerate(pairs):
                if seen != expected:
                    told = f"{arm} rank {report.rank}: seen {seen} sampled as token {position}"
                    source = "the arm gave" if position < len(given) else "rank 0 sampled"
                    return Verdict.FAIL, f"{told}; expected {expected}, as {source}"
    return None
