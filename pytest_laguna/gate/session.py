# SPDX-License-Identifier: Apache-2.0
"""A gate session from precondition to receipt: the plugin object registered by ``--gate``."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.metadata
import os
import shutil
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from pytest_laguna import fixtures
from pytest_laguna.analysis.findings import Finding
from pytest_laguna.analysis.review import Running, judge_review, needs_review
from pytest_laguna.attempt import options
from pytest_laguna.attempt.attempt import Attempt, Precondition
from pytest_laguna.attempt.precondition import Gate, find_earlier, find_previous, loaded_runtime, settle
from pytest_laguna.campaign import CampaignError, read_campaign
from pytest_laguna.evidence import files, root
from pytest_laguna.evidence.files import printable
from pytest_laguna.evidence.schemas import Identity
from pytest_laguna.gate import watch
from pytest_laguna.identity import freezing
from pytest_laguna.identity.record import take_identity
from pytest_laguna.identity.source import IdentityError, unfrozen_module
from pytest_laguna.machine import descent
from pytest_laguna.report.progress import open_progress
from pytest_laguna.report.summary import advice, verdict_table
from pytest_laguna.run.leasing import take_cards
from pytest_laguna.verdict import (
    MeasuredNegativeError,
    NotProvenError,
    UnusableEvidenceError,
    Verdict,
)
from pytest_laguna.verify import verification

_LINE = pytest.StashKey[watch.Line]()
_SESSION_PLUGIN = "laguna-session"
_SAYS_ALL = (MeasuredNegativeError, NotProvenError, UnusableEvidenceError)
"""Errors with a verdict: their one line suffices, without a traceback through the harness."""


def choose_files(early_config: pytest.Config, arguments: list[str]) -> None:
    """Collect the gate's test files and nothing else.

    An unreadable campaign is left for ``run`` to refuse, so that ``--help`` keeps working.
    """
    known = early_config.known_args_namespace
    path = Path(known.campaign) if known.campaign else early_config.rootpath / options.DEFAULT_CAMPAIGN
    try:
        campaign = read_campaign(early_config.invocation_params.dir / path)
        clauses = campaign.gate_clauses(options.parse_gate(known.gate))
    except (CampaignError, pytest.UsageError):
        return
    for file in dict.fromkeys(nodeid.partition("::")[0] for nodeid in clauses.values()):
        path = early_config.rootpath / file
        if path.exists():
            arguments.append(str(path))
            known.file_or_dir.append(str(path))


def run(config: pytest.Config) -> int | None:
    """Check the call, then go on in a watched child process; in the watcher, return the exit code.

    Raises:
        pytest.UsageError: the call is wrong.
    """
    config.stash[fixtures.GATE] = settle(config)

    def begin(line: watch.Line) -> None:
        config.stash[_LINE] = line

    atexit.register(gc.freeze)  # a search of all that was imported takes longer than a verdict, in both processes
    return watch.run_watched(begin, _verify)


def _verify(directory: Path) -> tuple[Verdict, str]:
    """Verdict and reason of an attempt, from its files alone."""
    report = _report(directory)
    return report.verdict, report.reason


def _report(directory: Path) -> verification.GateReport:
    gate = int(directory.parent.name.removeprefix("gate"))
    return verification.verify_attempt(directory.parent.parent, gate, int(directory.name))


def open_gate(config: pytest.Config) -> None:
    """Open the gate: verify the chain, hold the lane, register the session.

    Raises:
        pytest.UsageError: the gate stays shut; one line with the reason. Nothing has been created then, except by a
            lane's first gate 1.
    """
    gate = config.stash.get(fixtures.GATE, None)
    if gate is None:  # --help or --version
        return
    line = config.stash[_LINE]
    with _telling(line):
        precondition = _check_chain(gate, config.rootpath)
        if gate.options.gate > 1:
            config.stash[fixtures.CARDS] = take_cards(gate, len(precondition.earlier) + 1, config.rootpath)
    config.stash[fixtures.PROGRESS] = open_progress(config.get_verbosity())
    config.option.xmlpath = None  # the session writes the report itself, and copies it to --junitxml
    config.pluginmanager.register(GateSession(config, gate, precondition, line), _SESSION_PLUGIN)
    config.pluginmanager.register(fixtures, f"{_SESSION_PLUGIN}-fixtures")


@contextlib.contextmanager
def _telling(line: watch.Line) -> Iterator[None]:
    """Turn an error before the attempt into pytest's refusal of one line, and tell the watcher."""
    try:
        yield
    except pytest.UsageError:
        line.refused()
        raise
    except (root.RootError, IdentityError, UnusableEvidenceError) as error:
        line.refused()
        raise pytest.UsageError(str(error)) from error
    except OSError as error:
        line.refused()
        message = f"{error.filename}: {error.strerror}; make it readable and writable"
        raise pytest.UsageError(message) from error


