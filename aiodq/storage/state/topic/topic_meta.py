"""A topic's description, `topic.json`: everything about a topic except its messages.

It also holds each channel's options, together with the offset at which the channel began: one rename makes both
durable. So no power cut leaves a channel that exists without its options and settles messages by other rules.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID, uuid4

from aiodq.errors import CorruptionError, InvalidNameError
from aiodq.format.layout import SEGMENT_HEADER
from aiodq.format.segment import SegmentHeader, topic_salt
from aiodq.names import check_name
from aiodq.storage.io.durable_io import read_file, replace_file
from aiodq.storage.io.os_errors import os_errors
from aiodq.storage.io.quarantine import Damage, quarantine
from aiodq.storage.segments.offset_ranges import joined
from aiodq.storage.segments.segment_files import list_segments
from aiodq.storage.state.json_file import decode_checked, encode_checked, taking_apart
from aiodq.storage.state.topic.stored_options import decode_channel, decode_topic, encode_channel, encode_topic, unknown
from aiodq.storage.state.watermark import WATERMARK, read_slot_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aiodq.options import ChannelOptions
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.segments.offset_ranges import Ranges
    from aiodq.storage.state.topic.stored_options import StoredOptions

__all__ = [
    "TOPIC_FILE",
    "FoundMeta",
    "KnownMeta",
    "TopicMeta",
    "decode_meta",
    "describe",
    "encode_meta",
    "find_meta",
    "load_meta",
    "read_meta",
    "save_meta",
]

TOPIC_FILE: Final = "topic.json"
_VERSION: Final = 1
_OFFSETS: Final = 1 << 63
"""Every offset is below this."""

_MOST_MENDED: Final = 100
"""Segments in whose damaged headers the topic's uuid is looked for: each takes about a millisecond."""


@dataclass(slots=True)
class TopicMeta:
    """A topic's description.

    Attributes:
        uuid: in every segment's header.
        begin: everything below this offset was given up on purpose, by a purge or by retention.
        channels: where each channel began, by name.
        paused: the paused channels; an empty name stands for the topic, that is, for all of them.
        options: the topic's; None in a store that was written before options were stored.
        channel_options: the options given for a channel, by its name.
        lost: the offsets that were found missing without having been given up, until `repair_store`.
        deleted: the offsets between segments whose messages retention deleted.
        changes: the numbers of the last changes of options, pauses and channels that had one, oldest first.
        configured: the one that has set the topic's options, or 0.
        made: what tells a channel from another one of its name, deleted or made since; an earlier aiodq writes none.
    """

    uuid: UUID
    begin: int = 0
    channels: dict[str, int] = field(default_factory=dict)
    paused: frozenset[str] = frozenset()
    options: StoredOptions | None = None
    channel_options: dict[str, ChannelOptions] = field(default_factory=dict)
    lost: Ranges = ()
    deleted: Ranges = ()
    changes: tuple[int, ...] = ()
    configured: int = 0
    made: dict[str, str] = field(default_factory=dict)


class FoundMeta(NamedTuple):
    """A topic's description, and where it comes from.

    Attributes:
        meta: the description.
        damages: what is wrong with it.
        there: whether its file exists.
        named: whether a file says which topic it is; otherwise each look makes up another uuid.
    """

    meta: TopicMeta
    damages: list[Damage]
    there: bool = True
    named: bool = True


def save_meta(fs: FileSystem, directory: str, meta: TopicMeta) -> None:
    """Write the description durably.

    Raises:
        StorageError: the old one stands.
    """
    replace_file(fs, os.path.join(directory, TOPIC_FILE), encode_meta(meta))


