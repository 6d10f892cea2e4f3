# SPDX-License-Identifier: Apache-2.0
"""Directory of the ranks' profiles, checked before the first sample and at the writing; a replay profile's variables.

The ranks share it and start at different times, so another rank's file is accepted, and anything else refused.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms import arm_settings
from pytest_laguna.evidence.arms.arm_record import MOST_PROFILE_SAMPLES

ROOT = arm_settings.REPLAY_ROOT
SAMPLES = arm_settings.REPLAY_SAMPLES


class ProfileError(RuntimeError):
    """A profile cannot be taken, or is invalid."""


class ProfileSettings(NamedTuple):
    """Replay profile asked for by the environment."""

    root: Path
    samples: int


def settings_from(environment: Mapping[str, str]) -> ProfileSettings | None:
    """Read the settings; None if neither variable is set.

    Raises:
        ProfileError: one variable is missing, or the number is not 1 to 512 in plain decimal digits.
    """
    root, samples = environment.get(ROOT), environment.get(SAMPLES)
    if root is None and samples is None:
        return None
    if root is None or samples is None:
        raise ProfileError(f"{ROOT}, {SAMPLES}: seen {root!r}, {samples!r}; expected both or neither")
    if not re.fullmatch("[1-9][0-9]{0,2}", samples) or int(samples) > MOST_PROFILE_SAMPLES:
        raise ProfileError(f"{SAMPLES}: seen {samples!r}; expected 1 to {MOST_PROFILE_SAMPLES}")
    return ProfileSettings(Path(root), int(samples))


class ProfileDirectory:
    """One rank's place in the profile's directory, ``root``."""

    def __init__(self, root: Path, rank: int, world_size: int, variable: str = ROOT) -> None:
        """Check the directory and remember its identity.

        Args:
            root: absolute path of a real directory of mode 0700 and of this user, with nothing but other ranks' files.
            rank: owner of the place.
            world_size: number of ranks.
            variable: names the directory in the environment.

        Raises:
            ProfileError: the directory is another.
        """
        self.root = root
        self._variable = variable
        self._name = f"rank{rank}.json"
        self._others = {f"rank{other}.json" for other in range(world_size)} - {self._name}
        descriptor = self._open()
        try:
            self._identity = _identity(descriptor)
            self._require_free(descriptor)
        finally:
            os.close(descriptor)

    def write(self, content: bytes) -> str:
        """Write this rank's file, once, and sync it to disk; return its SHA-256.

        Raises:
            ProfileError: the directory was replaced since the check, or holds something else than other ranks' files.
            OSError: the bytes could not be written.
        """
        directory = self._open()
        try:
            if _identity(directory) != self._identity:
                self._refuse("the directory as it was before the first sample", "another one of that name")
            self._require_free(directory)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self._name, flags, files.PRIVATE_FILE, dir_fd=directory)
            try:
                files.write_all(descriptor, content)
            finally:
                os.close(descriptor)
            os.fsync(directory)
        finally:
            os.close(directory)
        return files.sha256_bytes(content)

    def _open(self) -> int:
        """Open the directory itself, never the target of a link."""
        if not self.root.is_absolute() or os.path.realpath(self.root) != os.fspath(self.root):
            self._refuse("an absolute path without links", "another")
        try:
            descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            self._refuse("a directory", str(error.strerror))
        status = os.fstat(descriptor)
        mode = stat.S_IMODE(status.st_mode)
        if mode != files.PRIVATE_DIRECTORY or status.st_uid != os.geteuid():
            os.close(descriptor)
            self._refuse(f"mode 0700 and owner {os.geteuid()}", f"mode {mode:04o} and owner {status.st_uid}")
        return descriptor

    def _require_free(self, descriptor: int) -> None:
        """Require nothing but other ranks' files."""
        for name in sorted(os.listdir(descriptor)):
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            private = stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) == files.PRIVATE_FILE
            if name == self._name:
                self._refuse("one attempt of each rank", f"{name} already there")
            if name not in self._others or not private:
                self._refuse("nothing but other ranks' files of mode 0600", f"{name}, mode {status.st_mode:o}")

    def _refuse(self, expected: str, seen: str) -> NoReturn:
        message = f"{self._variable} {self.root}: seen {seen}; expected {expected}; give each arm a new directory"
        raise ProfileError(message)


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
