# SPDX-License-Identifier: Apache-2.0
"""Builds the compiled parts of both packages; everything else about them is in pyproject.toml."""

from setuptools import Extension, setup  # type: ignore[import-untyped]
from tvm_ffi.libinfo import find_dlpack_include_path

SOURCES = {
    "laguna_kv._contract": "src/laguna_kv/_contract.c",
    "pytest_laguna.engine._replay_clock": "pytest_laguna/engine/_replay_clock.c",
}

setup(
    ext_modules=[
        Extension(
            name,
            sources=[source],
            include_dirs=[find_dlpack_include_path()],
            depends=[source],
            extra_compile_args=[
                "-std=c11",
                "-O2",
                "-Wall",
                "-Wextra",
                "-Werror=implicit-function-declaration",
            ],
            # A machine without a compiler can still verify, analyse and report: these run in engines only.
            optional=True,
        )
        for name, source in SOURCES.items()
    ]
)
