"""Stores that nobody closed: killed owners, and copies that were made while the owner was writing. Nothing is wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING

import pytest

from aiodq.storage.offline.repair import repair_store
from aiodq.storage.offline.store_reader import StoreReader
from aiodq.storage.offline.verify import verify_store
from aiodq.testing import WatchedFileSystem
from tests.fuzz.trial import unkept
from tests.processes import killed_at_last
from tests.storage.logs import tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import TypeAlias

    from aiodq.storage.offline.store_report import Finding

    Recorder: TypeAlias = Callable[[str, object], None]
    Messages: TypeAlias = dict[tuple[str, int], bytes]

_IN_A_ROUND = 10
"""Copies of one store."""

OWNER = """
import asyncio, sys
import aiodq

async def work(topic, mark):
    channel = topic.channel("c", aiodq.ChannelOptions(start="earliest"))
    for number in range(10**9):
        body = b"%s-%d-" % (mark, number) * (1 + number % 30)
        if number % 7:
            await topic.put(body)
        else:
            await topic.put_many([body] * 20)
        if number == 40:
            print("at work", flush=True)
        if number % 3:
            message = await channel.get()
            if number % 2:
                await message.ack()
            else:
                message.ack_nowait()

async def main():
    options = aiodq.StoreOptions(segment_bytes=20_000, retention=aiodq.Retention(consumed=sys.argv[2]))
    async with aiodq.open(sys.argv[1], options) as store:
        print("open", flush=True)
        await asyncio.gather(work(store.topic("a"), b"a"), work(store.topic("b"), b"b"))

