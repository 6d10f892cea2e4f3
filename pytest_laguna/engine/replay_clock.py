# SPDX-License-Identifier: Apache-2.0
"""The replay profile's compiled clock; a clear error if it was not compiled."""

from pathlib import Path

try:
    from ._replay_clock import CANONICAL, FORWARD, HAS_COUNTER, UPDATE, ReplayClock, Timed, TimedContract
except ImportError as error:
    message = f"pytest_laguna.engine._replay_clock: seen no compiled module ({error}); install with a C compiler"
    raise ImportError(message) from error

__all__ = ["CANONICAL", "FORWARD", "HAS_COUNTER", "UPDATE", "ReplayClock", "Timed", "TimedContract", "has_counter"]

CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


def has_counter(clock_source: Path = CLOCK_SOURCE) -> bool:
    """True if the processor's time stamp counter may be read in place of the kernel's monotonic clock.

    The kernel uses that counter only while it is constant, never stops and agrees on all processors; otherwise it takes
    another source (Linux, arch/x86/kernel/tsc.c, ``mark_tsc_unstable``). An unreadable source counts as another.
    """
    try:
        return bool(HAS_COUNTER) and clock_source.read_text().strip() == "tsc"
    except OSError:
        return False
