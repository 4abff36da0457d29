"""Repair: settles what `verify` calls damage, as the only owner of a store.

Nothing unreadable is destroyed: its bytes are quarantined, durably, before the original is touched. What is lost stays
lost, but from then on the files say so themselves: a segment's footer covers the offsets that are missing after its
last frame, so that the log has no unexplained gap.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from aiodq.errors import CorruptionError, StorageError, StoreLockedError
from aiodq.format.journal import replayed
from aiodq.format.segment import topic_salt
from aiodq.storage.bulk.adoption import unadoptable
from aiodq.storage.bulk.commits import COMMITS, read_commits
from aiodq.storage.io.durable_io import (
    TEMPORARY,
    ensure_directory,
    read_file,
    read_written,
    replace_file,
    sweep_temporaries,
)
from aiodq.storage.io.filesystem import directory_exists, locked, name_exists
from aiodq.storage.io.os_errors import is_refused, os_errors
from aiodq.storage.io.quarantine import quarantine, quarantine_file
from aiodq.storage.offline.repair_segment import repair_segment
from aiodq.storage.offline.verify import verify_store
from aiodq.storage.offline.verify_segment import check_segment
from aiodq.storage.segments.offset_ranges import without
from aiodq.storage.segments.segment_files import own_segments
from aiodq.storage.state.assessment import CHANNELS, channel_directory, missing, repeats
from aiodq.storage.state.channel_files import CHECKPOINT, JOURNAL, read_channel, topic_of
from aiodq.storage.state.channel_journal import ChannelJournal
from aiodq.storage.state.holds import hold_path, read_hold, read_holds
from aiodq.storage.state.store_identity import STORE_FILE, read_identity
from aiodq.storage.state.topic.topic_meta import TOPIC_FILE, TopicMeta, describe, save_meta
from aiodq.storage.state.transactions.parked_transactions import keep_owed, may_be_topic, read_owed
from aiodq.storage.state.transactions.transaction_log import TRANSACTIONS, mended, read_transactions
from aiodq.storage.state.transactions.transaction_origins import ORIGINS, read_origins
from aiodq.storage.state.watermark import (
    WATERMARK,
    WatermarkFile,
    check_slots,
    is_foreign,
    noted_watermark,
    read_slot_file,
)
from aiodq.storage.store_layout import check_store_directory, in_the_way, list_topics, require_own_directories

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from aiodq.storage.io.filesystem import FileSystem, Lock
    from aiodq.storage.offline.verify_segment import SegmentCheck
    from aiodq.storage.segments.segment_contents import Contents
    from aiodq.storage.segments.segment_files import OwnSegment

__all__ = ["RepairAction", "repair_store"]


@dataclass(frozen=True, slots=True)
class RepairAction:
    """One action of a repair.

    Attributes:
        path: the file.
        what: what was done, as text.
        kept: where the previous bytes are; empty if none were removed.
        left: whether something was left alone, because the system refused it or it is nothing that aiodq made; `what`
            then says why. An administrator has to change that.
    """

    path: str
    what: str
    kept: str = ""
    left: bool = False


def repair_store(path: str, fs: FileSystem) -> list[RepairAction]:
    """Repair a store so that `verify_store` calls it ok; return what was done. A second run does nothing.

    What may not be read or changed, or is to be settled by hand, is left alone, as an action that is `left` says, and
    so is what hangs on it.

    Raises:
        StoreNotFoundError: there is no such directory.
        NotAStoreError: the directory holds something else.
        StoreLockedError: a process has it open.
        FormatVersionError: a file has a newer version; nothing was touched.
        StorageError: something else lies in the place of a directory of the store's; nothing was touched.
        StorageError: as mapped from the system's error; every action so far is complete, and another run continues.
    """
    check_store_directory(fs, path)
    lock = _alone(fs, path)
    try:
        # Every file is looked at before any is touched: one of them may have a newer version.
        found = verify_store(path, fs)
        require_own_directories(fs, path)
        actions = [*_in_the_way(fs, path), *_sweep(fs, path), *_transactions(fs, path), *_owed(fs, path)]
        actions += [*_unreadable(fs, path, STORE_FILE, read_identity), *_unreadable(fs, path, ORIGINS, read_origins)]
        actions += [*_commits(fs, path), *_holds(fs, path)]
        for topic in list_topics(fs, path):
            actions += _TopicRepair(fs, os.path.join(path, topic)).run()
    finally:
        lock.release()
    told = {action.path for action in actions if action.left}
    by_hand = [damage for damage in found.damages if damage.by_hand and damage.path not in told]
    return actions + [RepairAction(damage.path, f"left alone: {damage.reason}", left=True) for damage in by_hand]


def _alone(fs: FileSystem, path: str) -> Lock:
    try:
        return locked(fs, path)
    except StoreLockedError as error:  # its own advice, to share the store, is no help here
        owner = "another process" if error.pid is None else f"process {error.pid}"
        raise StoreLockedError(
            f"repair needs the store for itself, and {owner} has it open: end all that aiodq who {path} lists",
            path,
            pid=error.pid,
        ) from error


def _unreadable(
    fs: FileSystem, store: str, name: str, read: Callable[[FileSystem, str], object]
) -> Iterator[RepairAction]:
    """Quarantine a file of the store's own that cannot be read; the next owner does without it, or makes another."""
    path = os.path.join(store, name)
    try:
        read(fs, store)
    except CorruptionError as error:
        yield RepairAction(path, f"quarantined the file: {error.message}", quarantine_file(fs, path))


