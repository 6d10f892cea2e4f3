# SPDX-License-Identifier: Apache-2.0
"""Published harness defects of tools, environments, paths and files: each planted, and refused for its reason.

Where a defect cannot exist in this design, the test attempts it and shows the refusal. Numbers are those of
docs/rehearsal.md.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from pytest_laguna.analysis.aa.noise import EXACTNESS, judge_null
from pytest_laguna.analysis.machine.host import judge_host
from pytest_laguna.campaign import Campaign, CampaignError, parse_campaign, read_campaign
from pytest_laguna.engine.event_settings import ORDER, ROOT, settings_from
from pytest_laguna.engine.launch import ArmFailedError, build_tiny_pair
from pytest_laguna.engine.profile_directory import ProfileError
from pytest_laguna.engine.tape_graph import CaptureError, TapeGraph, recording
from pytest_laguna.evidence import files
from pytest_laguna.evidence.arms import arm_settings
from pytest_laguna.evidence.arms.arm_record import Arm, ArmRecord, ArmRequest, Planted
from pytest_laguna.evidence.arms.profile_file import read_profile
from pytest_laguna.evidence.machine.host import BACKGROUND, HostAudit, HostLimits
from pytest_laguna.evidence.machine.placement import misplaced
from pytest_laguna.evidence.machine.xpu_smi import read_processes
from pytest_laguna.evidence.root import RootError, check_root
from pytest_laguna.evidence.schemas import parse_model
from pytest_laguna.experiments.protocol import read_protocol
from pytest_laguna.identity import static_rules, vllm_names
from pytest_laguna.identity.closure import libraries_below, resolve_closure
from pytest_laguna.machine import descent, process, process_table
from pytest_laguna.machine.cards_xpu import XpuCards
from pytest_laguna.machine.command import new_token
from pytest_laguna.machine.environment import (
    EnvironmentRefusedError,
    make_short_directory,
    private_environment,
    refuse_inherited,
)
from pytest_laguna.run.engine_run import EngineRun
from pytest_laguna.run.rehearsal import require_time, to_toml
from pytest_laguna.verdict import NotProvenError, UnusableEvidenceError
from tests import diagnostic_root
from tests.demo import CAMPAIGN, Project
from tests.runner import runner
from tests.unit.analysis.test_null_timing import PLAN, analysed, pairs, start
from tests.unit.identity import test_xpu_closure as xpu_closure
from tests.unit.identity.test_closure import build
from tests.unit.machine.fakes import ADDRESSES, XpuHost
from tests.unit.machine.test_storage import Kernel

PROJECT = Path(__file__).parents[2]
DATA = PROJECT / "tests" / "data"
HEADER = "# SPDX-License-Identifier: Apache-2.0\n"
HEAD_SIZE = 128


def _request(arm: Arm) -> ArmRequest:
    return ArmRequest(
        arm=arm,
        lane="cpu",
        target="/models/target",
        draft="/models/draft" if arm.speculates else None,
        prompt="x",
        tokens=16,
        tensor_parallel_size=2,
        collective_breaks=True,
        planted=Planted.NONE,
        profile_samples=0,
    )


def test_01_a_conditionally_re_exported_name(tmp_path: Path) -> None:
    """What the first published attempt was lost to, imported by a module of the product."""
    product = tmp_path / "pytest_laguna"
    product.mkdir()
    driver = product / "driver.py"
    driver.write_text("from vllm.v1.attention.backends.flash_attn import flash_attn_varlen_func\n")
    (finding,) = vllm_names.product_imports(tmp_path)
    assert finding.startswith(
        "driver.py:1: vllm.v1.attention.backends.flash_attn does not bind flash_attn_varlen_func on every platform in "
    )
    driver.write_text("from vllm.v1.attention.backends.flash_attn import FlashAttentionImpl\n")
    assert vllm_names.product_imports(tmp_path) == []


def test_02_six_of_ten_libraries_missing(tmp_path: Path) -> None:
    """What the second published attempt was lost to, on the published wheel."""
    wheel = xpu_closure.fetched("0.1.12.3")
    whole = resolve_closure(libraries_below(wheel))
    assert set(xpu_closure.OMITTED) <= xpu_closure.own(whole, wheel).keys()
    four = xpu_closure.tree(wheel, tmp_path / "four", set(xpu_closure.MODULES))
    assert set(xpu_closure.OMITTED) <= xpu_closure.absent(resolve_closure(libraries_below(four)))


def test_05_a_helper_import_writes_into_the_tree(tmp_path: Path) -> None:
    """Under an arm's own environment a clean checkout stays clean; without it the same import makes it dirty."""
    checkout, arm = tmp_path / "checkout", tmp_path / "arm"
    (checkout / "helper").mkdir(parents=True)
    (checkout / "helper" / "__init__.py").write_text("ANSWER = 42\n")
    arm.mkdir()
    command = [sys.executable, "-c", "import helper"]
    own = private_environment(arm, tmp_path / "short", tmp_path / "bytecode", os.environ)
    subprocess.run(command, cwd=checkout, env=own | {"PYTHONPATH": str(checkout)}, check=True)
    assert not list(checkout.rglob("__pycache__"))
    subprocess.run(command, cwd=checkout, env={"PATH": os.environ["PATH"]}, check=True)
    assert list(checkout.rglob("__pycache__"))


