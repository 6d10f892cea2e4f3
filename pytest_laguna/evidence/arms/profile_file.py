# SPDX-License-Identifier: Apache-2.0
"""Reads a rank's replay profile sample by sample: one of 10,000 samples is in memory as objects, the rest as text."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn, TypeAlias

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms.replay_profile import ProfileHeader, RankProfile, ReplaySample
from pytest_laguna.evidence.reading import names_in
from pytest_laguna.evidence.schemas import first_defect, parse_model
from pytest_laguna.verdict import JSON, UnusableEvidenceError

Profiles: TypeAlias = Mapping[str, Callable[[], RankProfile]]
"""Reader of each profile by file name.

A call reads from the start, so that one file at a time is in memory. A call, and each step through its samples, raises
UnusableEvidenceError if the file is torn or of another form.
"""

_SAMPLES = ',"samples":['
"""Begin of the samples in canonical JSON; text cannot hold it, for its quotation marks follow backslashes."""

_DECODER = json.JSONDecoder()


def profiles_in(directory: Path) -> Profiles:
    """Return the reader of each profile of a directory."""
    return {name: functools.partial(read_profile, directory / name) for name in names_in(directory)}


def read_profile(path: Path) -> RankProfile:
    """Open a rank's profile: the header is read at once, each sample on demand.

    Raises:
        UnusableEvidenceError: missing, torn, not in canonical form, or of another schema; for a sample, the step to it
            raises.
    """
    content = files.read_bytes(path, limit=min(_size(path), files.SIZE_LIMIT))  # 10,000 replays take half of it
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        message = f"{path.name}: not text ({error.reason}); expected a whole replay profile"
        raise UnusableEvidenceError(message) from error
    begin, end = text.find(_SAMPLES) + len(_SAMPLES), text.rfind("]")
    if begin < len(_SAMPLES) or end <= begin:
        raise UnusableEvidenceError(f"{path.name}: torn, or without samples; expected a whole replay profile")
    header = _header(text[:begin] + text[end:], path.name)
    samples = _samples(text, begin, end, len(header.kinds), path.name)
    return RankProfile(files.sha256_bytes(content), header, samples)


def _size(path: Path) -> int:
    """Bytes of a file, the limit of its read: no buffer for the largest file is made. 0 for an absent one."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _header(rest: str, name: str) -> ProfileHeader:
    """Parse the file without its samples."""
    value = files.parse_json(rest.encode(), name)
    if not isinstance(value, dict) or files.canonical_json(value) != rest.encode():
        raise UnusableEvidenceError(f"{name}: not in canonical form; expected RFC 8785 JSON as it was written")
    return parse_model({key: part for key, part in value.items() if key != "samples"}, ProfileHeader, name)


def _samples(text: str, begin: int, end: int, segments: int, name: str) -> Iterator[ReplaySample]:
    """Yield each sample of ``text[begin:end]``, a list separated by commas."""
    position = begin
    for index in range(end - begin):
        value, after = _decode(text, position, f"{name}: sample {index}")
        yield _sample(value, segments, f"{name}: sample {index}")
        if after == end:
            return
        if text[after] != ",":
            _refuse(f"{name}: sample {index}", "ends in other text")
        position = after + 1


def _decode(text: str, position: int, where: str) -> tuple[JSON, int]:
    """Return the value at a position and its end; canonical JSON of integers equals the output of the encoder in C."""
    try:
        value, after = _DECODER.raw_decode(text, position)
    except (ValueError, RecursionError) as error:
        _refuse(where, f"not JSON ({error})")
    if json.dumps(value, sort_keys=True, separators=(",", ":")) != text[position:after]:
        _refuse(where, "not in canonical form")
    return value, after


def _sample(value: JSON, segments: int, where: str) -> ReplaySample:
    try:
        sample = ReplaySample.model_validate(value, strict=True)
    except pydantic.ValidationError as error:
        _refuse(where, first_defect(error))
    if len(sample.segment_ns) != segments:
        _refuse(where, f"seen {len(sample.segment_ns)} segment times for {segments} segments")
    return sample


def _refuse(where: str, seen: str) -> NoReturn:
    raise UnusableEvidenceError(f"{where}: {seen}; expected a replay as it was written")
