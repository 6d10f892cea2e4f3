# SPDX-License-Identifier: Apache-2.0
"""Freezes a campaign, records its review, and finds changes since."""

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
"""Files of this package that affect results and are no sources."""

_PACKAGE = "pytest_laguna"


def records(campaign: Path) -> tuple[Path, Path]:
    """Paths of the frozen record and of its review, beside the campaign."""
    return campaign.with_suffix(f".{review.FROZEN}"), campaign.with_suffix(f".{review.REVIEW}")


def freeze(path: Path) -> FrozenCampaign:
    """Resolve every digest of a campaign file.

    Raises:
        CampaignError: it is not a campaign.
        NotProvenError: it lies in no checkout, or in one with uncommitted changes.
        IdentityError: the candidate is not there, or a model's folder has no files.
        OSError: a file cannot be read.
    """
    campaign = read_campaign(path)
    project = _project(path, campaign)
    commit, tree, *authors = _committed(project)
    changed = next(_changed(project, records(path)), None)
    if changed is not None:
        message = f"{changed}: seen uncommitted; expected a clean checkout, which others can read; commit it"
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
    """Replace the frozen record beside the campaign, and return its path."""
    return _replace(records(path)[0], files.canonical_json(frozen.canonical()))


def review_frozen(path: Path, reviewer: str) -> Review:
    """Return a reviewer's review of a frozen campaign.

    Raises:
        CampaignError: it is not a campaign.
        NotProvenError: it was not frozen, has changed since, or the reviewer wrote it.
        UnusableEvidenceError: the frozen record has another form.
        IdentityError: the candidate is not there.
        OSError: a file cannot be read.
    """
    frozen = read_reviewed(*records(path)).frozen
    if frozen is None:
        message = f"{records(path)[0].name}: seen none; expected the record of laguna freeze beside the campaign"
        raise NotProvenError(message)
    changed = drift(path, frozen)
    if changed is not None:
        raise NotProvenError(f"{changed}: seen changed since it was frozen; expected the frozen state; freeze it again")
    if frozen.is_by(reviewer):
        message = f"reviewer: seen {reviewer}, who wrote commit {frozen.commit[:12]}; expected another person"
        raise NotProvenError(message)
    return Review(reviewer=reviewer, frozen=frozen.sha256)


def write_review(path: Path, reviewed: Review) -> Path:
    """Replace the review beside the campaign, and return its path."""
    return _replace(records(path)[1], files.canonical_json(reviewed.canonical()))


def drift(path: Path, frozen: FrozenCampaign) -> str | None:
    """First file or digest unlike the frozen one, or None; models are checked when they run.

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
    """Copy both records into an attempt's evidence directory and read the copies.

    Raises:
        UnusableEvidenceError: one of them has another form.
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
    """Folder above a campaign with its tests, the base of its relative paths; None without one."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - a link must stay one
    return next(
        (above for above in absolute.parents if all((above / test).is_file() for test in _tests(campaign))), None
    )


def _project(path: Path, campaign: Campaign) -> Path:
    project = find_project(path, campaign)
    if project is None:
        message = f"{path}: seen no {', '.join(_tests(campaign))} in a folder above it; expected the gates' tests"
        raise NotProvenError(message)
    return project


def _tests(campaign: Campaign) -> list[str]:
    return sorted({nodeid.partition("::")[0] for nodeid in campaign.nodeids})


def _committed(project: Path) -> list[str]:
    """Commit, tree, and the names and addresses of author and committer."""
    answer = git(project, "log", "-1", "--no-show-signature", "--format=%H%x00%T%x00%an%x00%ae%x00%cn%x00%ce")
    if answer is None or answer.returncode != 0:
        raise NotProvenError(f"{project}: seen no commit in git; expected a checkout, which others can read")
    return answer.stdout.strip("\n").split("\0")


def _changed(project: Path, own: tuple[Path, Path]) -> Iterator[str]:
    """Yield paths whose contents differ from the checked out commit, except for the two records."""
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
    """Digests of the existing protocols; a lane decided by timing gets its own after gate 2."""
    named = [settings.engine.protocol for settings in campaign.lanes.values() if settings.engine is not None]
    found = [name for name in named if name is not None and (path.parent / name).is_file()]
    return {name: files.sha256_file(path.parent / name) for name in sorted(set(found))}


def _models(campaign: Campaign, project: Path) -> dict[str, dict[str, str]]:
    """Digests by folder as the campaign names it, the same on every host, for the folders on this one."""
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
    """Replace a file whole or not at all: neither record is evidence, and each names its subject."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    files.write_new(new, content)
    new.chmod(0o644)  # it is committed
    new.replace(path)
    return path
