# SPDX-License-Identifier: Apache-2.0
"""The candidate's errors, one line each: ``subject: seen X; expected Y; do Z``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn


class LagunaKVError(RuntimeError):
    """The candidate refuses to go on, and never falls back to vLLM's own view code."""


class SettingError(LagunaKVError):
    """An environment variable of the candidate has an invalid value."""

    def __init__(self, variable: str, expected: str, seen: str, remedy: str) -> None:
        super().__init__(f"{variable}: seen {seen!r}; expected {expected}; {remedy}")


class EligibilityError(LagunaKVError):
    """The engine, the layer or its cache differs from the registered experiment's.

    Attributes:
        mismatches: (field, expected, seen) of every field that differs, as text.
    """

    def __init__(self, owner: str, mismatches: Sequence[tuple[str, str, str]]) -> None:
        told = ", ".join(f"{field} (seen {seen}; expected {expected})" for field, expected, seen in mismatches)
        super().__init__(
            f"{owner}: outside the persistent KV-view contract: {told};"
            " run the registered configuration or unset the flag"
        )
        self.mismatches = tuple(mismatches)


class ContractError(LagunaKVError):
    """The cache or a view differs from the record made when the views were built.

    Attributes:
        field: the drifted field, such as ``source.stride`` or ``canonical_key.identity``.
        expected: the recorded value, as text.
        seen: the present value, as text.
    """

    def __init__(self, owner: str, field: str, expected: object, seen: object) -> None:
        super().__init__(
            f"{owner}: KV-view contract broken at {field}: seen {seen}; expected {expected};"
            " views are never rebuilt in use: find their change outside vLLM's own clear and bind"
        )
        self.field = field
        self.expected = str(expected)
        self.seen = str(seen)


class LifecycleError(LagunaKVError):
    """Views were requested at a point of the cache's life at which none may be built."""

    def __init__(self, owner: str, expected: str, seen: str) -> None:
        super().__init__(f"{owner}: no new KV views: seen {seen}; expected {expected}; start a fresh engine process")


def refuse_seam_call(owner: str, method: str, expected: str, arguments: tuple[object, ...]) -> NoReturn:
    """Raise for a seam call outside upstream's view expression; both seams end here."""
    # The type, except for numbers: a tensor's text has many lines.
    seen = ", ".join(repr(each) if isinstance(each, int) else type(each).__name__ for each in arguments)
    raise ContractError(owner, f"seam.{method}", expected, f"({seen})")


def refuse_disagreement(owner: str) -> NoReturn:
    """Raise because only the native check saw drift: neither check can be trusted."""
    raise ContractError(owner, "validators", "native and Python check to agree", "drift in the native check only")
