# SPDX-License-Identifier: Apache-2.0
"""No rule without a mutant, in whatever module it stands: a rule is a function whose docstring names it.

A mutant counts where it is made a test by ``caught_first``, which asks that its rule is the first to speak against it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import pytest

import pytest_laguna.analysis
import tests.mutants
from pytest_laguna.verify import verification
from tests.caught_first import caught, caught_first, left_out
from tests.mutants import (
    test_arm_pair_rules,
    test_device_runtime_rules,
    test_diagnostic_rules,
    test_endpoint_identity_rules,
    test_endpoint_rules,
    test_endpoint_surroundings,
    test_engine_identity_rules,
    test_event_rules,
    test_host_rules,
    test_idle_rules,
    test_machine_rules,
    test_parity_rules,
    test_process_rules,
    test_rank_rules,
    test_review_rules,
    test_session_rules,
    test_verification_rules,
)
from tests.unit.analysis import test_null_timing

MUTATED_IN: Mapping[str, ModuleType] = {
    "aa.noise": test_null_timing,
    "arms.arm_pair": test_arm_pair_rules,
    "arms.each_arm": test_diagnostic_rules,
    "arms.engine_asked": test_event_rules,
    "arms.engine_identity": test_engine_identity_rules,
    "arms.mapped_binaries": test_engine_identity_rules,
    "arms.rank_rules": test_rank_rules,
    "arms.surroundings": test_diagnostic_rules,
    "arms.topology": test_diagnostic_rules,
    "clauses": test_session_rules,
    "diagnostic.arms": test_diagnostic_rules,
    "diagnostic.packets": test_diagnostic_rules,
    "diagnostic.parity": test_parity_rules,
    "diagnostic.replay_rules": test_diagnostic_rules,
    "diagnostic.timing": test_diagnostic_rules,
    "diagnostic.treatment": test_diagnostic_rules,
    "endpoint.campaign_rules": test_endpoint_rules,
    "endpoint.candidate_rules": test_endpoint_rules,
    "endpoint.counter_rules": test_endpoint_rules,
    "endpoint.fact_rules": test_endpoint_rules,
    "endpoint.identity": test_endpoint_identity_rules,
    "endpoint.leg_rules": test_endpoint_rules,
    "endpoint.pair_rules": test_endpoint_rules,
    "endpoint.promotion": test_endpoint_rules,
    "endpoint.repetition": test_endpoint_rules,
    "endpoint.surroundings": test_endpoint_surroundings,
    "events.arms": test_event_rules,
    "events.rules": test_event_rules,
    "machine.device_runtime": test_device_runtime_rules,
    "machine.host": test_host_rules,
    "machine.idle": test_idle_rules,
    "machine.lease": test_machine_rules,
    "machine.process": test_process_rules,
    "review": test_review_rules,
}
"""By module of ``pytest_laguna.analysis``."""

DECIDES_NOTHING = {*test_diagnostic_rules.LISTED, *test_event_rules.NEVER_ALONE, "timing/compared"}
"""What is only listed, or falls with what it rests on."""

_NAMES = re.compile(r"Rules? (``[a-z0-9-]+``(?:(?:,| and) ``[a-z0-9-]+``)*):")


def modules() -> Iterator[tuple[str, ModuleType]]:
    package = pytest_laguna.analysis
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        yield found.name.removeprefix(f"{package.__name__}."), importlib.import_module(found.name)


def rules(module: ModuleType) -> set[str]:
    """What the docstrings of a module's functions name."""
    functions = (node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.FunctionDef))
    named = (_NAMES.match(ast.get_docstring(node) or "") for node in functions)
    return {name for found in named if found is not None for name in re.findall(r"``([a-z0-9-]+)``", found[1])}


WITH_RULES = {name: found for name, module in modules() if (found := rules(module))}


def test_no_module_with_rules_is_left_out() -> None:
    assert MUTATED_IN.keys() == WITH_RULES.keys()
    assert sum(map(len, WITH_RULES.values())) > 200


@pytest.mark.parametrize("name", WITH_RULES)
def test_every_rule_of_a_module_has_a_mutant(name: str) -> None:
    idle = {rule.rpartition("/")[2] for rule in DECIDES_NOTHING}
    first = {rule.rpartition("/")[2] for rule in caught(MUTATED_IN[name])}
    assert WITH_RULES[name] - first - idle == set()


def test_every_rule_of_verification_has_a_mutant() -> None:
    assert caught(test_verification_rules) == set(verification.RULES)


def test_no_table_of_mutants_is_left_out() -> None:
    found = pkgutil.iter_modules(tests.mutants.__path__, f"{tests.mutants.__name__}.")
    assert left_out([*(importlib.import_module(module.name) for module in found), test_null_timing]) == {}


def test_a_table_that_no_test_takes_is_seen() -> None:
    """A table of its own, one that grew after its test was made, and one whose test pytest does not find."""
    late, hidden = [("a", "b")], [("c", "d")]

    def judged(rule: str) -> list[str]:
        return [rule]

    taken = caught_first("rule name", late)(judged)
    late.append(("a", "z"))
    module = ModuleType("module")
    vars(module).update(
        MUTANTS=[("e", "f")], LATE_MUTANTS=late, HIDDEN_MUTANTS=hidden, DICT_MUTANTS={"g": "h"},
        test_taken=taken, hidden=caught_first("rule name", hidden)(judged),
    )  # fmt: skip
    assert caught(module) == {"a"}
    assert left_out([module]) == {
        f"module.{name}": 1 for name in ("MUTANTS", "LATE_MUTANTS", "HIDDEN_MUTANTS", "DICT_MUTANTS")
    }


def test_what_decides_nothing_has_no_mutant_that_it_decides() -> None:
    for module in (test_diagnostic_rules, test_event_rules):
        assert DECIDES_NOTHING.isdisjoint(entry[0] for entry in module.MUTANTS)


def functions_in(table: Any) -> Iterator[tuple[str, Any]]:
    """The functions of a table of rules, or of a table of such tables, by their keys."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from functions_in(value)
        elif inspect.isfunction(value) and value.__name__ != "<lambda>":
            yield key, value


def test_a_rule_has_the_name_that_its_docstring_says() -> None:
    for _, module in modules():
        for table in (value for name, value in vars(module).items() if isinstance(value, Mapping) and name.isupper()):
            for key, function in functions_in(table):
                assert (function.__doc__ or "").startswith((f"Rule ``{key}``", f"Check ``{key}``")), (
                    module.__name__,
                    key,
                )
