"""What channels have settled, read from their files: whether a gap in a log is a loss or was made on purpose."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aiodq.format.journal import MOST_REMAINING, ChannelImage, OpKind
from aiodq.storage.segments.offset_ranges import joined, without
from aiodq.storage.state.channel_journal import read_channel, topic_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiodq.format.journal import Op
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.segments.offset_ranges import Ranges
    from aiodq.storage.state.topic_meta import TopicMeta

__all__ = [
    "CHANNELS",
    "applied",
    "channel_directory",
    "channel_images",
    "is_loss",
    "is_loss_in_front",
    "losses",
    "losses_in_front",
    "unsettled",
]

CHANNELS: Final = "channels"
"""The name of the directory of a topic in which each channel has one of its own."""

_ATTEMPTS: Final = 3


def channel_directory(topic_directory: str, channel: str) -> str:
    """Return where a channel's files are."""
    return os.path.join(topic_directory, CHANNELS, channel)


def applied(image: ChannelImage, ops: Iterable[Op]) -> ChannelImage:
    """Return what a checkpoint comes to with the operations behind it: sorted, disjoint ranges above the floor."""
    found = replace(image, ranges=list(image.ranges), attempts=dict(image.attempts), deferred=dict(image.deferred))
    for op in ops:
        _apply(found, op)
    floor, joined = found.floor, list[tuple[int, int]]()
    for start, stop in sorted(found.ranges):
        if start <= floor:
            floor = max(floor, stop)
        elif joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    result = replace(found, floor=floor, ranges=joined)
    result.attempts = {offset: n for offset, n in found.attempts.items() if unsettled(result, offset, offset + 1)}
    result.deferred = {offset: due for offset, due in found.deferred.items() if unsettled(result, offset, offset + 1)}
    return result


def _apply(image: ChannelImage, op: Op) -> None:
    match op.kind:
        case OpKind.FLOOR:
            image.floor = max(image.floor, op.offset)
        case OpKind.ACK:
            image.ranges.append((op.offset, op.offset + op.length))
        case OpKind.REQUEUE:
            for offset in op.run:
                image.attempts[offset] = op.value
                image.deferred.pop(offset, None)
        case OpKind.DEFER:
            image.attempts.setdefault(op.offset, 0)
            image.deferred[op.offset] = op.value
            if op.length < MOST_REMAINING:
                image.noted_ns = max(image.noted_ns, op.value - op.length * 1_000_000)
        case OpKind.SEEK:
            image.floor, image.ranges = op.offset, []
            image.attempts.clear()
            image.deferred.clear()


def unsettled(image: ChannelImage, start: int, stop: int) -> int:
    """Return how many of the offsets from `start` to `stop` are not settled in an `applied` image."""
    start = max(start, image.floor)
    if stop <= start:
        return 0
    return stop - start - sum(max(min(b, stop) - max(a, start), 0) for a, b in image.ranges)


def channel_images(fs: FileSystem, topic_directory: str, meta: TopicMeta) -> dict[str, ChannelImage]:
    """Return what each channel of a topic has settled. Beside a live owner, too.

    Raises:
        FormatVersionError: a newer version.
        StorageError: as mapped from the system's error.
    """
    images: dict[str, ChannelImage] = {}
    topic = topic_of(fs, topic_directory) if meta.channels else None
    for name, start in meta.channels.items():
        for _ in range(_ATTEMPTS):
            image, ops, _, _, damages = read_channel(fs, channel_directory(topic_directory, name), start, topic)
            images[name] = applied(image, ops)
            if not damages:
                break  # else the owner may have been replacing the two files just now
    return images


def is_loss(fs: FileSystem, topic_directory: str, meta: TopicMeta, start: int, stop: int) -> bool:
    """Return whether there are any `losses`.

    Raises:
        FormatVersionError: a newer version.
        StorageError: as mapped from the system's error.
    """
    return bool(losses(fs, topic_directory, meta, start, stop))


def losses(fs: FileSystem, topic_directory: str, meta: TopicMeta, start: int, stop: int) -> Ranges:
    """Return which of the offsets that no segment holds were not given up: by a purge, by retention, by every channel.

    Raises:
        FormatVersionError: a newer version.
        StorageError: as mapped from the system's error.
    """
    missing = without([(max(start, meta.begin), stop)], meta.deleted)
    if not missing:
        return ()
    images = channel_images(fs, topic_directory, meta).values()
    if not images:
        return missing
    return joined(one for image in images for one in without(missing, [(0, image.floor), *image.ranges]))


def is_loss_in_front(fs: FileSystem, topic_directory: str, meta: TopicMeta, base: int) -> bool:
    """Return whether there are any `losses_in_front`.

    Raises:
        FormatVersionError: a newer version.
        StorageError: as mapped from the system's error.
    """
    return bool(losses_in_front(fs, topic_directory, meta, base))


def losses_in_front(fs: FileSystem, topic_directory: str, meta: TopicMeta, base: int) -> Ranges:
    """Return which messages before the first segment, which begins at offset `base`, are missing.

    Retention leaves such a gap, too, and notes it nowhere; without a channel nobody can tell.

    Raises:
        FormatVersionError: a newer version.
        StorageError: as mapped from the system's error.
    """
    return losses(fs, topic_directory, meta, meta.begin, base) if meta.channels else ()
