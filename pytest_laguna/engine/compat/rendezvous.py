# SPDX-License-Identifier: Apache-2.0
"""Makes the ranks of vLLM 0.26.0 meet over a file, as from 0.32.0 on, not at a port open to other hosts.

In 0.26.0 both executors look ``get_distributed_init_method`` up in their own modules, and torch's store then listens on
every address of the host. From 0.32.0 on the modules have ``get_file_store_init_method``, and nothing is changed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from vllm.v1.executor import multiproc_executor, uniproc_executor


def meet_over_a_file() -> None:
    """Make ranks started by this process meet over a file; raises RuntimeError if an executor has neither name."""
    executors: tuple[Any, ...] = (uniproc_executor, multiproc_executor)
    for module in executors:
        if hasattr(module, "get_file_store_init_method"):
            continue
        if not hasattr(module, "get_distributed_init_method"):
            lacks = f"{module.__name__}: seen no get_distributed_init_method"
            raise RuntimeError(f"{lacks}; expected a vLLM of docs/vllm-versions.md")
        module.get_distributed_init_method = _file


def _file(_address: str, _port: int) -> str:
    """URL of a new file, in place of an address; torch creates the file, and the last rank removes it."""
    return f"file://{Path(tempfile.mkdtemp(prefix='laguna-ranks-')) / 'store'}"
