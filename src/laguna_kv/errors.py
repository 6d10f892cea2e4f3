# SPDX-License-Identifier: Apache-2.0
"""Everything the candidate raises, one line each: what, where, expected, seen, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn


class LagunaKVError(RuntimeError):
    """The candidate refuses to go on. It never falls back to vLLM's own view code."""


class SettingError(LagunaKVError):
    """An environment variable of the candidate has a value that means nothing."""

    def __init__(self, variable: str, expected: str, seen: str, remedy: str) -> None:
        super().__init__(f"{variable}: expected {expected}, seen {seen!r}; {remedy}")


class EligibilityError(LagunaKVError):
    """The engine, the layer or its cache is not the one that the experiment was registered for.

    Attributes:
        mismatches: (field, expected, seen) of every field that differs, as text.
    """

    def __init__(self, owner: str, mismatches: Sequence[tuple[str, str, str]]) -> None:
        told = ", ".join(f"{field} (expected {expected}, seen {seen})" for field, expected, seen in mismatches)
        super().__init__(
            f"{owner}: outside the persistent KV-view contract: {told};"
            " run the registered configuration or unset the flag"
        )
        self.mismatches = tuple(mismatches)


class ContractError(LagunaKVError):
    """The cache or a view of it is not what was recorded when the views were built.

    Attributes:
        field: what drifted, such as ``source.stride`` or ``canonical_key.identity``.
        expected: the recorded value, as text.
        seen: the present value, as text.
    """

    def __init__(self, owner: str, field: str, expected: object, seen: object) -> None:
        super().__init__(
            f"{owner}: KV-view contract broken at {field}: expected {expected}, seen {seen};"
            " views are never rebuilt in use: find what changed them outside vLLM's own clear and bind"
        )
        self.field = field
        self.expected = str(expected)
        self.seen = str(seen)


class LifecycleError(LagunaKVError):
    """Views were asked for at a point of the cache's life where none may be built."""

    def __init__(self, owner: str, expected: str, seen: str) -> None:
        super().__init__(f"{owner}: no new KV views: expected {expected}, seen {seen}; start a fresh engine process")


def refuse_seam_call(owner: str, method: str, expected: str, arguments: tuple[object, ...]) -> NoReturn:
    """Raise for a call of the seam that upstream's view expression does not make (both seams end here)."""
    # The type of anything but a number: a tensor's text has many lines.
    seen = ", ".join(repr(each) if isinstance(each, int) else type(each).__name__ for each in arguments)
    raise ContractError(owner, f"seam.{method}", expected, f"({seen})")


def refuse_disagreement(owner: str) -> NoReturn:
    """Raise because the native check saw drift that the Python check does not see: neither can be trusted."""
    raise ContractError(owner, "validators", "native and Python check to agree", "drift in the native check only")
