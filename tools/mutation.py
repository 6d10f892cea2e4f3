# SPDX-License-Identifier: Apache-2.0
"""Mutation testing of what judges: ``python -m tools.mutation [laguna_kv] [analysis] [evidence]``.

In one process the tests are collected and run once, to see which lines each of them reaches. Then for every mutant
(``tools.mutants``) a fork of that process gives the function its mutated code, wherever it is already known, and runs
the tests that reach the changed statement until one fails. A mutant that no test refutes is a survivor. Survivors that
are accepted stand with their reasons in ``tools/mutation_survivors.toml``. ``tools/mutation_fates.jsonl`` keeps the
fates of each function's mutants: asked are the functions that it does not know, and the survivors that are not listed.
The exit code is 1 when a package has less than 95 % of its mutants killed, a survivor is not listed, or a listed one is
none; nothing runs if a listed survivor's function is gone.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fnmatch
import functools
import gc
import inspect
import itertools
import os
import resource
import signal
import sys
import threading
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any

import pytest

from tools.mutation_fates import Fates, digest_of, functions_of

if TYPE_CHECKING:
    from tools.mutants import Mutant

ROOT = Path(__file__).resolve().parent.parent
ACCEPTED = ROOT / "tools" / "mutation_survivors.toml"
FATES = ROOT / "tools" / "mutation_fates.jsonl"
LEAST_KILLED = 0.95
ALIVE = frozenset({"not reached", "survived"})
SLOWEST = 2.0
"""Seconds of processor time; a test that takes longer under trace is not asked."""
ROUND = 300
"""Lines that a test runs anew before its trace of a function ends."""
LONGEST = 60.0
"""Seconds of tests that a mutant is given; one that they do not refute counts as a survivor."""
NO_CODE = 3
ADDED_MEMORY = 4 << 30
"""Bytes that a mutant may take beyond what the unchanged tests took."""


@dataclasses.dataclass(frozen=True, slots=True)
class Package:
    """A mutated folder, and the quick tests that may refute its mutants: they start no engine and no server."""

    folder: str
    tests: Sequence[str]


PACKAGES: Mapping[str, Package] = {
    "laguna_kv": Package(
        "src/laguna_kv",
        [
            "tests/unit/laguna_kv",
            "--ignore=tests/unit/laguna_kv/test_hot_path.py",
            "--ignore=tests/unit/laguna_kv/test_other_vllm.py",
            "--ignore=tests/unit/laguna_kv/test_plugin.py",
            "--ignore=tests/unit/laguna_kv/test_fetch_vllm_sources.py",
        ],
    ),
    "analysis": Package(
        "pytest_laguna/analysis",
        [
            "tests/unit/analysis",
            "tests/mutants",
            "--ignore=tests/unit/analysis/test_benchmark.py",
            "--ignore=tests/mutants/test_endpoint_derivation.py",
            "--deselect=tests/mutants/test_endpoint_identity_rules.py::test_gate_3s_clause",
            "--deselect=tests/mutants/test_endpoint_identity_rules.py::test_the_models_around_a_leg",
            "--ignore=tests/mutants/test_fuzzed_roots.py",
            "--ignore=tests/mutants/test_verification_rules.py",
        ],
    ),
    "evidence": Package(
        "pytest_laguna/evidence",
        [
            "tests/unit/evidence",
            "tests/unit/test_evidence.py",
            "tests/unit/test_any_input.py",
            "tests/unit/analysis/test_event_profile.py",
            "tests/unit/analysis/test_replay_profile.py",
            "tests/unit/engine/test_arm_record.py",
            "tests/unit/machine/test_host_audit.py",
            "tests/unit/machine/test_idle.py",
            "tests/unit/machine/test_process_table.py",
            "tests/unit/machine/test_xpu_smi_output.py",
            "tests/mutants/test_arm_pair_rules.py",
            "tests/mutants/test_device_runtime_rules.py",
            "tests/mutants/test_endpoint_rules.py",
            "tests/mutants/test_event_rules.py",
            "tests/mutants/test_host_rules.py",
            "tests/mutants/test_idle_rules.py",
            "tests/mutants/test_parity_rules.py",
            "tests/mutants/test_process_rules.py",
            "tests/mutants/test_review_rules.py",
            "tests/mutants/test_session_rules.py",
            "tests/mutants/test_verification_rules.py",
        ],
    ),
}
OPTIONS = (
    "-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:faulthandler",
    "-o", "tmp_path_retention_policy=none",
)  # fmt: skip

Lines = dict[str, set[int]]


@dataclasses.dataclass(slots=True)
class Reached:
    """A test, the processor time that it and its children took, and the lines of the package that it ran, by file."""

    item: pytest.Item
    seconds: float
    lines: Lines


class Runner:
    """A pytest plugin that takes the place of the loop over the tests.

    Attributes:
        fates: by mutant: ``killed``, ``timeout``, ``survived`` or ``not reached``.
    """

    def __init__(self, folder: Path, mutants: Sequence[Mutant], keep: Callable[[Mutant, str], None]) -> None:
        self.fates: dict[str, str] = {}
        self.killers: dict[str, Counter[str]] = defaultdict(Counter)
        self._folder, self._mutants, self._keep = f"{folder}{os.sep}", mutants, keep
        self._functions: Mapping[tuple[str, str], Sequence[FunctionType]] = {}
        self._caches: Sequence[Callable[[], None]] = []
        self._reports: list[pytest.TestReport] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run every test once, and then every mutant."""
        if session.testsfailed:
            raise session.Failed("tests that cannot be collected refute nothing")
        reached = [test for test in self._run_unchanged(session.items) if test.seconds <= SLOWEST]
        slow = sorted(reached, key=lambda test: -test.seconds)[:10]
        print(f"{len(reached)} tests, {sum(test.seconds for test in reached):.0f} s")
        print(*(f"{test.seconds:.2f} s {test.item.nodeid}" for test in slow), sep="\n")
        self._functions, self._caches = _functions(self._folder), _caches()
        reached.sort(key=lambda test: test.seconds)
        status, failed = self._run_child(None, reached)
        if status != 0:
            raise session.Failed("tests that do not come to their end in a fork refute nothing")
        print(*(f"left out, for it fails in a fork without any mutant: {name}" for name in failed), sep="\n")
        by_line: dict[tuple[str, int], list[Reached]] = defaultdict(list)
        for test in reached:
            if test.item.nodeid not in failed:
                for path, lines in test.lines.items():
                    for line in lines:
                        by_line[path, line].append(test)
        for number, mutant in enumerate(self._mutants):
            tests = self._chosen(mutant, by_line)
            fate = self._run_mutant(mutant, tests) if tests else "not reached"
            self.fates[mutant.name] = fate
            self._keep(mutant, fate)
            if fate != "killed":
                print(f"{number}/{len(self._mutants)} {fate}: {mutant.name}", flush=True)
        return True

    def _chosen(self, mutant: Mutant, by_line: Mapping[tuple[str, int], Sequence[Reached]]) -> list[Reached]:
        """The tests that run the changed statement, as many as ``LONGEST`` allows.

        First come those that killed another mutant of the function, and then the quick ones.
        """
        found: dict[str, Reached] = {}
        for first, last in (mutant.lines, mutant.within):  # of the whole function where the trace of it ended too soon
            for line in range(first, last + 1):
                found |= {test.item.nodeid: test for test in by_line.get((str(mutant.path), line), ())}
            if found:
                break
        killers = self.killers[mutant.function]
        tests = sorted(found.values(), key=lambda test: (-killers[test.item.nodeid], test.seconds))
        spent = itertools.accumulate(test.seconds for test in tests)
        return [test for test, seconds in zip(tests, spent, strict=True) if seconds - test.seconds <= LONGEST]

    def _run_unchanged(self, items: Sequence[pytest.Item]) -> Iterator[Reached]:
        for item, following in zip(items, [*items[1:], None], strict=True):
            begun = sum(os.times()[:4])
            with _traced(self._folder) as lines:
                reports = self._run(item, following)
            if any(report.failed for report in reports):
                print(f"left out, for it fails under trace without any mutant: {item.nodeid}")
            elif not any(report.skipped for report in reports):
                yield Reached(item, sum(os.times()[:4]) - begun, lines)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what pytest says of the test that runs."""
        self._reports.append(report)

    def _run(self, item: pytest.Item, following: pytest.Item | None) -> list[pytest.TestReport]:
        self._reports.clear()
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        return self._reports

    def _failing(self, tests: Sequence[Reached]) -> Iterator[Reached]:
        """Tests that fail, of those that are run one after the other; one that takes too long ends the process."""
        for test, following in zip(tests, [*tests[1:], None], strict=True):
            signal.alarm(int(10 + 20 * test.seconds))
            if any(report.failed for report in self._run(test.item, following.item if following else None)):
                yield test

    def _run_mutant(self, mutant: Mutant, tests: Sequence[Reached]) -> str:
        _codes_of(mutant.path)
        status, killers = self._run_child(mutant, tests)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
            return "timeout"
        self.killers[mutant.function].update(killers)
        return {0: "survived", NO_CODE: "invalid"}.get(os.waitstatus_to_exitcode(status), "killed")

    def _run_child(self, mutant: Mutant | None, tests: Sequence[Reached]) -> tuple[int, list[str]]:
        """Its status, and the tests that failed: of a mutant the first, and all of them without one."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            self._be_mutant(mutant, tests, writing)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            failed = pipe.read().splitlines()
        return os.waitpid(child, 0)[1], failed

    def _be_mutant(self, mutant: Mutant | None, tests: Sequence[Reached], writing: int) -> None:
        """Never returns: the exit status is 0 when no test fails, and ``NO_CODE`` when there is nothing to run."""
        status = NO_CODE
        try:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nowhere, stream)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (taken + ADDED_MEMORY, taken + ADDED_MEMORY))
            if mutant is not None:
                change(mutant, self._functions)
            status = 1
            for clear in self._caches:
                clear()
            for test in self._failing(tests):
                os.write(writing, f"{test.item.nodeid}\n".encode())
                if mutant is not None:
                    break
            else:
                status = 0
        except BaseException:  # noqa: BLE001, S110 - whatever a mutant raises here refutes it
            pass
        finally:
            os._exit(status)