def encode_meta(meta: TopicMeta) -> bytes:
    """Encode a description."""
    topic: dict[str, object] = {"uuid": str(meta.uuid), "begin": meta.begin, "channels": meta.channels}
    if meta.paused:
        topic["paused"] = sorted(meta.paused)
    if meta.options is not None:
        topic["options"] = encode_topic(meta.options)
    if meta.channel_options:
        topic["channel_options"] = {name: encode_channel(options) for name, options in meta.channel_options.items()}
    if meta.lost:
        topic["lost"] = meta.lost
    if meta.deleted:
        topic["deleted"] = meta.deleted
    if meta.changes:
        topic["changes"] = meta.changes
    if meta.configured:
        topic["configured"] = meta.configured
    if meta.made:
        topic["made"] = meta.made
    return encode_checked("topic", _VERSION, topic)


class KnownMeta:
    """A cache of the last description read: while its file is unchanged, it need not be decoded again.

    Attributes:
        sound: the description that is known to be that of the topic's segments, by a header of theirs.
    """

    def __init__(self) -> None:
        """Make an empty cache."""
        self.sound: TopicMeta | None = None
        self._data: bytes | None = None
        self._meta: TopicMeta | None = None

    def decode(self, data: bytes, path: str) -> TopicMeta:
        """Decode the file, as `decode_meta`; unchanged bytes give the same object, which must not be modified."""
        if self._meta is None or data != self._data:
            self._data, self._meta = data, decode_meta(data, path)
        return self._meta


def read_meta(fs: FileSystem, directory: str, known: KnownMeta | None = None) -> TopicMeta | None:
    """Return the description, or None if there is none; `known` is a cache for repeated reads.

    Raises:
        CorruptionError: not what was written.
        FormatVersionError: a newer version.
        StorageError: as mapped from the system's error.
    """
    path = os.path.join(directory, TOPIC_FILE)
    data = read_file(fs, path)
    if data is None:
        return None
    return decode_meta(data, path) if known is None else known.decode(data, path)


def decode_meta(data: bytes, path: str) -> TopicMeta:
    """Decode a description.

    Raises:
        CorruptionError: not what was written.
        FormatVersionError: a newer version.
    """
    topic = decode_checked(data, "topic", _VERSION, path, "the topic's description")
    with taking_apart(path, "the topic's description"):
        channels = {check_name(name, "channel"): _offset(start) for name, start in topic["channels"].items()}
        paused = frozenset(str(name) for name in topic.get("paused", ()))
        options = decode_topic(topic["options"]) if "options" in topic else None
        named = {str(name): decode_channel(content) for name, content in topic.get("channel_options", {}).items()}
        lost, deleted = (joined(map(_range, topic.get(key, ()))) for key in ("lost", "deleted"))
        changes = tuple(int(number) for number in topic.get("changes", ()))
        uuid, begin, configured = UUID(topic["uuid"]), _offset(topic["begin"]), int(topic.get("configured", 0))
        made = {str(name): str(mark) for name, mark in topic.get("made", {}).items()}
        return TopicMeta(uuid, begin, channels, paused, options, named, lost, deleted, changes, configured, made)


def _offset(value: Any) -> int:  # noqa: ANN401 - whatever JSON has there
    number = int(value)
    if not 0 <= number < _OFFSETS:
        raise ValueError(f"{number} is no offset")
    return number


def _range(edges: Iterable[object]) -> tuple[int, int]:
    start, stop = map(_offset, edges)
    if stop < start:
        raise ValueError(f"{start} to {stop} is no range")
    return start, stop


def load_meta(fs: FileSystem, directory: str, options: StoredOptions | None = None) -> tuple[TopicMeta, list[Damage]]:
    """Return the description for the topic's owner; a missing or damaged one is reconstructed from the other files.

    Args:
        fs: the store's file system.
        directory: the topic's.
        options: the options of a topic that is being created.

    Raises:
        FormatVersionError: a newer version.
        StorageError: as mapped from the system's error.
    """
    meta, damages, there, _ = find_meta(fs, directory)
    for damage in damages:
        if damage.end:
            quarantine(fs, damage.path, 0, damage.end)
    if damages or not there:
        if not damages:
            meta.options = options  # a topic that is being created
        save_meta(fs, directory, meta)
    return meta, damages


