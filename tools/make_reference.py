# SPDX-License-Identifier: Apache-2.0
"""Writes docs/generated-reference.md from the code: options, commands, exit codes, rules, files and their fields.

``python tools/make_reference.py`` writes it; the test suite says when that is due.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Literal, get_args, get_origin

import pytest_laguna.analysis
import pytest_laguna.evidence
from pytest_laguna import cli
from pytest_laguna.attempt import options
from pytest_laguna.campaign import Campaign
from pytest_laguna.evidence.schemas import Schema
from pytest_laguna.verdict import USAGE_EXIT_CODE, Verdict
from pytest_laguna.verify import verification

TARGET = Path(__file__).resolve().parent.parent / "docs" / "generated-reference.md"

HEAD = """\
# Reference, from the code
`python tools/make_reference.py` writes this page. [reference.md](reference.md) has environment variables and imports,
[campaign.md](campaign.md) the keys of a campaign. [diagnostic.md](diagnostic.md), [event-profile.md](event-profile.md)
and [crossover.md](crossover.md) have the rules by clause.
"""

_RULE = re.compile(r"Rule ``(?P<name>[a-z0-9-]+)``: (?P<text>.+?)(?=\n\s*\n|$)", re.DOTALL)
_FIELD = re.compile(r"^(?P<name>[a-z_0-9]+): (?P<text>.*(?:\n(?:    .*|))*)", re.MULTILINE)


def reference() -> str:
    """The whole file."""
    parts = [HEAD, _options(), _commands(), _exit_codes(), _verification(), _rules(), _files()]
    return "\n".join(parts).rstrip() + "\n"


def _options() -> str:
    rows = [(f"`{name}={metavar}`", text) for name, metavar, text in options.TABLE]
    return _section("Options of `pytest`", ("option", "effect (default)"), rows)


def _commands() -> str:
    rows = []
    for name, command in _subcommands().items():
        shown = [action for action in command._actions if action.dest != "help"]  # noqa: SLF001 - argparse has no other way
        for action in shown:
            word = ", ".join(action.option_strings) or str(action.metavar)
            metavar = f" {action.metavar}" if action.option_strings and action.metavar else ""
            rows.append((f"`laguna {name}`", f"`{word}{metavar}`", action.help or ""))
    return _section("Commands", ("command", "argument", "meaning"), rows)


def _subcommands() -> dict[str, argparse.ArgumentParser]:
    for action in cli.make_parser()._actions:  # noqa: SLF001 - likewise
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - likewise
            return dict(action.choices)
    raise SystemExit("tools/make_reference.py: laguna has no subcommands")


def _exit_codes() -> str:
    rows = [(f"`{verdict.exit_code}`", f"{verdict}") for verdict in Verdict]
    rows += [
        (f"`{USAGE_EXIT_CODE}`", "wrong use, a gate that stays shut, or what cannot be read or written"),
        ("`141`", "`laguna`: nobody reads the output any more"),
    ]
    return _section("Exit codes", ("code", "verdict"), rows)


def _verification() -> str:
    rows = [(f"`{name}`", _sentence(rule.__doc__ or "")) for name, rule in verification.RULES.items()]
    return _section("Rules of verification", ("rule", "what must hold"), rows)


def _rules() -> str:
    rows = [
        (f"`{found['name']}`", _sentence(found["text"]), f"`{module.__name__.removeprefix('pytest_laguna.analysis.')}`")
        for module in _modules(pytest_laguna.analysis)
        for docstring in _docstrings(module)
        if (found := _RULE.match(docstring))
    ]
    return _section("Rules of analysis", ("rule", "what must hold", "module"), sorted(rows))


def _docstrings(module: ModuleType) -> Iterator[str]:
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.FunctionDef):
            yield ast.get_docstring(node) or ""


def _files() -> str:
    """Tables of the fields of every named form."""
    sections = ["## Files and their fields\n"]
    found = {form.__qualname__: form for module in _modules(pytest_laguna.evidence) for form in _forms(module)}
    for form in sorted(found.values(), key=_name_of_form):
        docstring = inspect.getdoc(form) or ""
        told = {name: text for base in reversed(form.__mro__) for name, text in _fields(base.__doc__ or "").items()}
        types = {name: _of_type(field.annotation) for name, field in form.model_fields.items() if name != "file_schema"}
        rows = [(f"`{name}`", told.get(name, text)) for name, text in types.items()]
        summary = _sentence(docstring.partition("\n\n")[0])
        sections.append(f"### `{_name_of_form(form)}`\n{summary}\n\n{_table(('field', 'meaning'), rows)}")
    sections.append(f"The campaign file's schema is `{_name_of_form(Campaign)}`.\n")
    return "\n".join(sections)


def _forms(module: ModuleType) -> Iterator[type[Schema]]:
    for _, form in inspect.getmembers(module, inspect.isclass):
        if issubclass(form, Schema) and form.__module__ == module.__name__ and "file_schema" in form.model_fields:
            yield form


def _name_of_form(form: type) -> str:
    field = getattr(form, "model_fields", {}).get("file_schema") or getattr(form, "model_fields", {})["campaign_schema"]
    return str(re.findall(r"'([a-z0-9-]+)'", str(field.annotation))[0])


def _fields(docstring: str) -> dict[str, str]:
    _, _, attributes = docstring.partition("Attributes:\n")
    return {found["name"]: _sentence(found["text"]) for found in _FIELD.finditer(inspect.cleandoc(attributes))}


def _of_type(annotation: object) -> str:
    """The values of a literal, or the first lines of the forms in a type."""
    arguments = get_args(annotation)
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    forms = [form for form in (annotation, *arguments) if inspect.isclass(form) and issubclass(form, Schema)]
    return " ".join(_sentence((inspect.getdoc(form) or "").partition("\n\n")[0]) for form in forms)


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        yield importlib.import_module(found.name)


def _sentence(text: str) -> str:
    """One line as a table cell: code in code style, bars escaped."""
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


def _section(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    return f"## {title}\n{_table(head, rows)}"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("--" for _ in head), *rows]
    return (
        "".join(f"| {' | '.join(row)} |\n" for row in lines).replace("| -- ", "|--").replace("|-- |", "|--|")
        if rows
        else ""
    )


if __name__ == "__main__":
    TARGET.write_text(reference(), encoding="utf-8")
