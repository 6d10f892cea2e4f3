# SPDX-License-Identifier: Apache-2.0
"""The closures of published vllm-xpu-kernels wheels: the ten libraries of the preregistration, and twelve later on.

The preregistration's second attempt was lost because six of the ten were not there.
"""

from __future__ import annotations

import base64
import csv
import os
import shutil
from pathlib import Path

import pytest

from pytest_laguna.evidence.machine.closure import Closure
from pytest_laguna.identity.closure import libraries_below, resolve_closure
from tools import fetch_xpu_kernels
from tools.fetch_vllm_sources import FetchError

MODULES = ("_C.abi3.so", "_xpu_C.abi3.so", "_moe_C.abi3.so", "_vllm_fa2_C.abi3.so")
"""What Python imports, in the order of the preregistration."""
OMITTED = (
    "libattn_kernels_xe_2.so", "libgdn_attn_kernels_xe_2.so", "libgrouped_gemm_xe_2.so",
    "libgrouped_gemm_xe_default.so", "libmhc_kernels_xe_2.so", "libmqa_logits_kernels_xe_2.so",
)  # fmt: skip
"""What the second attempt's tree lacked."""
TEN = {*MODULES, *OMITTED}
RUNTIME = {
    "libze_loader.so.1", "libtorch.so", "libtorch_cpu.so", "libtorch_xpu.so", "libc10.so", "libc10_xpu.so",
    "libintlc.so.5", "libimf.so",
}  # fmt: skip
"""What torch for this device and its vendor's runtime bring along; SYCL besides, in another version for each wheel."""


def fetched(version: str) -> Path:
    try:
        return fetch_xpu_kernels.fetch(version)
    except FetchError as error:
        pytest.skip(f"the published wheel cannot be had: {error}")


@pytest.fixture(scope="module")
def of_ten() -> Path:
    return fetched("0.1.12.3")


@pytest.fixture(scope="module")
def of_twelve() -> Path:
    return fetched("0.1.16.2")


def own(closure: Closure, folder: Path) -> dict[str, str]:
    """The libraries of the wheel itself, with their digests."""
    return {
        Path(library.path).name: library.sha256
        for library in closure.libraries
        if Path(library.target).is_relative_to(folder.resolve())
    }


def recorded(folder: Path) -> dict[str, str]:
    """The digests of the wheel's libraries by its own RECORD."""
    [record] = folder.parent.glob("*.dist-info/RECORD")
    found = {}
    for path, digest, _ in csv.reader(record.read_text().splitlines()):
        if path.endswith(".so"):
            encoded = digest.removeprefix("sha256=")
            found[Path(path).name] = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).hex()
    return found


def absent(closure: Closure) -> set[str]:
    return {library.name for library in closure.absent}


def tree(source: Path, destination: Path, names: set[str]) -> Path:
    """A tree that holds some of a wheel's libraries."""
    destination.mkdir()
    for name in names:
        try:
            os.link(source / name, destination / name)
        except OSError:  # they lie on two file systems
            shutil.copyfile(source / name, destination / name)
    return destination


def test_the_four_modules_need_the_ten_of_the_preregistration(of_ten: Path) -> None:
    closure = resolve_closure([of_ten / name for name in MODULES])
    assert own(closure, of_ten) == {name: digest for name, digest in recorded(of_ten).items() if name in TEN}
    assert len(own(closure, of_ten)) == 10
    assert absent(closure) - RUNTIME == {name for name in absent(closure) if name.startswith("libsycl.so.")}


def test_all_libraries_of_the_later_wheel_are_twelve(of_twelve: Path) -> None:
    closure = resolve_closure(libraries_below(of_twelve))
    assert own(closure, of_twelve) == recorded(of_twelve)
    assert set(own(closure, of_twelve)) - TEN == {"libattn_kernels_xe_3.so", "xpumem_allocator.abi3.so"}
    assert len(own(closure, of_twelve)) == 12
    assert absent(closure) == RUNTIME | {"libsycl.so.9"}
    four = resolve_closure([of_twelve / name for name in MODULES])
    assert set(own(four, of_twelve)) == TEN | {"libattn_kernels_xe_3.so"}


def test_the_tree_of_the_lost_attempt_is_refused_with_all_six_names(of_ten: Path) -> None:
    place = tree(of_ten, of_ten.parent / f"four-{os.getpid()}", set(MODULES))
    try:
        closure = resolve_closure([place / name for name in MODULES])
        assert {name for name in absent(closure) if name in TEN} == set(OMITTED)
        lines = [str(library) for library in closure.absent]
        assert (
            f"libgrouped_gemm_xe_default.so: needed by {place}/_xpu_C.abi3.so, and in none of its directories" in lines
        )
    finally:
        remove(place)


def test_a_renamed_library_is_named_with_its_new_name(of_twelve: Path) -> None:
    place = tree(of_twelve, of_twelve.parent / f"renamed-{os.getpid()}", set(recorded(of_twelve)))
    try:
        (place / "libmhc_kernels_xe_2.so").rename(place / "libmhc_kernels_xe_2.so.old")
        closure = resolve_closure([place / name for name in MODULES])
        [line] = [str(library) for library in closure.absent if library.name == "libmhc_kernels_xe_2.so"]
        assert line.endswith(f"; {place}/libmhc_kernels_xe_2.so.old has this soname: give it its name back")
    finally:
        remove(place)


def remove(place: Path) -> None:
    for path in place.iterdir():
        path.unlink()
    place.rmdir()


def test_a_wheel_without_a_pin_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["fetch_xpu_kernels", "0.1.0"])
    assert fetch_xpu_kernels.main() == 1
    known = ", ".join(fetch_xpu_kernels.WHEELS)
    told = f"version: seen 0.1.0; expected one of {known}; pin its digest in this file first"
    assert capsys.readouterr().err == f"{told}\n"


def test_another_wheel_than_the_pinned_one_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(_: str, folder: Path) -> Path:
        wheel = folder / "other.whl"
        wheel.write_bytes(b"other")
        return wheel

    monkeypatch.setattr(fetch_xpu_kernels, "FOLDER", tmp_path / "wheels")
    monkeypatch.setattr(fetch_xpu_kernels, "download", other)
    with pytest.raises(FetchError, match="seen SHA-256"):
        fetch_xpu_kernels.fetch("0.1.12.3")
    assert not (tmp_path / "wheels").exists()


def test_pip_that_fails_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    monkeypatch.setattr(fetch_xpu_kernels, "FOLDER", tmp_path / "wheels")
    with pytest.raises(FetchError, match=r"vllm-xpu-kernels==0.1.12.3: seen exit code 1 of pip"):
        fetch_xpu_kernels.fetch("0.1.12.3")