def change(mutant: Mutant, functions: Mapping[tuple[str, str], Sequence[FunctionType]]) -> None:
    """Give every function object of the mutant's function, and those within it, the mutated code."""
    file = str(mutant.path)
    before = _codes_of(mutant.path)
    after = _codes(compile(mutant.source(), file, "exec"))
    for name, codes in before.items():
        if name != mutant.function and not name.startswith(f"{mutant.function}."):
            continue
        places = {code.co_firstlineno: place for place, code in enumerate(codes)}
        for function in functions.get((file, name), ()):
            function.__code__ = after[name][places[function.__code__.co_firstlineno]]


@functools.cache
def _codes_of(path: Path) -> dict[str, list[CodeType]]:
    return _codes(compile(path.read_text(), str(path), "exec"))


def _codes(code: CodeType) -> dict[str, list[CodeType]]:
    """The code of functions by qualified name; two of one name are in the order of the source."""
    found: dict[str, list[CodeType]] = defaultdict(list)
    for constant in code.co_consts:
        if inspect.iscode(constant):
            found[constant.co_qualname].append(constant)
            for name, codes in _codes(constant).items():
                found[name] += codes
    return found


def _objects() -> list[object]:
    """All that Python's collector knows, what was frozen when the tests had been collected too."""
    gc.unfreeze()
    return gc.get_objects()


