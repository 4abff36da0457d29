"""What a store must hold after all that was done to it: plain dictionaries, and what cannot be known is marked so."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import aiodq

__all__ = ["Channel", "Entry", "Hold", "Letter", "Sent", "Topic"]

_RESTART: Final = 0.001
"""Seconds by which a message may be due later after a restart: its due time is rounded."""


class Letter(NamedTuple):
    """Where a dead letter comes from: its topic, channel and offset."""

    topic: str
    channel: str
    offset: int


class Sent(NamedTuple):
    """A message as it was put.

    Attributes:
        due, expiry: between which moments of the clock it may be handed out.
        only: the only channel that gets it; None: all.
        letter: where it comes from, if it is a dead letter.
    """

    body: bytes
    tag: str | None = None
    due: float = 0.0
    expiry: float = math.inf
    only: str | None = None
    letter: Letter | None = None


class Hold(NamedTuple):
    """A message in somebody's hand: whose, and until when it is his."""

    message: aiodq.Message
    member: aiodq.Store
    deadline: float


@dataclass
class Entry:
    """A message that a channel has not settled, as far as is known.

    Attributes:
        low, high: how many earlier deliveries count, at least and at most.
        due, late: from when on it may, and from when on it must be handed out.
        unsure: it may be settled.
        moved: it was requeued once, so that a process may get it after newer ones.
        back: a seek brought it back, and the next letter may be of its being given up before.
    """

    low: int = 0
    high: int = 0
    due: float = 0.0
    late: float = 0.0
    held: Hold | None = None
    unsure: bool = False
    moved: bool = False
    back: bool = False


@dataclass
class Channel:
    """What one channel has not settled.

    Attributes:
        unwritten: what was settled or requeued and need not be on disk: the messages as they were before that.
        stale: messages that were taken away from who held them.
    """

    topic: Topic
    name: str
    options: aiodq.ChannelOptions
    entries: dict[int, Entry] = field(default_factory=dict)
    paused: bool = False
    unwritten: dict[int, Entry] = field(default_factory=dict)
    stale: list[aiodq.Message] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.topic.name}/{self.name}"

    def wants(self, sent: Sent) -> bool:
        """Whether the channel delivers this message, at any time."""
        tags = self.options.tags
        return sent.only in {None, self.name} and (tags is None or sent.tag in tags)

    def sent(self, offset: int) -> Sent:
        return self.topic.log[offset]

    def add(self, offset: int, *, unsure: bool = False) -> None:
        """Note a message that the channel gets."""
        due = self.sent(offset).due
        self.entries[offset] = Entry(due=due, late=due, unsure=unsure)

    def held(self) -> dict[int, Hold]:
        return {offset: entry.held for offset, entry in self.entries.items() if entry.held is not None}

    def is_sure(self, offset: int) -> bool:
        """Whether the message counts for sure: nobody may have settled it, and the channel wants it."""
        return not self.entries[offset].unsure and self.wants(self.sent(offset))

    def ready(self, now: float) -> list[int]:
        """Return the messages that must be handed out now, in order."""
        return sorted(
            offset
            for offset, entry in self.entries.items()
            if self.is_sure(offset) and entry.held is None and entry.late <= now
        )

    def deferred(self, now: float) -> list[int]:
        """Return the messages that wait for sure."""
        return [
            offset
            for offset, entry in sorted(self.entries.items())
            if self.is_sure(offset) and entry.held is None and entry.due > now
        ]

    def depths(self) -> tuple[int, int]:
        """Return the least and the greatest number of messages that are not settled."""
        return sum(map(self.is_sure, self.entries)), len(self.entries)

    def credit(self) -> int:
        return self.options.max_in_flight - len(self.held())

    def is_paused(self) -> bool:
        return self.paused or self.topic.paused

    # --- what changes

    def before_change(self, offset: int) -> None:
        """Note a message as it may be on disk, before it is settled or requeued."""
        now = self.entries[offset]
        old = self.unwritten.setdefault(offset, replace(now, held=None))
        old.low, old.high = min(old.low, now.low), max(old.high, now.high)
        old.due, old.late = min(old.due, now.due), max(old.late, now.late)

    def settle(self, offset: int, *, written: bool = False) -> None:
        """Note that a message is settled."""
        if written:
            self.unwritten.pop(offset, None)
        else:
            self.before_change(offset)
        del self.entries[offset]

    def requeue(self, offset: int, attempts: int, due: float = 0.0) -> None:
        """Note that a message in hand was given back, and how often it was delivered."""
        self.before_change(offset)
        self.entries[offset] = Entry(attempts, attempts, due, due, moved=True, unsure=self.entries[offset].unsure)

    def all_written(self) -> None:
        """Note that all of it is on disk."""
        self.unwritten.clear()

    def take_away(self, offset: int) -> Entry:
        """Note that a message is in nobody's hand any more."""
        entry = self.entries[offset]
        assert entry.held is not None
        self.stale.append(entry.held.message)
        entry.held = None
        return entry

    def killed(self, *, power: bool, ahead: bool) -> None:
        """Note that the process has ended: what was in hand is back, what was not written may be undone.

        Args:
            power: deliveries may be forgotten.
            ahead: what was read ahead may count as delivered.
        """
        counts = self.options.max_attempts is not None
        for entry in self.entries.values():
            entry.late += _RESTART if entry.late else 0.0
        for entry in self.entries.values() if counts and ahead else ():
            entry.high += entry.held is None
        for offset, hold in self.held().items():
            entry = self.take_away(offset)
            entry.moved = True
            given_back = hold.message.attempts - (not counts)
            entry.low = entry.low if power else given_back
            entry.high = given_back + (counts and ahead)  # others may have read it ahead before they end as well
        for offset, old in self.unwritten.items():
            now = self.entries.get(offset)
            if now is None:
                self.entries[offset] = replace(old, unsure=True, moved=True, high=old.high + counts)
            else:
                now.low, now.high = min(old.low, now.low), max(old.high + counts, now.high)
                now.due, now.late = min(old.due, now.due), max(old.late, now.late)
        self.all_written()


