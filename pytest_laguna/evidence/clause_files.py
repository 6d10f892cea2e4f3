# SPDX-License-Identifier: Apache-2.0
"""Which files of an attempt a clause rests on, for whoever shows them beside it."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence

_ARMS, _LEGS = "*/arms/*/", "endpoint/legs/*/"

_FILES: Mapping[str, Sequence[str]] = {
    "rehearsal": ("rehearsed/shortened.json", "rehearsed/gate?/*.log", "rehearsed/sealed/*/receipt.json"),
    "null-exact": ("rehearsed-null/gate?/*.log", "rehearsed-null/sealed/*/receipt.json"),
    "null-timing": ("null-starts/*.json", "null-starts/starts/*/record.json", "null-starts/starts/*/profile/*"),
    "identity-exact": ("identity.json", "*/identity.json", "*/engine-*/engine.json"),
    "cards-idle": ("cards/*.json", "*/idle-*.json", "*/*/*/idle.json"),
    "host-within-limits": ("*/host.json",),
    "parity-packets": ("diagnostic/packets/*/record.json",),
    "arms-fresh": (f"{_ARMS}re*.json", f"{_ARMS}process.json", f"{_ARMS}failure.json", f"{_ARMS}rank-*-stack.txt"),
    "cache-cold": (f"{_ARMS}record.json", f"{_LEGS}leg.json", f"{_LEGS}*.prom"),
    "tokens-identical": (f"{_ARMS}record.json",),
    "drafts-bounded": (f"{_ARMS}record.json",),
    "topology-unchanged": (f"{_ARMS}record.json", "*/target-config.json"),
    "sole-treatment": (f"{_ARMS}re*.json", f"{_LEGS}request.json", f"{_LEGS}ranks/*"),
    "selector-proven": (f"{_ARMS}record.json",),
    "replay-samples": (f"{_ARMS}profile/*",),
    "view-preparations": (f"{_ARMS}profile/*",),
    "timing": (f"{_ARMS}profile/*", f"{_ARMS}record.json"),
    "profile-complete": (f"{_ARMS}profile/*",),
    "closure-bound": ("event-profile/closure.json",),
    "instrument-fit": (f"{_ARMS}profile/*",),
    "decision": ("event-profile/analysis.json",),
    "legs-fresh": (f"{_LEGS}leg.json", f"{_LEGS}end.json", f"{_LEGS}failure.json"),
    "legs-in-order": (f"{_LEGS}leg.json", "endpoint/phase1-analysis.json"),
    "captures-proven": (f"{_LEGS}ranks/*",),
    "prompts-fresh": (f"{_LEGS}row-*", "endpoint/suite.json"),
    "counters-true": (f"{_LEGS}*.prom",),
    "teacher-exact": ("endpoint/teacher.json", f"{_LEGS}leg.json"),
    "cross-leg-exact": (f"{_LEGS}leg.json",),
    "long-next": (f"{_LEGS}leg.json",),
    "rollover": (f"{_LEGS}leg.json", "endpoint/suite.json"),
    "acceptance-drift": (f"{_LEGS}*.prom",),
    "adjacent-pairs": (f"{_LEGS}row-*.sse", f"{_LEGS}*.prom"),
    "control-health": (f"{_LEGS}row-*.sse",),
    "promotion": (f"{_LEGS}leg.json", "endpoint/protocol*"),
}
"""By clause of a gate with an analysis of its own, what below ``evidence`` shows it."""


def files_behind(paths: Iterable[str], clause: str) -> list[str]:
    """The files that show a clause: those of its own directory, and what its gate's own analysis reads for it.

    Args:
        paths: of an attempt's files, relative to its directory; the result keeps their order.
        clause: its id.
    """
    patterns = [f"evidence/{pattern}" for pattern in (f"{clause}/*", *_FILES.get(clause, ()))]
    return [path for path in paths if any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)]
