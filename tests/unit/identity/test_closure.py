# SPDX-License-Identifier: Apache-2.0
"""Closures of libraries that a compiler makes here, against the dynamic linker's own answer, and of the engine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pytest_laguna.evidence import files
from pytest_laguna.evidence.machine.closure import Closure
from pytest_laguna.identity.closure import libraries_below, resolve_closure, system_directories
from pytest_laguna.identity.elf import read_dynamic
from pytest_laguna.identity.source import IdentityError, package_directory

RPATH, RUNPATH = "-Wl,--disable-new-dtags,-rpath,", "-Wl,--enable-new-dtags,-rpath,"


def build(path: Path, *options: str, needs: Sequence[Path] = (), soname: str | None = None) -> Path:
    """Compile a library whose one function is named after its file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name.partition(".")[0].replace("-", "_")
    text = f"int answer_of_{name}(void) {{ return 42; }}\n"
    command = ["cc", "-shared", "-fPIC", "-nostdlib", "-Wl,--no-as-needed", "-x", "c", "-", "-o", str(path), *options]
    command += [f"-Wl,-soname,{soname or path.name}", "-Wl,-z,undefs", "-x", "none", *map(str, needs)]
    subprocess.run(command, input=text, text=True, check=True)
    return path


def names(closure: Closure) -> list[str]:
    return [Path(library.path).name for library in closure.libraries]


def paths(closure: Closure, directory: Path) -> list[str]:
    return [str(Path(library.path).relative_to(directory)) for library in closure.libraries]


def linked(library: Path, search: Sequence[Path] = ()) -> dict[str, str]:
    """What the dynamic linker itself says: name to path, "" where it finds nothing."""
    # What vLLM preloads into a process that has imported it is not the library's.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LD_")}
    environment |= {"LD_LIBRARY_PATH": ":".join(map(str, search))} if search else {}
    done = subprocess.run(["ldd", library], check=True, capture_output=True, text=True, env=environment)  # noqa: S607
    found = {}
    for line in done.stdout.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if arrow:
            found[name] = "" if rest == "not found" else rest.partition(" (")[0]
    return found


def agrees(closure: Closure, library: Path, search: Sequence[Path] = ()) -> None:
    """The closure of one library is what the linker loads for it; the linker's own name and the kernel's page apart."""
    told = linked(library, search)
    paths = [Path(found.path) for found in closure.libraries]
    found = {str(path.resolve()) for path in paths if path != library and not path.name.startswith("ld-linux")}
    assert found == {str(Path(path).resolve()) for path in told.values() if path}
    assert {absent.name for absent in closure.absent} == {name for name, path in told.items() if not path}


def test_a_chain_is_found_by_runpath_and_each_library_by_its_own(tmp_path: Path) -> None:
    base = build(tmp_path / "deep" / "deeper" / "libbase.so")
    middle = build(tmp_path / "deep" / "libmiddle.so", f"{RUNPATH}$ORIGIN/deeper", needs=[base])
    root = build(tmp_path / "module.so", f"{RUNPATH}${{ORIGIN}}/deep", needs=[middle])
    closure = resolve_closure([root])
    assert paths(closure, tmp_path) == ["module.so", "deep/libmiddle.so", "deep/deeper/libbase.so"]
    assert closure.absent == []
    assert closure.libraries[1].needed == ["libbase.so"]
    assert closure.libraries[2].sha256 == files.sha256_file(base)
    agrees(closure, root)


def test_runpath_is_not_inherited_and_rpath_is(tmp_path: Path) -> None:
    base = build(tmp_path / "deep" / "libbase.so")
    middle = build(tmp_path / "deep" / "libmiddle.so", needs=[base])
    by_runpath = build(tmp_path / "runpath.so", f"{RUNPATH}$ORIGIN/deep", needs=[middle])
    closure = resolve_closure([by_runpath])
    [absent] = closure.absent
    assert (absent.name, absent.needed_by) == ("libbase.so", str(middle))
    agrees(closure, by_runpath)
    by_rpath = build(tmp_path / "rpath.so", f"{RPATH}$ORIGIN/deep", needs=[middle])
    closure = resolve_closure([by_rpath])
    assert names(closure) == ["rpath.so", "libmiddle.so", "libbase.so"]
    agrees(closure, by_rpath)


