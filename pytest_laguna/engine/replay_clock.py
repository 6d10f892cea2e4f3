# SPDX-License-Identifier: Apache-2.0
"""The replay profile's compiled clock; where it was not compiled, what to do about it."""

from pathlib import Path

try:
    from ._replay_clock import CANONICAL, FORWARD, HAS_COUNTER, UPDATE, ReplayClock, Timed, TimedContract
except ImportError as error:
    message = f"pytest_laguna.engine._replay_clock: expected it compiled ({error}); install with a C compiler"
    raise ImportError(message) from error

__all__ = ["CANONICAL", "FORWARD", "HAS_COUNTER", "UPDATE", "ReplayClock", "Timed", "TimedContract", "has_counter"]

CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


def has_counter(clock_source: Path = CLOCK_SOURCE) -> bool:
    """Whether the processor's time stamp counter may be read in place of the kernel's monotonic clock.

    The kernel keeps its clock by that counter only while it finds it constant, never at rest and the same on all
    processors, and takes another source where it does not (Linux, arch/x86/kernel/tsc.c, ``mark_tsc_unstable``).
    A source that cannot be read is another one.
    """
    try:
        return bool(HAS_COUNTER) and clock_source.read_text().strip() == "tsc"
    except OSError:
        return False
