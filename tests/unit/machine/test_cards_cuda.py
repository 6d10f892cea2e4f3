# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys

import pytest

from pytest_laguna.evidence.machine.card_masks import showing
from pytest_laguna.machine.cards_cuda import CudaCards
from pytest_laguna.machine.errors import CardError
from tests.unit.machine.fakes import Nvml, NvmlCard

PCI = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_a_missing_library_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(CardError, match=r"seen .*; expected the package nvidia-ml-py") as caught:
        CudaCards().discover()
    assert caught.value.mend == f"{sys.executable} -m pip install nvidia-ml-py"


def test_a_driver_that_is_not_loaded_is_an_error_and_not_an_empty_list(nvml: Nvml) -> None:
    nvml.loaded = False
    with pytest.raises(
        CardError, match="seen Driver Not Loaded; expected NVIDIA's driver to answer; install or load it"
    ):
        CudaCards().discover()


def test_the_library_is_shut_down_whatever_happens(nvml: Nvml) -> None:
    cards = CudaCards().discover()
    assert nvml.open == 0
    nvml.cards.pop()
    with pytest.raises(CardError, match="seen Not Found; expected"):
        CudaCards().observe(cards, None)
    assert nvml.open == 0


def test_the_identity_is_the_uuid_as_text(nvml: Nvml) -> None:
    nvml.cards.append(NvmlCard(b"GPU-bytes"))
    assert CudaCards().discover()[4].identity == "GPU-bytes"


def test_a_card_in_mig_mode_is_refused(nvml: Nvml) -> None:
    nvml.cards[2].mig = 0
    assert len(CudaCards().discover()) == 4
    nvml.cards[2].mig = 1
    with pytest.raises(CardError, match=r"card 2 = .* split into MIG instances; expected whole cards; nvidia-smi -i 2"):
        CudaCards().discover()


def test_memory_that_is_not_supported_is_absent_and_not_zero(nvml: Nvml) -> None:
    cards = CudaCards().discover()
    nvml.cards[1].used = None
    states = CudaCards().observe(cards, None).states
    assert [state.memory_used_bytes for state in states] == [2 << 20, None, 2 << 20, 2 << 20]
    assert [state.utilisation_percent for state in states] == [100.0] * 4  # recorded; nothing judges it


def test_graphics_and_compute_processes_hold_a_card_once(nvml: Nvml) -> None:
    cards = CudaCards().discover()
    nvml.cards[0].compute = [1]
    nvml.cards[0].graphics = [1]
    (state,) = CudaCards().observe(cards[:1], None).states
    assert [holder.pid for holder in state.holders] == [1]


def test_a_holder_of_another_pid_namespace_is_a_holder(nvml: Nvml) -> None:
    cards = CudaCards().discover()
    nvml.cards[0].compute = [2**22 + 1]  # beyond the kernel's largest pid: nobody here
    (state,) = CudaCards().observe(cards[:1], "0" * 32).states
    assert [(holder.pid, holder.start_ticks, holder.carries_token) for holder in state.holders] == [
        (2**22 + 1, None, None)
    ]


@pytest.mark.usefixtures("nvml")
def test_a_number_in_the_mask_needs_pci_order() -> None:
    cards = CudaCards().discover()
    with pytest.raises(
        CardError,
        match=r"seen number 1, counted in CUDA's own order.*export it with UUIDs of .* or CUDA_DEVICE_ORDER=PCI_BUS_ID",
    ):
        CudaCards().inherited(cards, {"CUDA_VISIBLE_DEVICES": "1"})
    assert CudaCards().inherited(cards, {"CUDA_VISIBLE_DEVICES": "1"} | PCI) == (cards[1],)
    assert CudaCards().inherited(cards[:1], {"CUDA_VISIBLE_DEVICES": "0"}) == (cards[0],)  # one card has one order


@pytest.mark.usefixtures("nvml")
def test_what_stands_behind_minus_one_is_not_seen() -> None:
    cards = CudaCards().discover()
    assert CudaCards().inherited(cards, {"CUDA_VISIBLE_DEVICES": "2,-1,0"} | PCI) == (cards[2],)
    assert CudaCards().inherited(cards, {"CUDA_VISIBLE_DEVICES": "-1"}) == ()


def test_a_prefix_in_the_mask_must_name_one_card(nvml: Nvml) -> None:
    nvml.cards[1].uuid = "GPU-0a6f2c41-ffff-4f6e-b3a1-0c2d4e6f8a1b"
    cards = CudaCards().discover()
    assert CudaCards().inherited(cards, {"CUDA_VISIBLE_DEVICES": "GPU-0a6f2c41-7"}) == (cards[0],)
    with pytest.raises(
        CardError,
        match=r"seen GPU-0a6f2c41, which fits .*; expected one card; give more of its",
    ):
        CudaCards().inherited(cards, {"CUDA_VISIBLE_DEVICES": "GPU-0a6f2c41"})


@pytest.mark.usefixtures("nvml")
def test_a_lease_masks_by_whole_uuid_in_pci_order() -> None:
    cards = CudaCards().discover()
    assert showing("cuda", cards[2:3]) == {"CUDA_VISIBLE_DEVICES": cards[2].identity} | PCI
