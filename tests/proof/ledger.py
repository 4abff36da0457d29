"""What a program that uses aiodq was promised, told in notes that lie in the trace between the disk's operations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aiodq import StoreOptions
    from aiodq.testing import Operation

__all__ = [
    "SOMEWHERE",
    "Changed",
    "Changing",
    "Chosen",
    "Closed",
    "Closing",
    "Committed",
    "Committing",
    "Counted",
    "Created",
    "Deferred",
    "Deleted",
    "Deleting",
    "EffectiveOptions",
    "Elapsed",
    "Found",
    "Handing",
    "Ledger",
    "Moved",
    "Moving",
    "Note",
    "Outliving",
    "Purged",
    "Purging",
    "Put",
    "Putting",
    "Requeued",
    "Requeueing",
    "Returned",
    "Returning",
    "Seeking",
    "Settled",
    "Settlement",
    "Sought",
]


SOMEWHERE = -1
"""The offset of what is durable and was not looked for."""


@dataclass(slots=True)
class Topic:
    """What is known of a topic.

    Attributes:
        possible: what may have been put.
        promised: what was, with its offset.
        groups: what came together.
        channels: (may have settled, has settled, does not see) by channel.
        purging: what a purge may have taken; `purged`: what it has.
        deleting: the topic may be gone.
        deferred: what each channel may not deliver yet.
        leaving: what may be in a dead-letter topic instead, with that topic, by channel.
        arriving: what may have come here so, and more than once.
        closing: channels that may be gone.
        creation: channels that may not be there yet, with what may have been put before.
        sought: a channel has gone back, so that what it settled may come again.
        gone: offsets that were missing when the store was opened, and were judged then.
        counted: by channel and message, the least and the most deliveries that may be counted; of a message that is not
            here, nobody looks.
        begun: how many were counted when the store was opened.
        outliving: what becomes true if the process ends, and not the power.
        rules: the options, one of which has to be on disk as those named for the topic; empty where none were.
        loose: what retention may have deleted before the options were durable that keep everything; None where others
            are. `keeps`: those were found.
        settings: what may be on disk by (channel, "paused" or "options"); an empty channel is the topic.
    """

    possible: dict[str, None] = field(default_factory=dict)
    promised: dict[str, int] = field(default_factory=dict)
    groups: list[tuple[str, ...]] = field(default_factory=list)
    channels: dict[str, tuple[set[str], set[str], set[str]]] = field(default_factory=dict)
    purging: set[str] = field(default_factory=set)
    purged: set[str] = field(default_factory=set)
    deleting: bool = False
    deferred: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    leaving: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    arriving: set[str] = field(default_factory=set)
    closing: set[str] = field(default_factory=set)
    creation: dict[str, frozenset[str]] = field(default_factory=dict)
    sought: bool = False
    gone: frozenset[int] = frozenset()
    rules: frozenset[StoreOptions] = frozenset()
    loose: set[str] | None = None
    keeps: bool = False
    counted: dict[str, dict[str, tuple[int, int]]] = field(default_factory=lambda: defaultdict(dict))
    begun: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    outliving: list[OfTopic] = field(default_factory=list)
    settings: dict[tuple[str, str], tuple[object, ...]] = field(default_factory=dict)

    def deliveries(self, channel: str, name: str) -> tuple[int, int]:
        """Return the least and the most that may be counted."""
        begun = self.begun[channel].get(name, 0)
        return self.counted[channel].get(name, (begun, begun))

    def forget_settings(self, channel: str) -> None:
        """Forget a channel's settings: one that is made again has none of them."""
        self.settings = {key: values for key, values in self.settings.items() if key[0] != channel}

    def released(self) -> set[str]:
        """Return what retention may have deleted: what every channel has settled, and what was purged."""
        if self.keeps:
            return (self.loose or set()) | self.purging
        unsure = self.closing | self.creation.keys()
        everywhere = [may | unseen for may, _, unseen in self.channels.values()]
        surely = [may | unseen for name, (may, _, unseen) in self.channels.items() if name not in unsure]
        # A channel that may be there or not may have been asked or not.
        return self.purging.union(*(set.intersection(*of) for of in (everywhere, surely) if of))


@dataclass(frozen=True, slots=True)
class OfTopic(ABC):
    """Something that happens in a topic."""

    topic: str

    @abstractmethod
    def post(self, of: Topic) -> None:
        """Enter the note."""


