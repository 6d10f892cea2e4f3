# SPDX-License-Identifier: Apache-2.0
"""Rules over what ran in gate 3: the engine and the models that gate 2 proved, and unchanged through every leg."""

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
"""The rules of the exact diagnostic that need no arm."""


def judge_identity(
    identity: DiagnosticIdentity,
    legs: Mapping[str, str | None],
    proven: DiagnosticIdentity | None,
    validator: Validator,
    interpreter: str | None,
) -> dict[str, Finding | None]:
    """What each rule says, by its id.

    Args:
        identity: of gate 3.
        legs: the program of the server of each leg that was run, by its name; None of one that left no record.
        proven: of the attempt of gate 2 that opened the gate; None where it is not there.
        validator: which implementation of the candidate's contract runs.
        interpreter: the engine's, as the campaign names it; None where it names none.
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
    """Rule ``legs-interpreter``: the server of every leg was started with the interpreter that was described."""
    expected = identity.engine.state.interpreter
    for leg, program in legs.items():
        if program is not None and program != expected:
            return Verdict.VOID, f"{leg}: its server was started with {program}; expected {expected}"
    return None


def models_unchanged(identity: DiagnosticIdentity, legs: Collection[str]) -> Finding | None:
    """Rule ``models-unchanged-around-legs``: all model files had their stamps right before and after every leg."""
    total = sum(len(folder.files) for folder in identity.models.folders)
    for leg in legs:
        around = identity.models_around.get(leg)
        if around is None:
            return Verdict.NOT_PROVEN, f"{leg}: the models were not looked at around it"
        for when, check in (("before", around.before), ("after", around.after)):
            if check.changes:
                return Verdict.VOID, f"{when} {leg}: {check.changes[0]}"
            if check.looked_at != total:
                return Verdict.NOT_PROVEN, f"{when} {leg}: {check.looked_at} of {total} model files were looked at"
    return None


def as_in_gate_2(identity: DiagnosticIdentity, proven: DiagnosticIdentity | None) -> Finding | None:
    """Rule ``as-in-gate-2``: engine and models have the content that the diagnostic proved, wherever they lie."""
    if proven is None:
        return Verdict.NOT_PROVEN, "the identity that gate 2 proved is not there to compare with"
    for name in EngineContent.model_fields:
        if getattr(identity.engine.content, name) != getattr(proven.engine.content, name):
            return Verdict.VOID, f"the engine's {name} are not those of gate 2"
    if _below_python(identity) != _below_python(proven):
        return Verdict.VOID, "what the engine stands on below Python is not that of gate 2"
    seen, expected = _contents(identity.models), _contents(proven.models)
    for path in sorted(seen.keys() | expected.keys()):
        if seen.get(path) != expected.get(path):
            return (
                Verdict.VOID,
                f"model file {path} is {seen.get(path, 'absent')}; gate 2 had {expected.get(path, 'absent')}",
            )
    return None


def _below_python(identity: DiagnosticIdentity) -> tuple[str, JSON] | None:
    """The libraries, wherever they lie, and the operating system's part; None on every lane but xpu."""
    runtime = identity.engine.runtime
    return None if runtime is None else (runtime.closure.digest, runtime.host.canonical())


def _contents(models: ModelFiles) -> Mapping[str, str]:
    """Digest by the folder's own name and the path in it: a generated pair lies elsewhere in each attempt."""
    return {
        f"{posixpath.basename(folder.directory)}/{file.path}": file.sha256
        for folder in models.folders
        for file in folder.files
    }
