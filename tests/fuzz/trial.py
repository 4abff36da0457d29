"""A damaged store from the first look to the last: what must hold, whatever was done to it."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import aiodq
from aiodq.format.layout import SEGMENT_HEADER
from aiodq.storage.offline.repair import repair_store
from aiodq.storage.offline.verify import verify_store
from aiodq.storage.state.json_file import decode_checked
from aiodq.testing import FakeClock, SimulatedFileSystem
from tests.fuzz.stores import STORE, image_of
from tests.fuzz.world import SETTLED, a_world, knows_itself, survivors, topic_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aiodq.storage.offline.store_report import StoreReport
    from tests.fuzz.world import Files, World


_KEEPING: Final = aiodq.StoreOptions(retention=aiodq.Retention(consumed="keep"))


def files_of(fs: SimulatedFileSystem) -> Files:
    """Return a store's files, without the lock."""
    found = {path.removeprefix(f"{STORE}/"): data for path, data in fs.image().items() if data is not None}
    found.pop("LOCK", None)
    return found


def told(report: StoreReport, topic: str) -> set[int]:
    """Return the offsets that a report says are gone."""
    directory = f"{STORE}/{topic}/"
    return {
        offset
        for finding in report.findings
        if finding.path.startswith(directory)
        for offset in range(finding.first, min(finding.stop, 1000))
    }