def _functions(folder: str) -> dict[tuple[str, str], list[FunctionType]]:
    found: dict[tuple[str, str], list[FunctionType]] = defaultdict(list)
    for thing in _objects():
        if type(thing) is FunctionType and thing.__code__.co_filename.startswith(folder):
            found[thing.__code__.co_filename, thing.__code__.co_qualname].append(thing)
    return found


def _caches() -> list[Callable[[], None]]:
    """Functions that forget cached results of the unchanged code, of the project and its tests."""
    return [
        thing.cache_clear
        for thing in _objects()
        if type(thing) is functools._lru_cache_wrapper  # noqa: SLF001 - it has no public name
        and thing.__module__.partition(".")[0] in {"gates", "laguna_kv", "pytest_laguna", "tests"}
    ]


@contextlib.contextmanager
def _traced(folder: str) -> Iterator[Lines]:
    """The lines of a folder's code that run meanwhile, in this thread and in those that are started."""
    lines: Lines = defaultdict(set)
    tracer, before, of_threads = _tracer(folder, lines), sys.gettrace(), threading.gettrace()
    threading.settrace(tracer)
    sys.settrace(tracer)
    try:
        yield lines
    finally:
        sys.settrace(before)
        threading.settrace(of_threads)


def _tracer(folder: str, lines: Lines) -> Callable[[FrameType, str, Any], Any]:
    """Notes the lines of a folder's code; of code that goes round in known lines it soon sees no more."""
    known: Counter[int] = Counter()

    def of_line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            seen, code = lines[frame.f_code.co_filename], id(frame.f_code)
            known[code] = known[code] + 1 if frame.f_lineno in seen else 0
            seen.add(frame.f_lineno)
            if known[code] > ROUND:
                return None
        return of_line

    def of_call(frame: FrameType, _event: str, _argument: Any) -> Any:
        within = frame.f_code.co_filename.startswith(folder)
        return of_line if within and known[id(frame.f_code)] <= ROUND else None

    return of_call


