# SPDX-License-Identifier: Apache-2.0
"""Rules over the binaries that arms and packets had mapped.

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
    """Rule ``engine-mapped``: every rank of every arm, and every packet, ran the interpreter that was described."""
    engine = case.identity.engine
    for arm in case.expected:
        if arm not in case.arms:
            return Verdict.NOT_PROVEN, f"{arm}: what its ranks mapped is not recorded"
    for process, mapped in case.processes():
        digests = [case.digest(file) for file in mapped if file.path == engine.state.program]
        if digests != [engine.content.program]:
            seen = f"mapped {len(digests)} files {engine.state.program} with digests {digests}"
            return Verdict.VOID, f"{process}: {seen}; expected one with {engine.content.program}"
    return None


def binaries_on_disk(case: IdentityCase) -> RuleFinding:
    """Rule ``binaries-on-disk``: what was mapped is the file that the controller hashed: device, inode and size.

    What an arm compiled for itself, as Triton does its launchers on a device, lies in private directories that were
    made new for it, and is gone with them. ``binaries-equal-arms`` compares their names, digests of what they are of.
    """
    for process, mapped in case.processes():
        own = case.own_directory(process)
        for file in mapped:
            if file.path.startswith(IN_MEMORY) or is_below(file.path, own):
                continue
            if file.path.endswith(DELETED) or file.size is None:
                return Verdict.VOID, f"{process}: {file.path}: mapped, and not on disk any more"
            if case.digest(file) is None:
                told = f"device {file.device}, inode {file.inode}, size {file.size}"
                return Verdict.VOID, f"{process}: {file.path}: mapped with {told}; the file on disk is another"
    return None


def binaries_one_content(case: IdentityCase) -> RuleFinding:
    """Rule ``binaries-one-content``: no path had two contents in the course of the arms."""
    seen: dict[str, Binary] = {}
    for binary in case.identity.binaries:
        first = seen.setdefault(binary.path, binary)
        if first.sha256 != binary.sha256:
            return Verdict.VOID, f"{binary.path}: {first.sha256} in one arm, {binary.sha256} in another"
    return None


def binaries_equal_ranks(case: IdentityCase) -> RuleFinding:
    """Rule ``binaries-equal-ranks``: the ranks of an arm mapped the same files.

    But for what they compiled for themselves: a rank's part of the vocabulary is a constant of what it runs.
    ``binaries-equal-arms`` compares that rank by rank.
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
    """Rule ``binaries-equal-arms``: each rank of both graph arms mapped the same files, but for the candidate's own.

    The other arms run other code and may map other files; ``binaries-one-content`` holds for theirs.
    """
    if Arm.GRAPH_CANDIDATE not in case.expected:
        return not_applicable("one graph arm runs")
    pair = [case.arms[arm] for arm in (Arm.GRAPH_CONTROL, Arm.GRAPH_CANDIDATE) if arm in case.arms]
    if len(pair) != 2:  # noqa: PLR2004
        return Verdict.NOT_PROVEN, "what the two graph arms mapped is not recorded"
    control, candidate = pair
    for stock, ours in zip(control.ranks, candidate.ranks, strict=False):  # another number of ranks is another rule's
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
    """Rule ``native-mapped``: what is compiled of the candidate and of this package was mapped as hashed before.

    Every rank maps this package's, the clock of its profiles; the candidate's is mapped where it ran. It lies in the
    directory whose sources were compared, and no process mapped that package's extension from elsewhere: so sources,
    extension and process are one copy.
    """
    of_harness = _another_copy(case, HARNESS, tuple(Arm))
    if of_harness is not None:
        return of_harness
    if case.validator != "native":
        return not_applicable("the candidate runs in Python")
    if Arm.GRAPH_CANDIDATE not in case.expected:
        return not_applicable("no arm runs the candidate")
    if Arm.GRAPH_CANDIDATE not in case.arms:
        return Verdict.NOT_PROVEN, "what the candidate arm mapped is not recorded"
    return _another_copy(case, case.identity.candidate, ("packet",) if case.null else (Arm.GRAPH_CANDIDATE, "packet"))


def _another_copy(case: IdentityCase, package: str, needed_by: tuple[str, ...]) -> Finding | None:
    """What was mapped of a package that is not the copy hashed before; the first words of who must have mapped it."""
    if not case.directory(package):
        return Verdict.NOT_PROVEN, f"from where the engine imports {package} is not recorded"
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
            return f"mapped {file.path}; expected {directory} only"
    if needed and not own:
        return f"mapped nothing of {directory}; expected its extension"
    for file in own:
        expected = case.identity.engine.content.extensions.get(file.path)
        if expected is None or case.digest(file) != expected:
            return f"mapped {file.path} with {case.digest(file)}; expected {expected}, hashed before the first arm"
    return None


def _is_part_of(package: str, directory: str, path: str) -> bool:
    """Whether a file would be a module of a package that the engine imports from a directory.

    What lies in no package, as below ``.venv``, is none of its, nor is what lies beside the package in a checkout that
    is called like it.
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
            return f"{path} is {one.get(path, 'not mapped')} and {other.get(path, 'not mapped')}; expected equal"
    return None
