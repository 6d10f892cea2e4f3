# SPDX-License-Identifier: Apache-2.0
"""Rules for a source tree, read and not run.

Each takes the tree's root and returns its findings, one line each. Gate 1's static clauses and the project's own tests
call the same functions. Only the standard library is used, and nothing of the tree is imported.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from pytest_laguna.evidence import review

LICENCE = "SPDX-License-Identifier: Apache-2.0"
LICENSED_SUFFIXES = frozenset({".c", ".h", ".py", ".pyi", ".sh"})
LICENSED_PATHS = frozenset({"Makefile", ".ci/run"})

TEXT_SUFFIXES = LICENSED_SUFFIXES | {"", ".cfg", ".in", ".json", ".md", ".sha256", ".toml", ".txt"}

PRODUCT = ("pytest_laguna", "src/laguna_kv")
_PRODUCT_FOLDERS = tuple(f"{folder}/" for folder in PRODUCT)
REFERENCE = "docs/reference.md"
ENVIRONMENT_NAME = re.compile(r"(?:VLLM_XPU_LAGUNA|LAGUNA)_[A-Z0-9_]*[A-Z0-9]")
_DOCUMENTED = re.compile(rf"^\| `({ENVIRONMENT_NAME.pattern})` \| +([^|\s][^|]*)\|", re.MULTILINE)

_TESTS = ("gates/", "tests/")
_HOST_PATH = re.compile(r"/(home|media|mnt|root)/(?!somebody)\S")
"""Homes and mounted disks; ``/home/somebody`` is nobody's."""

_LEFT_OUT = frozenset({"./build", "./dist", "./models", "./sealed", "./wheels", "tests/data"})
"""Output of builds and runs at the top, and others' files, which are kept byte for byte."""


def source_files(root: Path) -> Iterator[str]:
    """Yield the tree's own files, relative and with ``/``, without the output of builds, runs and tools."""
    for directory, folders, names in os.walk(root):
        here = Path(directory).relative_to(root).as_posix()
        folders[:] = sorted(
            folder
            for folder in folders
            if f"{here}/{folder}" not in _LEFT_OUT
            and not folder.endswith(("__pycache__", ".egg-info"))
            and (not folder.startswith(".") or folder == ".ci")
        )
        yield from (name if here == "." else f"{here}/{name}" for name in sorted(names))


def without_licence(root: Path) -> list[str]:
    """Sources whose first three lines do not name the licence."""
    return [
        f"{path}: seen no {LICENCE!r} in the first three lines; expected it; add it"
        for path in source_files(root)
        if (Path(path).suffix in LICENSED_SUFFIXES or path in LICENSED_PATHS)
        and LICENCE not in "".join((root / path).read_text(encoding="utf-8").splitlines(keepends=True)[:3])
    ]


def text_files(root: Path) -> list[str]:
    """The tree's own text files, by suffix."""
    return [path for path in source_files(root) if Path(path).suffix in TEXT_SUFFIXES]


def untidy_text(root: Path) -> list[str]:
    """Text files with white space at the end of a line, or without exactly one final line feed.

    The records of ``laguna freeze`` and ``laguna review`` beside a campaign are canonical JSON, without one.
    """
    findings = []
    for path in text_files(root):
        if path.endswith((f".{review.FROZEN}", f".{review.REVIEW}")):
            continue
        content = (root / path).read_bytes()
        for number, line in enumerate(content.split(b"\n"), start=1):
            if line != line.rstrip():
                findings.append(f"{path}:{number}: seen white space at the end of the line; expected none; remove it")
        if content and (not content.endswith(b"\n") or content.endswith(b"\n\n")):
            findings.append(f"{path}: seen {content[-2:]!r} at the end; expected exactly one line feed")
    return findings


def unreadable_python(root: Path) -> list[str]:
    """Python files in another syntax than this interpreter's; every other rule takes them for empty."""
    findings = []
    for path in _python_files(root):
        try:
            ast.parse((root / path).read_bytes())
        except SyntaxError as error:
            version = f"{sys.version_info[0]}.{sys.version_info[1]}"
            findings.append(f"{path}:{error.lineno}: seen {error.msg}; expected Python {version}")
    return findings


def private_pytest(root: Path) -> list[str]:
    """Imports of pytest's private package: it changes without notice."""
    return [
        f"{path}:{line}: seen an import of {module}; expected no private package; use the public pytest module"
        for path in _python_files(root)
        for module, line in _imported(_parse(root, path), package="")
        if module.partition(".")[0] == "_pytest"
    ]


