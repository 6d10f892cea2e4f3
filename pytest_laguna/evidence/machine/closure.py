# SPDX-License-Identifier: Apache-2.0
"""The runtime closure: the libraries that a process would load, each with its digest, and those that are not there."""

from __future__ import annotations

import pydantic

from pytest_laguna.evidence import files
from pytest_laguna.evidence.schemas import Schema, Sha256


class Library(Schema):
    """One library of a closure.

    Attributes:
        path: where it was found, under the name by which it was asked for.
        link: what the symbolic link at ``path`` says; None where the file itself lies there.
        target: the file behind all links.
        soname: what it calls itself; None for a module that nothing links against.
        needed: the names that it asks for, in its order.
        sha256: of its content.
    """

    path: str
    link: str | None
    target: str
    soname: str | None
    needed: list[str]
    sha256: Sha256


class AbsentLibrary(Schema):
    """A name for which no library was found.

    Attributes:
        name: as it is asked for.
        needed_by: the first library that asks for it.
        renamed: a file among those searched that calls itself by this name; None when there is none.
    """

    name: str
    needed_by: str
    renamed: str | None

    def __str__(self) -> str:
        found = "" if self.renamed is None else f"; {self.renamed} calls itself so: give it its name back"
        return f"{self.name}: needed by {self.needed_by}, and in none of its directories{found}"


class Closure(Schema):
    """All libraries, in the order in which they would be loaded, and all that are absent."""

    libraries: list[Library]
    absent: list[AbsentLibrary] = pydantic.Field(default_factory=list)

    @property
    def digest(self) -> str:
        """Over the names and contents of what was found and the names of what was not; places do not enter it."""
        found = {library.path.rpartition("/")[2]: library.sha256 for library in self.libraries}
        absent = dict.fromkeys((library.name for library in self.absent), None)
        return files.digest_of({"libraries": dict(found), "absent": dict(absent)})
