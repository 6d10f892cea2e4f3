# SPDX-License-Identifier: Apache-2.0
"""Asks git about a directory, independent of the caller's variables and language."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

DEADLINE_SECONDS = 30.0


def git(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str] | None:
    """Run git in a directory; return None if there is no git.

    Variables such as ``GIT_DIR`` would make it answer for another repository, so it gets none of them.

    Raises:
        OSError: git gave no answer in time.
    """
    command = ["git", "-c", "safe.directory=*", "-C", str(directory), *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return subprocess.run(
            command,
            env=environment | {"LC_ALL": "C"},
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            errors="surrogateescape",
            timeout=DEADLINE_SECONDS,
        )
    except FileNotFoundError:
        return None
    except subprocess.TimeoutExpired as error:
        raise OSError(errno.ETIMEDOUT, f"git gave no answer in {DEADLINE_SECONDS} s", str(directory)) from error
