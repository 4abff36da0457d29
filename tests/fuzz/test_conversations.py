"""Whatever is said to an owner or a client of a shared store, others are served, and nobody fails but in words."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from aiodq.shared.connection import link
from tests.figures import figure
from tests.fuzz.conversations import EVERY, cut_short, nothing_unexpected, say_to_clients, say_to_owner

if TYPE_CHECKING:
    from collections.abc import Callable

    Record = Callable[[str, Any], None]

HOW_MANY = [2_000, pytest.param(figure("packets") // 2, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])]
IDS = ["few", "many"]


@pytest.mark.parametrize("packets", HOW_MANY, ids=IDS)
async def test_whatever_is_said_to_an_owner_others_notice_nothing(
    packets: int, seed: int, record_property: Record
) -> None:
    with nothing_unexpected():
        record_property("trials", await say_to_owner(packets, random.Random(seed)))


@pytest.mark.parametrize("packets", HOW_MANY, ids=IDS)
async def test_whatever_is_said_to_a_client_it_ends_in_time_and_in_words(
    packets: int, seed: int, record_property: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "_STALL", 0.5)
    with nothing_unexpected():
        record_property("trials", await say_to_clients(packets, random.Random(seed)))


async def test_a_client_may_end_anywhere(seed: int, record_property: Record) -> None:
    with nothing_unexpected():
        said = await cut_short(random.Random(seed))
    assert said == sum(map(len, EVERY))
    record_property("trials", said)