@dataclass
class Topic:
    """A log and its channels.

    Attributes:
        log: what is or was there, by offset.
        ahead: processes read ahead, so that more is in flight than anybody has in hand.
        begin: nothing before this offset is there any more.
        purged: as `begin`, whatever happens.
        lossy: retention or overflow may take what channels have not settled.
        perhaps: groups of messages, each of which may be in the log, or not.
        letters: dead letters that must come, and whether that is sure.
        returning: what was requeued from its dead letters, for one channel each.
        loaded: what a bulk load is bringing, at some time.
    """

    name: str
    options: aiodq.StoreOptions
    ahead: bool
    log: dict[int, Sent] = field(default_factory=dict)
    begin: int = 0
    purged: int = 0
    channels: dict[str, Channel] = field(default_factory=dict)
    paused: bool = False
    perhaps: list[list[Sent]] = field(default_factory=list)
    letters: dict[Letter, tuple[Sent, bool]] = field(default_factory=dict)
    returning: list[Sent] = field(default_factory=list)
    loaded: list[Sent] = field(default_factory=list)

    @property
    def end(self) -> int:
        return max(self.log, default=-1) + 1

    @property
    def lossy(self) -> bool:
        return self.options.retention.unconsumed == "delete" or self.options.overflow == "drop_oldest"

    @property
    def bounded(self) -> bool:
        return self.options.max_messages is not None

    def append(self, offset: int, sent: Sent) -> None:
        """Note a message in the log."""
        assert offset == self.end, f"{self.name} got {offset} after {self.end - 1}"
        self.log[offset] = sent
        for channel in self.channels.values():
            channel.add(offset)
        self.overflow()

    def overflow(self) -> None:
        """Note that the oldest messages may be dropped."""
        if self.options.overflow != "drop_oldest":
            return
        for channel in self.channels.values():
            free = sorted(channel.entries.keys() - channel.held().keys())
            excess = max(0, len(channel.entries) - (self.options.max_messages or 0))
            # What is on its way to the dead letters still counts, and others are dropped instead.
            known = [number for number, offset in enumerate(free, 1) if not channel.entries[offset].unsure]
            stop = known[excess - 1] if 0 < excess <= len(known) and not self.ahead else len(free) if excess else 0
            for offset in free[:stop]:
                channel.entries[offset].unsure = True

    def begins(self, begin: int) -> None:
        """Note that everything before this offset was deleted: no channel may have needed it."""
        self.begin = max(self.begin, begin)
        for offset in range(self.end, self.begin):
            self.log[offset] = Sent(b"")  # a letter that came and went before anybody saw it
        for channel in self.channels.values():
            for offset in [offset for offset in channel.entries if offset < self.begin]:
                sure = channel.is_sure(offset) and channel.sent(offset).expiry == math.inf
                assert self.lossy or not sure, f"{channel} lost {offset}"
                if channel.entries[offset].held is not None:
                    channel.take_away(offset)
                channel.settle(offset)  # a power cut may undo that

    def backlogs(self) -> tuple[int, int]:
        """Return the least and the greatest number of messages that count against the bound."""
        if not self.channels:
            kept = sum(offset >= self.begin for offset in self.log)
            return 0, kept
        depths = [channel.depths() for channel in self.channels.values()]
        return max(low for low, _ in depths), max(high for _, high in depths)

    def needed(self) -> set[int]:
        """Return the offsets that must be in the log."""
        return {
            offset
            for channel in self.channels.values()
            for offset in channel.entries
            if offset >= self.begin and channel.is_sure(offset) and channel.sent(offset).expiry == math.inf
        }


def channels_of(topics: Iterable[Topic]) -> Iterator[Channel]:
    """Return all channels of these topics."""
    for topic in list(topics):
        yield from topic.channels.values()