@dataclass(frozen=True, slots=True)
class OfMessage(OfTopic):
    """Something that happens to a message in a channel."""

    channel: str
    name: str


@dataclass(frozen=True, slots=True)
class OfOffset(OfTopic):
    """Something that a channel does with an offset."""

    channel: str
    offset: int


@dataclass(frozen=True, slots=True)
class Created(OfTopic):
    """A channel is about to be made; `earliest` tells whether it sees what is there already."""

    channel: str
    earliest: bool

    def post(self, of: Topic) -> None:
        # What may be deleted by then need not be seen by one that begins with what is there.
        may = of.released() if self.earliest else set[str]()
        of.channels[self.channel] = (may, set(), set() if self.earliest else set(of.possible))
        of.creation[self.channel] = frozenset(of.possible)
        of.forget_settings(self.channel)


@dataclass(frozen=True, slots=True)
class EffectiveOptions(OfTopic):
    """These options may be on disk from now on."""

    options: StoreOptions

    def post(self, of: Topic) -> None:
        of.rules |= {self.options}


class Chosen(EffectiveOptions):
    """They are, and no others."""

    __slots__ = ()

    def post(self, of: Topic) -> None:
        of.rules = frozenset({self.options})
        if self.options.retention.consumed == "delete":
            of.loose = None
        elif of.loose is None:
            settled = [may | unseen for may, _, unseen in of.channels.values()]
            of.loose = of.purging.union(set.intersection(*settled) if settled else ())


@dataclass(frozen=True, slots=True)
class Changing(OfTopic):
    """A channel's setting may be another from now on; the channel "" stands for the topic.

    Attributes:
        what: "paused" or "options".
        before, after: its values, None for a channel's options where none were given.
    """

    channel: str
    what: str
    before: object
    after: object

    def post(self, of: Topic) -> None:
        key = self.channel, self.what
        of.settings[key] = (*of.settings.get(key, (self.before,)), self.after)


class Changed(Changing):
    """It is."""

    __slots__ = ()

    def post(self, of: Topic) -> None:
        of.settings[self.channel, self.what] = (self.after,)


@dataclass(frozen=True, slots=True)
class Putting(OfTopic):
    """These may be stored from now on; where `atomic`, all or none of them."""

    names: tuple[str, ...]
    atomic: bool = False

    def post(self, of: Topic) -> None:
        of.possible.update(dict.fromkeys(self.names))
        if self.atomic:
            of.groups.append(self.names)


@dataclass(frozen=True, slots=True)
class Put(OfTopic):
    """These are durable, at these offsets."""

    names: tuple[str, ...]
    offsets: tuple[int, ...]

    def post(self, of: Topic) -> None:
        of.promised.update(zip(self.names, self.offsets, strict=True))
        # A channel is there for good before a put returns that came after it.
        of.creation = {channel: before for channel, before in of.creation.items() if before >= set(self.names)}


@dataclass(frozen=True, slots=True)
class Outliving(OfTopic):
    """This outlives the process, but not a power cut."""

    note: OfTopic

    def post(self, of: Topic) -> None:
        of.outliving.append(self.note)


class Settlement(OfMessage):
    """A channel need not deliver this any more."""

    __slots__ = ()

    def post(self, of: Topic) -> None:
        of.channels[self.channel][0].add(self.name)
        of.deferred[self.channel].discard(self.name)


class Settled(OfMessage):
    """A channel must not deliver this any more."""

    __slots__ = ()

    def post(self, of: Topic) -> None:
        of.channels[self.channel][1].add(self.name)
        of.creation.pop(self.channel, None)


class Deferred(OfMessage):
    """A channel must not deliver this before time has gone by, however often the store is opened meanwhile."""

    __slots__ = ()

    def post(self, of: Topic) -> None:
        of.deferred[self.channel].add(self.name)


class Handing(OfMessage):
    """A message is about to be handed out once more, which may be counted from now on."""

    __slots__ = ()

    def post(self, of: Topic) -> None:
        least, most = of.deliveries(self.channel, self.name)
        of.counted[self.channel][self.name] = least, most + 1


class Counted(OfMessage):
    """All deliveries of a message so far are counted, whatever happens."""

    __slots__ = ()

    def post(self, of: Topic) -> None:
        _, most = of.deliveries(self.channel, self.name)
        of.counted[self.channel][self.name] = most, most


class Returning(OfMessage):
    """A message is about to be given back as if it had not been handed out the last time."""

    __slots__ = ()

    def post(self, of: Topic) -> None:
        least, most = of.deliveries(self.channel, self.name)
        of.counted[self.channel][self.name] = min(least, most - 1), most


