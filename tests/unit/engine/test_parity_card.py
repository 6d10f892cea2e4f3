# SPDX-License-Identifier: Apache-2.0
"""Which card a process computes on, asked of the process: slots, and the kernel's description of its open files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_laguna.engine import card_identity
from pytest_laguna.evidence.machine.card_masks import showing
from pytest_laguna.machine.cards_cpu import MASK_VARIABLE, CpuCards


def drm_client(address: str, total: str) -> str:
    """One open file of the xe driver, as the kernel describes it."""
    return f"pos:\t0\ndrm-driver:\txe\ndrm-client-id:\t7\ndrm-pdev:\t{address}\ndrm-total-vram0:\t{total}\n"


def fdinfo(tmp_path: Path, *texts: str) -> Path:
    for number, text in enumerate(texts):
        (tmp_path / str(number)).write_text(text)
    return tmp_path


def test_a_slot_goes_by_the_leases_name(monkeypatch: pytest.MonkeyPatch) -> None:
    card = CpuCards(4).discover()[3]
    for name, value in showing("cpu", [card]).items():
        monkeypatch.setenv(name, value)
    assert card_identity.card_identity("cpu") == card.identity
    assert card_identity.visible_cards("cpu") == 1
    card_identity.require_one_card("cpu")


@pytest.mark.parametrize(("mask", "seen"), [("0,2", r"\['cpu-slot-0', 'cpu-slot-2'\]"), ("", r"\[\]")])
def test_more_or_less_than_one_slot_is_refused(mask: str, seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MASK_VARIABLE, mask)
    with pytest.raises(RuntimeError, match=f"cpu: seen memory of cards {seen} in this process; expected one; see"):
        card_identity.card_identity("cpu")
    count = len([slot for slot in mask.split(",") if slot])
    with pytest.raises(RuntimeError, match=f"cpu: seen {count} cards in this process; expected one; start it under"):
        card_identity.require_one_card("cpu")


def test_the_card_is_where_the_memory_is(tmp_path: Path) -> None:
    """Level Zero opens every card of the host, and each card more than once."""
    texts = [
        "pos:\t0\nflags:\t0100000\nmnt_id:\t9\n",
        drm_client("0000:03:00.0", "0"),
        drm_client("0000:07:00.0", "1056 KiB"),
        drm_client("0000:07:00.0", "0 KiB"),
        drm_client("0000:0b:00.0", "0 KiB"),
    ]
    assert card_identity.drm_addresses(fdinfo(tmp_path, *texts)) == ["0000:07:00.0"]


def test_memory_on_two_cards_names_both(tmp_path: Path) -> None:
    texts = [drm_client("0000:07:00.0", "4 KiB"), drm_client("0000:03:00.0", "1 MiB")]
    assert card_identity.drm_addresses(fdinfo(tmp_path, *texts)) == ["0000:03:00.0", "0000:07:00.0"]


def test_memory_of_the_host_is_no_card(tmp_path: Path) -> None:
    text = drm_client("0000:03:00.0", "0") + "drm-total-system:\t64 KiB\ndrm-resident-gtt:\t64 KiB\n"
    assert card_identity.drm_addresses(fdinfo(tmp_path, text)) == []


def test_this_process_has_no_card() -> None:
    assert card_identity.drm_addresses() == []
