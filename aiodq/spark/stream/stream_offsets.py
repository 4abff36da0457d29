"""The offsets of a stream of topics, as Spark keeps them in a checkpoint.

`{"v": 1, "topics": {"orders": 123}, "ids": {"orders": "7f1c…"}}`:

Each offset is the one after the last message read. The uuid tells of which topic: one that was deleted and created
again has other messages under the same numbers. An offset without a uuid counts for the topic that exists.
`"marks"` identifies the message before each offset: see `aiodq.spark.stream.stream_marks`. `"gaps"` are offsets of
messages that were deleted before the query began: see `aiodq.spark.stream.stream_gaps`.
The offsets of a stream over several stores name the store too, `{"v": 2, "topics": {"/shops/a/orders": 123}}`.
The offsets at which a query begins have `"initial": true`. Spark asks for them again until the first batch is finished,
and does not record the answer.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from aiodq.errors import InvalidOptionError, OffsetError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiodq.spark.stream.stream_marks import StreamMark
    from aiodq.storage.read.snapshot import LogSnapshot

__all__ = [
    "WAYS_ON", "are_offsets", "are_whole", "check_offsets", "created_again", "differ", "ids_of", "make_offsets",
    "take_moved", "uuids_of",
]  # fmt: skip

_LOG: Final = logging.getLogger("aiodq.spark")

_ONE, _SEVERAL = 1, 2
"""The versions of offsets that name topics of one store, and of several."""
WAYS_ON: Final = (
    "A new checkpoint starts again; with failOnDataLoss=false the query goes on, with a topic that was created again "
    "at its beginning, with one that has become shorter where what is left of what was read ends"
)


def are_offsets(said: object) -> bool:
    """Return whether this is what a stream of aiodq says of where it is, and not another source's."""
    return isinstance(said, dict) and type(said.get("v")) is int and said["v"] in {1, 2} and "topics" in said


def are_whole(offsets: Mapping[str, Any]) -> bool:
    """Return whether each topic in offsets has a number, and each uuid is a text: a user may have changed them."""
    topics, ids = offsets["topics"], offsets.get("ids", {})
    if not isinstance(topics, dict) or not isinstance(ids, dict):
        return False
    numbers = all(type(offset) is int and offset >= 0 for offset in topics.values())
    return numbers and all(isinstance(uuid, str) for uuid in ids.values())


def check_offsets(start: Mapping[str, Any], stores: int) -> None:
    """Make sure that offsets have the keys of a query over so many stores: otherwise all topics would count as new.

    Raises:
        InvalidOptionError: they do not, or are not what a stream of aiodq writes.
    """
    if not are_offsets(start):
        raise InvalidOptionError(
            f"the checkpoint is another source's: it says {start!r:.80} of where to go on; name a new checkpoint"
        )
    if not are_whole(start):
        raise InvalidOptionError(
            f"the checkpoint has offsets that aiodq does not write, {start!r:.80}: each topic has a number, 0 or "
            f"more; correct them, or name a new checkpoint"
        )
    if start["v"] != _version(stores):
        begun = "one store" if start["v"] == _ONE else "several stores"
        raise InvalidOptionError(
            f"the query was begun over {begun} and is to go on over {stores}: that takes a new "
            f"checkpoint, with startingOffsets where it is to begin"
        )


def make_offsets(topics: Mapping[str, int], ids: Mapping[str, str], stores: int) -> dict[str, Any]:
    """Return the offsets of a query over so many stores, with the uuids of its topics as far as they are known."""
    names = sorted(topics)
    found = {"v": _version(stores), "topics": {name: topics[name] for name in names}}
    return {**found, "ids": {name: ids[name] for name in names if name in ids}}


def _version(stores: int) -> int:
    return _ONE if stores == 1 else _SEVERAL


def ids_of(offsets: Mapping[str, Any]) -> dict[str, str]:
    """Return the uuids of the topics in offsets, as far as they have them."""
    return dict(offsets.get("ids", {}))


def uuids_of(logs: Mapping[str, LogSnapshot]) -> dict[str, str]:
    """Return the uuids of the existing topics; those with a missing or damaged description are left out."""
    return {topic: str(log.meta.uuid) for topic, log in logs.items() if log.described}


def differ(one: str | None, other: str | None) -> bool:
    """Return whether two uuids are of different topics, as far as both are known."""
    return None not in {one, other} and one != other


def take_moved(
    start: Mapping[str, Any], known: dict[str, int], marks: dict[str, StreamMark], logs: Mapping[str, LogSnapshot]
) -> dict[str, int]:
    """Return the offsets of topics whose store had another path before, and remove those of the earlier path."""
    before = {uuid: topic for topic, uuid in ids_of(start).items() if topic in known and topic not in logs}
    found: dict[str, int] = {}
    for topic, uuid in uuids_of(logs).items():
        if topic not in known and uuid in before:
            found[topic] = known.pop(before[uuid])
            if before[uuid] in marks:
                marks[topic] = marks.pop(before[uuid])
            _LOG.info("topic %r is what was %r, read up to %d", topic, before[uuid], found[topic])
    return found


def created_again(topic: str, taken: int) -> OffsetError:
    """Return the error that a topic is another one than that which was read up to here."""
    return OffsetError(
        f"topic {topic!r} was deleted and created again after it was read up to {taken}, or the checkpoint is that of "
        f"another store: what was not read of the earlier topic is gone. {WAYS_ON}"
    )