def test_06_a_socket_path_that_is_too_long(tmp_path: Path) -> None:
    parent = tmp_path / ("x" * 60)
    with pytest.raises(EnvironmentRefusedError, match=r"= \d+ bytes .*; expected at most 107; choose a parent"):
        make_short_directory(parent)


def test_07_eager_arms_are_configured_without_graphs() -> None:
    """Of the request alone, before anything runs."""
    for arm in Arm:
        compilation = arm_settings.engine_arguments(_request(arm))["compilation_config"]
        assert (compilation["cudagraph_mode"] == "PIECEWISE") is arm.graphs
        assert arm_settings.environment(_request(arm))["VLLM_USE_BREAKABLE_CUDAGRAPH"] == ("1" if arm.graphs else "0")


def test_08_a_hook_that_takes_a_tuple_for_a_tensor() -> None:
    """Cannot exist: nothing hooks a model's output, and what is watched is the buffer that attention writes into."""
    from pytest_laguna.engine.attention_watch import AttentionWatch

    class Implementation:
        def forward(self, *arguments: object, output: torch.Tensor, **keywords: object) -> tuple[torch.Tensor, None]:
            del arguments, keywords
            return output.fill_(1), None

    class Layer:
        impl = Implementation()

    class Kernels:
        flash_attn_varlen_func = staticmethod(lambda **_keywords: None)

    class Metadata:
        num_actual_tokens = 2

    watch = AttentionWatch({"layer": Layer()}, Kernels)
    returned = Layer.impl.forward(None, None, None, None, None, Metadata(), output=torch.zeros(4, 2))
    assert isinstance(returned, tuple)
    assert watch.calls == 1


def test_09_one_slot_mapping_for_all_layers() -> None:
    """Cannot exist: no rule and no record names slot mappings; a record that brings them along is refused."""
    record = diagnostic_root.good()["arms/graph-control/record.json"]
    record["ranks"][0]["slot_mappings"] = {"all": [0] * 48}
    with pytest.raises(UnusableEvidenceError, match=r"ranks\.0\.slot_mappings: Extra inputs are not permitted"):
        parse_model(record, ArmRecord, "record.json")


def test_11_a_live_object_in_a_record() -> None:
    """Refused when it is written, in one line; the rehearsal writes every record with its real emitter."""
    with pytest.raises(UnusableEvidenceError, match="cannot be written as RFC 8785 JSON"):
        files.canonical_json({"configuration": object()})  # type: ignore[dict-item]


def test_14_a_capture_that_consumes_what_no_segment_made() -> None:
    """The simulator on the CPU refuses what depends on values that only a replay will have."""
    graph, ones = TapeGraph(), torch.ones(1)
    with recording():
        graph.capture_begin()
        with pytest.raises(CaptureError, match="expected no host value and no shape that depends on data"):
            ones.item()


@pytest.mark.parametrize("key", ["process_list", "device_list"])
def test_15_another_key_than_the_tool_emits(key: str) -> None:
    real = (DATA / "record102-xpu-smi-ps-stdout.json").read_text()
    assert len(read_processes(real)) == 4
    with pytest.raises(UnusableEvidenceError, match="device_util_by_proc_list: Field required"):
        read_processes(real.replace("device_util_by_proc_list", key))


