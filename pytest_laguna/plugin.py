# SPDX-License-Identifier: Apache-2.0
"""Pytest's hooks; the gate itself is in ``gate.session``, loaded only with ``--gate``."""

from __future__ import annotations

import pytest

from pytest_laguna.attempt import options


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of gates."""
    options.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Point pytest at the gate's own test files, before it looks for conftest files elsewhere."""
    if early_config.known_args_namespace.gate is not None:
        from pytest_laguna.gate import session  # noqa: PLC0415 - costs time without --gate

        session.choose_files(early_config, args)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Run a gate under a watching parent process, which outlives any test."""
    if config.getoption("gate") is None or config.getoption("help") or config.getoption("version"):
        return None
    from pytest_laguna.gate import session  # noqa: PLC0415

    return session.run(config)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers; open the gate."""
    config.addinivalue_line("markers", "gate(number): the test belongs to this gate and runs under --gate only")
    config.addinivalue_line("markers", "clause(id): the campaign's clause that the test proves")
    if config.getoption("gate") is not None:
        from pytest_laguna.gate import session  # noqa: PLC0415

        session.open_gate(config)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Return the gate's line of the header."""
    if config.getoption("gate") is None:
        return None
    from pytest_laguna.gate import session  # noqa: PLC0415

    return session.header(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect gate tests without ``--gate``: their proofs would have no place."""
    if config.getoption("gate") is None:
        gates = [item for item in items if item.get_closest_marker("gate")]
        if gates:
            items[:] = [item for item in items if item not in gates]
            config.hook.pytest_deselected(items=gates)
