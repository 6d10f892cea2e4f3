# SPDX-License-Identifier: Apache-2.0
"""Errors that say what to do."""

from __future__ import annotations


class MendableError(Exception):
    """One line: where, what was found and what was expected, and then what to do.

    Attributes:
        found: all but what to do.
        mend: a command, or what to do.
    """

    def __init__(self, found: str, mend: str) -> None:
        """Both are needed: an error that does not say what to do is not finished."""
        super().__init__(f"{found}: {mend}")
        self.found = found
        self.mend = mend


class CardError(MendableError):
    """Cards cannot be found or used as asked."""


class LeaseError(MendableError):
    """A lease cannot be had or kept."""
