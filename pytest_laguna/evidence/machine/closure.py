# SPDX-License-Identifier: Apache-2.0
"""The runtime closure: every library a process would load, with its digest, and every absent one."""

from __future__ import annotations

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.evidence.schemas import Schema, Sha256


class Library(Schema):
    """One library of a closure.

    Attributes:
        path: of the library, under its requested name.
        link: content of the symbolic link at ``path``; None if the file itself lies there.
        soname: its own name; None for a module outside the linker's reach.
        needed: names of its dependencies, in its order.
    """

    path: str
    link: str | None
    target: str
    soname: str | None
    needed: list[str]
    sha256: Sha256


class AbsentLibrary(Schema):
    """A requested name without a library.

    Attributes:
        needed_by: the first library to request it.
        renamed: a searched file with this name as its soname; None without one.
    """

    name: str
    needed_by: str
    renamed: str | None

    def __str__(self) -> str:
        found = "" if self.renamed is None else f"; {self.renamed} has this soname: give it its name back"
        return f"{self.name}: needed by {self.needed_by}, and in none of its directories{found}"


class Closure(Schema):
    """All libraries in the order of loading, and all absent ones."""

    libraries: list[Library]
    absent: list[AbsentLibrary] = pydantic.Field(default_factory=list)

    @property
    def digest(self) -> str:
        """Digest over the names and contents of libraries and the names of absent ones, without their places."""
        found = {library.path.rpartition("/")[2]: library.sha256 for library in self.libraries}
        absent = dict.fromkeys((library.name for library in self.absent), None)
        return files.digest_of({"libraries": dict(found), "absent": dict(absent)})