asyncio.run(main())
"""


@contextmanager
def an_owner(store: Path, consumed: str, *, at_work: bool) -> Iterator[None]:
    """Have a process put and ack as fast as it can, in two topics; kill it in the end."""
    command = [sys.executable, "-c", OWNER, str(store), consumed]
    with killed_at_last(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        lines = [owner.stdout.readline() for _ in range(3 if at_work else 1)]
        assert lines == ["open\n", "at work\n", "at work\n"][: len(lines)]
        yield
        assert owner.poll() is None


def damages(store: Path) -> tuple[Finding, ...]:
    return verify_store(str(store), WatchedFileSystem()).damages


def messages(store: Path) -> Messages:
    """Return every message there is, by topic and offset; each must be one that the owner put."""
    reader = StoreReader(str(store), WatchedFileSystem())
    found: Messages = {}
    for topic in reader.topics():
        for message in reader.topic(topic).scan():
            assert message.body.startswith(topic.encode() + b"-")
            found[topic, message.offset] = message.body
    return found


def check_repair(store: Path) -> Messages:
    """A repair keeps every message and every byte, leaves nothing wrong, and has nothing to do a second time."""
    held, before = messages(store), tree(store)
    repair_store(str(store), WatchedFileSystem())
    before.pop("LOCK", None)
    assert unkept(before, tree(store)) == []
    assert damages(store) == ()
    assert messages(store) == held
    assert repair_store(str(store), WatchedFileSystem()) == []
    return held


def kill_often(tmp_path: Path, seed: int, times: int, record: Recorder) -> None:
    rng = Random(seed)
    store = tmp_path / "store"
    for _ in range(times):
        with an_owner(store, "delete", at_work=False):
            time.sleep(rng.uniform(0.0, 0.4))
        assert damages(store) == ()
        check_repair(store)
    record("trials", times)


def test_a_killed_owner_leaves_no_damage(tmp_path: Path, seed: int, record_property: Recorder) -> None:
    kill_often(tmp_path, seed, 3, record_property)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_owner_killed_over_and_over_leaves_no_damage(tmp_path: Path, seed: int, record_property: Recorder) -> None:
    kill_often(tmp_path, seed, 100, record_property)


def copy_in_order(source: Path, target: Path) -> None:
    """Copy what promises first, and what it promises afterwards."""
    for topic in sorted(path for path in source.iterdir() if path.is_dir()):
        (target / topic.name).mkdir(parents=True)
        for name in ("watermark", "topic.json"):
            shutil.copy(topic / name, target / topic.name / name)
        shutil.copytree(topic / "channels", target / topic.name / "channels")
        for path in sorted(topic.glob("*.seg")):
            copy_at_once(path, target / topic.name / path.name)


def copy_at_once(path: Path, target: Path) -> None:
    """Copy as much as there is now, in one read.

    Of a segment that is copied in several, messages may be missing that were written meanwhile, and later ones there.
    """
    size = path.stat().st_size
    with path.open("rb", buffering=0) as file:
        target.write_bytes(file.read(size))


def copy_often(
    tmp_path: Path, times: int, copy: Callable[[Path, Path], object]
) -> list[tuple[Path, tuple[Finding, ...]]]:
    """Copy a store beside its owner; return the copies with what is wrong with them."""
    store, copies = tmp_path / "store", []
    with an_owner(store, "keep", at_work=True):
        for number in range(times):
            target = tmp_path / f"copy-{number}"
            copy(store, target)
            copies.append((target, damages(target)))
            assert damages(store) == ()
    return copies


def check_in_order(tmp_path: Path, times: int, record: Recorder) -> None:
    for directory in rounds(tmp_path, times):
        grown = 0
        for target, found in copy_often(directory, _IN_A_ROUND, copy_in_order):
            assert found == ()
            held = check_repair(target)
            assert len(held) >= grown
            grown = len(held)
        assert grown
    record("trials", times)


def rounds(tmp_path: Path, times: int) -> Iterator[Path]:
    """Yield a directory for each few copies: a store that keeps everything grows for as long as it is copied."""
    for number in range(times // _IN_A_ROUND):
        directory = tmp_path / str(number)
        directory.mkdir()
        yield directory
        shutil.rmtree(directory)


def test_a_copy_beside_the_owner_has_no_damage_when_promises_are_copied_first(
    tmp_path: Path, record_property: Recorder
) -> None:
    check_in_order(tmp_path, 10, record_property)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_copies_beside_the_owner_have_no_damage(tmp_path: Path, record_property: Recorder) -> None:
    check_in_order(tmp_path, 150, record_property)


def beside_missing_ends(found: Sequence[Finding]) -> list[Finding]:
    """Return what else is wrong than that a watermark promises more than the segments, which were copied before it.

    Where the promised messages would be, such a segment ends, or the zeros begin that its owner had written ahead.
    """
    promised = [one for one in found if os.path.basename(one.path) == "watermark" and one.first < one.stop]
    topics = {os.path.dirname(one.path) for one in promised}

    def is_end(one: Finding) -> bool:
        if os.path.dirname(one.path) not in topics or not one.path.endswith(".seg"):
            return False
        with open(one.path, "rb") as file:
            return not any(file.read()[one.position :])

    return [one for one in found if one not in promised and not is_end(one)]


def check_any_order(tmp_path: Path, times: int, record: Recorder) -> None:
    for directory in rounds(tmp_path, times):
        for target, found in copy_often(directory, _IN_A_ROUND, copy_as_users_do):
            others = beside_missing_ends(found)
            assert not others, "\n".join(map(str, others))
            before = messages(target)
            assert check_repair(target) == before
            assert before
    record("trials", times)


def copy_as_users_do(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-r", source, target], check=True)  # noqa: S607 - the cp that users have first on their PATH


def test_repair_of_a_copy_in_any_order_loses_nothing_of_what_it_holds(
    tmp_path: Path, record_property: Recorder
) -> None:
    check_any_order(tmp_path, 10, record_property)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_repair_of_many_copies_loses_nothing_of_what_they_hold(tmp_path: Path, record_property: Recorder) -> None:
    check_any_order(tmp_path, 150, record_property)
