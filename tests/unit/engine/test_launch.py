# SPDX-License-Identifier: Apache-2.0
"""The launcher with real child processes: environment, deadline, and what it makes of an arm that left no record."""

from __future__ import annotations

import json
import stat
import sys
import tempfile
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_laguna.analysis.machine.process import judge_cleanliness
from pytest_laguna.engine import launch
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms import arm_settings
from pytest_laguna.evidence.arms.arm_record import Arm
from pytest_laguna.evidence.machine.card_masks import showing
from pytest_laguna.evidence.machine.process import ProcessRecord
from pytest_laguna.evidence.schemas import read_model
from pytest_laguna.evidence.values import Lane
from pytest_laguna.gate.session import _cause
from pytest_laguna.machine import descent
from pytest_laguna.machine.cards import Card
from pytest_laguna.machine.environment import make_short_directory, private_environment
from pytest_laguna.verdict import UnusableEvidenceError, Verdict
from tests.runner import runner
from tests.unit.engine import support

LANES: tuple[Lane, ...] = ("cpu", "cuda", "xpu")


def test_every_place_of_an_arm_is_named(tmp_path: Path) -> None:
    """The arm refuses variables that are not its own: what the runner adds must be in its list."""
    (tmp_path / "arm").mkdir()
    short = make_short_directory(Path(tempfile.mkdtemp()))
    assert (
        private_environment(tmp_path / "arm", short, tmp_path, {"PATH": "/bin", "TZ": "UTC"}).keys()
        == arm_settings.PLACES
    )
    assert not arm_settings.PLACES & arm_settings.environment(support.request()).keys()
    cards = [Card("cpu", 0, "a", "", 1)]
    assert {name for lane in LANES for name in showing(lane, cards)} | {descent.TOKEN_VARIABLE} == arm_settings.LEASE


@pytest.mark.parametrize(
    ("arm", "flag", "breakable"),
    [(Arm.Q1, "0", "0"), (Arm.EAGER, "0", "0"), (Arm.GRAPH_CONTROL, "0", "1"), (Arm.GRAPH_CANDIDATE, "1", "1")],
)
def test_the_arms_environment_is_the_arms(arm: Arm, flag: str, breakable: str) -> None:
    seen = arm_settings.environment(support.request(arm=arm, draft=None if arm is Arm.Q1 else "/models/draft"))
    assert seen[arm_settings.FLAG] == flag
    assert seen["VLLM_USE_BREAKABLE_CUDAGRAPH"] == breakable
    assert seen["LAGUNA_LANE"] == seen["LAGUNA_KV_LANE"] == "cpu"


def test_lanes_differ_in_their_name_and_in_what_only_one_of_them_needs() -> None:
    cpu, cuda, xpu = (arm_settings.environment(support.request(lane=lane, tensor_parallel_size=2)) for lane in LANES)
    named = {"LAGUNA_LANE", "LAGUNA_KV_LANE"}
    alone = {
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "NVSHMEM_DISABLE_NVLS": "1",
        "NCCL_SOCKET_IFNAME": "lo",
        "GLOO_SOCKET_IFNAME": "lo",
        "VLLM_HOST_IP": "127.0.0.1",
    }
    assert {name: cuda.pop(name) for name in alone} == alone
    assert {name for name in cuda.keys() | xpu.keys() if cuda.get(name) != xpu.get(name)} == named
    differing = {name for name in cpu.keys() | cuda.keys() if cpu.get(name) != cuda.get(name)}
    assert differing - named == {
        *("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "TORCHDYNAMO_DISABLE", "VLLM_CPU_OMP_THREADS_BIND"),
        *("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_WORKER_MULTIPROC_METHOD"),
    }
    arguments = [arm_settings.engine_arguments(support.request(lane=lane)) for lane in LANES]
    assert arguments[0] == arguments[1] == arguments[2]
    assert arguments[0]["disable_custom_all_reduce"] is True


def test_control_and_candidate_differ_in_the_flag_alone() -> None:
    control, candidate = support.request(arm=Arm.GRAPH_CONTROL), support.request(arm=Arm.GRAPH_CANDIDATE)
    assert arm_settings.engine_arguments(control) == arm_settings.engine_arguments(candidate)
    differing = arm_settings.environment(control).items() ^ arm_settings.environment(candidate).items()
    assert differing == {(arm_settings.FLAG, "0"), (arm_settings.FLAG, "1")}


def test_engine_arguments_are_json_and_q1_alone_does_not_speculate() -> None:
    for arm in Arm:
        request = support.request(arm=arm, draft=None if arm is Arm.Q1 else "/models/draft")
        arguments = json.loads(json.dumps(arm_settings.engine_arguments(request)))
        assert ("speculative_config" in arguments) == (arm is not Arm.Q1)
        graphs = {"mode": 0, "cudagraph_mode": "PIECEWISE", "cudagraph_capture_sizes": [8]}
        graphs["max_cudagraph_capture_size"] = 8
        assert arguments["compilation_config"] == (graphs if arm.graphs else {"mode": 0, "cudagraph_mode": "NONE"})


def interpreter(tmp_path: Path, program: str) -> Path:
    """An interpreter that runs a program of ours in place of the arm; the launcher's arguments are in ``argv``."""
    path = tmp_path / "interpreter"
    path.write_text(f"#!{sys.executable}\nimport sys\nrequest, record = sys.argv[-2:]\n{textwrap.dedent(program)}")
    path.chmod(0o700)
    return path


def run_arm(tmp_path: Path, program: str, deadline: float = 30.0) -> object:
    run = runner(deadline_seconds=deadline, settle_seconds=0.5)
    return run.arm(support.request(), tmp_path / "arm", interpreter=interpreter(tmp_path, program))


def test_a_record_is_brought_back(tmp_path: Path) -> None:
    (tmp_path / "made.json").write_bytes(files.canonical_json(support.record().canonical()))
    program = f"import shutil; shutil.copy({str(tmp_path / 'made.json')!r}, record)"
    assert run_arm(tmp_path, program) == support.record()
    assert stat.S_IMODE((tmp_path / "arm").stat().st_mode) == 0o700
    process = read_model(tmp_path / "arm" / "process.json", ProcessRecord)
    assert (process.is_clean, process.exit_code) == (True, 0)


def test_a_record_of_another_request_is_refused(tmp_path: Path) -> None:
    other = support.record(request=support.request(prompt="other"))
    (tmp_path / "made.json").write_bytes(files.canonical_json(other.canonical()))
    program = f"import shutil; shutil.copy({str(tmp_path / 'made.json')!r}, record)"
    with pytest.raises(UnusableEvidenceError, match="seen an answer to another request"):
        run_arm(tmp_path, program)


def test_success_without_a_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableEvidenceError, match=r"record\.json"):
        run_arm(tmp_path, "pass")


