# SPDX-License-Identifier: Apache-2.0
"""Each clause with its verdict, what shows it, and the files behind it."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator, Sequence

from pytest_laguna.evidence.diagnostic import NOTICE
from pytest_laguna.evidence.schemas import ClauseProof, ClauseResult, Entry
from pytest_laguna.report.attempt import OWN_FILES, RuleLine, ShownAttempt, rules_of
from pytest_laguna.report.markup import Markup, code, details, element, joined, table
from pytest_laguna.verdict import Verdict

_ARMS, _LEGS = "*/arms/*/", "endpoint/legs/*/"

FILES = {
    "identity-exact": ("identity.json", "*/identity.json", "*/engine-*/engine.json"),
    "cards-idle": ("cards/*.json", "*/idle-*.json", "*/*/*/idle.json"),
    "host-within-limits": ("*/host.json",),
    "parity-packets": ("diagnostic/packets/*/record.json",),
    "arms-fresh": (f"{_ARMS}re*.json", f"{_ARMS}process.json"),
    "cache-cold": (f"{_ARMS}record.json", f"{_LEGS}leg.json", f"{_LEGS}*.prom"),
    "tokens-identical": (f"{_ARMS}record.json",),
    "drafts-bounded": (f"{_ARMS}record.json",),
    "topology-unchanged": (f"{_ARMS}record.json", "*/target-config.json"),
    "sole-treatment": (f"{_ARMS}re*.json", f"{_LEGS}request.json", f"{_LEGS}ranks/*"),
    "selector-proven": (f"{_ARMS}record.json",),
    "replay-samples": (f"{_ARMS}profile/*",),
    "view-preparations": (f"{_ARMS}profile/*",),
    "timing": (f"{_ARMS}profile/*", f"{_ARMS}record.json"),
    "profile-complete": (f"{_ARMS}profile/*",),
    "closure-bound": ("event-profile/closure.json",),
    "instrument-fit": (f"{_ARMS}profile/*",),
    "decision": ("event-profile/analysis.json",),
    "legs-fresh": (f"{_LEGS}leg.json", f"{_LEGS}end.json", f"{_LEGS}failure.json"),
    "legs-in-order": (f"{_LEGS}leg.json", "endpoint/phase1-analysis.json"),
    "captures-proven": (f"{_LEGS}ranks/*",),
    "prompts-fresh": (f"{_LEGS}row-*", "endpoint/suite.json"),
    "counters-true": (f"{_LEGS}*.prom",),
    "teacher-exact": ("endpoint/teacher.json", f"{_LEGS}leg.json"),
    "cross-leg-exact": (f"{_LEGS}leg.json",),
    "long-next": (f"{_LEGS}leg.json",),
    "rollover": (f"{_LEGS}leg.json", "endpoint/suite.json"),
    "acceptance-drift": (f"{_LEGS}*.prom",),
    "adjacent-pairs": (f"{_LEGS}row-*.sse", f"{_LEGS}*.prom"),
    "control-health": (f"{_LEGS}row-*.sse",),
    "promotion": (f"{_LEGS}leg.json", "endpoint/protocol*"),
}
"""By clause of a gate with an analysis of its own, what below ``evidence`` shows it."""

_SHOWN = 2
"""Paths that stand in the table; more are folded."""


def badge(verdict: Verdict | str) -> Markup:
    """A verdict in its colour, which the word does not need."""
    return element("span", str(verdict), class_=f"verdict {verdict}")


def clause_table(shown: ShownAttempt) -> Markup:
    """The gate's clauses in the order in which they ran."""
    rules = rules_of(shown.own)
    rows = [
        (
            badge(result.verdict),
            joined([code(result.clause), element("div", result.nodeid.rpartition("::")[2], class_="soft")]),
            _shows(result, rules.get(result.clause, ())),
            _files(shown, result.clause),
        )
        for result in shown.analysis.clauses
    ]
    return table(("verdict", "clause", "what shows it", "evidence"), rows)


def _shows(result: ClauseResult, rules: Sequence[RuleLine]) -> Markup:
    parts: list[Markup] = [element("strong", result.reason)] if result.reason else []
    parts += [_proof(proof) for proof in result.proofs]
    if rules:
        parts.append(details(_count(rules), table(("rule", "", "what it found"), map(_rule, rules))))
    if result.detail:
        parts.append(details("what the test said", element("pre", result.detail)))
    return joined(parts)


def _proof(proof: ClauseProof) -> Markup:
    statement = proof.statement.removesuffix(f" ({NOTICE})")  # it stands above
    if not proof.observed:
        return element("div", statement)
    observed = json.dumps(proof.observed, indent=1, ensure_ascii=False, sort_keys=True)
    return details(statement, element("pre", observed))


def _count(rules: Sequence[RuleLine]) -> str:
    """How many rules hold, and how many do not or decide nothing."""
    verdicts = [verdict for _, verdict, _ in rules]
    holding = len({rule for rule, verdict, _ in rules if verdict is Verdict.PASS})
    counts = [(holding, "rules hold" if holding != 1 else "rule holds")]
    counts += [(verdicts.count(verdict), str(verdict)) for verdict in Verdict if verdict is not Verdict.PASS]
    counts.append((verdicts.count(None), "decide nothing here"))
    return ", ".join(f"{count} {word}" for count, word in counts if count) or "no rule"


def _rule(line: RuleLine) -> tuple[str, str, str]:
    rule, verdict, reason = line
    return code(rule), badge(verdict) if verdict is not None else element("span", "no say", class_="soft"), reason


def _files(shown: ShownAttempt, clause: str) -> Markup:
    entries = list(files_behind(shown, clause))
    lines = [element("div", code(entry.path), " ", _digest(entry)) for entry in entries]
    if not lines:
        return element("span", "the journal", class_="soft")
    if len(lines) <= _SHOWN:
        return joined(lines)
    return details(f"{len(lines)} files", *lines)


def files_behind(shown: ShownAttempt, clause: str) -> Iterator[Entry]:
    """The files of the attempt that a clause rests on: its own directory's, and what its gate's own analysis reads."""
    patterns = [f"evidence/{clause}/*"]
    if shown.own is not None:
        patterns += [f"evidence/{pattern}" for pattern in FILES.get(clause, (f"{OWN_FILES[type(shown.own)]}/*.json",))]
    for entry in shown.manifest.entries:
        if entry.kind == "file" and any(fnmatch.fnmatchcase(entry.path, pattern) for pattern in patterns):
            yield entry


def _digest(entry: Entry) -> Markup:
    return element("span", f"{(entry.sha256 or '')[:12]}", class_="soft", title=f"SHA-256 {entry.sha256}")