class Returned(OfMessage):
    """It was, durably."""

    __slots__ = ()

    def post(self, of: Topic) -> None:
        _, most = of.deliveries(self.channel, self.name)
        of.counted[self.channel][self.name] = most - 1, most - 1


class Elapsed(OfTopic):
    """So much time goes by that nothing is deferred any more."""

    __slots__ = ()

    def post(self, of: Topic) -> None:
        of.deferred.clear()


class Seeking(OfOffset):
    """A channel is about to go to an offset: it may have or not."""

    __slots__ = ()

    def post(self, of: Topic) -> None:
        of.sought = True
        may, has, unseen = of.channels[self.channel]
        may |= {name for name, offset in of.promised.items() if offset < self.offset}
        has.clear()
        unseen -= {name for name, offset in of.promised.items() if offset >= self.offset}
        of.deferred[self.channel].clear()


class Sought(OfOffset):
    """A channel went to an offset: everything below it is settled, and nothing else."""

    __slots__ = ()

    def post(self, of: Topic) -> None:
        below = {name for name, offset in of.promised.items() if offset < self.offset}
        of.channels[self.channel] = (set(below), below, set())


@dataclass(frozen=True, slots=True)
class Moving(OfMessage):
    """A message may be in a dead-letter topic from now on; as long as it is not, its channel still has it."""

    target: str

    def post(self, of: Topic) -> None:
        of.channels[self.channel][0].add(self.name)
        of.leaving[self.channel][self.name] = self.target


class Moved(Settled):
    """It is there, and its channel will not deliver it any more."""

    __slots__ = ()


class Purging(OfTopic):
    """Nothing put so far need be delivered any more."""

    __slots__ = ()

    def post(self, of: Topic) -> None:
        of.purging |= set(of.possible)


class Purged(OfTopic):
    """Nothing that was there before the purge was asked for may be delivered any more."""

    __slots__ = ()

    def post(self, of: Topic) -> None:
        of.purged |= of.purging


class Deleting(OfTopic):
    """The topic may be gone with everything in it."""

    __slots__ = ()

    def post(self, of: Topic) -> None:
        of.deleting = True


@dataclass(frozen=True, slots=True)
class Closing(OfTopic):
    """A channel may be gone."""

    channel: str

    def post(self, of: Topic) -> None:
        # What it settled like all others may have gone before.
        of.purging |= set.intersection(*(may | unseen for may, _, unseen in of.channels.values()))
        of.closing.add(self.channel)


class Closed(Closing):
    """It is."""

    __slots__ = ()

    def post(self, of: Topic) -> None:
        of.closing.discard(self.channel)
        del of.channels[self.channel]
        of.forget_settings(self.channel)


@dataclass(frozen=True, slots=True)
class Deleted:
    """The topic is gone with everything in it."""

    topic: str


@dataclass(frozen=True, slots=True)
class Committing:
    """A transaction may be done from now on, all of it or nothing.

    Attributes:
        acks: what it settles, as (topic, channel, message).
        puts: what it puts, as (topic, message).
    """

    acks: tuple[tuple[str, str, str], ...]
    puts: tuple[tuple[str, str], ...]

    def without(self, topic: str) -> Committing:
        """Return what it does elsewhere."""
        acks = tuple(ack for ack in self.acks if ack[0] != topic)
        return Committing(acks, tuple(put for put in self.puts if put[0] != topic))

    def notes(self) -> Iterator[OfTopic]:
        """Yield what this means for each topic."""
        yield from (Settlement(*ack) for ack in self.acks)
        yield from (Putting(topic, (name,)) for topic, name in self.puts)


class Committed(Committing):
    """It is done."""

    __slots__ = ()

    def notes(self) -> Iterator[OfTopic]:
        yield from (Settled(*ack) for ack in self.acks)
        yield from (Put(topic, (name,), (SOMEWHERE,)) for topic, name in self.puts)


@dataclass(frozen=True, slots=True)
class Requeueing:
    """A letter may go back to the channel that gave it up: it is here, or there.

    Attributes:
        topic, channel: where the letter is.
        name: which it is.
        target, into: the topic and the channel that it goes back to.
    """

    topic: str
    channel: str
    name: str
    target: str
    into: str

    def enter(self, topics: dict[str, Topic]) -> None:
        """Enter the note."""
        topics[self.topic].channels[self.channel][0].add(self.name)
        topics[self.target].arriving.add(self.name)
        may, has, _ = topics[self.target].channels[self.into]
        may.add(self.name)
        has.discard(self.name)


