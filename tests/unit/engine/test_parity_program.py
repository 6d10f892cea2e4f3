# SPDX-License-Identifier: Apache-2.0
"""What a packet's process is told, when it refuses to run, and what the launcher makes of its end."""

from __future__ import annotations

import gc
import json
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from pytest_laguna.engine import launch, packets, program
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms import arm_settings
from pytest_laguna.evidence.arms.arm_record import Arm, Planted
from pytest_laguna.evidence.arms.parity import PacketRecord, PacketRequest
from pytest_laguna.evidence.machine.process import ProcessRecord
from pytest_laguna.evidence.schemas import parse_model, read_model
from pytest_laguna.verdict import UnusableEvidenceError
from tests.runner import runner
from tests.unit.engine import support

RECORD = Path(__file__).parents[2] / "data" / "parity-packets" / "cpu.json"


def request(**changes: Any) -> PacketRequest:
    values: dict[str, Any] = {
        "lane": "cpu", "rank": 1, "target": "/models/target", "draft": "/models/draft",
        "queries": [2, 3, 4, 5, 6, 7, 8], "planted": Planted.NONE,
    }  # fmt: skip
    return PacketRequest(**(values | changes))


def record() -> PacketRecord:
    """The real one, which answers the request above."""
    return read_model(RECORD, PacketRecord)


@pytest.mark.parametrize("lane", ["cpu", "cuda", "xpu"])
def test_a_packet_runs_under_the_candidate_arms_configuration_with_the_flag_off(lane: str) -> None:
    arm = support.request(arm=Arm.GRAPH_CANDIDATE, lane=lane)
    assert packets.environment(request(lane=lane)).items() ^ arm_settings.environment(arm).items() == {
        (arm_settings.FLAG, "0"),
        (arm_settings.FLAG, "1"),
    }
    assert packets.engine_arguments(request(lane=lane)) == arm_settings.engine_arguments(arm)


def test_a_planted_defect_is_told_to_the_process() -> None:
    assert packets.environment(request(planted=Planted.WRONG_STRIDE))["LAGUNA_PLANTED"] == "wrong-stride"


@pytest.mark.parametrize(
    ("changes", "where"),
    [({"queries": []}, "queries"), ({"queries": [0]}, "queries.0"), ({"rank": -1}, "rank"), ({"lane": "tpu"}, "lane")],
)
def test_a_request_without_sense_is_refused(changes: dict[str, Any], where: str) -> None:
    value = request().canonical()
    assert isinstance(value, dict)
    with pytest.raises(UnusableEvidenceError, match=rf"^packet: {where}: "):
        parse_model(value | changes, PacketRequest, "packet")


def test_wrong_arguments_are_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.answer(["one"], PacketRequest, lambda asked: asked, packets.FAILED) == 2
    assert capsys.readouterr().err == f"{packets.FAILED}seen 1 arguments; expected REQUEST.json RECORD.json\n"


def test_a_failure_is_one_line_and_a_traceback_and_no_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "request.json").write_bytes(files.canonical_json(request().canonical()))

    def run(_asked: PacketRequest) -> PacketRequest:
        raise ValueError("first line\nsecond line")

    arguments = [str(tmp_path / name) for name in ("request.json", "record.json")]
    assert program.answer(arguments, PacketRequest, run, packets.FAILED) == 1
    assert capsys.readouterr().err == f"{packets.FAILED}ValueError: first line second line\n"
    assert "second line" in (tmp_path / "record.traceback").read_text()
    assert not (tmp_path / "record.json").exists()


