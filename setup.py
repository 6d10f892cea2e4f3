# SPDX-License-Identifier: Apache-2.0
"""Builds laguna_kv's native contract check; everything else about the package is in pyproject.toml."""

from setuptools import Extension, setup  # type: ignore[import-untyped]
from tvm_ffi.libinfo import find_dlpack_include_path

setup(
    ext_modules=[
        Extension(
            "laguna_kv._contract",
            sources=["src/laguna_kv/_contract.c"],
            include_dirs=[find_dlpack_include_path()],
            depends=["src/laguna_kv/_contract.c"],
            extra_compile_args=[
                "-std=c11",
                "-O2",
                "-Wall",
                "-Wextra",
                "-Werror=implicit-function-declaration",
            ],
            # A machine without a compiler can still verify, analyse and report: the check runs in engines
            # only.
            optional=True,
        )
    ]
)