def describe(fs: FileSystem, directory: str) -> tuple[TopicMeta, list[Damage]]:
    """Return the description, as it is or as reconstructed, and what is wrong with it. Nothing is written.

    Raises:
        FormatVersionError: a newer version.
        StorageError: as mapped from the system's error.
    """
    found = find_meta(fs, directory)
    return found.meta, found.damages


def find_meta(fs: FileSystem, directory: str, known: KnownMeta | None = None) -> FoundMeta:
    """Return what `describe` does, and whether there is such a file. `known` is as for `read_meta`.

    Raises:
        FormatVersionError: a newer version.
        StorageError: as mapped from the system's error.
    """
    path = os.path.join(directory, TOPIC_FILE)
    try:
        meta = read_meta(fs, directory, known)
    except CorruptionError as error:
        meta, named = _rebuilt(fs, directory)
        damage = Damage(path, 0, len(read_file(fs, path) or b""), error.message)
        return FoundMeta(meta, [damage], named=named)
    if known is not None and known.sound is not None and known.sound is meta:
        return FoundMeta(meta, [])
    segments = list_segments(fs, directory)
    if meta is None:
        missing = [Damage(path, 0, 0, "the topic's description is missing")] if segments else []
        meta, named = _rebuilt(fs, directory)
        return FoundMeta(meta, missing, there=False, named=named)
    strangers: list[UUID] = []
    for topic in _topics(fs, segments):
        if topic == meta.uuid:
            if known is not None:
                known.sound = meta
            return FoundMeta(meta, [])
        strangers.append(topic)
    if not strangers or (len(strangers) == 1 and _is_marked(fs, directory, meta.uuid)):
        return FoundMeta(meta, [])
    # Metadata never outranks data: if a swapped description were believed, every segment would be quarantined.
    size = len(read_file(fs, path) or b"")
    return FoundMeta(_rebuilt(fs, directory)[0], [Damage(path, 0, size, "the description is another topic's")])


def _is_marked(fs: FileSystem, directory: str, topic: UUID) -> bool:
    """Return whether the watermark is that topic's: then it is two files against one segment, which was swapped."""
    return read_slot_file(fs, os.path.join(directory, WATERMARK))[1] == topic_salt(topic)


def _topics(fs: FileSystem, segments: list[tuple[int, str]], *, mend: bool = False) -> Iterator[UUID]:
    """Yield the topic in each segment's header, if the header matches the segment's name; `mend` one with a wrong bit.

    Raises:
        FormatVersionError: a newer version.
        StorageError: as mapped from the system's error.
    """
    for base, path in segments:
        head = read_file(fs, path, SEGMENT_HEADER.size) or b""
        with suppress(CorruptionError):
            header = SegmentHeader.mended(head, path) if mend else SegmentHeader.decode(head, path)
            if header is not None and header.base == base:
                yield header.topic


def _rebuilt(fs: FileSystem, directory: str) -> tuple[TopicMeta, bool]:
    """Reconstruct the uuid from what most segments say, and the channels from their directories.

    The second value is whether any segment says it.
    """
    segments = list_segments(fs, directory)
    most = Counter(_topics(fs, segments)).most_common(1)
    # By another uuid, all segments would be another topic's.
    said = most[0][0] if most else next(_topics(fs, segments[:_MOST_MENDED], mend=True), None)
    meta = TopicMeta(said or uuid4(), segments[0][0] if segments else 0)
    meta.options = unknown()  # the rules by which its messages may be deleted are lost
    channels = os.path.join(directory, "channels")
    with os_errors(channels):
        for name in fs.listdir(channels) if fs.is_directory(channels) else ():
            with suppress(InvalidNameError):
                if fs.is_directory(os.path.join(channels, name)):
                    meta.channels[check_name(name, "channel")] = meta.begin
    return meta, said is not None
