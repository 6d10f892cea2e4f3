# SPDX-License-Identifier: Apache-2.0
"""One contract for the cards of every vendor: the cpu lane's are real, the others stand behind their interfaces."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pytest_laguna.evidence.machine.card_masks import MASK, showing
from pytest_laguna.machine.cards import Card, select
from pytest_laguna.machine.errors import CardError
from pytest_laguna.machine.sources import LANES, card_source
from tests.unit.machine.fakes import Bench, ticks

TOKEN = "0123456789abcdef" * 2


def test_every_card_is_found_with_its_facts(bench: Bench) -> None:
    cards = bench.source.discover()
    assert len(cards) >= 4
    assert [card.ordinal for card in cards] == list(range(len(cards)))
    assert len({card.identity for card in cards}) == len(cards)
    assert {card.lane for card in cards} == {bench.source.lane}
    assert all(card.memory_bytes > 0 and card.name for card in cards)
    assert bench.source.discover() == cards


def test_discovery_sees_beyond_the_mask_of_this_process(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = bench.source.discover()
    for name, value in showing(bench.source.lane, everything[1:2]).items():
        monkeypatch.setenv(name, value)
    assert bench.source.discover() == everything


def test_a_mask_comes_back_as_the_cards_that_it_was_made_of(bench: Bench) -> None:
    cards = bench.cards()
    for chosen in (cards, cards[1:3], (cards[3], cards[0])):
        made = showing(bench.source.lane, chosen)
        assert bench.source.inherited(bench.source.discover(), made) == tuple(chosen)


def test_no_mask_leaves_all_and_an_empty_one_nothing(bench: Bench) -> None:
    cards = bench.cards()
    assert bench.source.inherited(cards, {}) == cards
    assert bench.source.inherited(cards, showing(bench.source.lane, cards) | {MASK[bench.source.lane]: ""}) == ()


def test_a_mask_of_a_card_that_is_not_there_is_refused(bench: Bench) -> None:
    cards = bench.cards()
    mask = showing(bench.source.lane, cards) | {MASK[bench.source.lane]: "99"}
    with pytest.raises(CardError, match=f"{MASK[bench.source.lane]}: seen 99; expected a card; choose from "):
        bench.source.inherited(cards, mask)


def test_idle_cards_have_no_holder_and_known_memory(bench: Bench) -> None:
    cards = bench.cards()
    states = bench.source.observe([cards[2], cards[0]], TOKEN).states
    assert [(state.identity, state.ordinal) for state in states] == [
        (card.identity, card.ordinal) for card in (cards[2], cards[0])
    ]
    assert [state.holders for state in states] == [[], []]
    assert all(state.memory_used_bytes is not None and state.memory_used_bytes < 2**25 for state in states)


@pytest.mark.parametrize("ours", [True, False])
def test_a_holder_is_named_with_what_identifies_it(bench: Bench, *, ours: bool) -> None:
    cards = bench.cards()
    with bench.held(cards[1], **({"LAGUNA_LEASE": TOKEN} if ours else {"OTHER": "1"})) as pid:
        others, held = bench.source.observe([cards[3], cards[1]], None if not ours else TOKEN).states
        (holder,) = held.holders
        assert (holder.pid, holder.start_ticks, holder.command) == (pid, ticks(pid), "/bin/sleep 300")
        assert holder.carries_token is ours
    if (
        bench.source.lane != "cpu" or not ours
    ):  # on the cpu lane all of a lease's slots are held by each of its processes
        assert others.holders == []


def test_looking_changes_nothing_in_this_process(bench: Bench) -> None:
    before = dict(os.environ)
    cards = bench.cards()
    bench.source.observe(cards, None)
    assert dict(os.environ) == before


def test_looking_loads_no_device_runtime() -> None:
    program = (
        "import sys\n"
        "from pytest_laguna.machine.sources import LANES, card_source\n"
        "sources = [card_source(lane, ()) for lane in LANES]\n"
        "sources[0].observe(sources[0].discover(), None)\n"
        "print([name for name in ('torch', 'vllm', 'pynvml', 'intel_extension_for_pytorch') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_each_lane_has_a_source_and_no_other_word_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    assert [card_source(lane, ()).lane for lane in LANES] == list(LANES)
    assert len(card_source("cpu", ["0", "6"]).discover()) == 7
    assert len(card_source("cpu", ["cpu-slot-6", "0"]).discover()) == 7
    assert len(card_source("cpu", ["0"]).discover()) == 2
    with pytest.raises(CardError, match="lane: seen rocm; expected one of cpu, cuda, xpu"):
        card_source("rocm", ())


# Choosing


CARDS = (
    Card("cuda", 0, "GPU-aaaaaaaa-1111", "H200", 1),
    Card("cuda", 1, "GPU-aaaaaaaa-2222", "H200", 1),
    Card("cuda", 2, "GPU-bbbbbbbb-3333", "H200", 1),
)


def test_cards_are_chosen_in_the_order_of_the_request_and_keep_their_numbers() -> None:
    assert select(CARDS, ["2", "0"], CARDS, {}) == (CARDS[2], CARDS[0])
    assert select(CARDS, ["2"], CARDS[1:], {}) == (CARDS[2],)  # and not the third of two


def test_eight_characters_are_enough_when_they_name_one_card() -> None:
    assert select(CARDS, ["GPU-bbbb"], CARDS, {}) == (CARDS[2],)


@pytest.mark.parametrize("entry", ["1", "GPU-aaaaaaaa-2222", "gpu-AAAAAAAA-2", "GPU-aaaaaaaa-2"])
def test_a_card_goes_by_its_number_its_identity_or_enough_of_it(entry: str) -> None:
    assert select(CARDS, [entry], CARDS, {}) == (CARDS[1],)


@pytest.mark.parametrize(
    ("requested", "left", "busy", "message"),
    [
        ([], CARDS, {}, "seen none; expected at least one card"),
        (["3"], CARDS, {}, "seen 3; expected a card"),
        (["GPU-bbb"], CARDS, {}, "seen GPU-bbb; expected a card"),
        ([""], CARDS, {}, "seen an empty entry; expected a card"),
        (["-1"], CARDS, {}, "seen -1; expected a card"),
        (["GPU-a"], CARDS, {}, "seen GPU-a; expected a card"),
        (["GPU-aaaaaaaa"], CARDS, {}, "seen GPU-aaaaaaaa, which fits 0 = GPU-aaaaaaaa-1111"),
        (["1", "GPU-aaaaaaaa-2222"], CARDS, {}, "seen card GPU-aaaaaaaa-2222 a second time"),
        (["1", "1"], CARDS, {}, "seen card GPU-aaaaaaaa-2222 a second time, as 1; expected each once"),
        (["0"], CARDS[1:], {}, r"0 = GPU-aaaaaaaa-1111 \(H200\) outside the inherited mask; expected one of 1 = GPU-a"),
        (["0"], (), {}, "outside the inherited mask; expected one of no cards"),
        (["2"], CARDS, {"GPU-bbbbbbbb-3333": "leased by 7"}, r"2 = GPU-bbbbbbbb-3333 \(H200\) busy \(leased by 7\)"),
    ],
)
def test_what_cannot_be_had_is_refused_in_one_line_with_what_there_is(
    requested: list[str], left: tuple[Card, ...], busy: dict[str, str], message: str
) -> None:
    with pytest.raises(CardError, match=f"^--cards: .*{message}") as caught:
        select(CARDS, requested, left, busy)
    assert "\n" not in str(caught.value)
    assert "GPU-aaaaaaaa-1111" in str(caught.value)
