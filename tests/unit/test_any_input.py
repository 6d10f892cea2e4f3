# SPDX-License-Identifier: Apache-2.0
"""Whatever stands in a file, its reader gives its model or says in one line why not: never another exception."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_laguna.campaign import CampaignError, parse_campaign
from pytest_laguna.endpoint.metrics import read_counters
from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.arms.arm_record import Arm, ArmRecord
from pytest_laguna.evidence.arms.parity import PacketRecord
from pytest_laguna.evidence.arms.profile_file import read_profile
from pytest_laguna.evidence.endpoint.leg import LegRecord
from pytest_laguna.evidence.journal import read_journal
from pytest_laguna.evidence.junit import read_junit
from pytest_laguna.evidence.machine.idle import IdleRecord
from pytest_laguna.evidence.machine.xpu_smi import read_processes
from pytest_laguna.evidence.schemas import Analysis, AttemptStart, Manifest, read_model
from pytest_laguna.experiments.protocol import parse_protocol
from pytest_laguna.verdict import NotProvenError, UnusableEvidenceError, Verdict
from pytest_laguna.verify.verification import verify_root
from tests import diagnostic_root, event_root, sealed
from tests.demo import writable
from tests.lab_event_profile import parse_lab_event_profile
from tests.lab_profile import read_lab_profile
from tests.unit.evidence.test_lab_profile import lab

DATA = Path(__file__).parents[1] / "data"
CAMPAIGNS = Path(__file__).parents[2] / "campaigns"
LAB_EVENTS = "event-diagnostic-20260725.json"

Reader: TypeAlias = Callable[[Path], object]


@functools.cache
def _attempt(name: str) -> bytes:
    """A file of a good attempt."""
    with tempfile.TemporaryDirectory() as directory:
        return (sealed.build(Path(directory)) / name).read_bytes()


def _data(name: str) -> Callable[[], bytes]:
    return (DATA / name).read_bytes


def _canonical(name: str) -> Callable[[], bytes]:
    return lambda: files.canonical_json(json.loads((DATA / name).read_text()))


def _tree(file: str, good: Callable[[], dict[str, Any]] = diagnostic_root.good) -> Callable[[], bytes]:
    return lambda: files.canonical_json(good()[file])


def _lab_events() -> bytes:
    return json.dumps(event_root.lab_profile(json.loads((DATA / LAB_EVENTS).read_text()), 2)).encode()


def _whole_profile(path: Path) -> list[object]:
    return list(read_profile(path).samples)


PROFILE = f"arms/{Arm.GRAPH_CONTROL}/profile/rank0.json"

READERS: Mapping[str, tuple[Callable[[], bytes], Reader]] = {
    "junit.xml": (functools.partial(_attempt, root.JUNIT), lambda path: read_junit(path.read_bytes())),
    "journal": (functools.partial(_attempt, root.JOURNAL), lambda path: read_journal(path, "0" * 64)),
    "attempt.json": (functools.partial(_attempt, root.ATTEMPT), lambda path: read_model(path, AttemptStart)),
    "analysis.json": (functools.partial(_attempt, root.ANALYSIS), lambda path: read_model(path, Analysis)),
    "manifest.json": (functools.partial(_attempt, root.MANIFEST), lambda path: read_model(path, Manifest)),
    "arm": (_canonical("arm-records/graph-candidate.json"), lambda path: read_model(path, ArmRecord)),
    "packet": (_canonical("parity-packets/cpu.json"), lambda path: read_model(path, PacketRecord)),
    "leg": (_canonical("legs/three-prompts.json"), lambda path: read_model(path, LegRecord)),
    "idle": (_tree("idle-before.json"), lambda path: read_model(path, IdleRecord)),
    "replay profile": (_tree(PROFILE), _whole_profile),
    "replay profile of the laboratory": (
        lambda: json.dumps(lab()).encode(),
        lambda path: read_lab_profile(path, world_size=4),
    ),
    "event profile of the laboratory": (
        _lab_events,
        lambda path: parse_lab_event_profile(files.parse_json(path.read_bytes(), path.name), path.name),
    ),
    "campaign": (
        (CAMPAIGNS / "laguna-persistent-kv-views.toml").read_bytes,
        lambda path: parse_campaign(path.read_bytes(), path.name),
    ),
    "protocol": (
        (CAMPAIGNS / "laguna-persistent-kv-views-endpoint-cpu.toml").read_bytes,
        lambda path: parse_protocol(path.read_bytes(), path.name),
    ),
    "xpu-smi": (
        _data("record102-xpu-smi-ps-stdout.json"),
        lambda path: read_processes(path.read_bytes().decode(errors="replace")),
    ),
    "Prometheus": (
        _data("endpoint/metrics-after.prom"),
        lambda path: read_counters(path.read_bytes(), path.name, "tiny-laguna"),
    ),
}
JSON_READERS = [name for name in READERS if name not in {"junit.xml", "journal", "campaign", "protocol", "Prometheus"}]

NUMBERS = st.integers() | st.integers(-(2**70), 2**70) | st.floats()
TEXT = st.text(alphabet=st.characters(exclude_categories=()))
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def _reads_or_refuses(reader: Reader, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rank2.json"
        path.write_bytes(content)
        try:
            reader(path)
        except (UnusableEvidenceError, NotProvenError, CampaignError) as error:
            assert str(error).count("\n") == 0, error  # noqa: PT017 - any of them is well


@pytest.mark.parametrize("name", READERS)
def test_the_examples_are_good(name: str) -> None:
    example, reader = READERS[name]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rank2.json"
        path.write_bytes(example())
        if name == "journal":  # its first line names the attempt before it
            with pytest.raises(UnusableEvidenceError, match="chain"):
                reader(path)
        else:
            reader(path)


@pytest.mark.parametrize("name", READERS)
@settings(deadline=None)
@given(data=st.data())
def test_bytes_may_be_any(name: str, data: st.DataObject) -> None:
    example, reader = READERS[name]
    content = example()
    begin = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(begin, min(len(content), begin + 40)) | st.just(len(content)))
    _reads_or_refuses(reader, content[:begin] + data.draw(st.binary(max_size=40)) + content[end:])


@pytest.mark.parametrize("name", JSON_READERS)
@settings(deadline=None)
@given(data=st.data())
def test_a_value_may_be_any(name: str, data: st.DataObject) -> None:
    example, reader = READERS[name]
    _reads_or_refuses(reader, _dumped(_with_another_value(json.loads(example()), data)))


def _dumped(value: Any) -> bytes:
    """In the canonical form where the value has one: what has none is refused before its model sees it."""
    with contextlib.suppress(UnusableEvidenceError):
        return files.canonical_json(value)
    return json.dumps(value).encode()


def _with_another_value(value: Any, data: st.DataObject) -> Any:
    """One place of a JSON value holds something else, has gone, or is there a second time."""
    value = copy.deepcopy(value)
    places = list(_places(value))
    holder, key = places[data.draw(st.integers(0, len(places) - 1))]
    how = data.draw(st.sampled_from(["other", "gone", "again"]))
    if how == "gone":
        del holder[key]
    elif how == "again" and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif how == "again":
        holder[data.draw(TEXT)] = copy.deepcopy(holder[key])
    else:
        holder[key] = data.draw(VALUES)
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON value, as what holds it and its key there; of long lists the ends alone."""
    keys = (
        list(value) if isinstance(value, dict) else [index for index in range(len(value)) if _at_an_end(value, index)]
    )
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def _at_an_end(values: list[Any], index: int) -> bool:
    return min(index, len(values) - index) <= 2


