# SPDX-License-Identifier: Apache-2.0
"""Folds the intervals of a replay into places of the model's source: prefix, decoder layers, tail.

With collective breaks, layer L begins at interval 2 + 6 L: the graph before attention (input norm and residual, QKV,
their norms and positions), attention, the graph after it (gate and local output projection), its collective, the local
MLP or experts with the norm before them, and their collective. The embedding and its collective precede the layers, the
final norm follows them. Without collective breaks a layer is one graph and attention; the graph also holds the rest of
the previous layer. Source: the published audit of the replay's source.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pytest_laguna.evidence.arms.replay_profile import SegmentKind
from pytest_laguna.evidence.events.analysis import Outlier, RangeClass, SourceRanges
from pytest_laguna.evidence.events.profile import EventProfile

OUTLIER = 2.0
"""Least multiple of its class's median that makes an interval an outlier."""


class Form(NamedTuple):
    """Kinds of a replay's intervals before, in and after the layers, with each repeated graph's offset in a layer."""

    prefix: tuple[SegmentKind, ...]
    body: tuple[SegmentKind, ...]
    tail: tuple[SegmentKind, ...]
    classes: Mapping[str, int]


FORMS = (
    Form(
        ("graph", "collective"),
        ("graph", "attention", "graph", "collective", "graph", "collective"),
        ("graph",),
        {"pre_attention": 0, "post_attention_local_o": 2, "local_mlp": 4},
    ),
    Form((), ("graph", "attention"), ("graph",), {"between_attentions": 0}),
)


class SourcePlace(NamedTuple):
    """Place of an interval in the model's source.

    Attributes:
        layer: of the decoder; None in prefix and tail.
        part: ``prefix``, ``tail``, the class of a repeated graph, or the kind of a boundary.
    """

    layer: int | None
    part: str


def form_of(kinds: Sequence[SegmentKind]) -> Form | None:
    """Form of a replay, or None if its source is unknown."""
    return next((form for form in FORMS if _fits(form, kinds)), None)


def _fits(form: Form, kinds: Sequence[SegmentKind]) -> bool:
    layers, rest = divmod(len(kinds) - len(form.prefix) - len(form.tail), len(form.body))
    return layers > 0 and rest == 0 and tuple(kinds) == (*form.prefix, *form.body * layers, *form.tail)


def places(kinds: Sequence[SegmentKind]) -> list[SourcePlace]:
    """Place of each interval of a replay; only its kind in an unknown form."""
    form = form_of(kinds)
    return [SourcePlace(None, kind) for kind in kinds] if form is None else list(_places(form, kinds))


def _places(form: Form, kinds: Sequence[SegmentKind]) -> Iterator[SourcePlace]:
    names = {offset: name for name, offset in form.classes.items()}
    for index, kind in enumerate(kinds):
        layer, offset = divmod(index - len(form.prefix), len(form.body))
        if index < len(form.prefix):
            yield SourcePlace(None, "prefix")
        elif index >= len(kinds) - len(form.tail):
            yield SourcePlace(None, "tail")
        else:
            yield SourcePlace(layer, names.get(offset, kind))


def fold(profile: EventProfile) -> SourceRanges | None:
    """Intervals of a profile by their place in the source; None for an unknown form."""
    form = form_of(profile.kinds)
    if form is None:
        return None
    begin, end = len(form.prefix), len(profile.kinds) - len(form.tail)
    body = profile.interval_ns[begin:end]
    layers = [body[first : first + len(form.body)] for first in range(0, len(body), len(form.body))]
    classes = {name: [layer[offset] for layer in layers] for name, offset in form.classes.items()}
    return SourceRanges(
        prefix_ns=profile.interval_ns[:begin],
        layers=layers,
        tail_ns=profile.interval_ns[end:],
        classes={name: _class(values) for name, values in classes.items()},
        outliers=[outlier for name, values in classes.items() for outlier in _outliers(name, values)],
    )


def _class(values: Sequence[int]) -> RangeClass:
    return RangeClass(count=len(values), total_ns=sum(values), mean_ns=sum(values) / len(values))


def _outliers(name: str, values: Sequence[int]) -> Iterator[Outlier]:
    middle = statistics.median(values)
    for layer, value in enumerate(values):
        if value > OUTLIER * middle:
            yield Outlier(layer=layer, range_class=name, duration_ns=value, median_ns=float(middle))
