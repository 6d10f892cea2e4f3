# SPDX-License-Identifier: Apache-2.0
"""Rules over the binaries mapped by arms and packets.

Source: the preregistration of the persistent KV-cache views, Gate 2: exact binary identity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath

from pytest_laguna.analysis.arms.identity_case import DELETED, HARNESS, IN_MEMORY, MADE_BY_ARM, IdentityCase, is_below
from pytest_laguna.analysis.findings import Finding, RuleFinding, not_applicable
from pytest_laguna.evidence.arms.arm_record import Arm, MappedFile, RankReport
from pytest_laguna.evidence.arms.engine_identity import Binary
from pytest_laguna.verdict import Verdict


def engine_mapped(case: IdentityCase) -> RuleFinding:
    """Rule ``engine-mapped``: every rank of every arm, and every packet, ran the described interpreter."""
    engine = case.identity.engine
    for arm in case.expected:
        if arm not in case.arms:
            return Verdict.NOT_PROVEN, f"{arm}: seen no mapped files; expected them for each rank"
    for process, mapped in case.processes():
        digests = [case.digest(file) for file in mapped if file.path == engine.state.program]
        if digests != [engine.content.program]:
            told = f"{len(digests)} mapped files {engine.state.program} with digests {digests}"
            return Verdict.VOID, f"{process}: seen {told}; expected one with {engine.content.program}"
    return None


def binaries_on_disk(case: IdentityCase) -> RuleFinding:
    """Rule ``binaries-on-disk``: each mapped file is the one hashed by the controller: device, inode and size.

    An arm's own compilations, as Triton's launchers on a device, lie in private directories made new for it and gone
    with it. ``binaries-equal-arms`` compares their names, digests of their sources.
    """
    for process, mapped in case.processes():
        own = case.own_directory(process)
        for file in mapped:
            if file.path.startswith(IN_MEMORY) or is_below(file.path, own):
                continue
            if file.path.endswith(DELETED) or file.size is None:
                return Verdict.VOID, f"{process}: {file.path}: seen mapped, but not on disk; expected both"
            if case.digest(file) is None:
                told = f"device {file.device}, inode {file.inode}, size {file.size}"
                return Verdict.VOID, f"{process}: {file.path}: seen mapped with {told}; expected the file on disk"
    return None


def binaries_one_content(case: IdentityCase) -> RuleFinding:
    """Rule ``binaries-one-content``: no path had two contents in the course of the arms."""
    seen: dict[str, Binary] = {}
    for binary in case.identity.binaries:
        first = seen.setdefault(binary.path, binary)
        if first.sha256 != binary.sha256:
            return Verdict.VOID, f"{binary.path}: seen {binary.sha256} in one arm; expected {first.sha256} in all"
    return None


def binaries_equal_ranks(case: IdentityCase) -> RuleFinding:
    """Rule ``binaries-equal-ranks``: the ranks of an arm mapped the same files, except their own compilations.

    A rank's part of the vocabulary is a constant of its code; ``binaries-equal-arms`` compares that rank by rank.
    """
    for arm, record in case.arms.items():
        first, *others = (_installed(case.contents(arm, report)) for report in record.ranks)
        for report, other in zip(record.ranks[1:], others, strict=True):
            difference = _difference(first, other)
            if difference:
                return Verdict.VOID, f"{arm}: rank 0 and rank {report.rank}: {difference}"
    return None


def _installed(contents: Mapping[str, str]) -> dict[str, str]:
    return {path: digest for path, digest in contents.items() if not path.startswith(MADE_BY_ARM)}


def binaries_equal_arms(case: IdentityCase) -> RuleFinding:
    """Rule ``binaries-equal-arms``: each rank of both graph arms mapped the same files, except the candidate's own.

    The other arms run other code and may map other files; ``binaries-one-content`` holds for theirs.
    """
    if Arm.GRAPH_CANDIDATE not in case.expected:
        return not_applicable("one graph arm runs")
    pair = [case.arms[arm] for arm in (Arm.GRAPH_CONTROL, Arm.GRAPH_CANDIDATE) if arm in case.arms]
    if len(pair) != 2:  # noqa: PLR2004
        return Verdict.NOT_PROVEN, "graph arms: seen no mapped files; expected them for both"
    control, candidate = pair
    for stock, ours in zip(control.ranks, candidate.ranks, strict=False):  # another rule counts ranks
        difference = _difference(
            _without_candidate(case, Arm.GRAPH_CONTROL, stock), _without_candidate(case, Arm.GRAPH_CANDIDATE, ours)
        )
        if difference:
            return Verdict.VOID, f"graph-control and graph-candidate, rank {stock.rank}: {difference}"
    return None


def _without_candidate(case: IdentityCase, arm: Arm, report: RankReport) -> dict[str, str]:
    contents = case.contents(arm, report)
    return {path: digest for path, digest in contents.items() if not is_below(path, case.candidate_directory)}


def native_mapped(case: IdentityCase) -> RuleFinding:
    """Rule ``native-mapped``: the extensions of the candidate and of this package were mapped as hashed before.

    Every rank maps this package's, the clock of its profiles; the candidate's is mapped by its own arm and packets. No
    process mapped either from outside the compared sources' directory: so sources, extension and process are one copy.
    """
    of_harness = _another_copy(case, HARNESS, tuple(Arm))
    if of_harness is not None:
        return of_harness
    if case.validator != "native":
        return not_applicable("the candidate runs in Python")
    if Arm.GRAPH_CANDIDATE not in case.expected:
        return not_applicable("no arm runs the candidate")
    if Arm.GRAPH_CANDIDATE not in case.arms:
        return Verdict.NOT_PROVEN, "candidate arm: seen no mapped files; expected them"
    return _another_copy(case, case.identity.candidate, ("packet",) if case.null else (Arm.GRAPH_CANDIDATE, "packet"))


def _another_copy(case: IdentityCase, package: str, needed_by: tuple[str, ...]) -> Finding | None:
    """Find a mapped copy of a package other than the hashed one; ``needed_by`` are prefixes of processes with one."""
    if not case.directory(package):
        return Verdict.NOT_PROVEN, f"{package}: seen no import place of the engine; expected one"
    for process, mapped in case.processes():
        wrong = _wrong_extension(case, package, mapped, needed=process.startswith(needed_by))
        if wrong:
            return Verdict.VOID, f"{process}: {wrong}"
    return None


def _wrong_extension(case: IdentityCase, package: str, mapped: Sequence[MappedFile], *, needed: bool) -> str | None:
    directory = case.directory(package)
    own = [file for file in mapped if is_below(file.path, directory)]
    for file in mapped:
        if _is_part_of(package, directory, file.path) and file not in own:
            return f"seen {file.path} mapped; expected {directory} only"
    if needed and not own:
        return f"seen nothing of {directory} mapped; expected its extension"
    for file in own:
        expected = case.identity.engine.content.extensions.get(file.path)
        if expected is None or case.digest(file) != expected:
            return f"seen {file.path} mapped with {case.digest(file)}; expected {expected}, hashed before the first arm"
    return None


def _is_part_of(package: str, directory: str, path: str) -> bool:
    """True if a file would be a module of a package that the engine imports from a directory.

    Neither files outside any package, as below ``.venv``, nor a checkout's namesakes beside the package are part of it.
    """
    folder = f"/{package.replace('.', '/')}"
    place, found, name = path.rpartition(f"{folder}/")
    in_packages = all(part.isidentifier() for part in PurePosixPath(name).parent.parts)
    return bool(found) and in_packages and not is_below(directory, place + folder)


BINARY_RULES: Mapping[str, Callable[[IdentityCase], RuleFinding]] = {
    "binaries-on-disk": binaries_on_disk,
    "engine-mapped": engine_mapped,
    "binaries-one-content": binaries_one_content,
    "binaries-equal-ranks": binaries_equal_ranks,
    "binaries-equal-arms": binaries_equal_arms,
    "native-mapped": native_mapped,
}


def _difference(one: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    for path in sorted(one.keys() | other.keys()):
        if one.get(path) != other.get(path):
            return f"seen {path} {one.get(path, 'not mapped')} and {other.get(path, 'not mapped')}; expected equal"
    return None
