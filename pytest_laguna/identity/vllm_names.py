# SPDX-License-Identifier: Apache-2.0
"""Finds imports of vLLM names that are not bound on every platform, from vLLM's sources.

vLLM binds some names on some platforms only. Such an import works where it was tried and fails on the card, before
anything is measured. Only the standard library is used, and nothing of vLLM is imported.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from pytest_laguna.identity.static_rules import PRODUCT

PACKAGE = "vllm"


def conditional_imports(source: Path, root: Path) -> list[str]:
    """Return a line for each import of a vLLM name not bound on every platform, or not at all.

    All imports of ``source`` count, also inside functions; ``root`` is the folder of the package ``vllm``.

    Raises:
        FileNotFoundError: there is no vLLM in ``root``: nothing would be compared.
    """
    if not (root / PACKAGE / "__init__.py").is_file():
        raise FileNotFoundError(f"{root}: seen no package {PACKAGE}; expected one; run `make vllm-sources`")
    return [
        f"{source.name}:{line}: {_told(root, module, name)}; look it up at its use, or import a name always bound"
        for module, name, line in _imports(ast.parse(source.read_bytes()))
        if not _is_bound(root, module, name)
    ]


def product_imports(project: Path) -> list[str]:
    """Return ``conditional_imports`` of all of a checkout's product, against the installed vLLM.

    Raises:
        FileNotFoundError: none is installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"{PACKAGE}: seen none in {sys.prefix}; expected the lane's version; install it")
    root = Path(spec.origin).parents[1]
    sources = (path for folder in PRODUCT for path in sorted((project / folder).rglob("*.py")))
    return [finding for source in sources for finding in conditional_imports(source, root)]


def _imports(tree: ast.AST) -> Iterator[tuple[str, str | None, int]]:
    """Yield module, name (None for the module itself) and line of every absolute import from vLLM."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None, node.lineno) for alias in node.names if _is_vllm(alias.name))
        elif isinstance(node, ast.ImportFrom) and not node.level and _is_vllm(node.module or ""):
            yield from ((str(node.module), alias.name, node.lineno) for alias in node.names)


def _is_vllm(module: str) -> bool:
    return module.partition(".")[0] == PACKAGE


def _is_bound(root: Path, module: str, name: str | None) -> bool:
    file = _file(root, module)
    if file is None:
        return False
    if name is None or _file(root, f"{module}.{name}") is not None:
        return True
    body = _at_run_time(ast.parse(file.read_bytes()).body)
    if name in _bound(body) or name in _served(body):
        return True
    return any(_is_bound(root, star, name) for star in _stars(body, _package(module, file)))


def _at_run_time(body: list[ast.stmt]) -> list[ast.stmt]:
    """A module's statements, without those under TYPE_CHECKING."""
    found: list[ast.stmt] = []
    for node in body:
        checked = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        found += _at_run_time(node.orelse) if checked and isinstance(node, ast.If) else [node]
    return found


def _package(module: str, file: Path) -> str:
    return module if file.name == "__init__.py" else module.rpartition(".")[0]


def _stars(body: list[ast.stmt], package: str) -> Iterator[str]:
    """Yield the modules of unconditional star imports."""
    for node in body:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            parents = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            yield ".".join([*parents, *filter(None, [node.module])])


def _told(root: Path, module: str, name: str | None) -> str:
    if name is None or _file(root, module) is None:
        return f"{module} is no module of the vLLM in {root.name}"
    return f"{module} does not bind {name} on every platform in {root.name}"


def _file(root: Path, module: str) -> Path | None:
    stem = root.joinpath(*module.split("."))
    return next((file for file in (stem.with_suffix(".py"), stem / "__init__.py") if file.is_file()), None)


def _bound(body: list[ast.stmt]) -> set[str]:
    """Names bound by these statements on every platform: not those of one branch alone."""
    names: set[str] = set()
    for node in body:
        match node:
            case ast.Import() | ast.ImportFrom():
                names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Assign():
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
                names.add(name)
            case ast.If():
                names |= _bound(node.body) & _bound(node.orelse)
            case ast.Try():
                names |= _bound(node.finalbody)
                branches = [_bound(node.body) | _bound(node.orelse), *(_bound(each.body) for each in node.handlers)]
                names |= set.intersection(*branches)
            case ast.With():
                names |= _bound(node.body)
            case _:
                pass
    return names


def _served(body: list[ast.stmt]) -> set[str]:
    """Names mentioned by a module's own ``__getattr__`` (PEP 562), itself or in a table of the module."""
    functions = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"]
    named = {node.id for function in functions for node in ast.walk(function) if isinstance(node, ast.Name)}
    tables = [node.value for node in body if isinstance(node, ast.Assign | ast.AnnAssign) and named & _bound([node])]
    nodes = [node for part in (*functions, *tables) if part is not None for node in ast.walk(part)]
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
