# SPDX-License-Identifier: Apache-2.0
"""Rules over the identity of the exact diagnostic: copies of this project, engine, models and binaries.

Source: the preregistration of the persistent KV-cache views, Gate 2: exact source, binary, model, environment and flag
identity. A contradiction makes the evidence unusable (VOID), since nobody knows then what ran; a missing record is
NOT_PROVEN.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath

from pytest_laguna.analysis.arms.identity_case import HARNESS, IdentityCase, is_below
from pytest_laguna.analysis.arms.mapped_binaries import BINARY_RULES
from pytest_laguna.analysis.findings import RuleFinding, not_applicable
from pytest_laguna.analysis.machine.device_runtime import RUNTIME_RULES
from pytest_laguna.evidence.arms.engine_identity import ENGINE_PACKAGES, EngineState
from pytest_laguna.evidence.schemas import Schema
from pytest_laguna.verdict import Verdict


def sources_frozen(case: IdentityCase) -> RuleFinding:
    """Rule ``sources-frozen``: the listed sources are those of the attempt's identity."""
    frozen, attempt = case.identity.frozen, case.identity.attempt
    for name, seen, expected in (
        ("candidate", frozen.candidate_sha256, attempt.candidate),
        ("harness", frozen.harness_sha256, attempt.harness),
    ):
        if seen != expected:
            return Verdict.VOID, f"listed sources of the {name}: seen digest {seen}; expected the attempt's {expected}"
    return None


def candidate_copy(case: IdentityCase) -> RuleFinding:
    """Rule ``candidate-copy``: the engine imports the candidate in the frozen state, from any place."""
    return _copy(case, case.identity.candidate, case.identity.frozen.candidate)


def harness_copy(case: IdentityCase) -> RuleFinding:
    """Rule ``harness-copy``: the engine imports this package in the frozen state, without the gates' tests."""
    harness = case.identity.frozen.harness
    return _copy(case, HARNESS, {path: digest for path, digest in harness.items() if path.startswith(f"{HARNESS}/")})


def _copy(case: IdentityCase, package: str, frozen: Mapping[str, str]) -> RuleFinding:
    engine = case.identity.engine
    imported, seen = engine.state.packages.get(package), engine.content.packages.get(package)
    if imported is None or seen is None or not frozen:
        return Verdict.NOT_PROVEN, f"{package}: seen no copy for {engine.state.interpreter}; expected one"
    for path in sorted(seen.keys() | frozen.keys()):
        if seen.get(path) != frozen.get(path):
            told = f"seen {path} {seen.get(path, 'absent')}; expected {frozen.get(path, 'absent')}"
            return Verdict.VOID, f"{imported.directory}, imported by {engine.state.interpreter}: {told}"
    return None


def engine_as_installed(case: IdentityCase) -> RuleFinding:
    """Rule ``engine-as-installed``: torch and vLLM are installed as their ``RECORD`` lists, without other files.

    Every other distribution matches its RECORD as well, but may have none, as one of an operating system.
    """
    engine = case.identity.engine
    for found in engine.state.distributions:
        content = engine.content.distributions.get(found.metadata)
        if content is None:
            return Verdict.NOT_PROVEN, f"{found.name} {found.version}: seen no comparison; expected one with its RECORD"
        wrong = [*content.differing, *content.unlisted]
        if wrong:
            more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            return Verdict.VOID, f"{found.name} {found.version}: {wrong[0]}{more}"
    for part in ENGINE_PACKAGES:
        own = [found for found in engine.state.distributions if _is_build_of(found.name, part)]
        if not own:
            return Verdict.NOT_PROVEN, f"{part}: seen no distribution for {engine.state.interpreter}; expected one"
        for found in own:
            if engine.content.distributions[found.metadata].record_sha256 is None:
                return Verdict.NOT_PROVEN, f"{found.name} {found.version}: seen no RECORD; expected one; reinstall it"
    return None


