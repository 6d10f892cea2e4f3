# SPDX-License-Identifier: Apache-2.0
"""Verdict of the exact diagnostic: every clause with its rules, a pure function of its files."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from pytest_laguna.analysis.arms.case import clause_verdict, judge
from pytest_laguna.analysis.arms.each_arm import CACHE_COLD
from pytest_laguna.analysis.arms.engine_identity import IDENTITY_RULES
from pytest_laguna.analysis.arms.surroundings import CARDS_IDLE, HOST_WITHIN_LIMITS
from pytest_laguna.analysis.arms.topology import TOPOLOGY_UNCHANGED
from pytest_laguna.analysis.diagnostic.arms import ARMS_FRESH, DRAFTS_BOUNDED, TOKENS_IDENTICAL, all_identical
from pytest_laguna.analysis.diagnostic.case import DiagnosticCase, Rule
from pytest_laguna.analysis.diagnostic.packets import PARITY_PACKETS
from pytest_laguna.analysis.diagnostic.replay_rules import REPLAY_SAMPLES, VIEW_PREPARATIONS
from pytest_laguna.analysis.diagnostic.timing import compare_arms, distributions, published_verdict, timing_rules
from pytest_laguna.analysis.diagnostic.treatment import SELECTOR_PROVEN, SOLE_TREATMENT
from pytest_laguna.analysis.findings import RuleFinding
from pytest_laguna.evidence.diagnostic.analysis import CLAUSES, Diagnosis, DiagnosticPlan
from pytest_laguna.evidence.diagnostic.reader import DiagnosticEvidence
from pytest_laguna.verdict import Verdict


def _identity(case: DiagnosticCase, name: str) -> RuleFinding:
    """Finding of one rule over engine, binaries and models; for missing evidence, with the first run failure."""
    finding = IDENTITY_RULES[name](case.identity)
    if finding is not None and finding[0] is Verdict.NOT_PROVEN:
        return Verdict.NOT_PROVEN, f"{finding[1]}{case.first_failure()}"
    return finding


EXACTNESS: Mapping[str, Mapping[str, Rule]] = {
    "identity-exact": {name: functools.partial(_identity, name=name) for name in IDENTITY_RULES},
    "cards-idle": CARDS_IDLE,
    "host-within-limits": HOST_WITHIN_LIMITS,
    "arms-fresh": ARMS_FRESH,
    "cache-cold": CACHE_COLD,
    "tokens-identical": TOKENS_IDENTICAL,
    "drafts-bounded": DRAFTS_BOUNDED,
    "topology-unchanged": TOPOLOGY_UNCHANGED,
    "sole-treatment": SOLE_TREATMENT,
    "selector-proven": SELECTOR_PROVEN,
    "parity-packets": PARITY_PACKETS,
    "replay-samples": REPLAY_SAMPLES,
    "view-preparations": VIEW_PREPARATIONS,
}
"""Rules of every clause but ``timing``, in the order of judgement."""


def diagnose(plan: DiagnosticPlan, evidence: DiagnosticEvidence) -> Diagnosis:
    """Judge the diagnostic's evidence against its plan; this reads the profiles, one file at a time.

    A rule without its evidence is not proven, and its reason names the missing piece and the first failure. Unusable
    evidence makes a rule void. Every rule is judged, also after another one failed.
    """
    case = DiagnosticCase(plan, evidence)
    timing = compare_arms(case)
    clauses = judge({**EXACTNESS, "timing": timing_rules(timing)}, case)
    exact = all(clause_verdict(clauses[clause])[0] is Verdict.PASS for clause in EXACTNESS)
    as_published = exact and plan.has_published_shape and all_identical(case) and not plan.null
    return Diagnosis(
        plan_sha256=plan.sha256,
        decides=plan.decides,
        clauses={clause: clauses[clause] for clause in CLAUSES},
        timing=None if isinstance(timing, tuple) else dict(timing),
        distributions=distributions(case),
        published=published_verdict(timing) if as_published and not isinstance(timing, tuple) else None,
    )
