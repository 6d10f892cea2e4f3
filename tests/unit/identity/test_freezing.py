# SPDX-License-Identifier: Apache-2.0
"""Freezing a campaign and reviewing it, on a checkout of the demonstration project."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from pytest_laguna.evidence import files
from pytest_laguna.evidence.git import git
from pytest_laguna.evidence.review import FrozenCampaign, Review, read_reviewed
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.identity import freezing
from pytest_laguna.verdict import NotProvenError, UnusableEvidenceError
from tests.demo import CAMPAIGN, Project

MODELS = """
[lanes.cpu.engine]
model = { target = "models/target", draft = "models/draft", prompt = "x" }
decides = "exactness"
identical = [["graph-control", "graph-candidate"]]
"""
AUTHOR = ("-c", "user.name=Ada Lovelace", "-c", "user.email=ada@example.org")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    demo = Project(tmp_path)
    (tmp_path / ".gitignore").write_text("sealed/\n__pycache__/\n")
    _git(demo, "init", "--quiet")
    _commit(demo)
    return demo


def _git(project: Project, *arguments: str) -> str:
    answer = git(project.directory, *arguments)
    assert answer is not None
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def _commit(project: Project) -> str:
    _git(project, "add", ".")
    _git(project, *AUTHOR, "commit", "--quiet", "--message", "The campaign")
    return _git(project, "rev-parse", "HEAD")


def _campaign(project: Project) -> Path:
    return project.directory / "campaign.toml"


def _frozen(project: Project) -> FrozenCampaign:
    frozen = freezing.freeze(_campaign(project))
    freezing.write_frozen(_campaign(project), frozen)
    return frozen


def test_every_digest_is_written_beside_the_campaign(project: Project) -> None:
    frozen = _frozen(project)
    assert read_model(project.directory / "campaign.frozen.json", FrozenCampaign) == frozen
    assert frozen.commit == _git(project, "rev-parse", "HEAD")
    assert frozen.authors == ["Ada Lovelace", "ada@example.org"] * 2
    assert frozen.candidate.keys() == {"demo_candidate/__init__.py"}
    assert {"checks/test_first.py", "checks/test_device.py", "pyproject.toml"} <= frozen.harness.keys()
    assert "pytest_laguna/gate/session.py" in frozen.harness
    assert "pytest_laguna/engine/tiny_pair/target.safetensors" in frozen.data
    assert "pytest_laguna/endpoint/suites/tiny-laguna.json" in frozen.data


def test_a_lane_whose_models_are_not_there_is_frozen_without_them(project: Project) -> None:
    """What runs on another host's cards is frozen there: rule ``models-of-frozen`` refuses gate 2 of this lane."""
    project.campaign(CAMPAIGN + MODELS)
    _commit(project)
    assert freezing.freeze(_campaign(project)).models == {}


def test_models_are_those_of_the_project_wherever_one_stands(
    project: Project, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another pair of the same name lies where one stands; the record names folders as the campaign does."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for place in (project.directory, elsewhere):
        for model in ("target", "draft"):
            (place / "models" / model).mkdir(parents=True)
            (place / "models" / model / "config.json").write_text(f"{model} of {place.name}")
    project.campaign(CAMPAIGN + MODELS)
    (project.directory / ".gitignore").write_text("sealed/\n__pycache__/\nmodels/\n")
    _commit(project)
    monkeypatch.chdir(elsewhere)
    expected = {
        f"models/{model}": {
            "config.json": files.sha256_file(project.directory / "models" / model / "config.json"),
        }
        for model in ("target", "draft")
    }
    assert freezing.freeze(_campaign(project)).models == expected


@pytest.mark.parametrize("name", ["campaign.toml", "demo_candidate/__init__.py", "checks/test_first.py", "new.py"])
def test_a_dirty_tree_is_refused_by_the_name_of_what_is_dirty(project: Project, name: str) -> None:
    with (project.directory / name).open("a") as stream:
        stream.write("# changed\n")
    with pytest.raises(NotProvenError, match=f"^{name}: seen uncommitted; expected a clean checkout"):
        freezing.freeze(_campaign(project))


def test_a_campaign_in_no_checkout_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    demo = Project(tmp_path)
    with pytest.raises(NotProvenError, match="seen no commit in git"):
        freezing.freeze(_campaign(demo))


def test_a_campaign_without_its_tests_is_refused(project: Project) -> None:
    (project.directory / "checks" / "test_device.py").unlink()
    with pytest.raises(NotProvenError, match=r"seen no checks/test_device\.py, .* in a folder above it"):
        freezing.freeze(_campaign(project))


def test_its_own_records_make_no_tree_dirty_and_are_replaced(project: Project) -> None:
    first = _frozen(project)
    assert freezing.freeze(_campaign(project)) == first
    project.campaign(CAMPAIGN.replace("A demonstration", "Another"))
    _commit(project)
    second = _frozen(project)
    assert (second.identity.campaign == first.identity.campaign, second.sha256 == first.sha256) == (False, False)
    assert read_model(project.directory / "campaign.frozen.json", FrozenCampaign) == second


def test_somebody_else_reviews_what_is_frozen(project: Project) -> None:
    frozen = _frozen(project)
    review = freezing.review_frozen(_campaign(project), "Grace Hopper")
    assert review == Review(reviewer="Grace Hopper", frozen=frozen.sha256)
    freezing.write_review(_campaign(project), review)
    assert read_reviewed(*freezing.records(_campaign(project))).review == review


@pytest.mark.parametrize("name", ["Ada Lovelace", "ada lovelace", "ADA@example.org"])
def test_its_author_does_not_review_it(project: Project, name: str) -> None:
    _frozen(project)
    with pytest.raises(NotProvenError, match="expected another person"):
        freezing.review_frozen(_campaign(project), name)


def test_what_was_not_frozen_is_not_reviewed(project: Project) -> None:
    with pytest.raises(NotProvenError, match=r"campaign\.frozen\.json: seen none"):
        freezing.review_frozen(_campaign(project), "Grace Hopper")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("campaign.toml", "campaign demo"),
        ("demo_candidate/__init__.py", "demo_candidate/__init__.py"),
        ("checks/test_device.py", "checks/test_device.py"),
    ],
)
def test_what_has_changed_since_is_not_reviewed(project: Project, name: str, reason: str) -> None:
    _frozen(project)
    path = project.directory / name
    path.write_text(path.read_text().replace("only", "first") if name.endswith(".toml") else "# changed\n")
    _commit(project)
    with pytest.raises(NotProvenError, match=f"^{reason}: seen changed since it was frozen"):
        freezing.review_frozen(_campaign(project), "Grace Hopper")


def test_a_record_that_is_none_is_named(project: Project) -> None:
    (project.directory / "campaign.frozen.json").write_text("{}")
    with pytest.raises(UnusableEvidenceError, match=r"frozen\.json: "):
        freezing.review_frozen(_campaign(project), "Grace Hopper")


def test_copies_go_into_the_evidence(project: Project, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    none = freezing.take_reviewed(_campaign(project), tmp_path / "none")
    assert (none.frozen, none.review) == (None, None)
    frozen = _frozen(project)
    review = freezing.review_frozen(_campaign(project), "Grace Hopper")
    freezing.write_review(_campaign(project), review)
    (tmp_path / "both").mkdir()
    both = freezing.take_reviewed(_campaign(project), tmp_path / "both")
    assert (both.frozen, both.review) == (frozen, review)
