# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time
from typing import Any

import pytest

from pytest_laguna.evidence.machine.card_masks import showing
from pytest_laguna.machine import descent, process_table, xpu_smi
from pytest_laguna.machine.cards_xpu import XpuCards, kernel_cards
from pytest_laguna.machine.errors import CardError
from pytest_laguna.verdict import UnusableEvidenceError
from tests.unit.machine.fakes import ADDRESSES, LOADED, USED, XpuHost, sleeper


def test_the_cards_are_those_of_the_tool_and_of_the_kernel(xpu: XpuCards) -> None:
    cards = xpu.discover()
    assert [card.identity for card in cards] == ADDRESSES == kernel_cards(xpu.sys)
    assert {card.memory_bytes for card in cards} == {32 * 2**30}


def test_the_tool_is_run_without_this_process_environment(
    xpu: XpuCards, xpu_host: XpuHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZE_AFFINITY_MASK", "1")
    xpu.discover()
    assert {name: value for name, value in xpu_host.environment().items() if name != "LC_CTYPE"} == xpu_smi.ENVIRONMENT


@pytest.mark.parametrize(
    "addresses",
    [
        pytest.param([ADDRESSES[1], ADDRESSES[0], *ADDRESSES[2:]], id="numbered in another order"),
        pytest.param(ADDRESSES[:3], id="one that only the kernel has"),
        pytest.param([*ADDRESSES, "0000:e3:00.0"], id="one that only the tool has"),
        pytest.param([], id="none"),
    ],
)
def test_a_tool_that_disagrees_with_the_kernel_is_refused(
    xpu: XpuCards, xpu_host: XpuHost, addresses: list[str]
) -> None:
    xpu_host.say(addresses=addresses)
    with pytest.raises(CardError, match=r"expected 0, 1, ... in the order of the kernel's cards .*; compare xpu-smi"):
        xpu.discover()


def test_an_integrated_card_that_the_tool_leaves_out_would_shift_the_mask_and_is_refused(
    xpu: XpuCards, xpu_host: XpuHost
) -> None:
    xpu_host.plug(9, "0000:00:02.0")
    with pytest.raises(CardError, match=r"0000:00:02.0"):
        xpu.discover()


def test_cards_are_in_the_order_of_their_addresses_as_numbers(xpu: XpuCards, xpu_host: XpuHost) -> None:
    xpu_host.plug(4, "10000:01:00.0")
    assert kernel_cards(xpu.sys) == [*ADDRESSES, "10000:01:00.0"]


def test_display_devices_of_others_are_no_cards(xpu: XpuCards, xpu_host: XpuHost) -> None:
    xpu_host.plug(9, "0000:01:00.0", vendor="0x1a03")
    assert len(xpu.discover()) == 4


def test_the_observer_is_no_holder_and_is_on_record(xpu: XpuCards, xpu_host: XpuHost) -> None:
    seen = xpu.observe(xpu.discover(), None)
    assert seen.observer is not None
    assert [state.holders for state in seen.states] == [[]] * 4
    assert {row.process_id for row in seen.observer.rows()} == {seen.observer.pid}
    assert seen.observer.executable == str(xpu_host.program)
    assert seen.observer.executable_sha256 == hashlib.sha256(xpu_host.program.read_bytes()).hexdigest()
    assert (seen.observer.command[1:], seen.observer.devices) == (["ps", "-j"], [0, 1, 2, 3])
    xpu_host.say(shows_itself=False)
    assert [state.holders for state in xpu.observe(xpu.discover(), None).states] == [[]] * 4


def test_a_holder_that_the_tool_hides_is_found_through_fdinfo(xpu: XpuCards, xpu_host: XpuHost) -> None:
    with sleeper() as child:
        xpu_host.open_device(child.pid, ADDRESSES[2])
        states = xpu.observe(xpu.discover(), None).states
    assert [[(holder.pid, holder.seen_by) for holder in state.holders] for state in states] == [
        [], [], [(child.pid, "fdinfo")], [],
    ]  # fmt: skip


def test_a_holder_seen_twice_is_one(xpu: XpuCards, xpu_host: XpuHost) -> None:
    with sleeper() as child:
        xpu_host.open_device(child.pid, ADDRESSES[0])
        xpu_host.say(foreign=[[0, child.pid], [0, child.pid]])
        (state,) = xpu.observe(xpu.discover()[:1], None).states
    assert [(holder.pid, holder.seen_by) for holder in state.holders] == [(child.pid, "xpu-smi")]


@pytest.mark.parametrize(
    ("statistics", "used"),
    [
        ({"device_level": [USED, LOADED]}, 27787264),
        ({"device_level": [], "tile_level": [{"data_list": [USED]}, {"data_list": [USED]}]}, 2 * 27787264),
        ({"device_level": []}, None),
        ({"device_level": [USED, USED]}, None),
        ({"device_level": [USED | {"value": -1}]}, None),
        ({"device_level": [USED], "tile_level": [{"data_list": []}]}, 27787264),
        ({"device_level": [], "tile_level": [{"data_list": [USED]}, {"data_list": []}]}, None),
    ],
)
def test_memory_is_that_of_the_device_or_of_all_its_tiles_or_absent(
    xpu: XpuCards, xpu_host: XpuHost, statistics: dict[str, Any], used: int | None
) -> None:
    xpu_host.say(statistics=statistics)
    assert xpu.observe(xpu.discover()[:1], None).states[0].memory_used_bytes == used


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"status": 3}, CardError, "exit status 3, ''; expected 0, no message; run it by hand"),
        ({"errors": "a\nwarning"}, CardError, "exit status 0, 'warning'"),
        ({"output": '{"error": "Level Zero Initialization Error"}'}, CardError, "device_list: Field required"),
        ({"output": '{"device_list": [], "device_list": []}'}, UnusableEvidenceError, "key 'device_list' twice"),
        ({"output": "Level Zero"}, UnusableEvidenceError, "not strict JSON"),
    ],
)
def test_a_tool_that_fails_is_an_error_and_not_an_idle_host(
    xpu: XpuCards, xpu_host: XpuHost, changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    xpu_host.say(**changed)
    with pytest.raises(error, match=message):
        xpu.discover()


def test_a_missing_tool_names_the_command_that_installs_it(xpu: XpuCards, xpu_host: XpuHost) -> None:
    xpu_host.program.unlink()
    with pytest.raises(CardError, match="expected Intel's XPU manager; apt-get install xpu-smi"):
        xpu.discover()


def test_a_tool_that_hangs_is_ended(xpu: XpuCards, xpu_host: XpuHost, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = str(10**6 + os.getpid())  # so that the process is known
    xpu_host.program.write_text(f"#!/bin/sh\n: {seconds}\nwhile :; do :; done\n")
    monkeypatch.setattr(xpu_smi, "DEADLINE_SECONDS", 0.3)
    with pytest.raises(CardError, match=r"seen no answer in 0.3 s; expected one"):
        xpu.discover()
    left = [process_table.arguments(process.pid) for process in descent.live_processes()]
    assert not [words for words in left if seconds in words or str(xpu_host.program) in words]


def test_a_tool_that_becomes_another_program_is_refused(xpu_host: XpuHost) -> None:
    xpu_host.program.write_text("#!/bin/sh\nexec /bin/sleep 300\n")
    done = subprocess.Popen([str(xpu_host.program)])
    try:
        while process_table.arguments(done.pid)[:1] != ["/bin/sleep"]:
            time.sleep(0.001)
        with pytest.raises(CardError, match=rf"seen process {done.pid} running another file; .*; run it by hand"):
            xpu_smi._require_image(done, xpu_host.program.resolve(), "xpu: xpu-smi ps -j")
        assert done.wait(5) == -signal.SIGKILL
    finally:
        done.kill()
        done.wait()
    xpu_smi._require_image(done, xpu_host.program.resolve(), "one that has ended")


def test_a_tool_that_is_replaced_while_it_runs_is_refused(xpu: XpuCards, xpu_host: XpuHost) -> None:
    xpu_host.program.write_text('#!/bin/sh\ncp "$0" "$0.new"; echo "# " >> "$0.new"; mv "$0.new" "$0"\necho "{}"\n')
    with pytest.raises(CardError, match="changed while it ran; expected one file; wait until its package is installed"):
        xpu.discover()


@pytest.mark.parametrize("mask", ["0.1", "0,1.0", "x", "-1"])
def test_a_mask_of_anything_but_whole_cards_is_refused(xpu: XpuCards, mask: str) -> None:
    with pytest.raises(CardError, match=r"ZE_AFFINITY_MASK: seen .*; expected the number of a card"):
        xpu.inherited(xpu.discover(), {"ZE_AFFINITY_MASK": mask})


def test_a_second_filter_is_refused_unless_it_filters_nothing(xpu: XpuCards) -> None:
    cards = xpu.discover()
    with pytest.raises(CardError, match="unset ONEAPI_DEVICE_SELECTOR and use ZE_AFFINITY_MASK"):
        xpu.inherited(cards, {"ONEAPI_DEVICE_SELECTOR": "level_zero:0,1"})
    everything = {"ONEAPI_DEVICE_SELECTOR": "level_zero:gpu", "ZE_AFFINITY_MASK": "0,1,2,3"}
    assert xpu.inherited(cards, everything) == cards


def test_a_mask_that_leaves_cards_out_needs_pci_order(xpu: XpuCards) -> None:
    cards = xpu.discover()
    with pytest.raises(
        CardError,
        match=r"seen 1,3, which leaves cards out .*; export ZE_ENABLE_PCI_ID_DEVICE_ORDER=1",
    ):
        xpu.inherited(cards, {"ZE_AFFINITY_MASK": "1,3"})
    ordered = {"ZE_AFFINITY_MASK": "1,3", "ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1"}
    assert xpu.inherited(cards, ordered) == (cards[1], cards[3])


def test_a_lease_masks_by_number_in_pci_order(xpu: XpuCards) -> None:
    made = showing("xpu", xpu.discover()[1:3])
    assert made == {"ZE_AFFINITY_MASK": "1,2", "ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1"}
