"""`#store`: a store says which it is from its first topic on, the same for good, and nothing fails for want of it."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

import aiodq
from aiodq.errors import CorruptionError, FormatVersionError, NotAStoreError, StoreFailedError
from aiodq.storage.offline.repair import repair_store
from aiodq.storage.offline.verify import verify_store
from aiodq.storage.state.json_file import encode_checked
from aiodq.storage.state.store_identity import (
    STORE_FILE,
    StoreIdentity,
    decode_identity,
    encode_identity,
    read_identity,
)
from aiodq.storage.store_layout import check_store_directory
from aiodq.testing import Fault, SimulatedFileSystem
from tests.watching.support import at_hand

if TYPE_CHECKING:
    from aiodq.testing import Call, Image

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "v1" / "store"
UUID_OF_GOLDEN = UUID("0f9e1c52-7a3b-4d68-9c04-5be2a1d7f380")
PATH = f"/s/{STORE_FILE}"
ASIDE = f"{PATH}.damaged-000000000000"


async def put(fs: SimulatedFileSystem, *topics: str) -> None:
    """Put a message into each of these topics."""
    async with aiodq.open("/s", fs=fs) as store:
        for topic in topics:
            await store.topic(topic).put(b"x")


async def filled(*topics: str) -> SimulatedFileSystem:
    """Return a disk with a store in which these topics have a message each."""
    fs = SimulatedFileSystem()
    await put(fs, *topics)
    return fs


def in_store(fs: SimulatedFileSystem) -> list[str]:
    return sorted(os.path.basename(path) for path in fs.image() if path.startswith("/s/"))


def said(fs: SimulatedFileSystem) -> UUID | None:
    return read_identity(fs, "/s")


def without(fs: SimulatedFileSystem) -> SimulatedFileSystem:
    """Return the disk as an aiodq leaves it that knows of no such file."""
    return SimulatedFileSystem({path: data for path, data in fs.image().items() if path != PATH})


def with_content(fs: SimulatedFileSystem, data: bytes) -> SimulatedFileSystem:
    return SimulatedFileSystem({**fs.image(), PATH: data})


# --- what it looks like, and when it is there


def test_the_golden_file_is_read_and_written_as_it_always_was() -> None:
    data = GOLDEN.read_bytes()
    assert decode_identity(data, "store") == UUID_OF_GOLDEN
    assert encode_identity(UUID_OF_GOLDEN) == data


async def test_it_is_made_with_the_first_topic_and_never_again() -> None:
    fs = SimulatedFileSystem()
    async with aiodq.open("/s", fs=fs) as store:
        store.topic("named")
        assert said(fs) is None
        await store.topic("a").put(b"x")
        first = said(fs)
        assert first is not None
        await store.topic("b").put(b"x")
        assert said(fs) == first
    await put(fs, "a", "c")
    assert said(SimulatedFileSystem(fs.durable())) == first
    assert said(await filled("a")) != first


async def test_topics_that_are_made_at_once_make_it_once() -> None:
    fs = SimulatedFileSystem()
    names = Counter[str]()
    fs.before = lambda call, path: names.update([path] if call == "rename" else ())
    async with aiodq.open("/s", fs=fs) as store:
        await asyncio.gather(*(store.topic(f"t{number}").put(b"x") for number in range(8)))
    assert sum(count for path, count in names.items() if STORE_FILE in path) == 1


async def test_what_is_in_memory_alone_is_no_topic_on_disk() -> None:
    fs = await filled("a#ephemeral")
    assert in_store(fs) == ["LOCK"]


async def test_a_store_of_before_gets_one_when_it_is_opened() -> None:
    fs = without(await filled("a"))
    assert verify_store("/s", fs).ok
    await put(fs)
    first = said(fs)
    assert first is not None
    await put(fs, "a", "b")
    assert said(fs) == first


async def test_an_older_aiodq_finds_nothing_but_topics_and_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a directory for no store in which something else lies, unless there is a topic."""
    fs = SimulatedFileSystem(record=True)
    async with aiodq.open("/s", fs=fs) as store:
        for name in ("a", "b"):
            await store.topic(name).put(b"x")
        await store.delete_topic("a")
        assert said(fs) is not None
        fs.mark("the last one goes")
        await store.delete_topic("b")
    assert in_store(fs) == ["LOCK"]
    trace = list(fs.trace or ())
    before = next(number for number, operation in enumerate(trace) if getattr(operation, "label", None))
    monkeypatch.setattr("aiodq.storage.store_layout._HARMLESS", frozenset({"LOCK"}))
    tried = 0
    for number, image in fs.power_cuts(1, limit=4):
        if number < before and "/s" in image:
            tried += PATH in image
            check_store_directory(SimulatedFileSystem(image), "/s")
    assert tried
    with pytest.raises(NotAStoreError):
        check_store_directory(SimulatedFileSystem({"/s": None, "/s/LOCK": b"", PATH: GOLDEN.read_bytes()}), "/s")