def test_an_answer_is_on_disk(tmp_path: Path) -> None:
    (tmp_path / "request.json").write_bytes(files.canonical_json(request().canonical()))
    arguments = [str(tmp_path / name) for name in ("request.json", "record.json")]
    assert program.answer(arguments, PacketRequest, lambda _asked: record(), packets.FAILED) == 0
    assert read_model(tmp_path / "record.json", PacketRecord) == record()
    assert program.answer(arguments, PacketRequest, lambda _asked: record(), packets.FAILED) == 1  # never overwritten


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"VLLM_KV_CACHE_LAYOUT": "HND"}, "VLLM_KV_CACHE_LAYOUT: seen 'HND' in the environment; expected 'NHD'"),
        ({"VLLM_NEW": "1"}, "VLLM_NEW: seen '1' in the environment; expected None"),
        ({arm_settings.FLAG: "1"}, f"{arm_settings.FLAG}: seen '1' in the environment; expected '0'"),
    ],
)
def test_another_environment_is_refused_before_vllm_is_imported(
    changes: dict[str, str], told: str, tmp_path: Path
) -> None:
    (tmp_path / "request.json").write_bytes(files.canonical_json(request().canonical()))
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}
    argv = [sys.executable, "-X", "importtime", "-m", "pytest_laguna.engine.parity", "request.json", "record.json"]
    argv[-2:] = [str(tmp_path / name) for name in argv[-2:]]
    done = subprocess.run(
        argv,
        cwd=Path(__file__).parents[3],
        env=environment | packets.environment(request()) | changes,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert f"{packets.FAILED}RuntimeError: {told}" in done.stderr
    assert not any(line.endswith((" vllm", " torch")) for line in done.stderr.splitlines() if "import time" in line)


def interpreter(tmp_path: Path, text: str) -> Path:
    """An interpreter that runs a program of ours in place of the packet."""
    path = tmp_path / "interpreter"
    path.write_text(f"#!{sys.executable}\nimport sys\nrequest, record = sys.argv[-2:]\n{textwrap.dedent(text)}")
    path.chmod(0o700)
    return path


def run_packet(tmp_path: Path, text: str, asked: PacketRequest | None = None) -> PacketRecord:
    return launch.run_packet(
        asked or request(target="/models/target"),
        tmp_path / "packet",
        interpreter=interpreter(tmp_path, text),
        deadline_seconds=30.0,
        run=runner(settle_seconds=0.5),
    )


COPY = f"import shutil; shutil.copy({str(RECORD)!r}, record)"


def test_a_packets_record_is_brought_back(tmp_path: Path) -> None:
    assert run_packet(tmp_path, COPY) == record()
    assert stat.S_IMODE((tmp_path / "packet").stat().st_mode) == 0o700
    assert json.loads((tmp_path / "packet" / "request.json").read_bytes())["rank"] == 1
    assert read_model(tmp_path / "packet" / "process.json", ProcessRecord).is_clean


def test_a_packets_process_gets_the_packets_environment(tmp_path: Path) -> None:
    text = f"import json, os; open(record + '.env', 'w').write(json.dumps(dict(os.environ)))\n{COPY}"
    run_packet(tmp_path, text)
    seen = json.loads((tmp_path / "packet" / "record.json.env").read_text())
    assert packets.environment(request()).items() <= seen.items()


def test_another_cards_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableEvidenceError, match=r"record\.json: seen an answer to another request; expected"):
        run_packet(tmp_path, COPY, request(rank=0))


def test_the_packets_own_line_says_why(tmp_path: Path) -> None:
    text = f"sys.stderr.write('noise\\n{packets.FAILED}the reason\\nleaked semaphore\\n'); sys.exit(1)"
    with pytest.raises(launch.ArmFailedError, match=rf"^packet 1 in .* exit code 1 .*: {packets.FAILED}the reason$"):
        run_packet(tmp_path, text)


def test_what_a_packet_leaves_running_breaks_a_contract(tmp_path: Path) -> None:
    text = f"import subprocess; subprocess.Popen(['/bin/sleep', '60'], start_new_session=True)\n{COPY}"
    with pytest.raises(launch.ArmSurvivedError, match=r"packet 1 in .*left behind: pid .*: /bin/sleep 60"):
        run_packet(tmp_path, text)


def test_a_packets_directory_is_never_used_twice(tmp_path: Path) -> None:
    (tmp_path / "packet").mkdir()
    with pytest.raises(FileExistsError):
        run_packet(tmp_path, COPY)


def test_nothing_is_searched_for_garbage_that_was_imported() -> None:
    frozen = gc.get_freeze_count()
    with program.importing():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > frozen