def test_16_an_outer_limit_below_the_declared_minimum() -> None:
    """Gate 1 refuses it by the two numbers; that a run was cut short is told by its process, and closes nothing."""
    campaign = read_campaign(PROJECT / "campaigns" / "laguna-persistent-kv-views.toml")
    protocol = read_protocol(PROJECT / "campaigns" / "laguna-persistent-kv-views-endpoint-cpu.toml")
    require_time(campaign, "xpu", protocol)
    content = campaign.model_dump(by_alias=True)
    content["lanes"]["xpu"]["bounds"]["deadline_seconds"] = 310.0
    short = type(campaign).model_validate(content)
    with pytest.raises(NotProvenError, match=r"deadline_seconds: seen 310\.0; expected at least the 420\.0 of"):
        require_time(short, "xpu", protocol)


def test_16_a_run_that_was_cut_short_says_so(tmp_path: Path) -> None:
    ended = runner(deadline_seconds=1.0)(["/bin/sleep", "60"], {}, tmp_path, 0.3)
    assert (ended.reason.value, ended.is_clean) == ("deadline", False)


def test_17_a_comparison_that_a_shell_reads_as_a_pattern() -> None:
    """Cannot exist: no program is started through a shell, and the rule that says so fires."""
    (planted,) = _ruff("import subprocess\n\nsubprocess.run('[ $a = {x} ]', shell=True, check=True)\n", "S602")
    assert "shell=True" in planted
    assert static_rules.run_tool("ruff", ["check", "--no-cache", "--select=S602,S604,S605"], PROJECT) == []


def _ruff(source: str, *rules: str) -> list[str]:
    program = Path(sys.executable).parent / "ruff"
    options = ["--isolated", "--no-cache", "--output-format=concise", f"--select={','.join(rules)}"]
    done = subprocess.run([program, "check", *options, "-"], input=source, capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if line.startswith("-:")]


def test_18_a_library_behind_a_link(tmp_path: Path) -> None:
    """Both the link and what it leads to are recorded."""
    real = build(tmp_path / "libreal.so.1", soname="liblink.so")
    (tmp_path / "liblink.so").symlink_to(real.name)
    module = build(tmp_path / "module.so", "-Wl,--enable-new-dtags,-rpath,$ORIGIN", needs=[tmp_path / "liblink.so"])
    closure = resolve_closure([module])
    (linked,) = [library for library in closure.libraries if library.link is not None]
    assert (linked.link, Path(linked.target).name, linked.soname) == (real.name, real.name, "liblink.so")
    assert closure.absent == []


def test_19_20_a_uuid_object_and_its_byte_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cannot exist: identities are compared as text, as both sides print them; no byte of one is ever read."""
    from pytest_laguna.engine import card_identity

    class Uuid:
        """As torch's own: printable, not bytes-like."""

        def __str__(self) -> str:
            return "da6f2c41-7d1e-4f6e-b3a1-0c2d4e6f8a1b"

    properties = dataclasses.make_dataclass("Properties", [("uuid", object)])(Uuid())
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: properties)
    with pytest.raises(TypeError):
        memoryview(properties.uuid)
    assert card_identity.card_identity("cuda") == "GPU-da6f2c41-7d1e-4f6e-b3a1-0c2d4e6f8a1b"


def test_21_a_helper_that_is_missing_where_it_is_called() -> None:
    """After 128 exact epochs; the static clause finds the name, and the rehearsal runs every path."""
    (planted,) = _ruff("def finish(epochs: int) -> int:\n    return _summarise(epochs)\n", "F821")
    assert "Undefined name `_summarise`" in planted
    assert static_rules.run_tool("ruff", ["check", "--no-cache", "--select=F821"], PROJECT) == []


def test_23_a_rule_that_no_control_can_satisfy() -> None:
    """Control against control: what then does not hold never could."""
    starts = pairs(*[False] * 6)
    assert judge_null(analysed(PLAN, starts)) is None
    finding = judge_null(analysed(PLAN.model_copy(update={"graphs": PLAN.graphs + 1}), starts))
    assert finding is not None
    assert finding[0] == "FAIL"
    assert finding[1].startswith("topology-frozen: start 1: ")


def test_24_controls_that_differ_among_themselves() -> None:
    """Acceptance that differs from start to start cannot be required to be identical."""
    starts = [start(number) for number in range(PLAN.starts)]
    record = starts[2].record
    assert record.acceptance is not None
    other = record.acceptance.model_copy(update={"drafts": record.acceptance.drafts + 1})
    starts[2] = dataclasses.replace(starts[2], record=record.model_copy(update={"acceptance": other}))
    finding = judge_null(analysed(PLAN, starts))
    assert finding is not None
    assert finding[1].startswith("drafts-accepted: start 2: acceptance: seen candidate")
    assert "drafts-accepted" in EXACTNESS


