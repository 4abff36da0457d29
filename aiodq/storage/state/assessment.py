"""What is wrong with a log's segments: one assessment for opening, readers, `verify` and `repair`.

Which bytes of one file are valid is decided in `aiodq.storage.segments.segment_contents`. Here it is how the files fit
together: what is missing between them, and, by what channels have settled, whether that is a loss or on purpose.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.format.journal import replayed
from aiodq.storage.segments.offset_ranges import joined, without
from aiodq.storage.state.channel_files import read_channel, topic_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aiodq.format.journal import ChannelImage
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.segments.offset_ranges import Ranges
    from aiodq.storage.state.topic.topic_meta import TopicMeta

__all__ = [
    "CHANNELS",
    "Missing",
    "channel_directory",
    "channel_images",
    "missing",
    "repeats",
]

CHANNELS: Final = "channels"
"""A topic's directory of channels, each of which has a directory in it."""

_ATTEMPTS: Final = 3


def channel_directory(topic_directory: str, channel: str) -> str:
    """Return the directory of a channel's files."""
    return os.path.join(topic_directory, CHANNELS, channel)


def channel_images(fs: FileSystem, topic_directory: str, meta: TopicMeta, end: int = 0) -> dict[str, ChannelImage]:
    """Return what each channel of a topic has settled. The owner may be running.

    Args:
        fs: the file system.
        topic_directory: the topic's.
        meta: the topic's description.
        end: where the log ends, if deliveries and due times are needed, too.

    Raises:
        FormatVersionError: a newer version.
        StorageError: as mapped from the system's error.
    """
    images: dict[str, ChannelImage] = {}
    topic = topic_of(fs, topic_directory) if meta.channels else None
    for name, start in meta.channels.items():
        for _ in range(_ATTEMPTS):
            found = read_channel(fs, channel_directory(topic_directory, name), start, topic)
            images[name] = replayed(found.image, found.ops, end)
            if not found.damages:
                break  # otherwise the owner may have been replacing the two files
    return images


class Missing(NamedTuple):
    """Offsets that no segment holds and that were not given up.

    Attributes:
        place: the number of segments before them.
        first, stop: the gap.
        ranges: the missing part of it; retention, purges and channels account for the rest.
    """

    place: int
    first: int
    stop: int
    ranges: Ranges


def repeats(base: int, end: int) -> str:
    """Return what is wrong with a segment that begins at `base` after one that ends at `end`, or nothing.

    The earlier one is valid: the other is a copy that was put beside it.
    """
    return f"the segment repeats offsets before {end}" if base < end else ""


def missing(
    fs: FileSystem,
    topic_directory: str,
    meta: TopicMeta,
    spans: Sequence[tuple[int, int]],
    durable_end: int,
    *,
    given_up: set[tuple[int, int]] | None = None,
) -> Iterator[Missing]:
    """Yield what is missing before a log's segments, between them, and after them up to what was durable.

    Args:
        fs: the file system.
        topic_directory: the topic's.
        meta: the topic's description.
        spans: the first offset of each segment and the one after its last, in order.
        durable_end: the noted watermark.
        given_up: gaps known to be no losses; newly found ones are added.

    Raises:
        FormatVersionError: a newer version.
        StorageError: as mapped from the system's error.
    """
    for place, first, stop in _gaps(meta, spans, durable_end):
        if given_up is not None and (first, stop) in given_up:
            continue
        ranges = _losses(fs, topic_directory, meta, first, stop)
        if ranges:
            yield Missing(place, first, stop, ranges)
        elif given_up is not None:
            given_up.add((first, stop))


def _gaps(meta: TopicMeta, spans: Sequence[tuple[int, int]], durable_end: int) -> Iterator[tuple[int, int, int]]:
    end = meta.begin
    for place, (base, stop) in enumerate(spans):
        # Retention also leaves a gap at the front, which is not noted; without a channel, it looks like a loss.
        if base > end and (place or meta.channels):
            yield place, end, base
        end = max(end, stop)
    if durable_end > end:
        yield len(spans), end, durable_end


def _losses(fs: FileSystem, topic_directory: str, meta: TopicMeta, start: int, stop: int) -> Ranges:
    """Return which of these offsets were not given up: by a purge, by retention, or by every channel."""
    gone = without([(start, stop)], meta.deleted)
    if not gone:
        return ()
    images = channel_images(fs, topic_directory, meta).values()
    if not images:
        return gone
    return joined(one for image in images for one in without(gone, [(0, image.floor), *image.ranges]))
