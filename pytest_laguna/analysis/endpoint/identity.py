# SPDX-License-Identifier: Apache-2.0
"""Rules over gate 3's engine and models: proven by gate 2, and unchanged through every leg."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping

from pytest_laguna.analysis.arms.engine_identity import BEFORE_ARMS, IDENTITY_RULES
from pytest_laguna.analysis.arms.identity_case import IdentityCase
from pytest_laguna.analysis.findings import Finding
from pytest_laguna.evidence.arms.engine_identity import DiagnosticIdentity, EngineContent, ModelFiles
from pytest_laguna.evidence.values import Validator
from pytest_laguna.verdict import JSON, Verdict

ENGINE_RULES = (*BEFORE_ARMS, "interpreter-planned", "engine-unchanged")
"""Rules of the exact diagnostic without an arm."""


def judge_identity(
    identity: DiagnosticIdentity,
    legs: Mapping[str, str | None],
    proven: DiagnosticIdentity | None,
    validator: Validator,
    interpreter: str | None,
) -> dict[str, Finding | None]:
    """Findings by rule.

    Args:
        identity: of gate 3.
        legs: by name of each started leg, its server's program; None without a record.
        proven: identity of gate 2's passing attempt; None if missing.
        validator: implementation of the candidate's contract.
        interpreter: the campaign's, of the engine; None if it names none.
    """
    case = IdentityCase(identity, {}, {}, validator, interpreter=interpreter)
    found: dict[str, Finding | None] = {}
    for rule in ENGINE_RULES:
        finding = IDENTITY_RULES[rule](case)
        found[rule] = None if finding is None or finding[0] is None else (finding[0], finding[1])
    found["legs-interpreter"] = legs_interpreter(identity, legs)
    found["models-unchanged-around-legs"] = models_unchanged(identity, legs)
    found["as-in-gate-2"] = as_in_gate_2(identity, proven)
    return found


def legs_interpreter(identity: DiagnosticIdentity, legs: Mapping[str, str | None]) -> Finding | None:
    """Rule ``legs-interpreter``: the described interpreter started every leg's server."""
    expected = identity.engine.state.interpreter
    for leg, program in legs.items():
        if program is not None and program != expected:
            return Verdict.VOID, f"{leg}: seen a server started with {program}; expected {expected}"
    return None


def models_unchanged(identity: DiagnosticIdentity, legs: Collection[str]) -> Finding | None:
    """Rule ``models-unchanged-around-legs``: all model files had their stamps before and after every leg."""
    total = sum(len(folder.files) for folder in identity.models.folders)
    for leg in legs:
        around = identity.models_around.get(leg)
        if around is None:
            return Verdict.NOT_PROVEN, f"{leg}: seen no check of the models; expected one before and one after"
        for when, check in (("before", around.before), ("after", around.after)):
            if check.changes:
                return Verdict.VOID, f"{when} {leg}: seen {check.changes[0]}; expected no change"
            if check.looked_at != total:
                return Verdict.NOT_PROVEN, f"{when} {leg}: seen {check.looked_at} checked model files; expected {total}"
    return None


def as_in_gate_2(identity: DiagnosticIdentity, proven: DiagnosticIdentity | None) -> Finding | None:
    """Rule ``as-in-gate-2``: engine and models have the content proven by the diagnostic, in any folder."""
    if proven is None:
        return Verdict.NOT_PROVEN, "gate 2's identity: seen none; expected it, to compare with"
    for name in EngineContent.model_fields:
        if getattr(identity.engine.content, name) != getattr(proven.engine.content, name):
            return Verdict.VOID, f"the engine's {name}: seen other content; expected gate 2's"
    if _below_python(identity) != _below_python(proven):
        return Verdict.VOID, "libraries and host below Python: seen other content; expected gate 2's"
    seen, expected = _contents(identity.models), _contents(proven.models)
    for path in sorted(seen.keys() | expected.keys()):
        if seen.get(path) != expected.get(path):
            told = f"seen {seen.get(path, 'none')}; expected {expected.get(path, 'none')}, as in gate 2"
            return Verdict.VOID, f"model file {path}: {told}"
    return None


def _below_python(identity: DiagnosticIdentity) -> tuple[str, JSON] | None:
    """Libraries, in any folder, and the operating system's part; None on every lane but xpu."""
    runtime = identity.engine.runtime
    return None if runtime is None else (runtime.closure.digest, runtime.host.canonical())


def _contents(models: ModelFiles) -> Mapping[str, str]:
    """Digest by the folder's own name and the path in it, since each attempt generates its pair elsewhere."""
    return {
        f"{posixpath.basename(folder.directory)}/{file.path}": file.sha256
        for folder in models.folders
        for file in folder.files
    }