@pytest.mark.parametrize("digits", [63, 65])
def test_25_a_digest_that_lost_a_character(digits: int) -> None:
    text = CAMPAIGN.replace("0" * 64, "0" * digits)
    with pytest.raises(CampaignError, match=r"preregistration\.sha256: String should match pattern"):
        parse_campaign(text.encode(), "campaign.toml")


@pytest.mark.parametrize("name", ["UR_LOG_LOADER", "LD_LIBRARY_PATH", "CCL_ROOT"])
def test_26_a_loader_variable_in_one_child_only(name: str, tmp_path: Path) -> None:
    """One function makes every child's environment, and a device gate does not start under such a variable."""
    with pytest.raises(EnvironmentRefusedError, match=f"seen {name} inherited; expected no runtime variable"):
        refuse_inherited({name: "x", "PATH": "/bin"}, ["pytest"])
    (tmp_path / "arm").mkdir()
    made = private_environment(tmp_path / "arm", tmp_path / "short", tmp_path / "bytecode", {name: "x"})
    assert name not in made


def test_27_two_ranks_on_one_line(tmp_path: Path) -> None:
    """Cannot exist: a rank has a file of its own; two in one are torn."""
    one = files.canonical_json(diagnostic_root.profile(Arm.GRAPH_CONTROL, 0))
    (tmp_path / "rank0.json").write_bytes(one + one)
    with pytest.raises(UnusableEvidenceError, match=r"rank0\.json"):
        list(read_profile(tmp_path / "rank0.json").samples)


@pytest.mark.parametrize(
    ("file_system", "told"),
    [
        ("ntfs3", r"lies on /dev/sda1 \(ntfs3, 8:1\); expected one of ext4; move it to an internal disk"),
        ("ext4", "on a cable or a network; expected a disk of this host; move it to an internal disk"),
    ],
)
def test_28_a_disk_on_a_cable_without_owners_and_modes(file_system: str, told: str, tmp_path: Path) -> None:
    """The campaign's rule of storage refuses its file system, and with another one what it hangs on."""
    rule = read_campaign(PROJECT / "campaigns" / "laguna-persistent-kv-views.toml").lanes["xpu"].terms.storage
    assert rule is not None
    kernel = Kernel(tmp_path)
    kernel.disk("8:1", "devices/pci0000:00/0000:00:14.0/usb2/2-1/host6/block/sda/sda1")
    disk = kernel.mount("8:1", "usb", file_system, "/dev/sda1")
    assert re.search(told, str(misplaced(kernel.place(disk / "sealed"), rule)))


def test_28_a_root_that_is_open_to_everybody(tmp_path: Path) -> None:
    """As such a disk shows everything; on every lane, and whatever it lies on."""
    disk = tmp_path / "usb"
    disk.mkdir()
    disk.chmod(0o777)
    with pytest.raises(RootError, match="mode 0777 lets others in; expected 0700"):
        check_root(disk)


def test_29_a_tool_that_inherits_the_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = XpuHost(tmp_path / "host")
    monkeypatch.setenv("ZE_AFFINITY_MASK", "1")
    cards = XpuCards(host.program, host.sys, host.proc).discover()
    assert [card.identity for card in cards] == ADDRESSES
    assert "ZE_AFFINITY_MASK" not in host.environment()


def test_31_an_offset_of_zero_for_the_value_view() -> None:
    """The contract computes where the value begins, and refuses a view that begins elsewhere."""
    from gates import vllm_classes
    from laguna_kv.errors import ContractError
    from laguna_kv.views import build_views, verify_views

    cache = vllm_classes.make_cache()
    good = build_views(cache, HEAD_SIZE)
    assert (good.raw_key.storage_offset(), good.raw_value.storage_offset()) == (0, HEAD_SIZE)
    verify_views(good, cache, HEAD_SIZE, "layer 7")
    wrong = good.raw_value.as_strided(good.raw_value.shape, good.raw_value.stride(), 0)
    with pytest.raises(ContractError, match="raw_value"):
        verify_views(good._replace(raw_value=wrong), cache, HEAD_SIZE, "layer 7")


