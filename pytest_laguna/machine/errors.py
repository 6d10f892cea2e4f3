# SPDX-License-Identifier: Apache-2.0
"""Errors with a remedy."""

from __future__ import annotations


class MendableError(Exception):
    """One line, ``subject: seen X; expected Y; do Z``: ``found`` is all but the remedy, ``mend``."""

    def __init__(self, found: str, mend: str) -> None:
        super().__init__(f"{found}; {mend}")
        self.found = found
        self.mend = mend


class CardError(MendableError):
    """Cards cannot be found or used as asked."""


class LeaseError(MendableError):
    """A lease cannot be had or kept."""
