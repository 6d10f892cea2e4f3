# SPDX-License-Identifier: Apache-2.0
"""Asks git about a directory, untouched by the variables and the language of whoever runs us."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

DEADLINE_SECONDS = 30.0


def git(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str] | None:
    """Run git in a directory; None when there is no git.

    Variables such as ``GIT_DIR`` would make it answer for another repository, so they are taken away.

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
