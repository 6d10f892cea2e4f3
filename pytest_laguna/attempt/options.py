# SPDX-License-Identifier: Apache-2.0
"""The options of a gate session: pytest's option table, and the frozen object made from it.

Imports pytest and the standard library only, since every pytest run loads this module.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

DEFAULT_CAMPAIGN = "campaigns/laguna-persistent-kv-views.toml"
DEFAULT_SEALED_ROOT = "sealed"
LANES = ("cpu", "cuda", "xpu")
GATES = (1, 2, 3)

# House style for help texts: lower case, no full stop, the default last in round brackets.
TABLE = (
    ("--gate", "N", "run gate N of the campaign: 1 CPU and static, 2 exact diagnostic, 3 endpoint"),
    ("--campaign", "FILE", f"campaign file ({DEFAULT_CAMPAIGN})"),
    ("--device", "LANE", "lane of gates 2 and 3: cpu, cuda or xpu (the campaign's lane)"),
    (
        "--cards",
        "LIST",
        "cards to lease, numbers or UUIDs joined by commas: 0,1,2,3 (required by gates 2 and 3)",
    ),
    ("--sealed-root", "DIR", f"directory that attempts are written to ({DEFAULT_SEALED_ROOT})"),
)

# These cannot change a gate's tests or verdicts; any other option is refused.
_ALLOWED_FLAGS = re.compile(
    r"-[qvsl]+|-r[a-zA-Z]*|--(verbose|quiet|no-header|no-summary|full-trace|showlocals|strict(-markers|-config)?)"
)
_ALLOWED_VALUES = re.compile(
    r"--(gate|campaign|device|cards|sealed-root|junit-?xml|color|code-highlight|tb|show-capture|capture|durations"
    r"|durations-min|verbosity|import-mode|rootdir)"
)
# Plugins that take no part in a gate may be switched off.
_ALLOWED_WITHOUT = re.compile(r"-pno:(cacheprovider|xdist|timeout|pytest_timeout|hypothesispytest|anyio|randomly)")

_CARD = re.compile(r"[0-9]{1,3}|[A-Za-z][A-Za-z0-9:._-]{3,63}")


@dataclasses.dataclass(frozen=True, slots=True)
class GateOptions:
    """Checked options of a session.

    Attributes:
        campaign: absolute path.
        lane: of ``--device``; None for the campaign's own.
        cards: of ``--cards``, in order.
        sealed_root: absolute path.
        junit: absolute path of ``--junitxml``, for a copy of the attempt's report.
    """

    gate: int
    campaign: Path
    lane: str | None
    cards: tuple[str, ...]
    sealed_root: Path
    junit: Path | None

    @classmethod
    def from_config(cls, config: pytest.Config) -> GateOptions:
        """Read and check the options of a session with ``--gate``.

        Raises:
            pytest.UsageError: a value is not allowed; the message names option, value and expectation.
        """
        _check_ours([str(argument) for argument in config.invocation_params.args])
        gate = parse_gate(config.getoption("gate"))
        lane = config.getoption("device")
        if lane is not None and lane not in LANES:
            message = f"--device={lane}: no such lane; expected one of {', '.join(LANES)}"
            raise pytest.UsageError(message)
        cards = config.getoption("cards")
        if cards is not None and gate == 1:
            raise pytest.UsageError("--cards belongs to gates 2 and 3; gate 1 runs on the CPU; drop --cards")
        junit = config.getoption("xmlpath", None)
        here = config.invocation_params.dir
        sealed_root = _absolute(config.getoption("sealed_root"), here, config.rootpath / DEFAULT_SEALED_ROOT)
        if not _is_text(sealed_root):
            raise pytest.UsageError("--sealed-root: expected a printable path in UTF-8 of at most 3000 bytes")
        return cls(
            gate=gate,
            campaign=_absolute(config.getoption("campaign"), here, config.rootpath / DEFAULT_CAMPAIGN),
            lane=lane,
            cards=parse_cards(cards) if cards is not None else (),
            sealed_root=sealed_root,
            junit=Path(os.path.abspath(here / junit)) if junit else None,  # noqa: PTH100 - keeps symbolic links
        )


def _check_ours(arguments: Sequence[str]) -> None:
    """Refuse our options given twice or empty: an unset variable must not choose a default."""
    for name, metavar, _ in TABLE:
        given = [argument for argument in arguments if argument == name or argument.startswith(f"{name}=")]
        if len(given) > 1:
            message = f"{name}: seen {len(given)} times; expected once"
            raise pytest.UsageError(message)
        following = dict(zip(arguments, [*arguments[1:], ""], strict=True))
        if given and not (following[name] if given[0] == name else given[0].partition("=")[2]):
            message = f"{name}: empty; expected {metavar}"
            raise pytest.UsageError(message)


def _absolute(value: str | None, base: Path, default: Path) -> Path:
    # abspath and not resolve(): a symbolic link in the path must stay visible to the check that refuses it
    return Path(os.path.abspath(base / value)) if value else default  # noqa: PTH100


def _is_text(path: Path) -> bool:
    try:
        return len(str(path).encode("utf-8")) <= 3000 and str(path).isprintable()  # noqa: PLR2004 - PATH_MAX is 4096
    except UnicodeEncodeError:
        return False


def add_options(parser: pytest.Parser) -> None:
    """Add the option table to pytest's parser."""
    group = parser.getgroup("laguna", "gates (pytest-laguna)")
    for name, metavar, text in TABLE:
        group.addoption(name, metavar=metavar, default=None, help=text)