class Requeued(Requeueing):
    """It did."""

    __slots__ = ()

    def enter(self, topics: dict[str, Topic]) -> None:
        topics[self.topic].channels[self.channel][1].add(self.name)
        topics[self.target].channels[self.into][0].discard(self.name)


@dataclass(frozen=True, slots=True)
class Found:
    """The store was opened, and everything that it then showed was promised to stay, and nothing else to come.

    Attributes:
        topics: by name.
        damages: how many it reported, by topic.
    """

    topics: dict[str, TopicFound]
    damages: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicFound:
    """What a topic shows.

    Attributes:
        log: names by offset.
        channels: by channel, what is ready, in the order of delivery.
        deferred: by channel, what is to come later.
        end: the offset that the next message gets.
        attempts: by channel, how often what comes was delivered, if it was.
        named: the options that are on disk as those named for it, or None.
        settings: the pause and options of channels, as those of `Topic`, that are on disk.
    """

    log: dict[int, str]
    channels: dict[str, tuple[str, ...]]
    deferred: dict[str, frozenset[str]] = field(default_factory=dict)
    end: int = 0
    attempts: dict[str, dict[str, int]] = field(default_factory=dict)
    named: StoreOptions | None = None
    settings: dict[tuple[str, str], object] = field(default_factory=dict)

    @property
    def keeps(self) -> bool:
        """Whether those options keep everything."""
        return self.named is not None and self.named.retention.consumed == "keep"


Note: TypeAlias = "OfTopic | Committing | Deleted | Found | Requeueing"


class Ledger:
    """The sum of all notes so far."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = defaultdict(Topic)
        self.transactions: list[Committing] = []
        self.requeues: list[Requeueing] = []
        self.notes = 0

    @classmethod
    def of(cls, trace: Iterable[Operation]) -> Ledger:
        """Return the ledger of the notes in a trace."""
        from aiodq.testing import Marked  # noqa: PLC0415 - the only thing this module needs of it

        ledger = cls()
        for operation in trace:
            if isinstance(operation, Marked):
                ledger.take(operation.label)
        return ledger

    @property
    def open(self) -> bool:
        """Whether something may be stored that nobody was promised yet."""
        return any(topic.possible.keys() - topic.promised.keys() for topic in self.topics.values())

    def take(self, note: object) -> None:
        """Add a note."""
        self.notes += 1
        match note:
            case Found():
                self._rebase(note)
            case Deleted(name):
                del self.topics[name]
                # What transactions did there nobody can tell any more.
                self.transactions = [one.without(name) for one in self.transactions]
            case Committing():
                if type(note) is Committing:
                    self.transactions.append(note)
                for part in note.notes():
                    part.post(self.topics[part.topic])
            case Requeueing():
                if type(note) is Requeueing:
                    self.requeues.append(note)
                note.enter(self.topics)
            case Moving():
                note.post(self.topics[note.topic])
                target = self.topics[note.target]
                target.possible[note.name] = None
                target.arriving.add(note.name)
            case OfTopic():
                note.post(self.topics[note.topic])
            case _:
                raise TypeError(f"{note!r} is no note")

    def outlive(self) -> None:
        """Go on from the end of the process, at which the power stayed on."""
        for topic in self.topics.values():
            for note in topic.outliving:
                note.post(topic)

    def _rebase(self, note: Found) -> None:
        """Go on from what an open found, whatever was possible before."""
        self.topics.clear()
        self.transactions.clear()
        self.requeues.clear()
        for name, found in note.topics.items():
            topic = self.topics[name]
            topic.promised = {of: offset for offset, of in found.log.items()}
            topic.possible = dict.fromkeys(topic.promised)
            topic.gone = frozenset(range(found.end)) - found.log.keys()
            topic.rules = frozenset() if found.named is None else frozenset({found.named})
            topic.loose = set() if found.keeps else None
            topic.settings = {key: (value,) for key, value in found.settings.items()}
            topic.arriving = {of for offset, of in found.log.items() if topic.promised[of] != offset}
            for channel, ready in found.channels.items():
                later = found.deferred.get(channel, frozenset())
                settled = set(topic.promised) - set(ready) - later
                topic.channels[channel] = (set(settled), settled, set())
                topic.deferred[channel] = set(later)
                topic.begun[channel] = dict(found.attempts.get(channel, {}))