async def test_what_a_power_cut_leaves_of_it_without_a_topic_is_dropped() -> None:
    for data in (GOLDEN.read_bytes(), b"junk"):
        fs = SimulatedFileSystem({"/s": None, "/s/LOCK": b"", PATH: data})
        await put(fs)
        assert PATH not in fs.image()
        assert (ASIDE in fs.image()) == (data == b"junk")
        await put(fs, "a")
        assert said(fs) not in {None, UUID_OF_GOLDEN}


async def test_a_topic_that_comes_after_the_last_one_went_is_in_another_store() -> None:
    fs = await filled("a")
    first = said(fs)
    async with aiodq.open("/s", fs=fs) as store:
        await store.delete_topic("a")
        await store.topic("a").put(b"x")
    assert said(fs) not in {None, first}


# --- what it costs


async def test_only_the_first_topic_costs_anything() -> None:
    fs = SimulatedFileSystem()
    calls = Counter[str]()
    fs.before = lambda call, path: calls.update([call] if STORE_FILE in path and call != "exists" else ())
    async with aiodq.open("/s", fs=fs) as store:
        assert not calls
        await store.topic("a").put(b"x")
        assert calls == {"create": 1, "write": 1, "sync": 2, "close": 1, "rename": 1}  # a sync is seen at both its ends
        for name in ("a", "b", "c"):
            queue = store.queue(name)
            await queue.put(b"x")
            await (await queue.get()).ack()
        assert calls.total() == 6
    calls.clear()
    async with aiodq.open("/s", fs=fs):
        assert calls == {"open": 1, "size": 1, "read": 1, "close": 1}


# --- power cuts


async def test_whenever_the_power_is_cut_the_next_owner_has_one_and_it_is_the_one_that_was_promised(seed: int) -> None:
    fs = SimulatedFileSystem(record=True)
    await put(fs, "a", "b")
    fs.mark(said(fs))
    await put(fs, "c")
    trace, promised = list(fs.trace or ()), said(fs)
    mark = next(number for number, operation in enumerate(trace) if getattr(operation, "label", None) == promised)
    states = [(number, image) for number, image in fs.power_cuts(seed, limit=6) if "/s" in image]
    late = early = 0
    for number, image in random.Random(seed).sample(states, min(80, len(states))):
        after = SimulatedFileSystem(image)
        found = said(after)
        assert found in {None, promised}
        await put(after)
        topics = [path for path in after.image() if path.endswith("/topic.json")]
        assert (said(after) is not None) == bool(topics)
        if found is not None and topics:
            assert said(after) == found
        if number >= mark:
            late += 1
            assert said(after) == promised
        early += found is None and bool(topics)
    assert late
    assert early


async def test_a_power_cut_while_a_damaged_one_is_replaced_leaves_one(seed: int) -> None:
    start = with_content(await filled("a"), b"junk").image()
    fs = SimulatedFileSystem(start, record=True)
    await put(fs)
    for _, image in fs.power_cuts(seed, limit=6):
        after = SimulatedFileSystem(image)
        await put(after)
        assert said(after) is not None
        assert b"junk" in {data for path, data in after.image().items() if path.startswith(PATH)}


# --- damage


def test_every_cut_and_every_wrong_bit_is_damage_and_it_is_made_anew() -> None:
    data = GOLDEN.read_bytes()
    changed = [data[:size] for size in range(len(data) - 1)]
    changed += [data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :] for at in range(len(data))]
    for content in changed:
        fs = SimulatedFileSystem({"/s": None, PATH: content})
        with pytest.raises(CorruptionError):
            said(fs)
        identity = StoreIdentity(fs, "/s")
        assert [damage.path for damage in identity.damages] == [PATH]
        assert (in_store(fs), fs.image()[PATH]) == ([STORE_FILE], content)
        identity.make()
        assert said(fs) not in {None, UUID_OF_GOLDEN}
        assert fs.image()[ASIDE] == content
        assert not StoreIdentity(fs, "/s").damages


