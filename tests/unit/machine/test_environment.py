# SPDX-License-Identifier: Apache-2.0
"""What gets into an arm's environment, what is refused, and that each private path is short, new and private."""

from __future__ import annotations

import multiprocessing.connection
import os
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_laguna.machine import environment
from pytest_laguna.machine.environment import EnvironmentRefusedError

COMMAND = ["python", "-m", "pytest", "--gate=2"]
FOREIGN = {
    "PATH": "/opt/bin:/bin",
    "TZ": "Europe/Madrid",
    "HOME": "/home/somebody",
    "LANG": "de_DE.UTF-8",
    "PYTHONPATH": "/elsewhere",
    "HF_TOKEN": "secret",
    "VLLM_LOGGING_LEVEL": "DEBUG",
    "TMPDIR": "/somewhere",
}


SHORT = Path("/short")  # a name: nothing is made there
BYTECODE = Path("/bytecode")  # likewise


@pytest.fixture
def short_parent() -> Iterator[Path]:
    """pytest's own temporary directories are longer than a socket's path allows."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield Path(directory)


RUNTIME_VARIABLES = [
    "CCL_ZE_IPC_EXCHANGE",
    "CUDA_LAUNCH_BLOCKING",
    "FI_PROVIDER",
    "IGC_ForceOCLSIMDWidth",
    "INTEL_DEBUG",
    "IPEX_XPU_ONEDNN_LAYOUT",
    "I_MPI_ROOT",
    "KMP_AFFINITY",
    "LAGUNA_LANE",
    "LD_PRELOAD",
    "MKL_NUM_THREADS",
    "NCCL_ALGO",
    "NEOReadDebugKeys",
    "OMP_NUM_THREADS",
    "ONEAPI_ROOT",
    "PSM3_DEVICES",
    "PYTORCH_ALLOC_CONF",
    "SYCL_CACHE_PERSISTENT",
    "TORCHINDUCTOR_MAX_AUTOTUNE",
    "TORCH_LOGS",
    "TRITON_INTERPRET",
    "UR_L0_USE_IMMEDIATE_COMMANDLISTS",
    "VLLM_USE_BREAKABLE_CUDAGRAPH",
    "XPU_GRAPH",
    "ZES_ENABLE_SYSMAN",
    "ZE_FLAT_DEVICE_HIERARCHY",
]


@pytest.mark.parametrize("name", RUNTIME_VARIABLES)
def test_each_runtime_variable_is_found_by_name(name: str) -> None:
    assert environment.inherited_runtime_variables({"PATH": "/bin", name: ""}) == [name]


def test_every_prefix_has_a_variable_above() -> None:
    assert {p for p in environment.RUNTIME_PREFIXES if not any(n.startswith(p) for n in RUNTIME_VARIABLES)} == set()


def test_a_clean_environment_is_not_refused() -> None:
    environment.refuse_inherited({"PATH": "/bin", "HOME": "/root", "HF_TOKEN": "x", "MY_VLLM": "1"}, COMMAND)


def test_masks_are_returned_and_not_refused() -> None:
    environ = {"ZE_AFFINITY_MASK": "0,1", "CUDA_VISIBLE_DEVICES": "", "ONEAPI_DEVICE_SELECTOR": "level_zero:0"}
    environment.refuse_inherited(environ, COMMAND)
    assert environment.inherited_masks(environ | {"ZE_FLAT_DEVICE_HIERARCHY": "FLAT"}) == environ


def test_the_refusal_names_each_variable_and_its_command_mends_it() -> None:
    dirty = {"ZE_AFFINITY_MASK": "0", "LD_PRELOAD": "", "VLLM_X": "1", "PATH": os.environ["PATH"]}
    with pytest.raises(EnvironmentRefusedError) as refused:
        environment.refuse_inherited(dirty, [sys.executable, "-c", "import os; print(sorted(os.environ))"])
    line = str(refused.value)
    assert "\n" not in line
    assert "seen LD_PRELOAD, VLLM_X inherited;" in line
    cure = ["/bin/sh", "-c", line.partition("; run ")[2]]
    mended = subprocess.run(cure, env=dirty, check=True, capture_output=True, text=True)
    assert "'ZE_AFFINITY_MASK'" in mended.stdout
    assert "LD_PRELOAD" not in mended.stdout
    assert "VLLM_X" not in mended.stdout


def test_only_the_allowed_variables_get_in(tmp_path: Path) -> None:
    made = environment.private_environment(tmp_path, SHORT, BYTECODE, FOREIGN)
    named = {
        *environment.PASSED_ON,
        *environment.FIXED,
        *environment.PRIVATE_DIRECTORIES,
        *environment.SHORT_DIRECTORIES,
        "PYTHONPYCACHEPREFIX",
    }
    assert made.keys() == named
    assert made["PYTHONPYCACHEPREFIX"] == str(BYTECODE)
    assert {name: made[name] for name in ("PATH", "TZ", "LANG", "LC_ALL")} == {
        "PATH": "/opt/bin:/bin",
        "TZ": "Europe/Madrid",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
    }
    assert environment.inherited_runtime_variables(FOREIGN) == ["VLLM_LOGGING_LEVEL"]


def test_a_variable_that_is_not_there_is_not_made_up(tmp_path: Path) -> None:
    made = environment.private_environment(tmp_path, SHORT, BYTECODE, {})
    assert not made.keys() & set(environment.PASSED_ON)


def test_private_directories_are_new_private_and_each_its_own(tmp_path: Path) -> None:
    made = environment.private_environment(tmp_path, SHORT, BYTECODE, FOREIGN)
    paths = [Path(made[name]) for name in environment.PRIVATE_DIRECTORIES]
    assert len(set(paths)) == len(paths)
    for path in paths:
        assert tmp_path in path.parents
        for directory in (path, path.parent):
            assert directory == tmp_path or directory.stat().st_mode & 0o777 == 0o700
    with pytest.raises(FileExistsError):
        environment.private_environment(tmp_path, SHORT, BYTECODE, FOREIGN)


def test_two_arms_share_no_directory_but_that_of_bytecode(tmp_path: Path, short_parent: Path) -> None:
    made = []
    for arm in ("control", "candidate"):
        (tmp_path / arm).mkdir()
        short = environment.make_short_directory(short_parent)
        made.append(environment.private_environment(tmp_path / arm, short, BYTECODE, FOREIGN))
    private = [*environment.PRIVATE_DIRECTORIES, *environment.SHORT_DIRECTORIES]
    assert not {made[0][name] for name in private} & {made[1][name] for name in private}


def test_the_short_directory_is_private_and_new(short_parent: Path) -> None:
    short = environment.make_short_directory(short_parent)
    assert short.stat().st_mode & 0o777 == 0o700
    assert environment.make_short_directory(short_parent) != short


def _parent_of_length(short_parent: Path, socket_path_bytes: int) -> Path:
    """A directory in which such a socket's path has that many bytes, though fewer letters."""
    fixed = len(f"{short_parent}/é/laguna-01234567/".encode()) + environment.SOCKET_NAME_BYTES
    parent = short_parent / ("é" + "x" * (socket_path_bytes - fixed))
    parent.mkdir()
    return parent


