"""The deletion of segments: what allows it is durable first, and what could not be read of them is quarantined."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiodq.delivery.range_set import RangeSet
from aiodq.engine.channel.acks.ack_persister import Job
from aiodq.engine.topic.retention.topic_holds import FRESH, look_at_holds
from aiodq.errors import StorageError
from aiodq.storage.io.filesystem import name_exists
from aiodq.storage.io.quarantine import quarantine, remedy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiodq.engine.channel.acks.ack_persister import AckPersister
    from aiodq.engine.channel.channel_engine import ChannelEngine
    from aiodq.engine.engine_host import TopicEngineHost
    from aiodq.engine.topic.whole_topic import WholeTopic
    from aiodq.storage.io.quarantine import Damage
    from aiodq.storage.log.topic_log import TopicLog
    from aiodq.storage.segments.segment_files import Segment

__all__ = ["SegmentDeletion"]

_RETRY: Final = 1.0
"""Seconds after which files that could not be deleted, or that a hold keeps, are looked at again."""


class SegmentDeletion:
    """Deletes the segments of one topic; called on the loop, while nothing else changes the list of segments.

    Attributes:
        pinned: the offset from which on everything must stay, as the transaction log still refers to it, or None.
        undeleted: the paths of segments that are no longer needed, and may still exist.
    """

    __slots__ = (
        "_damaged",
        "_engine",
        "_host",
        "_keepers",
        "_kept",
        "_kept_until",
        "_persister",
        "pinned",
        "undeleted",
    )

    def __init__(self, engine: WholeTopic, persister: AckPersister, host: TopicEngineHost) -> None:
        """Delete from this topic."""
        self._engine = engine
        self._persister = persister
        self._host = host
        self.pinned: int | None = None
        self.undeleted: dict[str, None] = {}
        self._keepers = 0
        self._kept: list[Job] = []
        self._kept_until = 0.0
        self._damaged: dict[tuple[str, int], Damage] = {}
        engine.reader.damaged = self.met_damage

    def delete(self, segments: tuple[Segment, ...], begin: int) -> None:
        """Hide segments, and delete their files once what allows it is durable; everything below `begin` is given up.

        Channels settle the messages of these segments that they have not had.
        """
        log = self._engine.real_log()
        log.hide(segments)
        offsets = RangeSet()
        for segment in segments:
            offsets.add(segment.base, segment.end)
        self.miss(offsets)
        paths = {segment.path for segment in segments}
        damaged = [self._damaged.pop(key) for key in list(self._damaged) if key[0] in paths]

        left = list(segments)

        def work() -> None:
            if self._keepers:
                return
            # INVARIANT: what could not be read is in quarantine before its file goes, even if that failed before.
            for damage in damaged:
                _quarantine(log, damage)
            log.description.give_up(begin)
            self._delete_files(log, left)

        def finish(_: object, _error: Exception | None) -> None:
            for path in paths - {segment.path for segment in left}:
                self.undeleted.pop(path, None)
            if left and not self._engine.stopped:
                self._kept.append(job)
                self._kept_until = self._host.clock.monotonic() + _RETRY
                self._engine.schedule_tick()

        job = Job(work, finish, acks_first=True, patient=True)
        self.undeleted.update(dict.fromkeys(paths))
        self._persister.submit(job)
        self._engine.put_buffer.freed()

    def _delete_files(self, log: TopicLog, left: list[Segment]) -> None:
        """Delete the files of hidden segments, oldest first, and remove them from the list. Blocking.

        INVARIANT: what a hold asks for stays, even if it was made after these were found deletable: on a full disk, or
        beside a backup, that may have been long ago. Its reader sees them as long as their files exist.
        """
        while left:
            began, holds = look_at_holds(self._host, self._engine)
            kept_from = max(min(holds.values(), default=sys.maxsize), log.meta.begin)
            going = [segment for segment in left if segment.end <= kept_from]
            if not going:
                return
            log.description.note_deleted(going, log.segments[0].base)
            self._engine.reader.forget([segment.path for segment in going])
            for segment in going:
                log.remove([segment])
                del left[0]
                if self._host.clock.monotonic() > began + FRESH:
                    break  # very many take so long that others may have made holds

    def miss(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Have all channels settle their undelivered messages of these ranges, and report how many those are."""
        ranges = list(ranges)
        for channel_engine in self._engine.channel_engines.values():
            state = channel_engine.state
            missed = 0 if state is None else sum(state.miss(start, stop) for start, stop in ranges)
            if missed:
                self._missed(channel_engine, missed)

    def _missed(self, channel_engine: ChannelEngine[Any], count: int) -> None:
        if channel_engine.state is not None:
            channel_engine.source.requeue_cache.discard_settled(
                channel_engine.state.floor, channel_engine.state.settled
            )
        self._engine.settled(channel_engine)
        self._engine.reporter.dropped(
            self._engine.name, channel_engine.name, count, "deleted by retention before it had them"
        )
        channel_engine.wake()

    # --- what stays for a while

    def pin(self, offset: int) -> None:
        """Keep everything from this offset on, until `unpin`."""
        self.pinned = offset if self.pinned is None else min(self.pinned, offset)

    def unpin(self) -> None:
        """End what `pin` began."""
        self.pinned = None
        self._engine.retain_soon()

    def unpinned(self, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        """Return those of these segments that are not pinned."""
        pinned = self.pinned
        return segments if pinned is None else tuple(segment for segment in segments if segment.end <= pinned)

    def next_try(self) -> float | None:
        """Return in how many seconds `retry` has files to delete that could not be deleted before, or None for none."""
        return self._kept_until - self._host.clock.monotonic() if self._kept and not self._keepers else None

    def retry(self) -> None:
        """Delete such files, if it is time for that."""
        if self._host.clock.monotonic() >= self._kept_until:
            self._delete_kept()

    def keep_files(self) -> None:
        """Keep the files of segments that are no longer needed, until `release_files`."""
        self._keepers += 1

    def release_files(self) -> None:
        """End what `keep_files` began; the last such call deletes the files."""
        self._keepers -= 1
        self._delete_kept()

    def _delete_kept(self) -> None:
        if not self._keepers:
            kept, self._kept = self._kept, []
            for job in kept:
                self._persister.submit(job)

    # --- what could not be read

    def met_damage(self, found: Iterable[Damage]) -> None:
        """Quarantine bytes that a read found damaged: their segment is deleted once the rest of it is acked."""
        log = self._engine.real_log()
        known = {(damage.path, damage.position) for damage in log.damages}
        for damage in found:
            key = damage.path, damage.position
            if damage.end == damage.position or key in known or key in self._damaged:
                continue  # a gap, of which there is no byte; or found before
            self._damaged[key] = damage
            self._persister.submit(Job(partial(_quarantine, log, damage), partial(self._quarantined, log, damage)))

    def _quarantined(self, log: TopicLog, damage: Damage, there: object, error: Exception | None) -> None:
        if not there and error is None and any(segment.path == damage.path for segment in log.segments):
            # Had retention deleted it, it would not be listed.
            there, damage = True, damage._replace(end=0, reason=f"the file was deleted, not by aiodq: {remedy('it')}")
        if there or isinstance(error, StorageError):
            log.damages.append(damage)
            self._engine.reporter.damaged(self._engine.name, damage)


def _quarantine(log: TopicLog, damage: Damage) -> bool:
    """Copy damaged bytes to quarantine; return whether their file is there, and not deleted meanwhile. Blocking.

    Raises:
        StorageError: as mapped from the system's error; they are not in quarantine.
    """
    if not name_exists(log.fs, damage.path):
        return False
    quarantine(log.fs, damage.path, damage.position, damage.end)
    return True