async def test_damage_is_quarantined_and_told_and_costs_no_message(caplog: pytest.LogCaptureFixture) -> None:
    fs = with_content(await filled("a"), GOLDEN.read_bytes()[:-9])
    async with aiodq.open("/s", fs=fs) as store:
        assert [message.body async for message in store.topic("a").scan()] == [b"x"]
        (event,) = [event for event in at_hand(store.events()) if event.kind == "damage"]
        assert (event.topic, event.text.startswith(PATH)) == (None, True)
    assert f"the store is damaged: {PATH} at byte 0" in caplog.text
    assert fs.image()[ASIDE] == GOLDEN.read_bytes()[:-9]
    assert said(fs) is not None
    assert verify_store("/s", fs).ok
    caplog.clear()
    await put(fs)
    assert "damaged" not in caplog.text


async def test_verify_says_what_is_wrong_and_repair_makes_way_for_another() -> None:
    whole = await filled("a")
    (file,) = [file for file in verify_store("/s", whole).files if file.path == PATH]
    assert (file.kind, file.bytes, file.findings) == ("store", len(GOLDEN.read_bytes()), ())
    fs = with_content(whole, b"junk")
    assert [damage.path for damage in verify_store("/s", fs).damages] == [PATH]
    (action,) = repair_store("/s", fs)
    assert (action.path, action.kept) == (PATH, ASIDE)
    assert fs.image()[ASIDE] == b"junk"
    assert verify_store("/s", fs).ok
    assert repair_store("/s", fs) == []
    await put(fs)
    assert said(fs) is not None


# --- newer versions


@pytest.mark.parametrize("topics", [(), ("a",)], ids=["no topic", "a topic"])
async def test_a_newer_version_is_refused_with_nothing_touched(topics: tuple[str, ...]) -> None:
    fs = with_content(await filled(*topics), encode_checked("store", 2, {"uuid": "of another form"}))
    fs.make_directory("/s/gone#deleted")
    before: Image = fs.image()
    with pytest.raises(FormatVersionError):
        await aiodq.open("/s", fs=fs)
    for look in (verify_store, repair_store):
        with pytest.raises(FormatVersionError):
            look("/s", fs)
    assert fs.image() == before


# --- a system that refuses


@pytest.mark.parametrize("error", ["ENOSPC", "EACCES", "EROFS", "EIO"])
@pytest.mark.parametrize("call", ["create", "write", "rename"])
async def test_where_it_cannot_be_written_everything_else_goes_on(call: Call, error: str) -> None:
    fs = SimulatedFileSystem()
    fs.plan.add(Fault(call, 1, error, lasting=True, match=STORE_FILE))
    await put(fs, "a", "b")
    assert said(fs) is None
    await put(fs, "a")
    assert said(fs) is None
    fs.plan.clear()
    await put(fs)
    assert said(fs) is not None
    assert sorted(path for path in fs.image() if STORE_FILE in path) == [PATH]
    async with aiodq.open("/s", fs=fs) as store:
        assert [message.body async for message in store.topic("a").scan()] == [b"x", b"x"]


@pytest.mark.parametrize("data", [GOLDEN.read_bytes(), b"junk"], ids=["whole", "damaged"])
@pytest.mark.parametrize("call", ["open", "read", "rename", "remove"])
async def test_where_it_cannot_be_read_or_moved_it_is_left(call: Call, data: bytes) -> None:
    fs = with_content(await filled("a"), data)
    fs.plan.add(Fault(call, 1, "EACCES", lasting=True, match=STORE_FILE))
    await put(fs, "a", "b")
    assert fs.image()[PATH if call != "remove" or data != b"junk" else ASIDE] == data
    async with aiodq.open("/s", fs=fs) as store:
        for name in ("a", "b"):
            await store.delete_topic(name)
    fs.plan.clear()
    await put(fs, "c")
    assert said(fs) is not None


@pytest.mark.parametrize("call", ["sync", "sync_directory"])
async def test_a_sync_that_fails_stops_the_store_as_any_does(call: Call) -> None:
    fs = SimulatedFileSystem()

    def fail_from_then_on(reached: Call, path: str) -> None:
        if STORE_FILE in path and reached == ("write" if call == "sync" else "rename"):
            fs.plan.add(Fault(call, 1, lasting=True))

    fs.before = fail_from_then_on
    with pytest.raises(StoreFailedError):
        await put(fs, "a")
    fs = SimulatedFileSystem(fs.durable())
    await put(fs, "a")
    assert said(fs) is not None