# What is judged


@settings(deadline=None)  # a whole directory is written and judged
@given(data=st.data())
def test_a_diagnostic_of_any_values_has_its_verdicts(data: st.DataObject) -> None:
    _judges_or_refuses(diagnostic_root, diagnostic_root.good(), data)


@settings(deadline=None)
@given(data=st.data())
def test_an_event_profile_of_any_values_has_its_verdicts(data: st.DataObject) -> None:
    _judges_or_refuses(event_root, event_root.good(fitness=data.draw(st.booleans())), data)


def _judges_or_refuses(builder: Any, tree: dict[str, Any], data: st.DataObject) -> None:
    """Change one value that still has its type, so that it gets as far as the rules."""
    path = data.draw(st.sampled_from(sorted(path for path, value in tree.items() if isinstance(value, dict))))
    places = [(holder, key) for holder, key in _places(tree[path]) if not isinstance(holder[key], dict | list)]
    holder, key = places[data.draw(st.integers(0, len(places) - 1))]
    holder[key] = data.draw(_like(holder[key]))
    with tempfile.TemporaryDirectory() as directory, contextlib.suppress(UnusableEvidenceError, NotProvenError):
        for verdict, reason in builder.findings(builder.judged(tree, Path(directory))).values():
            assert verdict in set(Verdict)
            assert "\n" not in reason


def _like(value: Any) -> st.SearchStrategy[Any]:
    if isinstance(value, bool) or value is None:
        return st.booleans() | st.none()
    if isinstance(value, int):
        return st.integers(-(2**53) + 1, 2**53 - 1)
    if isinstance(value, float):
        return st.floats(allow_nan=False, allow_infinity=False)
    return st.text(max_size=200) | st.just("0" * 64)


@settings(deadline=None)
@given(data=st.data())
def test_an_attempt_of_any_bytes_has_its_verdict(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        attempt = sealed.build(Path(directory))
        name = data.draw(st.sampled_from([root.RECEIPT, root.JOURNAL, root.IDENTITY, root.CAMPAIGN, root.ANALYSIS]))
        with writable(attempt):
            content = (attempt / name).read_bytes()
            place = data.draw(st.integers(0, len(content) - 1))
            changed = content[:place] + data.draw(st.binary(max_size=9)) + content[place + 1 :]
            (attempt / name).write_bytes(changed)
            (report,) = verify_root(Path(directory) / "sealed")
        assert (report.verdict is Verdict.PASS) == (changed == content)
