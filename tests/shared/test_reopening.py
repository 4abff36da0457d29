"""What a new owner is asked to open: neither what was deleted, nor by options that were refused or changed since."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from tests.shared.support import PATIENCE, QUICK, until

if TYPE_CHECKING:
    from pathlib import Path

THREE = aiodq.ChannelOptions(max_attempts=3)
FIVE = aiodq.ChannelOptions(max_attempts=5)
MOST_5 = aiodq.StoreOptions(sync="os", max_messages=5)
MOST_9 = aiodq.StoreOptions(sync="os", max_messages=9)


async def three(stack: AsyncExitStack, path: Path) -> list[aiodq.Store]:
    """Give a store to three processes in one, the first of which owns it."""
    return [await stack.enter_async_context(aiodq.open(path, QUICK, mode="shared")) for _ in range(3)]


def opened(store: aiodq.Store) -> dict[tuple[str, str], Any]:
    """Return what a process has every later owner open."""
    return store._store_engine.link.opened  # type: ignore[attr-defined, no-any-return]  # it stands in its place


async def test_a_channel_that_one_process_deleted_does_not_come_back_with_the_next_owner(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
        owner, deleter, other = await three(stack, tmp_path / "s")
        for store in (owner, deleter, other):
            for name in ("c", "d"):
                await store.topic("jobs").channel(name).refresh()
        kept = other.topic("jobs").channel("c")
        await deleter.topic("jobs").delete_channel("c")
        with pytest.raises(aiodq.QueueShutDown):
            await kept.get()
        await owner.aclose()
        for store in (deleter, other):
            await store.topic("jobs").channel("d").refresh()
        assert ("jobs", "c") not in opened(other)
    async with aiodq.open(tmp_path / "s") as alone:
        assert alone.topic("jobs").channels() == ["d"]


@pytest.mark.parametrize("named", ["at once", "later"])
async def test_options_that_were_changed_since_hold_with_the_next_owner(tmp_path: Path, named: str) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
        stores = await three(stack, tmp_path / "s")
        for store in stores:
            if named == "later":
                await store.topic("jobs").channel("c").refresh()
            await store.topic("jobs").channel("c", THREE).refresh()
            while opened(store)["jobs", "c"].options:
                await asyncio.sleep(0.002)
        changed = stores[1].topic("jobs").channel("c")
        await changed.configure(FIVE)
        await stores[0].aclose()
        for store in stores[1:]:
            channel = store.topic("jobs").channel("c")
            await channel.refresh()
            assert channel.options.max_attempts == 5


async def three_that_put(stack: AsyncExitStack, path: Path) -> list[aiodq.Store]:
    """Do as `three`; each has put into a topic by options of its own, and knows that they are stored."""
    stores = await three(stack, path)
    for store in stores:
        await store.topic("jobs", MOST_5).put(b"x")
        while not opened(store)["jobs", ""].options.get("stored"):
            await asyncio.sleep(0.002)
    return stores


@pytest.mark.parametrize("settled", [True, False])
async def test_a_topics_options_that_were_changed_since_hold_with_the_next_owner(tmp_path: Path, settled: bool) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
        owner, changer, other = await three_that_put(stack, tmp_path / "s")
        if not settled:
            other._store_engine.link._wire._transport.pause_reading()  # type: ignore[attr-defined]  # in its place
        await changer.topic("jobs").configure(MOST_9)
        if settled:
            await until(lambda: other.topic("jobs").options == MOST_9)
        assert other.topic("jobs").options == (MOST_9 if settled else MOST_5)
        await changer.aclose()
        await owner.aclose()
        await other.topic("jobs").put(b"y")
        await until(lambda: other.topic("jobs").options == MOST_9)
        assert await other.topic("jobs").purge() == 4
    async with aiodq.open(tmp_path / "s") as alone:
        assert alone.topic("jobs").options.max_messages == 9


async def test_the_next_owner_refuses_nobody_who_has_not_heard_of_a_change(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
        owner, changer, other = await three_that_put(stack, tmp_path / "s")
        other._store_engine.link._wire._transport.pause_reading()  # type: ignore[attr-defined]  # in its place
        await changer.topic("jobs").configure(replace(MOST_9, sync="interval"))
        await owner.aclose()
        for store in (changer, other):
            await store.topic("jobs").put(b"y")
            await until(lambda: store.topic("jobs").options.max_messages == 9)


async def test_options_of_what_is_in_memory_only_are_told_the_next_owner(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
        owner, store, _ = await three(stack, tmp_path / "s")
        channel = store.topic("jobs").channel("c#ephemeral", THREE)
        await channel.refresh()
        await owner.topic("jobs").channel("c#ephemeral").configure(FIVE)
        await until(lambda: channel.options == FIVE)
        await owner.aclose()
        await channel.refresh()
        assert channel.options == FIVE


async def test_what_is_in_memory_only_goes_on_with_its_options_though_who_named_them_has_left(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
        owner, other, another = await three(stack, tmp_path / "s")
        await owner.topic("jobs").put(b"before", tag="red")
        red = aiodq.ChannelOptions(tags=["red"], start="latest")
        await owner.topic("jobs").channel("c#ephemeral", red).refresh()
        await owner.topic("t#ephemeral", MOST_5).channel("d", THREE).refresh()
        for store in (other, another):
            await store.topic("jobs").channel("c#ephemeral").refresh()
            await store.topic("t#ephemeral").channel("d").refresh()
        await owner.aclose()
        await other.topic("jobs").put_many([aiodq.Draft(b"x", tag="blue"), aiodq.Draft(b"y", tag="red")])
        for number in range(9):
            await other.topic("t#ephemeral").put(b"%d" % number)
        for store in (other, another):
            channel = store.topic("t#ephemeral").channel("d")
            await channel.refresh()
            assert (channel.depth, channel.options.max_attempts) == (5, 3)
        assert (await other.topic("jobs").channel("c#ephemeral").get()).body == b"y"


async def test_options_of_what_was_in_memory_are_named_anew_to_the_next_owner(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
        owner, other, another = await three(stack, tmp_path / "s")
        await owner.topic("t#ephemeral", MOST_5).channel("c", THREE).refresh()
        await other.topic("t#ephemeral").channel("c").refresh()
        await owner.aclose()
        await other.topic("t#ephemeral").channel("c").refresh()
        await another.topic("t#ephemeral", MOST_9).channel("c", FIVE).refresh()
        await until(lambda: other.topic("t#ephemeral").channel("c").options.max_attempts == 5)
        last = await stack.enter_async_context(aiodq.open(tmp_path / "s", mode="client"))
        with pytest.raises(aiodq.InvalidOptionError, match="max_attempts=5"):
            await last.topic("t#ephemeral").channel("c", THREE).refresh()


async def test_options_that_were_refused_do_not_win_with_the_next_owner(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
        owner, other, wrong = await three(stack, tmp_path / "s")
        for store in (owner, other):
            await store.topic("jobs", MOST_5).channel("c", THREE).refresh()
        refused = wrong.topic("jobs")
        with pytest.raises(aiodq.InvalidOptionError, match="max_attempts"):
            await refused.channel("c", FIVE).refresh()
        assert opened(wrong).keys() == {("jobs", "")}
        with pytest.raises(aiodq.InvalidOptionError, match="max_attempts=5 since the store was opened"):
            refused.channel("c", aiodq.ChannelOptions(max_attempts=7))
        channel = refused.channel("c")
        await channel.refresh()
        assert channel.options.max_attempts == 3
        await owner.aclose()
        for store in (other, wrong):
            await store.topic("jobs").channel("c").refresh()
            assert store.topic("jobs").channel("c").options.max_attempts == 3


async def test_a_topic_whose_options_were_refused_is_opened_by_the_next_who_names_none(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
        owner, wrong, _ = await three(stack, tmp_path / "s")
        await owner.topic("jobs", MOST_5).put(b"x")
        with pytest.raises(aiodq.InvalidOptionError, match="max_messages"):
            await wrong.topic("jobs", replace(MOST_5, max_messages=6)).settle_in()
        assert not opened(wrong)
        assert await wrong.topic("jobs").put(b"y") == 1
        assert wrong.topic("jobs").options.max_messages == 5