def test_the_arms_own_line_says_why(tmp_path: Path) -> None:
    program = f"sys.stderr.write('noise\\n{arm_settings.FAILED}the reason\\nleaked semaphore\\n'); sys.exit(1)"
    with pytest.raises(launch.ArmFailedError, match=rf"exit code 1 .*: {arm_settings.FAILED}the reason$"):
        run_arm(tmp_path, program)


def test_an_arm_that_dies_by_a_signal_is_told_by_its_last_line(tmp_path: Path) -> None:
    program = "import os; sys.stderr.write('first\\nlast words\\n'); sys.stderr.flush(); os.kill(os.getpid(), 11)"
    with pytest.raises(launch.ArmFailedError, match=r"SIGSEGV .*: last words"):
        run_arm(tmp_path, program)


def test_a_silent_arm_is_told_too(tmp_path: Path) -> None:
    with pytest.raises(launch.ArmFailedError, match=r"exit code 9 .*: nothing on standard error"):
        run_arm(tmp_path, "sys.exit(9)")


def test_an_arm_past_its_deadline_is_ended(tmp_path: Path) -> None:
    with pytest.raises(launch.ArmFailedError, match="deadline, "):
        run_arm(tmp_path, "import time; time.sleep(60)", 1.0)


def test_what_an_arm_leaves_running_breaks_a_contract(tmp_path: Path) -> None:
    program = "import subprocess; subprocess.Popen(['/bin/sleep', '60'], start_new_session=True)"
    with pytest.raises(launch.ArmSurvivedError, match=r"left behind: pid .*: /bin/sleep 60"):
        run_arm(tmp_path, program)


def test_an_arm_whose_supervisor_is_killed_breaks_no_contract_and_proves_nothing(tmp_path: Path) -> None:
    """As the kernel does when memory runs out: what the sweep then ends is the arm, not what it left."""
    program = "import os, signal, subprocess; subprocess.Popen(['/bin/sleep', '60'], start_new_session=True); "
    program += "os.kill(os.getppid(), signal.SIGKILL); import time; time.sleep(60)"
    with pytest.raises(launch.ArmUnprovenError, match=r"supervisor-lost, .* not proven that") as raised:
        run_arm(tmp_path, program)
    assert _cause(SimpleNamespace(outcome="failed"), raised.value) == "not-proven"  # type: ignore[arg-type]
    process = read_model(tmp_path / "arm" / "process.json", ProcessRecord)
    # Found while it is still being executed, it has a name and no command line yet.
    assert any(found.command in {"/bin/sleep 60", "[sleep]"} for found in process.leftovers)
    assert judge_cleanliness(process)[0] is Verdict.NOT_PROVEN


def test_a_directory_is_never_used_twice(tmp_path: Path) -> None:
    (tmp_path / "arm").mkdir()
    with pytest.raises(FileExistsError):
        run_arm(tmp_path, "pass")


def test_a_tiny_pair_that_cannot_be_built_is_told_in_one_line(tmp_path: Path) -> None:
    python = interpreter(tmp_path, "sys.stderr.write('no torch\\n'); sys.exit(1)")
    with pytest.raises(launch.ArmFailedError, match=r"tiny pair in .*: exited, exit code 1 .*: no torch"):
        runner().tiny_pair(tmp_path / "pair", interpreter=python)