def parse_gate(text: str) -> int:
    """Return the gate number.

    Raises:
        pytest.UsageError: not 1, 2 or 3.
    """
    if text not in {str(gate) for gate in GATES}:
        message = f"--gate={text}: no such gate; expected one of {', '.join(str(gate) for gate in GATES)}"
        raise pytest.UsageError(message)
    return int(text)


def parse_cards(text: str) -> tuple[str, ...]:
    """Return the cards of a list such as ``0,1,2,3``, in order.

    Raises:
        pytest.UsageError: an entry is empty, doubled, or neither a number nor a UUID.
    """
    cards = tuple(text.split(","))
    for card in cards:
        if not _CARD.fullmatch(card):
            message = (
                f"--cards={text}: {card!r} is not a card; expected numbers or UUIDs joined by commas, such as 0,1,2,3"
            )
            raise pytest.UsageError(message)
        if cards.count(card) > 1 or (card.isdigit() and str(int(card)) != card):
            message = f"--cards={text}: card {card} is named twice or oddly; expected each card once, as 0,1,2,3"
            raise pytest.UsageError(message)
    return cards


def check_arguments(config: pytest.Config) -> None:
    """Refuse every setting and argument with an influence on a gate's tests or their verdicts.

    Raises:
        pytest.UsageError: an argument is not on the list of harmless ones; the message names it.
    """
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_TIMEOUT"):
        if os.environ.get(name):
            message = (
                f"{name} is set; a gate takes its arguments from the command line only; use env -u {name} pytest ..."
            )
            raise pytest.UsageError(message)
    if config.pluginmanager.has_plugin("timeout") and config.getini("timeout"):
        message = f"{config.inipath}: timeout is set; a gate sets its own deadlines; run with -p no:timeout"
        raise pytest.UsageError(message)
    sources = (("the command line", config.invocation_params.args), ("addopts", config.getini("addopts")))
    for place, arguments in sources:
        refused = refused_argument([str(argument) for argument in arguments])
        if refused is not None:
            message = f"{refused} (from {place}) is refused; a gate runs its frozen list, each test once; drop it"
            raise pytest.UsageError(message)


def refused_argument(arguments: Sequence[str]) -> str | None:
    """Return the first argument with an influence on a gate's tests or their verdicts, or None.

    Values of options, and test files, do not begin with a dash; they are checked elsewhere.
    """
    rest = iter(arguments)
    for argument in rest:
        if argument.startswith("@"):
            return argument  # a file of further arguments
        option = f"{argument}{next(rest, '')}" if argument == "-p" else argument
        name = option.partition("=")[0]
        if not option.startswith("-") or _ALLOWED_FLAGS.fullmatch(option) or _ALLOWED_VALUES.fullmatch(name):
            continue
        if not _ALLOWED_WITHOUT.fullmatch(option):
            return option
    return None