def engine_imported(case: IdentityCase) -> RuleFinding:
    """Rule ``engine-imported``: torch and vLLM are imported from their distributions' places alone.

    Another copy earlier on the path would run, and no RECORD would know of it.
    """
    engine = case.identity.engine
    for part in ENGINE_PACKAGES:
        own = [found for found in engine.state.distributions if _is_build_of(found.name, part)]
        if not own:
            continue  # rule engine-as-installed reports it
        if len(own) > 1:
            names = [f"{found.name} {found.version}" for found in own]
            return Verdict.NOT_PROVEN, f"{part}: seen {names} for {engine.state.interpreter}; expected one"
        directory, [found] = engine.state.imported.get(part), own
        if directory is None:
            return Verdict.NOT_PROVEN, f"{part}: seen no import place of {engine.state.interpreter}; expected one"
        tree = found.editable.directory if found.editable else ""
        if directory != f"{found.metadata.rpartition('/')[0]}/{part}" and not is_below(directory, tree):
            return Verdict.VOID, f"{part}: seen imported from {directory}; expected the place of {found.metadata}"
    return None


def start_files_known(case: IdentityCase) -> RuleFinding:
    """Rule ``start-files-known``: every file run by Python at the engine's start is listed in a RECORD.

    An unlisted ``.pth`` file or ``sitecustomize`` could change vLLM after it was compared. Files beside the standard
    library are the operating system's, and the identity holds their digests.
    """
    engine = case.identity.engine
    listed = {path for content in engine.content.distributions.values() for path in content.start_files}
    for path in engine.state.start_files:
        of_python = path == f"{engine.state.prefix}/pyvenv.cfg"
        if of_python or posixpath.dirname(path) == engine.state.standard_library or path in listed:
            continue
        return Verdict.VOID, f"{path}: seen run at Python's start and in no RECORD; expected none such; remove it"
    return None


def extension_there(case: IdentityCase) -> RuleFinding:
    """Rule ``extension-there``: if the native check is planned, the engine's candidate has a compiled extension."""
    if case.validator != "native":
        return not_applicable("the candidate runs in Python")
    directory = case.candidate_directory
    if not any(is_below(path, directory) for path in case.identity.engine.content.extensions):
        told = "seen no compiled extension; expected one for validator 'native'"
        return Verdict.NOT_PROVEN, f"{directory or case.identity.candidate}: {told}; install the candidate again"
    return None


def interpreter_planned(case: IdentityCase) -> RuleFinding:
    """Rule ``interpreter-planned``: the engine's interpreter is the campaign's, or the gate's own if it names none.

    A relative name starts from the project, wherever that lay.
    """
    seen, planned = case.identity.engine.state.interpreter, case.interpreter
    expected = PurePosixPath(case.identity.python if planned is None else planned)
    same = PurePosixPath(seen).parts[-len(expected.parts) :] == expected.parts
    return None if same else (Verdict.VOID, f"engine's interpreter: seen {seen}; expected {expected}")


def versions_installed(case: IdentityCase) -> RuleFinding:
    """Rule ``versions-installed``: torch and vLLM of every arm and packet report the installed version.

    The name of a build, behind ``+``, does not count: vLLM reports it, but its metadata may lack it.
    """
    said: dict[str, Mapping[str, str]] = {str(arm): record.versions for arm, record in case.arms.items()}
    said |= {f"packet {position}": versions for position, versions in case.packet_versions.items()}
    for found in case.identity.engine.state.distributions:
        for part in (part for part in ENGINE_PACKAGES if _is_build_of(found.name, part)):
            for where, versions in said.items():
                if part not in versions:
                    return Verdict.NOT_PROVEN, f"{where}: seen no version of {part}; expected one"
                if public_version(versions[part]) != public_version(found.version):
                    installed = f"{found.name} {found.version} as installed"
                    return Verdict.VOID, f"{where}: seen {part} {versions[part]}; expected {installed}"
    return None


def public_version(version: str) -> str:
    """Return a version without the name of its build, as 0.32.0 of 0.32.0+xpu."""
    return version.partition("+")[0]


def trees_clean(case: IdentityCase) -> RuleFinding:
    """Rule ``trees-clean``: every editable distribution is a clean checkout with a known commit.

    The trees of the two packages frozen file by file need no commit.
    """
    for found in _without_own_trees(case.identity.engine.state).distributions:
        tree = found.editable
        if tree is None:
            continue
        if tree.commit is None or tree.dirty is None:
            return Verdict.NOT_PROVEN, f"{found.name}: seen editable in {tree.directory}; expected a git checkout"
        if tree.dirty:
            return Verdict.VOID, f"{found.name}: seen {tree.directory} changed; expected commit {tree.commit}"
    return None


