# SPDX-License-Identifier: Apache-2.0
"""The exact diagnostic's verdict: every clause with its rules, a pure function of the files that it left."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from pytest_laguna.analysis.arms import ARMS_FRESH, DRAFTS_BOUNDED, TOKENS_IDENTICAL, all_identical
from pytest_laguna.analysis.diagnostic_case import Case, Rule
from pytest_laguna.analysis.each_arm import CACHE_COLD
from pytest_laguna.analysis.engine_identity import IDENTITY_RULES
from pytest_laguna.analysis.findings import Finding, RuleFinding, decisive
from pytest_laguna.analysis.packets import PARITY_PACKETS
from pytest_laguna.analysis.replay_rules import REPLAY_SAMPLES, VIEW_PREPARATIONS
from pytest_laguna.analysis.surroundings import CARDS_IDLE, HOST_WITHIN_LIMITS
from pytest_laguna.analysis.timing import compare_arms, distributions, published_verdict, timing_rules
from pytest_laguna.analysis.topology import TOPOLOGY_UNCHANGED
from pytest_laguna.analysis.treatment import SELECTOR_PROVEN, SOLE_TREATMENT
from pytest_laguna.evidence.diagnostic import CLAUSES, Diagnosis, DiagnosticPlan, RuleResult
from pytest_laguna.evidence.diagnostic_evidence import DiagnosticEvidence
from pytest_laguna.verdict import NotProvenError, UnusableEvidenceError, Verdict


def _identity(case: Case, name: str) -> RuleFinding:
    """One rule over engine, binaries and models; what it misses is missing because a run failed, where one did."""
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
"""The rules of every clause but ``timing``, in the order in which they are judged."""


def diagnose(plan: DiagnosticPlan, evidence: DiagnosticEvidence) -> Diagnosis:
    """Judge everything that the diagnostic left against what was planned.

    A rule without its evidence is not proven, and its reason names what is missing and what went wrong before; evidence
    that cannot be used makes it void. Nothing is left out because something else failed.

    Args:
        plan: as written before anything ran.
        evidence: as read from the directory; its profiles are read here, one file at a time.
    """
    case = Case(plan, evidence)
    clauses = {
        clause: {name: _judge(rule, case) for name, rule in rules.items()} for clause, rules in EXACTNESS.items()
    }
    timing = compare_arms(case)
    clauses["timing"] = {name: _judge(rule, case) for name, rule in timing_rules(timing).items()}
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


def clause_verdict(results: Mapping[str, RuleResult]) -> Finding:
    """What the rules of one clause come to, with the reason of the first that decided; listed rules prove nothing.

    Args:
        results: one value of ``Diagnosis.clauses``.
    """
    judged = {name: result for name, result in results.items() if result.verdict is not None}
    if not judged:
        return Verdict.NOT_PROVEN, "no rule could be applied"
    against = [
        (result.verdict, f"{name}: {result.reason}")
        for name, result in judged.items()
        if result.verdict is not None and result.verdict is not Verdict.PASS
    ]
    listed = len(results) - len(judged)
    good = f"{len(judged)} rules hold{f', {listed} are listed only' if listed else ''}"
    return decisive(against) or (Verdict.PASS, good)


def exercised(results: Mapping[str, RuleResult]) -> str:
    """The names of the rules of one clause that prove something, as a part of a sentence.

    Args:
        results: as for ``clause_verdict``.
    """
    return ", ".join(name for name, result in results.items() if result.verdict is not None)


def _judge(rule: Rule, case: Case) -> RuleResult:
    try:
        finding = rule(case)
    except NotProvenError as error:
        finding = Verdict.NOT_PROVEN, str(error)
    except UnusableEvidenceError as error:
        finding = Verdict.VOID, str(error)
    if finding is None:
        return RuleResult(verdict=Verdict.PASS, reason="")
    return RuleResult(verdict=finding[0], reason=finding[1])
