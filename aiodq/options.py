"""The options that a user may choose, checked when they are created."""

from __future__ import annotations

import difflib
import functools
import math
import random
from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias, TypeVar

from aiodq.errors import InvalidOptionError, InvalidOptionTypeError
from aiodq.names import check_name, check_topic_name
from aiodq.values import (
    LONGEST_SPAN,
    check_choice,
    check_flag,
    check_number,
    check_position,
    check_whole,
    refuse,
    several,
    shown,
    span_seconds,
    time_ns,
)

__all__ = [
    "LARGEST_BODY",
    "Alarm",
    "Backoff",
    "ChannelOptions",
    "Overflow",
    "Position",
    "Retention",
    "Start",
    "StoreOptions",
    "SyncPolicy",
    "check_channel_options",
    "check_dead_letter",
    "check_store_options",
    "class_of_option",
    "ephemeral",
    "next_wait",
    "seconds",
    "time_ns",
]

SyncPolicy: TypeAlias = Literal["always", "interval", "os"]
Overflow: TypeAlias = Literal["block", "reject", "drop_oldest"]
Position: TypeAlias = Literal["earliest", "latest"] | int | datetime
Start: TypeAlias = Position | None

_MIB: Final = 1 << 20
LARGEST_BODY: Final = 1 << 31
"""The most bytes that any topic can take in a body."""
_LEAST_MEMORY: Final = 1 << 16

C = TypeVar("C", bound=type)


def seconds(span: float | timedelta) -> float:
    """Return a checked duration as seconds."""
    return span.total_seconds() if isinstance(span, timedelta) else span


def _in_words(cls: C) -> C:
    """Make a class of options refuse unknown arguments with an error that names the one probably meant."""
    init = cls.__init__  # type: ignore[misc]  # unsound for subclasses; this is the class itself
    # Once, as opening makes several of each topic's options.
    names = [known.name for known in fields(cls)]
    known_names = frozenset(names)

    @functools.wraps(init)
    def checked(self: object, *args: object, **kwargs: object) -> None:
        if args:
            raise InvalidOptionTypeError(
                f"{cls.__name__} takes its options by name, not {shown(args[0])}: write {cls.__name__}({names[0]}=...)"
            )
        for name in kwargs.keys() - known_names:
            raise InvalidOptionTypeError(f"{cls.__name__} has no option {name!r}: {_meant(cls, name)}")
        init(self, **kwargs)

    cls.__init__ = checked  # type: ignore[misc]  # mypy forbids to assign a method; this is the decorator's purpose
    return cls


def _meant(cls: type[Any], name: str) -> str:
    """Return advice about an option that this class does not have: its class, or a similar name."""
    if (other := class_of_option(name)) is not None:
        return f"it is one of {other}, write {other}({name}=...)"
    names = [known.name for known in fields(cls)]
    close = difflib.get_close_matches(name, names, 1)
    return f"write {close[0]}=..." if close else f"there are {', '.join(names)}"


def class_of_option(name: str) -> str | None:
    """Return the name of the class that has an option of this name, or None."""
    for each in (StoreOptions, ChannelOptions, Retention, Backoff, Alarm):
        if name in {known.name for known in fields(each)}:
            return each.__name__
    return None


def _choose(options: object, **values: object) -> None:
    """Set checked values in a normal form, so that options with the same meaning are equal."""
    for name, value in values.items():
        object.__setattr__(options, name, value)


def check_store_options(options: object, where: str, *, optional: bool = True) -> None:
    """Make sure that these are `StoreOptions`, or None.

    Args:
        options: what was given.
        where: the call, for the error.
        optional: whether None is allowed.

    Raises:
        InvalidOptionError: something else was given; also a `TypeError`.
    """
    if not isinstance(options, StoreOptions) and not (options is None and optional):
        example = "write " + where.format("StoreOptions(sync='always')")
        if isinstance(options, ChannelOptions):
            example = "how a channel delivers is given to topic.channel(name, options), store.queue(name, channel=...)"
        refuse("what a store or topic takes", "StoreOptions", options, example, type_is_wrong=True)


