# SPDX-License-Identifier: Apache-2.0
"""An interpreter's answer about itself: ``PYTHON -P -B engine_program.py RESULT.json PACKAGE...``.

It is run by its path, with the flags and the environment of an arm, and imports the standard library only: an engine
with an old copy of this project, or none, must answer as well.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import sysconfig
from pathlib import Path
from typing import Any


def where(name: str) -> dict[str, Any]:
    """The file of a module, and the directories of a package; both empty if it is not found."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return {"origin": None, "directories": []}
    return {"origin": spec.origin, "directories": list(spec.submodule_search_locations or ())}


def main(arguments: list[str]) -> None:
    """Write this interpreter's facts and the places of the packages."""
    result, *packages = arguments
    answer = {
        "version": sys.version,
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        "path": sys.path,
        "standard_library": sysconfig.get_path("stdlib"),
        "packages": {name: where(name) for name in packages},
        "customize": [where(name)["origin"] for name in ("sitecustomize", "usercustomize")],
    }
    with Path(result).open("x", encoding="utf-8") as stream:
        json.dump(answer, stream)


if __name__ == "__main__":
    main(sys.argv[1:])