@dataclasses.dataclass(frozen=True, slots=True)
class Body:
    """A function's body and its mutants, in their order."""

    digest: str
    mutants: Sequence[Mutant]


def bodies_of(path: Path, mutants: Iterable[Mutant]) -> list[Body]:
    """A module's functions that have mutants."""
    functions = functions_of(path)
    found: dict[int, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        [place] = [place for place, (lines, _) in enumerate(functions) if mutant.lines[0] in lines]
        found[place].append(mutant)
    return [Body(digest_of(functions[place][1]), group) for place, group in found.items()]


class Plan:
    """Known fates of some bodies, and the mutants to ask.

    Attributes:
        fates: by mutant's name, of those that are known.
        waiting: the mutants to ask, in their order.
    """

    def __init__(self, bodies: Sequence[Body], kept: Fates, listed: AbstractSet[str]) -> None:
        self.fates: dict[str, str] = {}
        self.waiting: list[Mutant] = []
        self._kept = kept
        self._of: dict[str, str] = {mutant.name: body.digest for body in bodies for mutant in body.mutants}
        self._twins: dict[str, list[Body]] = defaultdict(list)
        for body in bodies:
            self._twins[body.digest].append(body)
        for body in bodies:
            record = kept.record(body.digest, len(body.mutants), len(self._twins[body.digest]))
            for number, mutant in enumerate(body.mutants):
                if record is None or (number in record.alive and key_of(mutant.name) not in listed):
                    self.waiting.append(mutant)
                else:
                    self.fates[mutant.name] = "survived" if number in record.alive else "killed"

    def note(self, mutant: Mutant, fate: str) -> None:
        """Take a mutant's fate; with the last one of the functions that share the body their record is kept."""
        self.fates[mutant.name] = fate
        digest = self._of[mutant.name]
        twins = [[self.fates.get(one.name) for one in body.mutants] for body in self._twins[digest]]
        known = [[fate for fate in fates if fate is not None] for fates in twins]
        if known == twins:
            self._kept.forget(digest)
            for fates in known:
                self._kept.add(digest, fates)


def run(package: Package, only: Sequence[str], kept: Fates, listed: AbstractSet[str]) -> dict[str, str]:
    """The fates of a package's mutants.

    Args:
        package: what is mutated, and the tests that are asked.
        only: patterns; a mutant's name matches one of them.
        kept: fates that are known; those that are asked are added, a function at a time.
        listed: the survivors that are accepted.
    """
    from tools.mutants import mutants_of  # noqa: PLC0415 - brings mutmut, which nothing else here needs

    folder = ROOT / package.folder
    bodies = [body for path in sorted(folder.rglob("*.py")) for body in bodies_of(path, mutants_of(path, ROOT))]
    plan = Plan(bodies, kept, listed)
    waiting = [mutant for mutant in plan.waiting if _matches(mutant.name, only)]
    print(f"{len(plan.fates)} mutants of {package.folder} are known, {len(waiting)} are asked", flush=True)
    if waiting:
        runner = Runner(folder, waiting, plan.note)
        os.chdir(ROOT)
        code = pytest.main([*OPTIONS, *package.tests], plugins=[runner])
        if len(runner.fates) != len(waiting):
            sys.exit(f"mutation: pytest ended with {code} before the last mutant; run again to go on")
    kept.write({body.digest for body in bodies})
    names = [mutant.name for body in bodies for mutant in body.mutants]
    return {name: plan.fates[name] for name in names if _matches(name, only)}


def key_of(name: str) -> str:
    """A mutant's name without its file: a module that moves keeps its survivors."""
    return name.partition("::")[2]


def _matches(name: str, only: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, one) for one in only)


def survivors(fates: Mapping[str, str]) -> list[str]:
    """The mutants that no test refuted."""
    return [mutant for mutant, fate in fates.items() if fate in ALIVE]