def test_a_library_with_runpath_uses_no_rpath_above_it(tmp_path: Path) -> None:
    base = build(tmp_path / "deep" / "libbase.so")
    middle = build(tmp_path / "deep" / "libmiddle.so", f"{RUNPATH}$ORIGIN/nowhere", needs=[base])
    root = build(tmp_path / "root.so", f"{RPATH}$ORIGIN/deep", needs=[middle])
    closure = resolve_closure([root])
    assert [absent.name for absent in closure.absent] == ["libbase.so"]
    agrees(closure, root)


def test_rpath_comes_before_the_search_path_and_runpath_after_it(tmp_path: Path) -> None:
    own, other = build(tmp_path / "own" / "libbase.so"), build(tmp_path / "other" / "libbase.so")
    search = [other.parent]
    for option, expected in ((RPATH, own), (RUNPATH, other)):
        root = build(tmp_path / "root.so", f"{option}$ORIGIN/own", needs=[own])
        closure = resolve_closure([root], search)
        assert closure.libraries[1].path == str(expected)
        agrees(closure, root, search)


def test_a_linked_soname_is_link_and_target(tmp_path: Path) -> None:
    base = build(tmp_path / "libbase.so.1.2.3", soname="libbase.so.1")
    (tmp_path / "libbase.so.1").symlink_to("./libbase.so.1.2.3")
    root = build(tmp_path / "root.so", f"{RUNPATH}$ORIGIN", needs=[base])
    _, library = resolve_closure([root]).libraries
    assert (library.path, library.link, library.target, library.soname) == (
        str(tmp_path / "libbase.so.1"), "./libbase.so.1.2.3", str(base), "libbase.so.1",
    )  # fmt: skip


def test_one_file_is_one_library_by_whatever_name(tmp_path: Path) -> None:
    base = build(tmp_path / "libbase.so.1", soname="libbase.so.1")
    (tmp_path / "alias.so").symlink_to(base)
    root = build(tmp_path / "root.so", f"{RUNPATH}$ORIGIN", needs=[base])
    assert names(resolve_closure([root, tmp_path / "alias.so", base])) == ["root.so", "alias.so"]
    assert names(resolve_closure([base, root])) == ["libbase.so.1", "root.so"]


def test_what_is_absent_or_renamed_is_named_once(tmp_path: Path) -> None:
    gone, renamed = build(tmp_path / "libgone.so"), build(tmp_path / "librenamed.so")
    roots = [build(tmp_path / f"root{n}.so", f"{RUNPATH}$ORIGIN", needs=[gone, renamed]) for n in (1, 2)]
    gone.unlink()
    renamed.rename(tmp_path / "other-name")
    (tmp_path / "object.o").write_bytes(b"\x7fELF damaged")
    said = [str(absent) for absent in resolve_closure(roots).absent]
    nowhere = f"needed by {roots[0]}, and in none of its directories"
    mended = f"{tmp_path}/other-name has this soname: give it its name back"
    assert said == [f"libgone.so: {nowhere}", f"librenamed.so: {nowhere}; {mended}"]