@pytest.mark.parametrize("value", ["''", '""'])
def test_33_an_empty_value_that_became_two_quotes(value: str, tmp_path: Path) -> None:
    from laguna_kv.errors import SettingError
    from laguna_kv.settings import FLAG, read_flag

    with pytest.raises(SettingError, match=re.escape(repr(value))):
        read_flag({FLAG: value})
    with pytest.raises(ProfileError, match="expected the SHA-256 of the segments' kinds"):
        settings_from({ROOT: str(tmp_path), ORDER: value})


def test_35_a_missing_program_is_no_result(tmp_path: Path) -> None:
    """What never started is unknown, and no failure of a device; nothing in the product resets one."""
    with pytest.raises((ArmFailedError, process.ProcessError)):
        build_tiny_pair(tmp_path / "pair", interpreter=tmp_path / "none", deadline_seconds=5.0, run=runner())
    resets = re.compile(r"DeviceReset|device_reset|gpu-reset|--reset|/reset['\"]")
    assert not [path for path in (PROJECT / "pytest_laguna").rglob("*.py") if resets.search(path.read_text())]


def test_36_a_variable_that_nobody_reads(tmp_path: Path) -> None:
    """The reference names it, and no source does."""
    for folder in static_rules.PRODUCT:
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "reference.md").write_text("| `LAGUNA_FP8_HEAD` | unset |\n")
    (finding,) = static_rules.undocumented_environment(tmp_path)
    assert "LAGUNA_FP8_HEAD: seen nowhere" in finding


def test_38_a_process_whose_environment_was_overwritten() -> None:
    """A title over the environment hides a variable and not the process: a lease's bearers are found by descent too."""
    token = new_token()
    program = "import ctypes, sys; sys.stdout.write('on\\n'); sys.stdout.flush(); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={"LAGUNA_LEASE": token, "PATH": os.environ["PATH"]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in process_table.bearers(token)
        assert child.pid in {found.pid for found in descent.descendants(os.getpid())}
        child.kill()


def test_39_a_memory_guard_is_asked_before_and_kept_while_it_runs(tmp_path: Path) -> None:
    audit = HostAudit.model_validate(diagnostic_root.host(1))
    needed = audit.before.memory_available_bytes + 1
    verdict, reason = judge_host(audit, HostLimits(memory_available_bytes=needed, foreign_holders=True))
    assert (verdict, f"expected at least {needed}" in reason) == ("VOID", True)
    run = runner()
    bounds = run.bounds.model_copy(update={"memory_limit_bytes": 20_000_000})
    argv = [sys.executable, "-c", "held = bytearray(200_000_000); import time; time.sleep(60)"]
    ended = dataclasses.replace(run, bounds=bounds)(argv, {}, tmp_path, 30.0)
    assert ended.reason == "memory"


@pytest.mark.parametrize("pattern", ["Corrected", "PCIe Bus Error", "Hardware Error", "xe .*"])
def test_40_a_limit_that_a_healthy_host_breaks(pattern: str) -> None:
    with pytest.raises(ValueError, match="which a healthy host logs; expected a graver line"):
        HostLimits(kernel_patterns=[pattern], foreign_holders=False)
    for file in (PROJECT / "campaigns").glob("*.toml"):
        if "[clauses.1]" in file.read_text():
            hosts = [lane.host for lane in read_campaign(file).lanes.values()]
            limits = [pattern for host in hosts for pattern in host.kernel_patterns or []]
            assert not [pattern for pattern in limits for line in BACKGROUND if re.search(pattern, line)]


@pytest.mark.parametrize("key", ["complete_tokens", "Samples", "accept_per_cycle"])
def test_46_a_field_by_another_name(key: str) -> None:
    """An unknown key of a campaign is refused by name, and so is the absence of the known one."""
    campaign = read_campaign(PROJECT / "campaigns" / "laguna-persistent-kv-views.toml")
    content = campaign.model_dump(by_alias=True)
    content["diagnostic"][key] = content["diagnostic"].pop(
        {"complete_tokens": "completion_tokens", "Samples": "samples", "accept_per_cycle": "accepted_per_cycle"}[key]
    )
    with pytest.raises(CampaignError, match=r"diagnostic\.\w+: (Field required|Extra inputs)"):
        parse_campaign(to_toml(content).encode(), "campaign.toml")