def accepted() -> list[tuple[str, str]]:
    """Accepted survivors, without their files, each with its reason; one of two modules stands there twice."""
    listed = tomllib.loads(ACCEPTED.read_text())["survivors"]
    return [(mutant, group["reason"]) for group in listed for mutant in group["mutants"]]


def gone(listed: Iterable[str]) -> Iterator[str]:
    """The listed survivors of functions that no package has, a line each."""
    for mutant in listed:
        function = mutant.partition(": ")[0]
        if not _modules_with(function, PACKAGES.values()):
            yield f"{ACCEPTED.name}: {mutant}: no function {function}; delete the entry, or name its new one"


def objections(fates: Mapping[str, str], listed: Sequence[str], elsewhere: Callable[[str], bool]) -> Iterator[str]:
    """Reasons to fail, a line each.

    Args:
        fates: by mutant's name.
        listed: what is accepted, of this package's functions.
        elsewhere: whether another package has a mutant of this name.
    """
    left = Counter(listed)
    for mutant in survivors(fates):
        if left[key_of(mutant)] > 0:
            left[key_of(mutant)] -= 1
        else:
            yield f"not listed in {ACCEPTED.name}: {mutant}"
    there = {key_of(mutant) for mutant in fates}
    for mutant in left.elements():
        if mutant in there:
            yield f"listed in {ACCEPTED.name}, but killed: {mutant}"
        elif not elsewhere(mutant):
            yield f"listed in {ACCEPTED.name}, but no mutant: {mutant}"


def _modules_with(function: str, packages: Iterable[Package]) -> list[Path]:
    paths = (path for package in packages for path in sorted((ROOT / package.folder).rglob("*.py")))
    return [path for path in paths if function in _codes_of(path)]


def _of_another(package: Package, mutant: str) -> bool:
    """True if another package than this has a mutant of this name."""
    from tools.mutants import mutants_of  # noqa: PLC0415 - as above

    others = (other for other in PACKAGES.values() if other is not package)
    found = (mutants_of(path, ROOT) for path in _modules_with(mutant.partition(": ")[0], others))
    return any(key_of(one.name) == mutant for one in itertools.chain.from_iterable(found))


def table(fates: Mapping[str, str]) -> Iterator[str]:
    """One line a module, and one for all."""
    by_module: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant, fate in fates.items():
        by_module[mutant.partition("::")[0]][fate] += 1
    by_module["all"] = Counter(fates.values())
    yield "| module | mutants | killed | % | survived |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for module, counts in by_module.items():
        alive, total = counts["survived"] + counts["not reached"], counts.total() - counts["invalid"]
        yield f"| {module} | {total} | {total - alive} | {1 - alive / total:.1%} | {alive} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutation", description=__doc__)
    parser.add_argument("package", choices=list(PACKAGES))
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns for mutants' names, such as *timing.py::*")
    parser.add_argument("--tests", nargs="+", help="the tests to ask instead of all that the package has")
    parser.add_argument("--all", action="store_true", help="ask every function, whether or not its fates are known")
    parser.add_argument("--fates", type=Path, default=FATES, help="the file that keeps the fates")
    chosen = parser.parse_args(arguments)
    package = PACKAGES[chosen.package]
    asked = dataclasses.replace(package, tests=chosen.tests) if chosen.tests else package
    listed = [mutant for mutant, _ in accepted()]
    stale = list(gone(listed))
    if stale:
        print(*stale, sep="\n")
        return 1
    kept = Fates(chosen.fates, chosen.package)
    if chosen.all:
        kept.write(frozenset())
        kept = Fates(chosen.fates, chosen.package)
    fates = run(asked, chosen.only, kept, frozenset(listed))
    print(*table(fates), sep="\n")
    here = {key_of(name) for name in fates}
    whole = chosen.only == parser.get_default("only")
    of_package = [
        name for name in listed if name in here or (whole and _modules_with(name.partition(": ")[0], [package]))
    ]
    against = list(objections(fates, of_package, functools.partial(_of_another, package)))
    print(*against, sep="\n")
    run_at_all = [fate for fate in fates.values() if fate != "invalid"]
    killed = 1 - len(survivors(fates)) / max(1, len(run_at_all))
    return 0 if run_at_all and not against and killed >= LEAST_KILLED else 1


if __name__ == "__main__":
    sys.exit(main())