class Consumed:
    """What came out of a store that was opened, by topic: as a scan gives it, and as each channel does."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.scanned: dict[str, dict[int, bytes]] = {}
        self.delivered: dict[tuple[str, str], dict[int, bytes]] = {}
        self.damages: dict[str, int] = {}
        self.lost: dict[tuple[str, str], int] = {}
        self.recovered: dict[str, int] = {}


async def _consume(store: aiodq.Store, world: World, found: Consumed) -> None:
    for topic in [name for name in store.topics() if name in world.bodies]:
        opened = store.topic(topic)
        stats = opened.stats()
        found.damages[topic], found.recovered[topic] = stats.damages, stats.recovered_bytes
        found.scanned[topic] = {message.offset: message.body async for message in opened.scan()}
        for name in opened.channels():
            channel = opened.channel(name)
            delivered = found.delivered[topic, name] = {}
            consumer = asyncio.create_task(_take(channel, delivered))
            await channel.join()
            found.lost[topic, name] = channel.stats().lost
            consumer.cancel()
            await asyncio.gather(consumer, return_exceptions=True)


async def _take(channel: aiodq.Channel, delivered: dict[int, bytes]) -> None:
    async for message in channel:
        assert message.offset not in delivered
        delivered[message.offset] = message.body
        message.ack_nowait()


async def _open_and_consume(fs: SimulatedFileSystem, world: World) -> Consumed:
    found = Consumed()
    async with aiodq.open(STORE, _KEEPING, fs=fs, clock=FakeClock()) as store:
        await _consume(store, world, found)
    return found


def consume(fs: SimulatedFileSystem, world: World) -> Consumed:
    """Open a store, read and consume all of it, close it."""
    return asyncio.run(_open_and_consume(fs, world))


def unkept(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> list[str]:
    """Return where bytes are neither what they were nor in a copy that says from where it was taken."""
    lost = []
    for path, data in before.items():
        now = after.get(path, b"")
        if now == data or path.endswith(".aiodq-tmp") or says_the_same(path, data, now):
            continue
        copies = [
            (int(name.partition(".damaged-")[2].partition(".")[0]), copy)
            for name, copy in after.items()
            if name.startswith(f"{path}.damaged-")
        ]
        changed = [at for at in range(len(data)) if (now[at] if at < len(now) else 0) != data[at]]
        for at in changed:
            if not any(start <= at < start + len(copy) and copy[at - start] == data[at] for start, copy in copies):
                lost.append(f"{path} at {at}")
                break
    return lost


def says_the_same(path: str, data: bytes, now: bytes) -> bool:
    """Return whether a description was only written again, with the options that hold and what was found missing."""
    if not path.endswith("topic.json"):
        return False
    with suppress(aiodq.CorruptionError, aiodq.FormatVersionError):
        before, after = (decode_checked(each, "topic", 1, path, "the topic's description") for each in (data, now))
        return all(before.get(name) == after.get(name) for name in ("uuid", "begin", "channels", "paused"))
    return False


def frames_in(files: Mapping[str, bytes]) -> Files:
    """Return what an owner may not lose: descriptions as they are, segments without the headers, all quarantined.

    A segment in which nothing is left is deleted, header and all; channels' files and watermarks are there to change.
    """
    blank = bytes(SEGMENT_HEADER.size)
    kept = {path: data for path, data in files.items() if path.endswith("topic.json") or ".damaged-" in path}
    for path, data in files.items():
        if path.endswith(".seg"):
            kept[path] = blank + data[len(blank) :]
    return kept


def check_repair(files: Files) -> SimulatedFileSystem:
    """Repair a store; what it removes it has quarantined, it says what it did, and it ends."""
    fs = SimulatedFileSystem(image_of(files))
    actions = repair_store(STORE, fs)
    after = files_of(fs)
    assert unkept(files, after) == []
    assert all(action.what and (not action.kept or fs.exists(action.kept)) for action in actions)
    changed = {os.path.dirname(path) for path in files.keys() | after.keys() if files.get(path) != after.get(path)}
    assert changed <= {os.path.dirname(os.path.relpath(action.path, STORE)) for action in actions}
    report = verify_store(STORE, fs)
    assert report.ok, report.damages
    assert repair_store(STORE, fs) == []
    assert files_of(fs) == after
    return fs


def check_contents(world: World, files: Files, report: StoreReport, found: Consumed, topics: Iterable[str]) -> None:
    """Nothing wrong came out, nothing whole was left out, and what is missing was told."""
    for topic in topics:
        bodies, scanned = world.bodies[topic], found.scanned.get(topic, {})
        known = knows_itself(files, world, topic)
        # Where nothing but another topic's segments tell whose the topic is, what is in those is what it holds.
        strangers = () if known else (*world.bodies.values(), *a_world("other", 2).bodies.values())
        possible = bodies.items() | {held for those in strangers for held in those.items()}
        assert scanned.items() <= possible, topic
        safe = survivors(world, files, topic)
        assert safe <= scanned.keys(), (topic, sorted(safe - scanned.keys()))
        missing = bodies.keys() - scanned.keys()
        if not missing or topic not in found.scanned:
            continue
        if files.get(f"{topic}/watermark") == world.files[f"{topic}/watermark"]:
            check_told(world, files, report, topic, missing)
            assert found.damages[topic] or missing <= SETTLED or any(found.lost.values())
        for name in world.channels[topic]:
            delivered = found.delivered.get((topic, name), {})
            assert delivered.items() <= possible
            assert safe - SETTLED <= delivered.keys() or (topic, name) not in found.delivered


def check_told(world: World, files: Files, report: StoreReport, topic: str, missing: set[int]) -> None:
    """What is missing was told, offset by offset; without a description that begins with 0, at least that it is bad."""
    described = files.get(f"{topic}/topic.json") == world.files[f"{topic}/topic.json"]
    if described and knows_itself(files, world, topic):
        assert missing - told(report, topic) <= SETTLED, (topic, sorted(missing), report.findings)
    else:
        assert any(finding.path.startswith(f"{STORE}/{topic}/") for finding in report.damages), (topic, report.findings)


def check_trial(world: World, files: Files) -> int:
    """Look, open, consume, close, look, repair, open; return how many topics could be opened."""
    fs = SimulatedFileSystem(image_of(files))
    before = files_of(fs)
    report = verify_store(STORE, fs)
    assert files_of(fs) == before
    topics = sorted({topic_of(path) for path in files} & world.bodies.keys())
    found = consume(fs, world)
    check_contents(world, files, report, found, topics)
    if not any(found.recovered.values()):
        assert unkept(frames_in(files), frames_in(files_of(fs))) == []
    verify_store(STORE, fs)
    check_again(world, check_repair(files_of(fs)), found)
    check_again(world, check_repair(files), found)
    return len(found.scanned)


def check_again(world: World, fs: SimulatedFileSystem, found: Consumed) -> None:
    """After a repair a store opens without a word, and holds what it held without one."""
    again = consume(fs, world)
    assert again.scanned == found.scanned
    assert not any(again.damages.values())
