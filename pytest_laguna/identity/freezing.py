# SPDX-License-Identifier: Apache-2.0
"""Freezes a campaign, has it reviewed, and finds what has changed since."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_laguna.campaign import Campaign, read_campaign
from pytest_laguna.evidence import files, review
from pytest_laguna.evidence.git import git
from pytest_laguna.evidence.review import FrozenCampaign, Review, Reviewed, read_reviewed
from pytest_laguna.identity.models import freeze_models
from pytest_laguna.identity.record import take_identity
from pytest_laguna.identity.source import package_files
from pytest_laguna.verdict import NotProvenError

DATA_SUFFIXES = frozenset({".json", ".safetensors", ".toml"})
"""Of this package's files that decide something and are no sources."""

_PACKAGE = "pytest_laguna"


def records(campaign: Path) -> tuple[Path, Path]:
    """Where the record of what was frozen and that of its review lie: beside the campaign."""
    return campaign.with_suffix(f".{review.FROZEN}"), campaign.with_suffix(f".{review.REVIEW}")


def freeze(path: Path) -> FrozenCampaign:
    """Resolve every digest of a campaign.

    Args:
        path: the campaign file.

    Raises:
        CampaignError: it is not a campaign.
        NotProvenError: it lies in no checkout, or in one with changes that nobody committed.
        IdentityError: the candidate is not there, or a model's folder has no files.
        OSError: a file cannot be read.
    """
    campaign = read_campaign(path)
    project = _project(path, campaign)
    commit, tree, *authors = _committed(project)
    changed = next(_changed(project, records(path)), None)
    if changed is not None:
        message = f"{changed}: not committed; expected a clean checkout: what is frozen must be what others can read"
        raise NotProvenError(message)
    identity, record = take_identity(campaign, project)
    return FrozenCampaign.model_validate({
        "campaign_name": campaign.name,
        "identity": identity,
        "preregistration": campaign.preregistration.sha256,
        "commit": commit,
        "tree": tree,
        "authors": authors,
        "candidate": record["candidate"],
        "harness": record["harness"],
        "data": _data(),
        "protocols": _protocols(path, campaign),
        "models": _models(campaign, project),
    })


def write_frozen(path: Path, frozen: FrozenCampaign) -> Path:
    """Write the record beside the campaign, in the place of an older one; returns where."""
    return _replace(records(path)[0], files.canonical_json(frozen.canonical()))


def review_frozen(path: Path, reviewer: str) -> Review:
    """What a reviewer says of a frozen campaign.

    Raises:
        CampaignError: it is not a campaign.
        NotProvenError: it was not frozen, has changed since, or the reviewer wrote it.
        UnusableEvidenceError: the record of what was frozen is not of its form.
        IdentityError: the candidate is not there.
        OSError: a file cannot be read.
    """
    frozen = read_reviewed(*records(path)).frozen
    if frozen is None:
        message = f"{records(path)[0].name}: missing; expected what laguna freeze wrote beside the campaign"
        raise NotProvenError(message)
    changed = drift(path, frozen)
    if changed is not None:
        message = f"{changed} has changed since it was frozen; expected what is to be reviewed: freeze it again"
        raise NotProvenError(message)
    if frozen.is_by(reviewer):
        message = f"{reviewer} wrote commit {frozen.commit[:12]}; expected a reviewer who did not"
        raise NotProvenError(message)
    return Review(reviewer=reviewer, frozen=frozen.sha256)


def write_review(path: Path, reviewed: Review) -> Path:
    """Write the record beside the campaign, in the place of an older one; returns where."""
    return _replace(records(path)[1], files.canonical_json(reviewed.canonical()))


def drift(path: Path, frozen: FrozenCampaign) -> str | None:
    """The first file or digest that is not as it was frozen; None where all are. Models are looked at when they run.

    Raises: as ``freeze``, but for a checkout with changes.
    """
    campaign = read_campaign(path)
    identity, record = take_identity(campaign, _project(path, campaign))
    parts: Mapping[str, object] = record | {"data": _data()}
    for part in ("candidate", "harness", "data"):
        name = _differing(getattr(frozen, part), parts[part])
        if name is not None:
            return name
    return None if identity == frozen.identity else f"campaign {campaign.name}"