def private_vllm(root: Path) -> list[str]:
    """Imports of private vLLM names in the product outside its compat modules, which guard versions."""
    return [
        f"{path}:{line}: seen an import of {module}; expected no private name; use the package's compat module"
        for path in _python_files(root)
        if path.startswith(_PRODUCT_FOLDERS) and "compat" not in Path(path).with_suffix("").parts
        for module, line in _imported(_parse(root, path), package="")
        if module.startswith("vllm.") and any(part.startswith("_") for part in module.split("."))
    ]


def heavy_plugin(root: Path) -> list[str]:
    """Imports at the top of plugin.py beyond pytest and the standard library: every pytest run would pay for them.

    Modules of this project imported there must keep the same rule.
    """
    findings = []
    pending, seen = ["pytest_laguna.plugin"], {"pytest_laguna"}
    while pending:
        name = pending.pop()
        seen.add(name)
        path = f"{name.replace('.', '/')}.py"
        for module, line in _imported_at_load(_parse(root, path), package="pytest_laguna"):
            if module.partition(".")[0] == "pytest_laguna":
                pending += [module] if module not in seen and _is_module(root, module) else []
            elif module.partition(".")[0] not in {"pytest", *sys.stdlib_module_names}:
                findings.append(f"{path}:{line}: seen an import of {module}; expected pytest and the standard library")
    return findings


def undocumented_environment(root: Path) -> list[str]:
    """Environment variables of the product missing in the reference, and the reverse."""
    named = dict(_environment_names(root))
    documented = dict(_DOCUMENTED.findall((root / REFERENCE).read_text(encoding="utf-8")))
    missing = [
        f"{where}: {name}: seen no row in {REFERENCE}; expected one with its default; add it"
        for name, where in sorted(named.items())
        if name not in documented
    ]
    stale = [
        f"{REFERENCE}: {name}: seen nowhere in {' and '.join(PRODUCT)}; expected a use; remove the row"
        for name in sorted(documented.keys() - named.keys())
    ]
    return missing + stale


def host_paths(root: Path) -> list[str]:
    """Paths of one host in tests and gates: elsewhere they are absent, or somebody's."""
    return [
        f"{path}:{node.lineno}: seen {node.value!r}; expected no path of one host; use a directory given to the test"
        for path in _python_files(root)
        if path.startswith(_TESTS)
        for node in ast.walk(_parse(root, path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _HOST_PATH.match(node.value)
    ]


Rule: TypeAlias = Callable[[Path], list[str]]

RULES: Sequence[Rule] = (
    without_licence,
    untidy_text,
    unreadable_python,
    private_pytest,
    private_vllm,
    heavy_plugin,
    undocumented_environment,
    host_paths,
)


def run_tool(name: str, arguments: Sequence[str], root: Path) -> list[str]:
    """Return a checker's output lines if it fails, else nothing; a tool missing beside this Python is a finding."""
    program = Path(sys.executable).parent / name
    if not program.exists():
        return [f"{name}: seen none at {program}; expected the tool; install requirements/dev.txt"]
    done = subprocess.run([program, *arguments], cwd=root, check=False, capture_output=True, text=True)
    if done.returncode == 0:
        return []
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return lines or [f"{name} {' '.join(arguments)}: seen exit code {done.returncode} and no output; expected 0"]


def _python_files(root: Path) -> Iterator[str]:
    return (path for path in source_files(root) if path.endswith((".py", ".pyi")))


def _parse(root: Path, path: str) -> ast.Module:
    try:
        return ast.parse((root / path).read_bytes())
    except SyntaxError:
        return ast.Module([], [])


def _imported(tree: ast.AST, package: str) -> Iterator[tuple[str, int]]:
    """Yield imported modules with their lines, also inside functions; relative ones begin with ``package``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = ".".join(filter(None, [package if node.level else "", node.module]))
            yield module, node.lineno
            yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)


def _imported_at_load(module: ast.Module, package: str) -> Iterator[tuple[str, int]]:
    """Yield the imports made when the module is loaded: not inside a function."""
    pending: list[ast.AST] = [module]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _imported(node, package)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            pending.extend(ast.iter_child_nodes(node))


def _is_module(root: Path, module: str) -> bool:
    return (root / f"{module.replace('.', '/')}.py").exists()


def _environment_names(root: Path) -> Iterator[tuple[str, str]]:
    """Yield names of the project's variables that are whole strings in its Python and C sources, and their places."""
    for path in source_files(root):
        if not path.startswith(_PRODUCT_FOLDERS):
            continue
        if path.endswith(".py"):
            constants = (node for node in ast.walk(_parse(root, path)) if isinstance(node, ast.Constant))
            for node in constants:
                if isinstance(node.value, str) and ENVIRONMENT_NAME.fullmatch(node.value):
                    yield node.value, f"{path}:{node.lineno}"
        elif path.endswith(".c"):
            for name in re.findall(rf'"({ENVIRONMENT_NAME.pattern})"', (root / path).read_text(encoding="utf-8")):
                yield name, path
