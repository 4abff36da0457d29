"""What these tests share: a writer beside the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.format.columns import Columns
from aiodq.storage.bulk.commits import STAGING, Commit, CommitKey, commit_staged, read_commits
from aiodq.storage.bulk.staging import StagingWriter
from tests.queue.support import until

if TYPE_CHECKING:
    from collections.abc import Iterable

    import aiodq
    from tests.channels.support import Machine

STORE = "/s"
STREAM = "stream"


def staged(machine: Machine, name: str, bodies: dict[str, Iterable[bytes]], *, segment_bytes: int = 1000) -> Commit:
    """Stage messages by topic; return a commit of them under that name, which nobody repeats."""
    writer = StagingWriter(machine.fs, machine.clock, STORE, name, segment_bytes=segment_bytes)
    for topic, some in bodies.items():
        for body in some:
            writer.put(topic, Columns([body]))
    topics = {topic: tuple(files) for topic, files in writer.finish().items()}
    return Commit(CommitKey(name, once=True), topics, machine.clock.now_ns())


def load(machine: Machine, key: CommitKey, bodies: dict[str, Iterable[bytes]]) -> bool:
    """Stage and commit, a little later than the last; return whether it counts."""
    machine.clock.advance(0.001)
    commit = staged(machine, key.name, bodies)
    return commit_staged(machine.fs, STORE, Commit(key, commit.topics, commit.time_ns))


def numbered(count: int, prefix: bytes = b"m") -> list[bytes]:
    """Return so many bodies, large enough for several segments."""
    return [b"%b%d " % (prefix, number) + bytes(100) for number in range(count)]


def left(machine: Machine) -> list[str]:
    """Return the names of staged files."""
    if not machine.fs.is_directory(f"{STORE}/{STAGING}"):
        return []
    writers = machine.fs.listdir(f"{STORE}/{STAGING}")
    return [name for writer in writers for name in machine.fs.listdir(f"{STORE}/{STAGING}/{writer}")]


async def adopted(machine: Machine) -> None:
    """Wait until an owner is done with all that was committed."""
    await until(lambda: not read_commits(machine.fs, STORE).pending)


async def shown(topic: aiodq.Topic | aiodq.Queue) -> list[bytes]:
    """Return the bodies of all that is kept."""
    return [message.body async for message in topic.scan()]
