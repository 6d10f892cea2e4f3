# SPDX-License-Identifier: Apache-2.0
"""Table of clauses: each with its verdict, its proof, and the files behind it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pytest_laguna.analysis.findings import RuleLine
from pytest_laguna.evidence.diagnostic.analysis import NOTICE
from pytest_laguna.evidence.experiments import files_behind
from pytest_laguna.evidence.schemas import ClauseProof, ClauseResult, Entry
from pytest_laguna.report.markup import Markup, code, details, element, joined, table
from pytest_laguna.report.shown import ShownAttempt
from pytest_laguna.verdict import Verdict

_SHOWN = 2
"""Paths shown in the table; more are folded."""


def badge(verdict: Verdict | str) -> Markup:
    """Verdict as a word with its colour; the word suffices."""
    return element("span", str(verdict), class_=f"verdict {verdict}")


def clause_table(shown: ShownAttempt) -> Markup:
    """The gate's clauses in running order."""
    rules = {} if shown.derived is None else shown.derived.rules
    rows = [
        (
            badge(result.verdict),
            joined([code(result.clause), element("div", _breakable(result.nodeid.rpartition("::")[2]), class_="soft")]),
            _shows(result, rules.get(result.clause, ())),
            _files(shown, result.clause),
        )
        for result in shown.analysis.clauses
    ]
    return table(("verdict", "clause", "reason and proof", "evidence"), rows, class_="clauses")


def _breakable(name: str) -> Markup:
    """Long name with optional line breaks between its words."""
    return joined(name.split("_"), "_<wbr>")


def _shows(result: ClauseResult, rules: Sequence[RuleLine]) -> Markup:
    parts: list[Markup] = [element("strong", result.reason)] if result.reason else []
    parts += [_proof(proof) for proof in result.proofs]
    if rules:
        parts.append(details(_count(rules), table(("rule", "verdict", "finding"), map(_rule, rules))))
    if result.detail:
        parts.append(details("output of the test", element("pre", result.detail)))
    return joined(parts)


def _proof(proof: ClauseProof) -> Markup:
    statement = proof.statement.removesuffix(f" ({NOTICE})")  # the page has it above
    if not proof.observed:
        return element("div", statement)
    observed = json.dumps(proof.observed, indent=1, ensure_ascii=False, sort_keys=True)
    return details(statement, element("pre", observed))


def _count(rules: Sequence[RuleLine]) -> str:
    """Count the rules that hold, do not hold, or decide nothing."""
    verdicts = [verdict for _, verdict, _ in rules]
    silent = verdicts.count(None)
    holding = len({rule for rule, verdict, _ in rules if verdict is Verdict.PASS})
    counts = [(holding, "rules hold" if holding != 1 else "rule holds")]
    counts += [(verdicts.count(verdict), str(verdict)) for verdict in Verdict if verdict is not Verdict.PASS]
    counts.append((silent, "decide nothing" if silent != 1 else "decides nothing"))
    return ", ".join(f"{count} {word}" for count, word in counts if count) or "no rule"


def _rule(line: RuleLine) -> tuple[str, str, str]:
    rule, verdict, reason = line
    shown = element("span", "decides nothing", class_="soft") if verdict is None else badge(verdict)
    return code(rule), shown, reason


def _files(shown: ShownAttempt, clause: str) -> Markup:
    entries = {entry.path: entry for entry in shown.manifest.entries if entry.kind == "file"}
    lines = [element("div", code(path), " ", _digest(entries[path])) for path in files_behind(entries, clause)]
    if not lines:
        return element("span", "the journal", class_="soft")
    if len(lines) <= _SHOWN:
        return joined(lines)
    return details(f"{len(lines)} files", *lines)


def _digest(entry: Entry) -> Markup:
    return element("span", f"{(entry.sha256 or '')[:12]}", class_="soft", title=f"SHA-256 {entry.sha256}")