def _transactions(fs: FileSystem, store: str) -> Iterator[RepairAction]:
    """Rewrite the transaction log so that every block can be read."""
    found, path = read_transactions(fs, store), os.path.join(store, TRANSACTIONS)
    if found.damages and found.header is None:
        yield RepairAction(
            path, "quarantined the file: nothing can be read without its header", quarantine_file(fs, path)
        )
    elif found.damages:
        kept = [quarantine(fs, path, 0, found.size)]
        replace_file(fs, path, mended(found))
        yield from (RepairAction(path, f"took out what cannot be read: {d.reason}", kept[0]) for d in found.damages)


def _in_the_way(fs: FileSystem, store: str) -> Iterator[RepairAction]:
    """Quarantine whatever blocks the directory of a topic for which something is committed."""
    for topic, path in in_the_way(fs, store).items():
        yield RepairAction(path, f"moved it out of the way of topic {topic!r}", quarantine_file(fs, path))


def _owed(fs: FileSystem, store: str) -> Iterator[RepairAction]:
    """Quarantine parked transactions that no topic can ever take, or that cannot be read."""
    for one in (one for files in read_owed(fs, store).values() for one in files):
        if not may_be_topic(fs, store, one.topic):
            what = f"quarantined the file: no topic can be called {one.topic!r}"
            yield RepairAction(one.path, what, quarantine_file(fs, one.path))
        elif one.damages:
            kept = quarantine_file(fs, one.path)
            if one.blocks:
                keep_owed(fs, store, one.topic, one.blocks)
            yield from (RepairAction(one.path, f"took out what cannot be read: {d.reason}", kept) for d in one.damages)


def _commits(fs: FileSystem, store: str) -> Iterator[RepairAction]:
    """Quarantine each record of a bulk load that cannot be read, or whose commit cannot be adopted whole.

    The staged segments stay: nothing is swept while there is a quarantined record.
    """
    found = read_commits(fs, store)
    for damage in found.damages:
        yield RepairAction(damage.path, f"quarantined the record: {damage.reason}", quarantine_file(fs, damage.path))
    for commit in found.pending:
        for reason in unadoptable(fs, store, commit)[:1]:
            path = os.path.join(store, COMMITS, commit.key.file)
            yield RepairAction(path, f"quarantined the record: {reason}", quarantine_file(fs, path))


def _holds(fs: FileSystem, store: str) -> Iterator[RepairAction]:
    """Quarantine each unreadable hold: it would keep everything for ever."""
    for name in read_holds(fs, store):
        path = hold_path(store, name)
        try:
            read_hold(fs, store, name)
        except CorruptionError as error:
            yield RepairAction(path, f"quarantined the hold: {error.message}", quarantine_file(fs, path))


