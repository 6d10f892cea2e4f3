# SPDX-License-Identifier: Apache-2.0
"""The replay profile's compiled clock; where it was not compiled, what to do about it."""

try:
    from ._replay_clock import (
        CANONICAL,
        FORWARD,
        UPDATE,
        Timed,
        TimedContract,
        ViewClock,
        run_segments,
    )
except ImportError as error:
    message = f"pytest_laguna.engine._replay_clock: expected it compiled ({error}); install with a C compiler"
    raise ImportError(message) from error

__all__ = [
    "CANONICAL",
    "FORWARD",
    "UPDATE",
    "Timed",
    "TimedContract",
    "ViewClock",
    "run_segments",
]