def other_machine(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[18:20] = (243).to_bytes(2, "little")  # e_machine: RISC-V
    path.write_bytes(content)


def linker_script(path: Path) -> None:
    path.write_text("INPUT ( libbase.so.1 )\n")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("change", [other_machine, linker_script, folder])
def test_what_the_linker_would_not_take_is_passed_over(tmp_path: Path, change: Callable[[Path], None]) -> None:
    first, second = build(tmp_path / "first" / "libbase.so"), build(tmp_path / "second" / "libbase.so")
    root = build(tmp_path / "root.so", f"{RUNPATH}$ORIGIN/first:$ORIGIN/second", needs=[second])
    assert resolve_closure([root]).libraries[1].path == str(first)
    change(first)
    assert resolve_closure([root]).libraries[1].path == str(second)


def test_what_is_no_library_is_refused_in_one_line(tmp_path: Path) -> None:
    def refused(path: Path) -> str:
        with pytest.raises(IdentityError) as caught:
            resolve_closure([path])
        assert "\n" not in str(caught.value)
        return str(caught.value)

    library = build(tmp_path / "libwhole.so")
    assert "expected a readable ELF file" in refused(tmp_path / "none")
    (tmp_path / "text.so").write_text("text\n")
    assert "text.so: seen " in refused(tmp_path / "text.so")
    for size in (4, 40, 80, 300):
        (tmp_path / "torn.so").write_bytes(library.read_bytes()[:size])
        assert "torn.so: " in refused(tmp_path / "torn.so")
    subprocess.run(["cc", "-c", "-x", "c", "-", "-o", tmp_path / "part.o"], input="int x;", text=True, check=True)  # noqa: S607
    assert "part.o: seen no dynamic section" in refused(tmp_path / "part.o")


def test_the_digest_is_of_names_and_contents_and_not_of_places(tmp_path: Path) -> None:
    def closure(place: Path, *, with_base: bool) -> Closure:
        base = build(place / "libbase.so")
        root = build(place / "root.so", f"{RUNPATH}$ORIGIN", needs=[base])
        if not with_base:
            base.unlink()
        return resolve_closure([root])

    whole = closure(tmp_path / "one", with_base=True)
    moved = shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert resolve_closure([moved / "root.so"]).digest == whole.digest
    (moved / "libbase.so").write_bytes((moved / "libbase.so").read_bytes() + b"\0")
    changed = resolve_closure([moved / "root.so"]).digest
    assert len({whole.digest, changed, closure(tmp_path / "three", with_base=False).digest}) == 3


def test_the_linkers_configuration_is_followed(tmp_path: Path) -> None:
    (tmp_path / "ld.so.conf").write_text(f"include conf.d/*.conf {tmp_path}/none\n# /commented\n/own # said\nhwcap 1\n")
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "b.conf").write_text("/b\n")
    (tmp_path / "conf.d" / "a.conf").write_text("/a\n")
    found = [str(place) for place in system_directories(tmp_path / "ld.so.conf")]
    assert found == ["/a", "/b", "/own", "/lib64", "/usr/lib64", "/lib", "/usr/lib"]
    assert [str(place) for place in system_directories(tmp_path / "none")] == found[3:]


def test_soname_and_needed_are_what_readelf_prints(tmp_path: Path) -> None:
    base = build(tmp_path / "libbase.so", soname="libbase.so.7")
    root = build(tmp_path / "root.so", f"{RPATH}/a:/b", needs=[base])
    done = subprocess.run(["readelf", "-d", root], check=True, capture_output=True, text=True)  # noqa: S607
    dynamic = read_dynamic(root)
    assert "NEEDED" in done.stdout
    assert "RPATH" in done.stdout
    assert all(f"[{word}]" in done.stdout for word in (*dynamic.needed, dynamic.soname, ":".join(dynamic.rpath)))
    assert (dynamic.needed, dynamic.soname, dynamic.rpath, dynamic.runpath) == (
        ["libbase.so.7"], "root.so", ["/a", "/b"], None,
    )  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> tuple[list[Path], Path]:
    """The modules of the engine's packages that are installed for this interpreter, and torch's libraries."""
    site = Path(sysconfig.get_path("purelib"))
    modules = [*sorted((site / "torch").glob("_C.*.so")), *libraries_below(site / "vllm")]
    modules += libraries_below(package_directory("laguna_kv"))
    return modules, site / "torch" / "lib"


def test_the_closure_of_the_engine_is_whole(engine: tuple[list[Path], Path]) -> None:
    modules, torch = engine
    closure = resolve_closure(modules, [torch])
    assert [str(absent) for absent in closure.absent] == []
    assert {"libtorch_cpu.so", "libc10.so", "libstdc++.so.6", "libc.so.6"} <= set(names(closure))
    assert len({library.target for library in closure.libraries}) == len(closure.libraries) > len(modules) > 3
    assert all(Path(library.target).is_file() for library in closure.libraries)


def test_the_closure_of_each_engine_module_is_what_the_linker_says(engine: tuple[list[Path], Path]) -> None:
    modules, torch = engine
    for module in modules:
        agrees(resolve_closure([module], [torch]), module, [torch])


def test_without_torchs_libraries_the_engine_is_not_whole(engine: tuple[list[Path], Path], tmp_path: Path) -> None:
    modules, _ = engine
    [module] = [path for path in modules if path.name == "_C.abi3.so"]
    alone = Path(shutil.copyfile(module, tmp_path / module.name))
    absent = {library.name for library in resolve_closure([alone]).absent}
    assert {"libtorch.so", "libtorch_cpu.so", "libc10.so"} <= absent


def test_this_interpreter_has_a_closure() -> None:
    assert resolve_closure([Path(sys.executable).resolve()]).absent == []