def engine_unchanged(case: IdentityCase) -> RuleFinding:
    """Rule ``engine-unchanged``: interpreter, path, distributions and copies have kept their stamps to the end.

    The trees of the two packages frozen file by file may get another commit meanwhile.
    """
    before, after = case.identity.engine.state, case.identity.engine_after
    if after is None:
        return Verdict.NOT_PROVEN, "engine: seen no record after the last arm; expected one"
    difference = _difference(_without_own_trees(before), _without_own_trees(after))
    told = f"engine: seen {difference}; expected no change; let nothing write, link or chmod there"
    return (Verdict.VOID, told) if difference else None


def models_frozen(case: IdentityCase) -> RuleFinding:
    """Rule ``models-frozen``: the arms loaded hashed folders only."""
    frozen = {folder.directory for folder in case.identity.models.folders}
    for arm, record in case.arms.items():
        for folder in (record.request.target, record.request.draft):
            if folder is not None and folder not in frozen:
                return Verdict.NOT_PROVEN, f"{arm}: seen {folder} loaded; expected a hashed folder"
    return None


def models_unchanged(case: IdentityCase) -> RuleFinding:
    """Rule ``models-unchanged``: all model files had their stamps right before and right after every arm."""
    total = sum(len(folder.files) for folder in case.identity.models.folders)
    for arm in case.expected:
        around = case.identity.models_around.get(arm)
        if around is None:
            return Verdict.NOT_PROVEN, f"{arm}: seen no check of the models around it; expected one"
        for when, check in (("before", around.before), ("after", around.after)):
            if check.changes:
                return Verdict.VOID, f"{when} {arm}: {check.changes[0]}"
            if check.looked_at != total:
                return Verdict.NOT_PROVEN, f"{when} {arm}: seen {check.looked_at} model files checked; expected {total}"
    return None


IDENTITY_RULES: Mapping[str, Callable[[IdentityCase], RuleFinding]] = {
    "sources-frozen": sources_frozen,
    "candidate-copy": candidate_copy,
    "harness-copy": harness_copy,
    "engine-as-installed": engine_as_installed,
    "engine-imported": engine_imported,
    "start-files-known": start_files_known,
    "extension-there": extension_there,
    "interpreter-planned": interpreter_planned,
    "versions-installed": versions_installed,
    "trees-clean": trees_clean,
    "engine-unchanged": engine_unchanged,
    "models-frozen": models_frozen,
    "models-unchanged": models_unchanged,
    **BINARY_RULES,
    **RUNTIME_RULES,
}

BEFORE_ARMS = (
    "sources-frozen",
    "candidate-copy",
    "harness-copy",
    "engine-as-installed",
    "engine-imported",
    "start-files-known",
    "extension-there",
    "trees-clean",
    "stack-fits",
    "closure-whole",
)
"""Rules decidable before the first arm, so that none runs in vain."""


def judge_identity(case: IdentityCase) -> dict[str, RuleFinding]:
    """Return the finding of each rule by its id."""
    return {rule: check(case) for rule, check in IDENTITY_RULES.items()}


def _is_build_of(name: str, part: str) -> bool:
    canonical = re.sub(r"[-_.]+", "-", name).lower()
    return canonical == part or canonical in {f"{part}-{lane}" for lane in ("cpu", "cuda", "xpu")}


def _without_own_trees(state: EngineState) -> EngineState:
    """Return the engine's state without the trees of the packages frozen file by file."""
    own = [package.directory for package in state.packages.values()]
    distributions = [
        found.model_copy(update={"editable": None})
        if found.editable and any(is_below(directory, found.editable.directory) for directory in own)
        else found
        for found in state.distributions
    ]
    return state.model_copy(update={"distributions": distributions})


def _difference(before: object, after: object, where: str = "") -> str | None:
    """Describe the first difference of two records with both values."""
    if before == after:
        return None
    one, other = _entries(before), _entries(after)
    if one is None or other is None:
        return f"{where}: {before} before and {after} after"
    for key in (*one, *(key for key in other if key not in one)):
        found = _difference(one.get(key, "absent"), other.get(key, "absent"), f"{where} {key}".strip())
        if found:
            return found
    return f"{where}: in another order"


def _entries(value: object) -> dict[str, object] | None:
    if isinstance(value, Schema):
        return {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, dict):
        return value
    if isinstance(value, list):
        return {getattr(item, "metadata", str(item)): item for item in value}
    return None
