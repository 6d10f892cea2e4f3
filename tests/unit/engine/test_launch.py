# SPDX-License-Identifier: Apache-2.0
"""The launcher with real child processes: environment, deadline, and what it makes of an arm that left no record."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import textwrap
import time
from pathlib import Path

import pytest

from pytest_laguna.engine import arms, launch
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arm_record import Arm
from pytest_laguna.verdict import UnusableEvidenceError
from tests.unit.engine import support


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def gone(pid: int, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


GRANDCHILD = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
with open("grandchild.new", "w") as stream:
    stream.write(str(child.pid))
os.rename("grandchild.new", "grandchild")
"""


def run(tmp_path: Path, program: str, deadline: float) -> tuple[int, bool]:
    argv = [sys.executable, "-c", program]
    return launch.run_in_group(argv, {"PATH": os.environ["PATH"]}, tmp_path, deadline)


def test_the_deadline_kills_the_whole_group(tmp_path: Path) -> None:
    started = time.monotonic()
    status, timed_out = run(tmp_path, GRANDCHILD + "time.sleep(60)", 3.0)
    assert (status, timed_out) == (-signal.SIGKILL, True)
    assert time.monotonic() - started < 15
    assert gone(int((tmp_path / "grandchild").read_text()))


def test_what_a_finished_child_leaves_running_is_killed(tmp_path: Path) -> None:
    assert run(tmp_path, GRANDCHILD + "sys.exit(3)", 30.0) == (3, False)
    assert gone(int((tmp_path / "grandchild").read_text()))


def test_output_goes_to_new_files(tmp_path: Path) -> None:
    assert run(tmp_path, "import sys; print('out'); sys.stderr.write('err')", 30.0) == (0, False)
    assert (tmp_path / "stdout.log").read_text() == "out\n"
    assert (tmp_path / "stderr.log").read_text() == "err"
    with pytest.raises(FileExistsError):
        run(tmp_path, "pass", 30.0)


def test_nothing_but_path_is_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_KV_CACHE_LAYOUT", "PYTHONPATH", "LD_PRELOAD", "OMP_NUM_THREADS", "LAGUNA_LANE", "HOME"):
        monkeypatch.setenv(name, "inherited")
    seen = launch.environment(support.request(), tmp_path)
    assert "inherited" not in seen.values()
    assert seen.keys() == arms.environment(support.request()).keys() | set(arms.PLACES)
    for name in ("HOME", "TMPDIR"):
        assert stat.S_IMODE(Path(seen[name]).stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("arm", "flag", "breakable"),
    [(Arm.Q1, "0", "0"), (Arm.EAGER, "0", "0"), (Arm.GRAPH_CONTROL, "0", "1"), (Arm.GRAPH_CANDIDATE, "1", "1")],
)
def test_the_arms_environment_is_the_arms(arm: Arm, flag: str, breakable: str) -> None:
    seen = arms.environment(support.request(arm=arm, draft=None if arm is Arm.Q1 else "/models/draft"))
    assert seen[arms.FLAG] == flag
    assert seen["VLLM_USE_BREAKABLE_CUDAGRAPH"] == breakable
    assert seen["LAGUNA_LANE"] == seen["LAGUNA_KV_LANE"] == "cpu"


def test_control_and_candidate_differ_in_the_flag_alone() -> None:
    control, candidate = support.request(arm=Arm.GRAPH_CONTROL), support.request(arm=Arm.GRAPH_CANDIDATE)
    assert arms.engine_arguments(control) == arms.engine_arguments(candidate)
    differing = arms.environment(control).items() ^ arms.environment(candidate).items()
    assert differing == {(arms.FLAG, "0"), (arms.FLAG, "1")}


def test_engine_arguments_are_json_and_q1_alone_does_not_speculate() -> None:
    for arm in Arm:
        request = support.request(arm=arm, draft=None if arm is Arm.Q1 else "/models/draft")
        arguments = json.loads(json.dumps(arms.engine_arguments(request)))
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
    python = interpreter(tmp_path, program)
    return launch.run_arm(support.request(), tmp_path / "arm", interpreter=python, deadline_seconds=deadline)


def test_a_record_is_brought_back(tmp_path: Path) -> None:
    (tmp_path / "made.json").write_bytes(files.canonical_json(support.record().canonical()))
    program = f"import shutil; shutil.copy({str(tmp_path / 'made.json')!r}, record)"
    assert run_arm(tmp_path, program) == support.record()
    assert stat.S_IMODE((tmp_path / "arm").stat().st_mode) == 0o700


def test_a_record_of_another_request_is_refused(tmp_path: Path) -> None:
    other = support.record(request=support.request(prompt="other"))
    (tmp_path / "made.json").write_bytes(files.canonical_json(other.canonical()))
    program = f"import shutil; shutil.copy({str(tmp_path / 'made.json')!r}, record)"
    with pytest.raises(launch.ArmFailedError, match="answers another request"):
        run_arm(tmp_path, program)


def test_success_without_a_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableEvidenceError, match=r"record\.json"):
        run_arm(tmp_path, "pass")


def test_the_arms_own_line_says_why(tmp_path: Path) -> None:
    program = f"sys.stderr.write('noise\\n{arms.FAILED}the reason\\nleaked semaphore\\n'); sys.exit(1)"
    with pytest.raises(launch.ArmFailedError, match=rf"exit status 1: {arms.FAILED}the reason$"):
        run_arm(tmp_path, program)


def test_an_arm_that_dies_by_a_signal_is_told_by_its_last_line(tmp_path: Path) -> None:
    program = "import os; sys.stderr.write('first\\nlast words\\n'); sys.stderr.flush(); os.kill(os.getpid(), 11)"
    with pytest.raises(launch.ArmFailedError, match="exit status -11: last words"):
        run_arm(tmp_path, program)


def test_a_silent_arm_is_told_too(tmp_path: Path) -> None:
    with pytest.raises(launch.ArmFailedError, match="exit status 9: nothing on standard error"):
        run_arm(tmp_path, "sys.exit(9)")


def test_an_arm_past_its_deadline_is_killed(tmp_path: Path) -> None:
    with pytest.raises(launch.ArmFailedError, match="killed after its deadline of 1 s"):
        run_arm(tmp_path, "import time; time.sleep(60)", 1.0)


def test_a_directory_is_never_used_twice(tmp_path: Path) -> None:
    (tmp_path / "arm").mkdir()
    with pytest.raises(FileExistsError):
        run_arm(tmp_path, "pass")


def test_a_tiny_pair_that_cannot_be_built_is_told_in_one_line(tmp_path: Path) -> None:
    python = interpreter(tmp_path, "sys.stderr.write('no torch\\n'); sys.exit(1)")
    with pytest.raises(launch.ArmFailedError, match=r"tiny pair in .*: exit status 1: no torch"):
        launch.build_tiny_pair(tmp_path / "pair", interpreter=python, deadline_seconds=30.0)
    python = interpreter(tmp_path, "import time; time.sleep(60)")
    with pytest.raises(launch.ArmFailedError, match=r"tiny pair in .*: killed after 1 s"):
        launch.build_tiny_pair(tmp_path / "late", interpreter=python, deadline_seconds=1.0)
