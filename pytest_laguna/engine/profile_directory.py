# SPDX-License-Identifier: Apache-2.0
"""Where a rank's profile goes: checked before the first sample and at the writing. A replay profile's variables.

The ranks share the directory and start at different times: another rank's file is no obstacle, anything else is.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

from pytest_laguna.evidence import arm_settings, files
from pytest_laguna.evidence.arm_record import MOST_PROFILE_SAMPLES

ROOT = arm_settings.REPLAY_ROOT
SAMPLES = arm_settings.REPLAY_SAMPLES


class ProfileError(RuntimeError):
    """A replay profile that may not be taken, or is none."""


class ProfileSettings(NamedTuple):
    """What the environment asks for."""

    root: Path
    samples: int


def settings_from(environment: Mapping[str, str]) -> ProfileSettings | None:
    """The profile that the environment asks for; None when neither variable is set.

    Raises:
        ProfileError: one is set without the other, or the number is none of 1 to 512 in plain decimal digits.
    """
    root, samples = environment.get(ROOT), environment.get(SAMPLES)
    if root is None and samples is None:
        return None
    if root is None or samples is None:
        message = f"{ROOT} is {root!r} and {SAMPLES} is {samples!r}; expected both or neither"
        raise ProfileError(message)
    if not re.fullmatch("[1-9][0-9]{0,2}", samples) or int(samples) > MOST_PROFILE_SAMPLES:
        message = f"{SAMPLES} is {samples!r}; expected 1 to {MOST_PROFILE_SAMPLES}"
        raise ProfileError(message)
    return ProfileSettings(Path(root), int(samples))


class ProfileDirectory:
    """One rank's place in the profile's directory.

    Attributes:
        root: the directory.
    """

    def __init__(self, root: Path, rank: int, world_size: int, variable: str = ROOT) -> None:
        """See that the directory is fit, and remember which one it is.

        Args:
            root: the directory.
            rank: whose place it is.
            world_size: how many ranks there are.
            variable: by which it was asked for.

        Raises:
            ProfileError: it is not an absolute path of a real directory of mode 0700 that is this user's, or holds
                something else than other ranks' files.
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
        """Write this rank's file, once, and have it on the disk; its SHA-256.

        Raises:
            ProfileError: the directory is no longer the one that was checked, or holds something that it may not.
            OSError: the bytes could not be written.
        """
        directory = self._open()
        try:
            if _identity(directory) != self._identity:
                self._refuse("the directory that was there before the first sample", "another one of that name")
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
        """Open the directory itself and never what a link leads to."""
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
        """Nothing but other ranks' files."""
        for name in sorted(os.listdir(descriptor)):
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            private = stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) == files.PRIVATE_FILE
            if name == self._name:
                self._refuse("one attempt of each rank", f"{name} already there")
            if name not in self._others or not private:
                self._refuse("nothing but other ranks' files of mode 0600", f"{name}, mode {status.st_mode:o}")

    def _refuse(self, expected: str, seen: str) -> NoReturn:
        message = f"{self._variable} {self.root}: expected {expected}, seen {seen}; give each arm a new directory"
        raise ProfileError(message)


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
