# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_laguna.attempt import options


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        (["-k", "first"], "-k"), (["-kfirst"], "-kfirst"), (["-m", "gate"], "-m"), (["--lf"], "--lf"),
        (["--last-failed"], "--last-failed"), (["--ff"], "--ff"), (["-x"], "-x"), (["--maxfail=1"], "--maxfail=1"),
        (["--deselect=a"], "--deselect=a"), (["-n", "2"], "-n"), (["-n2"], "-n2"), (["--reruns=2"], "--reruns=2"),
        (["--collect-only"], "--collect-only"), (["--co"], "--co"), (["-p", "no:laguna"], "-pno:laguna"),
        (["-p", "no:terminal"], "-pno:terminal"), (["-p", "some.plugin"], "-psome.plugin"), (["--pdb"], "--pdb"),
        (["--sw"], "--sw"), (["-o", "strict=false"], "-o"), (["--runxfail"], "--runxfail"), (["-W", "ignore"], "-W"),
        (["--timeout=3"], "--timeout=3"), (["--setup-plan"], "--setup-plan"), (["--ignore=checks"], "--ignore=checks"),
        (["--noconftest"], "--noconftest"), (["-c", "x.toml"], "-c"), (["-qx"], "-qx"), (["-p"], "-p"),
        (["--junitprefix=x"], "--junitprefix=x"), (["--disable-warnings"], "--disable-warnings"),
        (["--basetemp=sealed"], "--basetemp=sealed"), (["@more"], "@more"),
        (["--continue-on-collection-errors"], "--continue-on-collection-errors"), (["--", "-k"], "--"),
    ],
)  # fmt: skip
def test_arguments_that_a_gate_refuses(arguments: list[str], refused: str) -> None:
    assert options.refused_argument(["-q", *arguments]) == refused


def test_arguments_that_leave_a_gate_alone() -> None:
    taken = ["--gate=1", "--cards", "0,1", "-vv", "-q", "-rA", "-s", "--tb=short", "--color", "no", "--junitxml=r.xml"]
    taken += ["-p", "no:cacheprovider", "-pno:xdist", "--import-mode=importlib", "gates/test_x.py"]
    assert options.refused_argument(taken) is None


@pytest.mark.parametrize("text", ["0", "4", "one", "", "01", "1 "])
def test_a_gate_is_one_of_three(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="no such gate; expected one of 1, 2, 3"):
        options.parse_gate(text)


@pytest.mark.parametrize("text", ["", "0,", ",0", "0,0", "0;1", "-1", "00", "0, 1", "a", "GPU-1234,GPU-1234", "0,1000"])
def test_a_bad_card_list_is_refused(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="--cards="):
        options.parse_cards(text)


def test_card_lists() -> None:
    assert options.parse_cards("0,1,2,3") == ("0", "1", "2", "3")
    assert options.parse_cards("GPU-5a1e4f9c-77aa,10") == ("GPU-5a1e4f9c-77aa", "10")


def test_the_plugin_loads_the_standard_library_and_pytest_only() -> None:
    script = (
        "import sys, pytest; before = set(sys.modules); import pytest_laguna.plugin; print(*set(sys.modules) - before)"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    foreign = {name.partition(".")[0] for name in output.split()} - set(sys.stdlib_module_names) - {"pytest_laguna"}
    assert foreign == set()