def take_reviewed(path: Path, evidence: Path) -> Reviewed:
    """Keep copies of both records in an attempt's evidence and read those.

    Args:
        path: the campaign file.
        evidence: the attempt's directory of that name.

    Raises:
        UnusableEvidenceError: one of them is there and not of its form.
        OSError: a copy cannot be written.
    """
    directory = evidence / review.DIRECTORY
    directory.mkdir(mode=files.PRIVATE_DIRECTORY)
    copies = directory / review.FROZEN, directory / review.REVIEW
    for source, copy in zip(records(path), copies, strict=True):
        if os.path.lexists(source):
            files.write_new(copy, files.read_bytes(source, limit=_SIZE_LIMIT))
    return read_reviewed(*copies)


_SIZE_LIMIT = 16 * 1024 * 1024


def find_project(path: Path, campaign: Campaign) -> Path | None:
    """The folder above a campaign that holds its tests, where its relative paths start; None without one."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - a link must stay one
    return next(
        (above for above in absolute.parents if all((above / test).is_file() for test in _tests(campaign))), None
    )


def _project(path: Path, campaign: Campaign) -> Path:
    project = find_project(path, campaign)
    if project is None:
        message = f"{path}: no folder above it holds {', '.join(_tests(campaign))}; expected the gates' tests"
        raise NotProvenError(message)
    return project


def _tests(campaign: Campaign) -> list[str]:
    return sorted({nodeid.partition("::")[0] for nodeid in campaign.nodeids})


def _committed(project: Path) -> list[str]:
    """Commit, tree, and the names and addresses of author and committer."""
    answer = git(project, "log", "-1", "--no-show-signature", "--format=%H%x00%T%x00%an%x00%ae%x00%cn%x00%ce")
    if answer is None or answer.returncode != 0:
        message = (
            f"{project}: git knows no commit of it; expected a checkout: what is frozen must be what others can read"
        )
        raise NotProvenError(message)
    return answer.stdout.strip("\n").split("\0")


def _changed(project: Path, own: tuple[Path, Path]) -> Iterator[str]:
    """Paths that the checked out commit does not hold as they lie there, without the two records themselves."""
    answer = git(project, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all")
    top = git(project, "rev-parse", "--show-toplevel")
    if answer is None or answer.returncode != 0 or top is None:
        yield str(project)
        return
    ours = {path.resolve() for path in own}
    for entry in filter(None, answer.stdout.split("\0")):
        path = Path(top.stdout.strip("\n"), entry[3:])
        if path.resolve() not in ours:
            yield entry[3:]


def _data() -> dict[str, str]:
    return package_files(_PACKAGE, DATA_SUFFIXES)


def _protocols(path: Path, campaign: Campaign) -> dict[str, str]:
    """The protocols that are there; the one of a lane where timing decides is written after gate 2."""
    named = [settings.engine.protocol for settings in campaign.lanes.values() if settings.engine is not None]
    found = [name for name in named if name is not None and (path.parent / name).is_file()]
    return {name: files.sha256_file(path.parent / name) for name in sorted(set(found))}


def _models(campaign: Campaign, project: Path) -> dict[str, dict[str, str]]:
    """By folder as the campaign names it, which is the same on every host; a lane's may not be there on this one."""
    named = {folder for lane in campaign.lanes for folder in campaign.folders(lane)}
    folders = sorted(folder for folder in named if (project / folder).is_dir())
    frozen = freeze_models([project / name for name in folders]).folders if folders else []
    return {
        name: {file.path: file.sha256 for file in folder.files} for name, folder in zip(folders, frozen, strict=True)
    }


def _differing(frozen: Mapping[str, str], now: object) -> str | None:
    seen = now if isinstance(now, dict) else {}
    return next((name for name in sorted(frozen.keys() | seen.keys()) if frozen.get(name) != seen.get(name)), None)


def _replace(path: Path, content: bytes) -> Path:
    """Whole or not at all, in the place of an older one: neither record is evidence, and each names what it is of."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    files.write_new(new, content)
    new.chmod(0o644)  # it is committed
    new.replace(path)
    return path