def _check_chain(gate: Gate, project: Path) -> Precondition:
    """Check everything that opens the gate; create at most the lane's directory, for gate 1."""
    root.check_tree(gate.options.sealed_root, gate.lane_directory)
    identity, record = take_identity(gate.campaign, project)
    previous = find_previous(gate, identity)
    number = gate.options.gate
    runtime = loaded_runtime()
    if number > 1 and runtime is not None:
        message = f"{runtime} is loaded in the pytest process; gate {number} must not touch a device; find the import"
        raise pytest.UsageError(message)
    if number > 1 and not gate.options.cards:
        message = f"gate {number}: no --cards; name the cards, for example --cards=0"
        raise pytest.UsageError(message)
    if not gate.clauses:
        message = f"campaign {gate.campaign.name}: no clauses for gate {number}; expected one or more"
        raise pytest.UsageError(message)
    root.make_directory(gate.lane_directory)
    root.lock(gate.lane_directory)  # held until this process ends
    return Precondition(identity, record, previous, find_earlier(gate, identity))


def header(config: pytest.Config) -> str | None:
    """Line of the plugin in pytest's header."""
    session = config.pluginmanager.get_plugin(_SESSION_PLUGIN)
    return session.header() if isinstance(session, GateSession) else None


class GateSession:
    """Pytest plugin object of one open gate."""

    def __init__(self, config: pytest.Config, gate: Gate, precondition: Precondition, line: watch.Line) -> None:
        """Take the settled call; the attempt itself opens after collection."""
        self._config = config
        self._gate = gate
        self._precondition = precondition
        self._line = line
        self._attempt: Attempt | None = None

    def header(self) -> str:
        """Lane, cards, campaign digest and attempt, on one line."""
        cards = f", cards {','.join(self._gate.options.cards)}" if self._gate.options.cards else ""
        return (
            f"gate {self._gate.options.gate} of {self._gate.campaign.name}: lane {self._gate.lane}{cards},"
            f" campaign digest {self._precondition.identity.campaign[:12]},"
            f" attempt {len(self._precondition.earlier) + 1:04d}"
        )

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Compare the collected tests with the frozen list, then open the attempt."""
        with _telling(self._line):
            if session.testsfailed:
                raise pytest.UsageError("a test file of the gate cannot be collected; fix the error above")
            unfrozen = self._unfrozen_module()
            if unfrozen is not None:
                message = f"{unfrozen}: loaded, but no digest covers it; put helpers of a gate beside its test file"
                raise pytest.UsageError(message)
            self._check_frozen_list([(self._clause_of(item), item.nodeid) for item in session.items])
            self._attempt = self._open_attempt()
        self._config.stash[fixtures.ATTEMPT] = self._attempt
        self._line.attempt(self._attempt.directory)
        self._begin_lease(self._attempt)

    def _begin_lease(self, attempt: Attempt) -> None:
        """Record the leased cards; if they are not idle or the review is missing, nothing runs."""
        if fixtures.CARDS not in self._config.stash:
            return
        evidence = attempt.directory / root.EVIDENCE
        try:
            self._keep_from_running(attempt, self._config.stash[fixtures.CARDS].begin(attempt))
            if needs_review(self._gate.options.gate, self._gate.lane):
                self._keep_from_running(attempt, self._review(attempt.identity, evidence))
        except OSError as error:
            attempt.break_off(error)
            self._keep_from_running(attempt, (Verdict.NOT_PROVEN, attempt.broken))

    def _keep_from_running(self, attempt: Attempt, finding: Finding) -> None:
        verdict, reason = finding
        if verdict is not Verdict.PASS:
            self._config.stash[fixtures.NOTHING_RUNS] = reason
            attempt.append("problem", reason=reason, verdict=verdict.value)

    def _review(self, identity: Identity, evidence: Path) -> Finding:
        """Verdict and reason of freezing and review; copies of their records are kept."""
        try:
            reviewed = freezing.take_reviewed(self._gate.options.campaign, evidence)
            folders = self._gate.campaign.folders(self._gate.lane)
            found = judge_review(reviewed, Running(identity, dict.fromkeys(folders)))
            if found[0] is not Verdict.PASS or reviewed.frozen is None:
                return found
            changed = freezing.drift(self._gate.options.campaign, reviewed.frozen)
        except (UnusableEvidenceError, NotProvenError) as error:
            return (Verdict.VOID if isinstance(error, UnusableEvidenceError) else Verdict.NOT_PROVEN), str(error)
        return found if changed is None else (Verdict.NOT_PROVEN, f"{changed} has changed since it was frozen")

    def _open_attempt(self) -> Attempt:
        plugins = {
            f"{info.project_name} {info.version}" for _, info in self._config.pluginmanager.list_plugin_distinfo()
        }
        arguments = [printable(str(argument)) for argument in self._config.invocation_params.args]
        plugins.add(f"pytest {importlib.metadata.version('pytest')}")
        try:
            return Attempt(self._gate, self._precondition, plugins=sorted(plugins), arguments=arguments)
        except OSError as error:
            message = f"{error.filename or self._gate.lane_directory}: {error.strerror}; the attempt cannot be opened"
            raise pytest.UsageError(message) from error

    def _unfrozen_module(self) -> str | None:
        campaign = self._gate.campaign
        return unfrozen_module(self._config.rootpath, campaign.candidate.package, campaign.nodeids)

    def _check_frozen_list(self, found: list[tuple[str, str]]) -> None:
        expected = list(self._gate.clauses.items())
        for clause, nodeid in expected:
            if (clause, nodeid) not in found:
                message = f"clause {clause}: {nodeid} was not collected; expected a test with marks gate and clause"
                raise pytest.UsageError(message)
        if found != expected:
            extra = next((nodeid for clause, nodeid in found if (clause, nodeid) not in expected), "the tests' order")
            message = f"{extra}: differs from the campaign's frozen list; expected its {len(expected)} tests in order"
            raise pytest.UsageError(message)

    def _clause_of(self, item: pytest.Item) -> str:
        gates = [mark.args for mark in item.iter_markers("gate")]
        clauses = list(item.iter_markers("clause"))
        if gates != [(self._gate.options.gate,)] or len(clauses) != 1:
            message = f"{item.nodeid}: expected one mark gate({self._gate.options.gate}) and one mark clause(id)"
            raise pytest.UsageError(message)
        if clauses[0].kwargs or len(clauses[0].args) != 1 or not isinstance(clauses[0].args[0], str):
            message = f"{item.nodeid}: seen other arguments of mark clause; expected one id"
            raise pytest.UsageError(message)
        item.stash[fixtures.CLAUSE] = clauses[0].args[0]
        return clauses[0].args[0]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """Name the test before it runs, in case it ends the process."""
        self._config.stash[fixtures.PROGRESS].test_began()
        if self._attempt is not None:
            self._attempt.append("test-started", nodeid=item.nodeid)
            item.session.shouldstop = self._attempt.broken or False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Write each phase as it ends."""
        report = yield
        error = call.excinfo.value if call.excinfo is not None else None
        cause = _cause(report, error)
        if isinstance(error, _SAYS_ALL):
            report.longrepr = _one_line(report, error)
        if self._attempt is not None:
            self._attempt.append(
                "phase",
                nodeid=item.nodeid,
                when=report.when,
                outcome=report.outcome,
                cause=cause,
                reason=_one_line(report, error) if cause else "",
                detail=_clean(report.longreprtext) if cause else "",
                seconds=round(report.duration, 6),
            )
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        """Ignore a second Ctrl-C: it would break the report of the first and lose the receipt."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        """Derive the verdict, seal and set the exit code, after every other plugin."""
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            yield
        except KeyboardInterrupt:  # in a fixture's hanging teardown; its leftovers are found below
            session.exitstatus = pytest.ExitCode.INTERRUPTED
        if self._attempt is None:  # refused after leasing: nothing has run on the cards
            if fixtures.CARDS in self._config.stash:
                self._config.stash[fixtures.CARDS].give_back(None)
            return
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # from here on an interrupt could only lose evidence
        for verdict, reason in self._problems(self._attempt):
            self._attempt.append("problem", reason=reason, verdict=verdict.value)
        self._attempt.finish(int(session.exitstatus))
        report = _report(self._attempt.directory)
        verdict, reason = report.verdict, report.reason
        if self._attempt.broken:
            reason = self._attempt.broken
        session.exitstatus = verdict.exit_code
        for line in verdict_table(report.analysis) if report.analysis is not None else ():
            self._say(line)
        self._print(verdict, reason)
        self._copy_report(self._attempt.directory)

    def _problems(self, attempt: Attempt) -> Iterator[tuple[Verdict, str]]:
        """Findings of the session itself once its tests are over."""
        for process in descent.descendants(os.getppid()):
            if process.pid != os.getpid():
                command, of_gate = process.command(), descent.bears_token(process)
                process.signal(signal.SIGKILL)
                # Without a token, a test started it itself: a defect of the harness, not of the candidate.
                verdict = Verdict.FAIL if of_gate else Verdict.VOID
                yield verdict, f"process {process.pid} was left running by a test: {command}"
        yield from self._end_lease(attempt)
        runtime = loaded_runtime()
        if self._gate.options.gate > 1 and runtime is not None:
            yield Verdict.VOID, f"{runtime} was loaded in the pytest process by a test"
        unfrozen = self._unfrozen_module()
        if unfrozen is not None:
            yield Verdict.VOID, f"{unfrozen} was loaded by a test, but no digest covers it"
        yield from self._drift()

    def _end_lease(self, attempt: Attempt) -> Iterator[tuple[Verdict, str]]:
        if fixtures.CARDS not in self._config.stash:
            return
        try:
            verdict, reason = self._config.stash[fixtures.CARDS].give_back(attempt)
        except OSError as error:
            attempt.break_off(error)
            return
        if verdict is not Verdict.PASS:
            yield verdict, reason

    def _drift(self) -> Iterator[tuple[Verdict, str]]:
        """Findings of any change to campaign, candidate or harness since the gate opened."""
        try:
            campaign = read_campaign(self._gate.options.campaign)
            now, _ = take_identity(campaign, self._config.rootpath)
        except (CampaignError, IdentityError, OSError) as error:
            yield Verdict.VOID, f"the identity cannot be taken again: {error}"
            return
        for name in Identity.model_fields:
            if getattr(now, name) != getattr(self._precondition.identity, name):
                yield Verdict.VOID, f"the {name} changed while the gate ran"

    def _copy_report(self, directory: Path) -> None:
        """Copy the report to ``--junitxml``; a failing copy changes no verdict."""
        target = self._gate.options.junit
        if target is None or not (directory / root.JUNIT).exists():
            return
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(directory / root.JUNIT, target)
        except OSError as error:
            self._say(f"--junitxml={target}: not written ({error.strerror}); the report is {directory / root.JUNIT}")

    def _print(self, verdict: Verdict, reason: str) -> None:
        options_ = self._gate.options
        self._say(f"gate {options_.gate}: {verdict}: {printable(reason)}")
        if self._attempt is not None:
            self._say(f"evidence: {self._attempt.directory}")
            self._say_receipt(self._attempt.directory / root.RECEIPT)
        root_ = os.path.relpath(options_.sealed_root)
        if verdict is not Verdict.PASS:
            self._say(f"next: {advice(verdict)}")
        elif self._gate.campaign.gate_clauses(options_.gate + 1):
            cards = ",".join(options_.cards) or "..."
            self._say(
                f"next: pytest --gate={options_.gate + 1} --campaign={os.path.relpath(options_.campaign)}"
                f" --device={self._gate.lane} --sealed-root={root_} --cards={cards}"
            )
        self._say(f"report: laguna report {root_} --out report.html")

    def _say_receipt(self, receipt: Path) -> None:
        """Print the receipt's digest, to be kept outside the root."""
        if receipt.exists():
            self._say(f"receipt: {files.sha256_file(receipt)}; keep it elsewhere, for laguna verify --expect")

    def _say(self, line: str) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            terminal.write_line(line)


def _cause(report: pytest.TestReport, error: BaseException | None) -> str:
    """Cause of a failed phase in the journal's words; empty if it passed."""
    causes: tuple[tuple[type[BaseException], str], ...] = (
        (UnusableEvidenceError, "unusable"),
        (MeasuredNegativeError, "stop"),
        (NotProvenError, "not-proven"),
        (AssertionError, "assertion"),
        (pytest.fail.Exception, "assertion"),
    )
    if report.outcome == "skipped" or hasattr(report, "wasxfail"):
        return "skip"  # an expected failure is no proof either
    if report.outcome == "passed":
        return ""
    return next((cause for kind, cause in causes if isinstance(error, kind)), "error")


def _one_line(report: pytest.TestReport, error: BaseException | None) -> str:
    """First line of an error, with its type unless it is an assertion."""
    text = str(error) if error is not None else report.longreprtext
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    name = "" if error is None or isinstance(error, AssertionError) else f"{type(error).__name__}: "
    return _clean(f"{name}{first}"[:500])


def _clean(text: str) -> str:
    """Return text encodable as UTF-8; a test may raise anything."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
