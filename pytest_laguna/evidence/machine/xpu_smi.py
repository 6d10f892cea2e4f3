# SPDX-License-Identifier: Apache-2.0
"""The output of ``xpu-smi ps -j``, read strictly.

Source of the form: the output of record 102 (tests/data), with these keys and no other.
"""

from __future__ import annotations

import pydantic

from pytest_laguna.evidence.foreign_json import parse_foreign_json
from pytest_laguna.evidence.schemas import Schema, first_defect
from pytest_laguna.verdict import UnusableEvidenceError

PROGRAM = "xpu-smi"


class ProcessRow(Schema):
    """One process on one device.

    Attributes:
        mem_size: as printed; xpu-smi states no unit.
        process_name: chosen by the process, so it proves nothing alone.
    """

    device_id: pydantic.NonNegativeInt
    mem_size: pydantic.NonNegativeInt
    process_id: pydantic.NonNegativeInt
    process_name: str
    shared_mem_size: pydantic.NonNegativeInt


class ProcessList(Schema):
    """The whole output."""

    device_util_by_proc_list: list[ProcessRow]


def read_processes(output: str) -> list[ProcessRow]:
    """Read the output of ``xpu-smi ps -j``.

    Raises:
        UnusableEvidenceError: not strict JSON, or not exactly of that form; the first wrong field is named.
    """
    name = f"{PROGRAM} ps -j"
    value = parse_foreign_json(output, name)
    try:
        return ProcessList.model_validate(value, strict=True).device_util_by_proc_list
    except pydantic.ValidationError as error:
        raise UnusableEvidenceError(f"{name}: {first_defect(error)}") from error
