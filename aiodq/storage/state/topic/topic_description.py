"""A topic's description while the topic has an owner: each change of it is durable when the call returns."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from aiodq.errors import DiskFullError
from aiodq.storage.io.durable_io import sync_directory
from aiodq.storage.segments.offset_ranges import joined, without
from aiodq.storage.state.topic.topic_meta import save_meta

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aiodq.options import ChannelOptions
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.segments.offset_ranges import Ranges
    from aiodq.storage.segments.segment_files import Segment
    from aiodq.storage.state.topic.stored_options import StoredOptions
    from aiodq.storage.state.topic.topic_meta import TopicMeta

__all__ = ["TopicDescription"]

T = TypeVar("T")

_CHANGES: Final = 64
"""The numbers of changes that are kept: a client repeats one within seconds."""


class TopicDescription:
    """The description of one topic, `topic.json`, as its owner changes it.

    Blocking. Any thread may change it; changes are serialised.

    Attributes:
        meta: what it says. Replaced by each change, never modified.
    """

    __slots__ = ("_changing", "_directory", "_fs", "meta")

    def __init__(self, fs: FileSystem, directory: str, meta: TopicMeta) -> None:
        """Take over what `load_meta` has returned for this directory."""
        self._fs = fs
        self._directory = directory
        self._changing = threading.Lock()
        self.meta: TopicMeta = meta

    # --- what is gone

    def note_losses(self, segments: Sequence[Segment], found: Ranges) -> None:
        """Note the offsets found to be missing; forget those that segments hold again, as a file was put back.

        Raises:
            StorageError: it was not noted.
        """
        with self._changing:
            lost = without((*self.meta.lost, *found), ((segment.base, segment.end) for segment in segments))
            if lost != self.meta.lost:
                # CRASH: 14. Noted before a new segment, or a channel that passes them, hides that they existed.
                self._describe_with_room(replace(self.meta, lost=lost))

    def give_up(self, begin: int) -> None:
        """Note durably that everything below `begin` is gone on purpose.

        Raises:
            StorageError: it was not noted.
        """
        with self._changing:
            if begin > self.meta.begin:
                # CRASH: 5. This is the commit point of a purge; the files below it follow, now or at the next open.
                self._describe(replace(self.meta, begin=begin))

    def note_deleted(self, segments: Sequence[Segment], first: int) -> None:
        """Note durably that segments are deleted on purpose, if they leave a gap that might be taken for a loss.

        What is below `first`, where the log begins without them, leaves none.

        Raises:
            StorageError: it was not noted. On a full disk it is noted later, as the deletion makes room.
        """
        with self._changing:
            gone = joined((*self.meta.deleted, *((segment.base, segment.end) for segment in segments)))
            deleted = tuple((start, stop) for start, stop in gone if stop > first)
            if any(segment.base > first for segment in segments):
                # CRASH: 5. A segment that is noted here and still exists is simply read.
                self._describe_with_room(replace(self.meta, deleted=deleted))

    # --- options

    def choose(self, options: StoredOptions, change: int = 0) -> None:
        """Note durably the topic's options, and the number of this change, if it has one.

        Raises:
            StorageError: they were not noted.
        """
        with self._changing:
            # CRASH: 6. Either the old ones stand or these, whole; nothing is deleted by the new ones before.
            self._describe(replace(self.meta, options=options, changes=self._with(change), configured=change))

    def choose_for_channel(self, name: str, options: ChannelOptions, change: int = 0) -> None:
        """Note durably the options given for a channel, as `choose` does. A deleted one has none.

        Raises:
            StorageError: they were not noted.
        """
        with self._changing:
            if name in self.meta.channels:
                named = {**self.meta.channel_options, name: options}
                self._describe(replace(self.meta, channel_options=named, changes=self._with(change)))

    # --- channels

    def add_channels(
        self, channels: Mapping[str, tuple[int, ChannelOptions | None]], made: Mapping[str, str] | None = None
    ) -> None:
        """Note durably that there are channels: all of them, or none.

        Args:
            channels: where each begins, and the options given for it.
            made: what tells each from other ones of its name.

        Raises:
            StorageError: they were not noted.
        """
        with self._changing:
            named = {name: options for name, options in self.meta.channel_options.items() if name not in channels}
            named |= {name: options for name, (_, options) in channels.items() if options is not None}
            begins = {name: begin for name, (begin, _) in channels.items()}
            begins, marks = {**self.meta.channels, **begins}, {**self.meta.made, **(made or {})}
            self._describe(replace(self.meta, channels=begins, channel_options=named, made=marks))

    def remove_channel(self, name: str, change: int = 0) -> None:
        """Note durably that a channel is deleted, as `choose` does. Its files may be deleted after that.

        Raises:
            StorageError: it was not noted.
        """
        with self._changing:
            # CRASH: 9. From here on the channel no longer exists, whatever files it leaves.
            channels, named = _without(self.meta.channels, name), _without(self.meta.channel_options, name)
            paused, made = self.meta.paused - {name}, _without(self.meta.made, name)
            left = replace(self.meta, channels=channels, paused=paused, channel_options=named, made=made)
            if not channels:
                # CRASH: 5. The channels are what explains a gap that retention leaves where, after a power cut, a later
                # file stays deleted and earlier ones are back.
                sync_directory(self._fs, self._directory)
            self._describe(replace(left, changes=self._with(change)))

    def pause(self, channel: str, *, paused: bool, change: int = 0) -> None:
        """Note durably whether a channel delivers, as `choose` does; an empty name stands for the topic.

        Raises:
            StorageError: it was not noted.
        """
        with self._changing:
            before = self.meta.paused
            after = before | {channel} if paused else before - {channel}
            if after != before:
                self._describe(replace(self.meta, paused=after, changes=self._with(change)))

    def _with(self, change: int) -> tuple[int, ...]:
        return (*self.meta.changes, change)[-_CHANGES:] if change else self.meta.changes

    def _describe(self, meta: TopicMeta) -> None:
        save_meta(self._fs, self._directory, meta)
        self.meta = meta

    def _describe_with_room(self, meta: TopicMeta) -> None:
        """Describe what explains a gap; on a full disk, leave it to the next note, as reading and settling go on."""
        try:
            self._describe(meta)
        except DiskFullError:
            self.meta = meta


def _without(values: Mapping[str, T], name: str) -> dict[str, T]:
    return {other: value for other, value in values.items() if other != name}