def check_channel_options(options: object, where: str, *, optional: bool = True) -> None:
    """Make sure that these are `ChannelOptions`, or None; arguments as for `check_store_options`.

    Raises:
        InvalidOptionError: something else was given; also a `TypeError`.
    """
    if not isinstance(options, ChannelOptions) and not (options is None and optional):
        example = "write " + where.format("ChannelOptions(max_in_flight=1)")
        if isinstance(options, StoreOptions):
            example = "how a topic keeps messages is given to store.topic(name, options), store.queue(…, options=...)"
        refuse("what a channel takes", "ChannelOptions", options, example, type_is_wrong=True)


def check_dead_letter(topic: str, options: ChannelOptions | None) -> None:
    """Make sure that a topic's channel does not put dead letters into that topic itself.

    Raises:
        InvalidOptionError: it does.
    """
    if options is not None and options.dead_letter == topic:
        raise InvalidOptionError(
            f"dead_letter is the name of another topic, not {topic!r} itself: write dead_letter='{topic}-dead'"
        )


@_in_words
@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """How long messages stay on disk. Whole segments are deleted, never parts.

    A week of history for replay, whether or not the messages have been read:

    ```python
    Retention(consumed="keep", unconsumed="delete", max_age=timedelta(days=7))
    ```

    With `unconsumed="keep"`, the default, the bounds only delete what every channel has acked: a topic without a
    channel then keeps everything.

    Attributes:
        consumed: `"delete"` deletes a segment once every channel has acked all of it, the one being written about ten
            seconds after the last put; `"keep"` keeps it for replay until one of the bounds below is exceeded.
        max_age: seconds, or a `timedelta`: segments whose newest message is older are deleted. A segment spans at most
            a quarter of this time, so each message is deleted after at most 1.25 times `max_age`. None: no bound. While
            a store is open, ages follow the monotonic clock, which stands still while a machine sleeps. The wall clock
            at the time of opening tells how old the messages of earlier runs are: a clock that is then years ahead
            makes all of them too old. A takeover of a shared store is an opening, too.
        max_bytes: the oldest full segments are deleted until the topic's segment files together have at most so many
            bytes; the segment being written counts with what is written of it. None: no bound.
        max_segments: as `max_bytes`, by number.
        unconsumed: `"keep"` exempts from the three bounds what some channel has not acked; `"delete"` does not, and
            counts as dropped what a channel loses by it.
    """

    consumed: Literal["delete", "keep"] = "delete"
    max_age: float | timedelta | None = None
    max_bytes: int | None = None
    max_segments: int | None = None
    unconsumed: Literal["keep", "delete"] = "keep"

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidOptionError: one is out of its range.
        """
        check_choice("consumed", self.consumed, ("delete", "keep"), "keep")
        check_choice("unconsumed", self.unconsumed, ("keep", "delete"), "keep")
        if self.max_age is not None:
            age = timedelta(seconds=span_seconds("max_age", self.max_age, positive=True))
            # Less than half a microsecond would be stored as no time at all, which no options have.
            _choose(self, max_age=max(age, timedelta.resolution))
        for name, example in (("max_bytes", 1 << 30), ("max_segments", 10)):
            value = getattr(self, name)
            if value is not None:
                check_whole(name, value, least=1, example=example)


@_in_words
@dataclass(frozen=True, kw_only=True, slots=True)
class Alarm:
    """A threshold: when it is reached, an event `"alarm"`, a warning in the log, and `Store.health` report it.

    It is cleared, with an event `"cleared"`, once the value is a fifth below the threshold (`disk_free`: above it), so
    that a value close to it does not raise the alarm again and again. It is checked about once a second.

    Attributes:
        topic: the name of the topic that is watched; None for all topics.
        channel: the name of the channel that is watched; None for all channels, and for topics without channels.
        oldest_age: seconds, or a `timedelta`: raised when a message has not been settled for so long since its put.
        depth: raised at so many unsettled messages.
        disk_free: raised when fewer bytes than this are free on the store's file system, whatever the topic.
    """

    topic: str | None = None
    channel: str | None = None
    oldest_age: float | timedelta | None = None
    depth: int | None = None
    disk_free: int | None = None

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidOptionError: one is out of its range, or there is no threshold.
            InvalidNameError: a topic or channel cannot have that name.
        """
        if self.oldest_age is not None:
            _choose(self, oldest_age=span_seconds("oldest_age", self.oldest_age, positive=True))
        for name, example in (("depth", 10_000), ("disk_free", 1 << 30)):
            value = getattr(self, name)
            if value is not None:
                check_whole(name, value, least=1, example=example)
        if self.oldest_age is self.depth is self.disk_free is None:
            raise InvalidOptionError(
                "an Alarm needs a threshold: write Alarm(depth=10_000), or oldest_age=, disk_free="
            )
        for name in ("topic", "channel"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                refuse(name, f"the name of a {name}", value, f"write {name}='jobs'", type_is_wrong=True)
            if value is not None:
                _choose(self, **{name: check_name(value, name)})


@_in_words
@dataclass(frozen=True, kw_only=True, slots=True)
class StoreOptions:
    """How a store keeps messages. Sizes are bytes, durations are seconds or a `timedelta`.

    Attributes:
        sync: `"always"`: `put` returns after fdatasync, shared by all puts that wait together. `"interval"`: after the
            write; an fsync follows every `sync_every` messages or `sync_interval` seconds, whichever is first.
            `"os"`: after the write; the kernel decides when it reaches the disk.
        sync_every: messages between syncs under `"interval"`.
        sync_interval: seconds between syncs under `"interval"`; less than a millisecond counts as one.
        segment_bytes: a new segment begins before the current one, with its footer, would exceed this. A larger
            message, or a larger atomic batch, gets a segment of its own. In a shared store a new one also begins after
            20,000 puts, so that the next owner has few to look through.
        min_message_bytes: the smallest body accepted.
        max_message_bytes: the largest body accepted.
        max_bytes: bound of a topic's backlog in bytes, or None. It counts the bytes in the log's files from the oldest
            unsettled message on, and what waits to be written. The count is accurate to about 4 KiB, or to one
            `put_many`, whose messages count as equal in size.
        max_messages: bound of a topic's backlog in messages, or None. The backlog is all that the slowest channel has
            not settled, including messages in flight and deferred: room comes with acks.
        overflow: what a put does at that bound: wait, raise `QueueFull`, or, once it is stored, drop the oldest ones
            and count them.
            Messages in flight are not dropped: if they leave no room, a put waits; with `max_bytes` also while the
            oldest message is in flight. A put or an atomic batch that is larger than the bound itself is accepted if
            there is no backlog.
        retention: when segments are deleted.
        compression: `"zstd"` compresses by batch (extra `zstd`), None does not.
        memory_bytes: bound for one topic's write buffer and read-ahead together.
        sync_backend: how the event loop waits for a sync. `"thread"`: a thread calls fdatasync; this works everywhere.
            `"aio"`: Linux syncs in the background and notifies the loop (`io_submit`), sooner, and for a third of the
            processor time; where it is not available, `"thread"` is used. `"auto"`: `"aio"`, but `"thread"` as long as
            calls of fdatasync may be observed: while the process is traced (strace, gdb), where LD_PRELOAD is set, or
            `os.fdatasync` was replaced. `Store.stats` names the one in use.
        alarms: thresholds that are watched while the store is open. They are given to `open`; in a topic's own options
            they are ignored. They are not stored.
    """

    sync: SyncPolicy = "always"
    sync_every: int = 2500
    sync_interval: float | timedelta = 2.0
    segment_bytes: int = 100 * _MIB
    min_message_bytes: int = 0
    max_message_bytes: int = 16 * _MIB
    max_bytes: int | None = None
    max_messages: int | None = None
    overflow: Overflow = "block"
    retention: Retention = field(default_factory=Retention)
    compression: Literal["zstd"] | None = None
    memory_bytes: int = 64 * _MIB
    sync_backend: Literal["auto", "thread", "aio"] = "auto"
    alarms: tuple[Alarm, ...] = ()

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidOptionError: one is out of its range.
        """
        check_choice("sync", self.sync, ("always", "interval", "os"), "always")
        check_choice("overflow", self.overflow, ("block", "reject", "drop_oldest"), "block")
        check_choice("compression", self.compression, ("zstd", None), "zstd")
        check_choice("sync_backend", self.sync_backend, ("auto", "thread", "aio"), "auto")
        check_whole("sync_every", self.sync_every, least=1, example=2500)
        _choose(self, sync_interval=span_seconds("sync_interval", self.sync_interval, positive=True))
        self._check_sizes()
        self._check_alarms()
        if not isinstance(self.retention, Retention):
            example = f"write retention=Retention(consumed={shown(self.retention):.20})"
            if not isinstance(self.retention, str) or self.retention not in {"delete", "keep"}:
                example = "write retention=Retention(consumed='keep', max_age=timedelta(days=7))"
            refuse("retention", "a Retention", self.retention, example, type_is_wrong=True)

    def _check_alarms(self) -> None:
        given: object = self.alarms
        alone = isinstance(given, Alarm)
        if not isinstance(given, (tuple, list)) or not all(isinstance(alarm, Alarm) for alarm in given):
            example = "write alarms=(Alarm(...),)" if alone else "write alarms=(Alarm(topic='jobs', depth=10_000),)"
            refuse("alarms", "a tuple of Alarm", given, example, type_is_wrong=True)
        _choose(self, alarms=tuple(given))

    def _check_sizes(self) -> None:
        check_whole("segment_bytes", self.segment_bytes, least=1, example=100 * _MIB)
        check_whole("min_message_bytes", self.min_message_bytes, least=0, most=LARGEST_BODY, example=1)
        check_whole("max_message_bytes", self.max_message_bytes, least=0, most=LARGEST_BODY, example=16 * _MIB)
        if self.min_message_bytes > self.max_message_bytes:
            raise InvalidOptionError(
                f"min_message_bytes={self.min_message_bytes} is more than max_message_bytes={self.max_message_bytes}"
            )
        for name, example in (("max_bytes", 1 << 30), ("max_messages", 10_000)):
            value = getattr(self, name)
            if value is not None:
                check_whole(name, value, least=1, example=example)
        check_whole("memory_bytes", self.memory_bytes, least=_LEAST_MEMORY, example=64 * _MIB)


def ephemeral(options: StoreOptions) -> StoreOptions:
    """Return the options of a topic that lives in memory: up to half of `memory_bytes`, then the oldest are dropped."""
    most = min(options.max_bytes or options.memory_bytes, options.memory_bytes // 2)
    return replace(
        options,
        sync="os",
        overflow="drop_oldest",
        max_bytes=most,
        segment_bytes=min(options.segment_bytes, max(most // 8, 1)),
    )


@_in_words
@dataclass(frozen=True, kw_only=True, slots=True)
class Backoff:
    """How long a message waits that was requeued without a delay: longer after each delivery.

    The wait after delivery *n* is `first * factor ** (n - 1)` seconds, at most `limit`, then changed at random by up to
    the share `jitter`, so that messages that failed together are not redelivered together.

    Attributes:
        first: seconds after the first delivery, or a `timedelta`.
        factor: the growth from one delivery to the next, at least 1.
        limit: the longest wait, in seconds or as a `timedelta`.
        jitter: a share from 0 to 1.
    """

    first: float | timedelta = 1.0
    factor: float = 2.0
    limit: float | timedelta = 900.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidOptionError: one is out of its range.
        """
        _choose(
            self,
            first=span_seconds("first", self.first, positive=True),
            limit=span_seconds("limit", self.limit, positive=True),
        )
        check_number("factor", self.factor, least=1, most=math.inf, example=2.0)
        check_number("jitter", self.jitter, least=0, most=1, example=0.1)

    def seconds(self, attempts: int, chance: float) -> float:
        """Return the wait after that many deliveries; `chance`, from 0 to 1, determines the jitter."""
        # Nothing is timed to less than a nanosecond, and what grows from far less could overflow.
        first, limit = max(seconds(self.first), 1e-9), seconds(self.limit)
        grown = limit
        if (attempts - 1) * math.log(self.factor) < math.log(max(limit / first, 1.0)):
            grown = min(first * self.factor ** (attempts - 1), limit)
        return grown * (1 + self.jitter * (2 * chance - 1))


def next_wait(backoff: Backoff, attempts: int) -> float:
    """Return the seconds to wait after that many deliveries, at least one, with a jitter that differs each time."""
    return backoff.seconds(max(attempts, 1), random.random())  # noqa: S311 - no secret


@_in_words
@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelOptions:
    """How a channel delivers.

    Attributes:
        start: where a channel begins when it is first created: `"earliest"`, `"latest"`, an offset (outside the log,
            the nearer of its ends), or a time (with a zone). None: a topic's first channel at the earliest message
            kept, a later one at the end. One that begins at a time counts nothing until it is on disk, for which `get`
            and `refresh` wait.
        visibility_timeout: seconds, or a `timedelta`, after which a message in flight that is not settled is
            redelivered; `touch` restarts the time. None: it is never redelivered while the store is open.
        max_in_flight: the most messages delivered and not yet settled. 1 gives strict order.
        max_attempts: after so many deliveries a message is given up: it goes to the dead-letter topic, or without one
            is dropped and counted as dead. Each delivery is recorded before the consumer gets the message, without
            a sync, so that it counts even if it kills the process; a power cut may lose some. None: no limit.
        dead_letter: the name of the topic for messages given up or rejected, or None. A message is put there and
            settled in one transaction: both or neither, whenever the process is killed or the power fails.
        backoff: how long a message waits after a `nack` without a delay; None: it is ready again at once.
        tags: only messages with one of these tags are delivered; the others count as settled. None: all are.
        auto_ack: messages are settled when delivered; a crash loses those delivered and not yet processed.
    """

    start: Start = None
    visibility_timeout: float | timedelta | None = 60.0
    max_in_flight: int = 1000
    max_attempts: int | None = None
    dead_letter: str | None = None
    backoff: Backoff | None = None
    tags: Collection[str] | None = None
    auto_ack: bool = False

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidOptionError: one is out of its range.
        """
        check_whole("max_in_flight", self.max_in_flight, least=1, example=1000)
        check_flag("auto_ack", self.auto_ack)
        if self.visibility_timeout is not None:
            span = span_seconds("visibility_timeout", self.visibility_timeout, positive=True)
            _choose(self, visibility_timeout=span)
        if self.max_attempts is not None:
            check_whole("max_attempts", self.max_attempts, least=1, example=5)
        if self.dead_letter is not None:
            if not isinstance(self.dead_letter, str):
                example = "write dead_letter='jobs-dead'"
                refuse("dead_letter", "the name of a topic", self.dead_letter, example, type_is_wrong=True)
            _choose(self, dead_letter=check_topic_name(self.dead_letter))
        if self.start is not None:
            check_position("start", self.start)
        self._check_backoff()
        self._check_tags()

    def _check_backoff(self) -> None:
        if self.backoff is None or isinstance(self.backoff, Backoff):
            return
        given: object = self.backoff
        number = isinstance(given, (int, float)) and 0 < given <= LONGEST_SPAN and not isinstance(given, bool)
        example = f"write backoff=Backoff(first={given if number else 1.0})"
        refuse("backoff", "a Backoff", given, example, type_is_wrong=True)

    def _check_tags(self) -> None:
        if self.tags is None:
            return
        expected, example = "a list of texts", "write tags=['red', 'pink']"
        if isinstance(self.tags, str):
            refuse("tags", expected, self.tags, f"write tags=[{shown(self.tags)}]", type_is_wrong=True)
        found = several(self.tags) if isinstance(self.tags, Collection) else None
        tags = None if found is None else list(found)
        if tags is None or not all(isinstance(tag, str) for tag in tags):
            refuse("tags", expected, self.tags, example, type_is_wrong=True)
        if not tags:
            refuse("tags", expected, self.tags, f"{example}, or None for every message", type_is_wrong=False)
        _choose(self, tags=tuple(sorted({str.__str__(tag) for tag in tags})))
