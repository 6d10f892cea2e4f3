# SPDX-License-Identifier: Apache-2.0
"""The laboratory's own output is read, and anything that is not exactly of its form is refused."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest

from pytest_laguna.evidence.machine.xpu_smi import read_processes
from pytest_laguna.verdict import UnusableEvidenceError
from tests.unit.machine.fakes import DATA

SAMPLE = (DATA / "record102-xpu-smi-ps-stdout.json").read_bytes()
SNAPSHOT: dict[str, Any] = json.loads((DATA / "record102-idle-prestart-00.json").read_bytes())
ROW = '{"device_id":0,"mem_size":1,"process_id":2,"process_name":"xpu-smi","shared_mem_size":0}'


def test_the_published_output_is_that_of_the_published_snapshot() -> None:
    capture = SNAPSHOT["raw_capture"]
    assert base64.b64decode(capture["stdout_base64"]) == SAMPLE
    assert hashlib.sha256(SAMPLE).hexdigest() == capture["stdout_sha256"]


def test_the_published_output_is_read() -> None:
    rows = read_processes(SAMPLE.decode())
    assert [row.device_id for row in rows] == SNAPSHOT["idle"]["device_ids"] == [0, 1, 2, 3]
    assert {row.process_id for row in rows} == {SNAPSHOT["child_identity"]["process_id"]}
    assert [row.mem_size for row in rows] == [2784, 2776, 2772, 2776]


def test_the_empty_list_is_read() -> None:
    assert read_processes('{"device_util_by_proc_list": []}') == []


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("", "not strict JSON"),
        ("null", "Input should be a valid dictionary"),
        ("[]", "Input should be a valid dictionary"),
        ("{}", "device_util_by_proc_list: Field required"),
        ('{"device_util_by_proc_list": null}', "device_util_by_proc_list: Input should be a valid list"),
        ('{"device_util_by_proc_list": [], "device_util_by_proc_list": []}', "key 'device_util_by_proc_list' twice"),
        ('{"device_util_by_proc_list": [], "error": "x"}', "error: Extra inputs"),
        ('{"device_util_by_proc_list": []} {}', "Extra data"),
        (ROW.replace("{", '{"device_id":0,', 1), "key 'device_id' twice in one object"),
        (ROW.replace('"mem_size":1', '"mem_size":NaN'), "NaN is not a number"),
        (ROW.replace('"mem_size":1', '"mem_size":-Infinity'), "-Infinity is not a number"),
        (ROW.replace('"mem_size":1', '"mem_size":1e999'), "1e999 is beyond every finite number"),
        (ROW.replace('"mem_size":1', '"mem_size":1.0'), "0.mem_size: Input should be a valid integer"),
        (ROW.replace('"mem_size":1', '"mem_size":"1"'), "0.mem_size: Input should be a valid integer"),
        (ROW.replace('"mem_size":1', '"mem_size":true'), "0.mem_size: Input should be a valid integer"),
        (ROW.replace('"mem_size":1', '"mem_size":-1'), "0.mem_size: Input should be greater than or equal to 0"),
        (ROW.replace('"mem_size":1,', ""), "0.mem_size: Field required"),
        (ROW.replace("}", ',"engine":1}'), "0.engine: Extra inputs"),
        (ROW.replace('"xpu-smi"', "7"), "0.process_name: Input should be a valid string"),
    ],
)
def test_any_other_output_is_refused(output: str, message: str) -> None:
    content = f'{{"device_util_by_proc_list":[{output}]}}' if output.startswith('{"device_id"') else output
    with pytest.raises(UnusableEvidenceError, match=f"^xpu-smi ps -j: .*{message}"):
        read_processes(content)