def _sweep(fs: FileSystem, directory: str) -> list[RepairAction]:
    with os_errors(directory):
        paths = [os.path.join(directory, name) for name in fs.listdir(directory) if name.endswith(TEMPORARY)]
        files = [path for path in paths if not fs.is_directory(path)]
    sweep_temporaries(fs, directory)
    return [RepairAction(path, "removed an unfinished file") for path in files]


class _TopicRepair:
    """The repair of one topic."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = directory
        self._copied = False
        self._actions: list[RepairAction] = []

    def run(self) -> list[RepairAction]:
        with self._unless_refused("its topic"):
            self._run()
        return self._actions

    @contextmanager
    def _unless_refused(self, what: str) -> Iterator[None]:
        """Note what is left alone because the system refuses it; what was done before stands, and is reported."""
        try:
            yield
        except StorageError as error:
            if not is_refused(error):
                raise
            if all(action.path != error.path or not action.left for action in self._actions):
                self._actions.append(
                    RepairAction(error.path, f"left alone, with the rest of {what}: {error.message}", left=True)
                )

    def _run(self) -> None:
        self._actions += _sweep(self._fs, self._directory)
        meta = self._description()
        path = os.path.join(self._directory, WATERMARK)
        salt = topic_salt(meta.uuid)
        self._copied = not name_exists(self._fs, path)
        durable_end = noted_watermark(read_slot_file(self._fs, path), salt)
        self._channels(meta, durable_end)
        end = self._segments(meta, durable_end)
        self._watermark(path, max(end, durable_end), salt)
        self._lost(meta)

    def _did(self, path: str, what: str, kept: str = "") -> None:
        self._actions.append(RepairAction(path, what, kept))

    def _whole(self, path: str) -> str:
        """Quarantine a copy of a small file; return its path, or nothing if the file is empty."""
        found = read_written(self._fs, path, 1 << 30)
        size = 0 if found is None else len(found[0])
        return quarantine(self._fs, path, 0, size) if size else ""

    def _description(self) -> TopicMeta:
        path = os.path.join(self._directory, TOPIC_FILE)
        meta, damages = describe(self._fs, self._directory)
        for damage in damages:
            kept = self._whole(path)
            save_meta(self._fs, self._directory, meta)
            self._did(path, f"{damage.reason}: made it again from the segments and the channels' directories", kept)
        return meta

    def _lost(self, meta: TopicMeta) -> None:
        """Forget what was missing at an opening: from now on the loss is settled."""
        if not meta.lost:
            return
        path = os.path.join(self._directory, TOPIC_FILE)
        now, _ = describe(self._fs, self._directory)
        if now.lost:
            save_meta(self._fs, self._directory, replace(now, lost=()))
        for first, stop in meta.lost:
            self._did(path, f"the messages {first} to {stop - 1} were missing at an opening: noted that this is known")

    def _channel_names(self, meta: TopicMeta) -> list[str]:
        directory = os.path.join(self._directory, CHANNELS)
        with os_errors(directory):
            names = {*meta.channels, *(self._fs.listdir(directory) if self._fs.is_directory(directory) else ())}
        return sorted(n for n in names if directory_exists(self._fs, channel_directory(self._directory, n)))

    def _channels(self, meta: TopicMeta, durable_end: int) -> None:
        topic = topic_of(self._fs, self._directory)
        self._make_directories(meta)
        for name in self._channel_names(meta):
            with self._unless_refused("its channel"):
                self._channel(name, meta, topic, durable_end)

    def _make_directories(self, meta: TopicMeta) -> None:
        """Make the directories of the channels that lost theirs. Something else in their place is left alone."""
        place = os.path.join(self._directory, CHANNELS)
        paths = [channel_directory(self._directory, name) for name in meta.channels]
        if directory_exists(self._fs, place) or not name_exists(self._fs, place):
            for path in (path for path in paths if not name_exists(self._fs, path)):
                ensure_directory(self._fs, place)
                ensure_directory(self._fs, path)

    def _channel(self, name: str, meta: TopicMeta, topic: UUID | None, durable_end: int) -> None:
        directory, described = channel_directory(self._directory, name), name in meta.channels
        start = meta.channels.get(name, meta.begin)
        self._actions += _sweep(self._fs, directory)
        found = read_channel(self._fs, directory, start, topic, described=described)
        path, torn = os.path.join(directory, JOURNAL), found.end > 0 and found.unfinished
        if not described or not (found.damages or torn):
            return
        kept = {file: self._whole(os.path.join(directory, file)) for file in (CHECKPOINT, JOURNAL)}
        now = replayed(found.image, found.ops, self._end(meta, durable_end))
        journal = ChannelJournal(self._fs, directory, start, topic)
        try:
            journal.fold(now)
        finally:
            journal.close()
        if torn:
            self._did(path, "cut off operations that are not whole", kept[JOURNAL])
        for damage in found.damages:
            again = f"what the channel had acked from offset {now.floor} on is delivered again, but for what is in it"
            what = f"{damage.reason}: made it again from what can be read; {again}"
            self._did(damage.path, what, kept[os.path.basename(damage.path)])

    def _end(self, meta: TopicMeta, durable_end: int) -> int:
        """Return the offset after the last message that was durable, or that a segment holds."""
        own, _ = own_segments(self._fs, self._directory, meta.uuid, durable_end)
        for one in reversed(own):
            check = self._check(one, meta)
            if check.contents is not None:
                return max(check.end, durable_end)
        return durable_end

    def _segments(self, meta: TopicMeta, durable_end: int) -> int:
        """Repair every segment; return the offset after the last of them."""
        kept = self._belonging(meta, durable_end)
        spans = [(check.base, check.end) for _, check, _ in kept]
        gaps = {gap.place: gap.stop for gap in missing(self._fs, self._directory, meta, spans, durable_end)}
        for place, ((_, stop), (base, _)) in enumerate(pairwise(spans), 1):
            # What was missing at an opening, its owner has settled in every channel, as if it had been consumed.
            if stop < base and without(meta.lost, without(meta.lost, [(stop, base)])):
                gaps.setdefault(place, base)
        for number, (path, check, contents) in enumerate(kept):
            last, end = number == len(kept) - 1, gaps.get(number + 1, check.end)
            for what, where in repair_segment(self._fs, path, check, contents, end=end, last=last):
                self._did(path, what, where)
        begin, end = (spans[0][0], spans[-1][1]) if spans else (durable_end, durable_end)
        if 0 in gaps:
            path = os.path.join(self._directory, TOPIC_FILE)
            copy = self._whole(path)
            save_meta(self._fs, self._directory, replace(meta, begin=begin))
            reason = f"the messages {meta.begin} to {begin - 1} are missing: noted that the topic begins after them"
            self._did(path, reason, copy)
        return end

    def _check(self, one: OwnSegment, meta: TopicMeta) -> SegmentCheck:
        return check_segment(
            self._fs, one.path, one.base, meta.uuid, one.durable_end, last=one.last, copied=self._copied
        )

    def _belonging(self, meta: TopicMeta, durable_end: int) -> list[tuple[str, SegmentCheck, Contents]]:
        """Return the segments of this log, after quarantining files that only look like one by name."""
        own, foreign = own_segments(self._fs, self._directory, meta.uuid, durable_end)
        for path, found in foreign:
            reason = "" if found.header_error is None else found.header_error.message
            self._did(path, f"{reason}: quarantined the file", quarantine_file(self._fs, path))
        kept: list[tuple[str, SegmentCheck, Contents]] = []
        for one in own:
            check = self._check(one, meta)
            if check.contents is None:
                self._did(
                    one.path, "nothing in it can be read: quarantined the file", quarantine_file(self._fs, one.path)
                )
            elif kept and (reason := repeats(check.base, kept[-1][1].end)):
                self._did(one.path, f"{reason}: quarantined the file", quarantine_file(self._fs, one.path))
            else:
                kept.append((one.path, check, check.contents))
        return kept

    def _watermark(self, path: str, end: int, salt: int) -> None:
        data = read_file(self._fs, path)
        if not is_foreign(read_slot_file(self._fs, path), salt) and not any(
            severity == "damage" for severity, _, _ in check_slots(data)
        ):
            return
        kept = self._whole(path)
        slots = WatermarkFile(self._fs, path)
        try:
            for _ in range(2):  # so that neither slot keeps its old value
                slots.write(end, salt)
            slots.sync()
        finally:
            slots.close()
        self._did(path, "it was not this topic's, or not whole: noted what the segments hold", kept)