def _campaign_of(target: str) -> Campaign:
    """The default campaign with a pair of folders on the cpu lane."""
    content = read_campaign(PROJECT / "campaigns" / "laguna-persistent-kv-views.toml").model_dump(by_alias=True)
    content["lanes"]["cpu"]["engine"]["model"] = {"target": target, "draft": "models/draft", "prompt": "x"}
    return parse_campaign(to_toml(content).encode(), "campaign.toml")


def test_47_a_path_that_depends_on_where_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A campaign's folder starts from its project wherever one stands, also where another of that name lies."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for place in (project, elsewhere):
        for model in ("target", "draft"):
            (place / "models" / model).mkdir(parents=True)
            (place / "models" / model / "config.json").write_text(f'{{"of": "{place.name}"}}')
    campaign, unused = _campaign_of("models/target"), cast("Any", None)
    engine = EngineRun(campaign, "cpu", unused, unused, unused, tmp_path, project)
    for place in (project, elsewhere, tmp_path):
        monkeypatch.chdir(place)
        with engine.models(Path(sys.executable)) as models:
            assert (models.target, models.draft) == (project / "models" / "target", project / "models" / "draft")
    monkeypatch.chdir(elsewhere)
    (project / "models" / "target" / "config.json").unlink()
    with (
        pytest.raises(NotProvenError, match=rf"{re.escape(str(project))}/models/target: no config\.json"),
        engine.models(Path(sys.executable)),
    ):
        pass


@pytest.mark.parametrize("target", ["./models/target", "~/models/target", "../target", "$HOME/target", ""])
def test_47_a_path_that_only_a_shell_or_a_place_resolves(target: str) -> None:
    with pytest.raises(CampaignError, match=r"lanes\.cpu\.engine\.model\."):
        _campaign_of(target)


def test_48_the_name_of_a_network_interface() -> None:
    """Cannot exist: no campaign can name one, and no source does."""
    text = CAMPAIGN.replace("host = { foreign_holders", 'host = { interface = "eno1", foreign_holders')
    assert text != CAMPAIGN
    with pytest.raises(CampaignError, match=r"host\.interface: Extra inputs are not permitted"):
        parse_campaign(text.encode(), "campaign.toml")
    sources = (path for folder in static_rules.PRODUCT for path in (PROJECT / folder).rglob("*.py"))
    assert not [path for path in sources if re.search(r"[\"'](eno|eth|enp)\d", path.read_text())]


def test_49_a_device_test_in_an_ordinary_run(tmp_path: Path) -> None:
    """Nothing that needs a card runs unless a gate is asked for, and a device gate not without its cards."""
    project = Project(tmp_path)
    project.tests(only="raise SystemExit('a card was touched')")
    ordinary = project.pytest("checks/test_device.py")
    assert "1 deselected" in ordinary.stdout
    assert "a card was touched" not in ordinary.stdout + ordinary.stderr
    assert project.gate(1).returncode == 0
    refused = project.pytest("--gate=2")
    assert (refused.returncode, "gate 2: no --cards" in refused.stderr) == (4, True)


@pytest.mark.parametrize("place", ["mnt/fast-ai/runs", "home/lab/x", "media/usb"])
def test_50_a_test_that_writes_to_a_place_of_one_host(place: str, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(f"{HEADER}ROOT = {f'/{place}'!r}\n")
    (finding,) = static_rules.host_paths(tmp_path)
    assert finding.startswith(f"tests/test_it.py:2: seen '/{place}'; expected no path of one host")
    assert static_rules.host_paths(PROJECT) == []


def test_every_published_defect_has_its_test() -> None:
    """51 of them, by their numbers in the names of tests and of table rows."""
    text = "".join(path.read_text() for path in sorted(Path(__file__).parent.glob("test_*.py")))
    named = re.findall(r"""^(?:def test_|    ")((?:\d\d[_-])+)""", text, re.MULTILINE)
    numbers = {int(number) for name in named for number in re.findall(r"\d\d", name)}
    assert numbers == set(range(1, 52))


def test_the_documentation_lists_each_of_them_and_few_cannot_exist() -> None:
    table = (PROJECT / "docs" / "rehearsal.md").read_text().partition("## The corpus")[2]
    rows = re.findall(r"^\| ([\d, ]+) \| ([^|]+) \| ([^|]+) \|$", table, re.MULTILINE)
    numbers = [int(number) for row in rows for number in row[0].split(",")]
    assert numbers == list(range(1, 52))
    impossible = [int(number) for row in rows for number in row[0].split(",") if row[2].startswith("cannot exist")]
    assert len(impossible) <= 10
