"""The step of another program, which reads the store while its owner goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.names import is_ephemeral
from aiodq.storage.offline.store_reader import StoreReader

if TYPE_CHECKING:
    from tests.model.model import Topic
    from tests.model.run import Run

__all__ = ["look_from_outside"]


async def look_from_outside(run: Run) -> None:
    """A reader sees what the owner sees, and a verification finds nothing wrong."""
    await run.settle_in()
    run.say("look from outside")
    reader = StoreReader(run.world.path, run.world.disk)
    for topic in run.topics.values():
        if topic.log and not is_ephemeral(topic.name):
            _compare(run, topic, reader)
    run.world.verify()


def _compare(run: Run, topic: Topic, reader: StoreReader) -> None:
    found = {message.offset: message for message in reader.topic(topic.name).scan(strict=not topic.lossy)}
    missing = topic.needed() - found.keys()
    assert topic.lossy or not missing, f"who reads {topic.name} misses {sorted(missing)}"
    for offset, message in found.items():
        run.check_content(topic.log[offset], message)