def test_a_socket_path_of_107_bytes_can_be_bound_and_one_of_108_is_refused(short_parent: Path) -> None:
    longest = environment.make_short_directory(_parent_of_length(short_parent, 107))
    path = longest / str(uuid.uuid4())
    assert len(os.fsencode(path)) == 107
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
    parent = _parent_of_length(short_parent, 108)
    with pytest.raises(
        EnvironmentRefusedError, match=r"71 \+ 1 \+ 36 = 108 bytes in it; expected at most 107; .* 1 bytes shorter"
    ):
        environment.make_short_directory(parent)
    assert list(parent.iterdir()) == []


def test_python_s_own_listeners_need_less_of_a_socket_path_than_zmq() -> None:
    with multiprocessing.connection.Listener(family="AF_UNIX") as listener:
        name = Path(str(listener.address)).relative_to(tempfile.gettempdir())
    assert len(str(name)) <= environment.SOCKET_NAME_BYTES


def test_zmq_binds_the_longest_path_that_is_let_through(short_parent: Path) -> None:
    zmq = pytest.importorskip("zmq")
    longest = environment.make_short_directory(_parent_of_length(short_parent, 107))
    with zmq.Context() as context, context.socket(zmq.PULL) as bound:
        bound.bind(f"ipc://{longest}/{uuid.uuid4()}")
        too_long = f"ipc://{longest}/{uuid.uuid4()}x"
        with pytest.raises(zmq.ZMQError):
            bound.bind(too_long)
