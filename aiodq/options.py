"""What a user may choose, checked when it is chosen."""

from __future__ import annotations

import math
from collections.abc import Collection  # noqa: TC003 - typing.get_type_hints has to find it
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias

from aiodq.errors import InvalidOptionError
from aiodq.names import check_topic_name

__all__ = [
    "Backoff",
    "ChannelOptions",
    "Overflow",
    "Retention",
    "Start",
    "StoreOptions",
    "SyncPolicy",
    "ephemeral",
    "time_ns",
]

SyncPolicy: TypeAlias = Literal["always", "interval", "os"]
Overflow: TypeAlias = Literal["block", "reject", "drop_oldest"]
Start: TypeAlias = "Literal['earliest', 'latest'] | int | datetime | None"

_MIB: Final = 1 << 20
_LARGEST_BODY: Final = 1 << 31
_LEAST_MEMORY: Final = 1 << 16


def _require(condition: bool, message: str) -> None:  # noqa: FBT001 - reads as the sentence it is
    if not condition:
        raise InvalidOptionError(message)


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """How long messages stay on disk. Whole segments go, never parts.

    Attributes:
        consumed: `"delete"` removes a segment once every channel has acked all of it; `"keep"` leaves it for replay
            until a bound below asks for it.
        max_age: older segments go, judged by their newest message. None: no bound.
        max_bytes: the oldest segments go until no more than this is left. None: no bound.
        max_segments: as `max_bytes`, by number.
        unconsumed: `"keep"` exempts from the three bounds what some channel has not acked; `"delete"` does not, and
            counts as dropped what a channel loses by it.
    """

    consumed: Literal["delete", "keep"] = "delete"
    max_age: timedelta | None = None
    max_bytes: int | None = None
    max_segments: int | None = None
    unconsumed: Literal["keep", "delete"] = "keep"

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidOptionError: one is out of its range.
        """
        _require(self.consumed in {"delete", "keep"}, f"consumed is 'delete' or 'keep', not {self.consumed!r}")
        _require(self.unconsumed in {"delete", "keep"}, f"unconsumed is 'delete' or 'keep', not {self.unconsumed!r}")
        _require(self.max_age is None or self.max_age > timedelta(0), f"max_age must be positive, not {self.max_age}")
        for name in ("max_bytes", "max_segments"):
            value = getattr(self, name)
            _require(value is None or value > 0, f"{name} must be positive or None, not {value}")

    @property
    def bounded(self) -> bool:
        """True when age, bytes or segments are limited."""
        return not (self.max_age is None and self.max_bytes is None and self.max_segments is None)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreOptions:
    """How a store keeps messages. Sizes are bytes, times seconds.

    Attributes:
        sync: `"always"`: `put` returns after fdatasync, shared by all puts that wait together. `"interval"`: after the
            write; an fsync follows every `sync_every` messages or `sync_interval` seconds, whichever is first.
            `"os"`: after the write; the kernel decides when it reaches the disk.
        sync_every: messages between syncs under `"interval"`.
        sync_interval: seconds between syncs under `"interval"`.
        segment_bytes: a segment rolls before it would exceed this; a larger message gets a segment of its own.
        min_message_bytes: the smallest body taken.
        max_message_bytes: the largest body taken.
        max_bytes: bound of a topic's backlog in bytes, or None.
        max_messages: bound of a topic's backlog in messages, or None.
        overflow: what a put does at that bound: wait, raise `QueueFull`, or free the oldest messages and count them.
        retention: when segments are deleted.
        compression: `"zstd"` compresses by batch (extra `zstd`), None does not.
        memory_bytes: bound for one topic's write buffer and read-ahead together.
        sync_backend: how the event loop waits for a sync; `"thread"` is always there, `"auto"` takes the best.
    """

    sync: SyncPolicy = "always"
    sync_every: int = 2500
    sync_interval: float = 2.0
    segment_bytes: int = 100 * _MIB
    min_message_bytes: int = 0
    max_message_bytes: int = 16 * _MIB
    max_bytes: int | None = None
    max_messages: int | None = None
    overflow: Overflow = "block"
    retention: Retention = field(default_factory=Retention)
    compression: Literal["zstd"] | None = None
    memory_bytes: int = 64 * _MIB
    sync_backend: Literal["auto", "thread"] = "auto"

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidOptionError: one is out of its range.
        """
        _require(self.sync in {"always", "interval", "os"}, f"sync is 'always', 'interval' or 'os', not {self.sync!r}")
        _require(self.sync_every > 0, f"sync_every must be positive, not {self.sync_every}")
        _require(self.sync_interval > 0, f"sync_interval must be positive, not {self.sync_interval}")
        _require(self.segment_bytes > 0, f"segment_bytes must be positive, not {self.segment_bytes}")
        _require(
            0 <= self.min_message_bytes <= self.max_message_bytes <= _LARGEST_BODY,
            f"0 <= min_message_bytes <= max_message_bytes <= {_LARGEST_BODY} does not hold: "
            f"{self.min_message_bytes}, {self.max_message_bytes}",
        )
        for name in ("max_bytes", "max_messages"):
            value = getattr(self, name)
            _require(value is None or value > 0, f"{name} must be positive or None, not {value}")
        _require(
            self.overflow in {"block", "reject", "drop_oldest"},
            f"overflow is 'block', 'reject' or 'drop_oldest', not {self.overflow!r}",
        )
        _require(self.compression in {None, "zstd"}, f"compression is 'zstd' or None, not {self.compression!r}")
        _require(
            self.memory_bytes >= _LEAST_MEMORY,
            f"memory_bytes must be at least {_LEAST_MEMORY}, not {self.memory_bytes}",
        )
        _require(self.sync_backend in {"auto", "thread"}, f"sync_backend {self.sync_backend!r} is not known")


def ephemeral(options: StoreOptions) -> StoreOptions:
    """Return the options of a topic that lives in memory: up to half of `memory_bytes`, then the oldest are dropped."""
    most = min(options.max_bytes or options.memory_bytes, options.memory_bytes // 2)
    return replace(
        options, sync="os", overflow="drop_oldest", max_bytes=most, segment_bytes=min(options.segment_bytes, most // 8)
    )


def _positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Backoff:
    """How long a message waits that was requeued without a delay: longer from one delivery to the next.

    The wait after delivery *n* is `first * factor ** (n - 1)` seconds, `limit` at most, and then up to `jitter` of it
    more or less, so that what failed together does not come again together.

    Attributes:
        first: seconds after the first delivery.
        factor: by which it grows, at least 1.
        limit: seconds at most.
        jitter: a share from 0 to 1.
    """

    first: float = 1.0
    factor: float = 2.0
    limit: float = 900.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidOptionError: one is out of its range.
        """
        _require(_positive(self.first), f"first must be a positive number of seconds, not {self.first}")
        _require(_positive(self.factor) and self.factor >= 1, f"factor must be at least 1, not {self.factor}")
        _require(_positive(self.limit), f"limit must be a positive number of seconds, not {self.limit}")
        _require(0 <= self.jitter <= 1, f"jitter is from 0 to 1, not {self.jitter}")

    def seconds(self, attempts: int, chance: float) -> float:
        """Return the wait after that many deliveries; `chance`, from 0 to 1, decides about the jitter."""
        grown = self.limit
        if (attempts - 1) * math.log(self.factor) < math.log(max(self.limit / self.first, 1.0)):
            grown = min(self.first * self.factor ** (attempts - 1), self.limit)
        return grown * (1 + self.jitter * (2 * chance - 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelOptions:
    """How a channel delivers.

    Attributes:
        start: where a channel begins when it is first created: `"earliest"`, `"latest"`, an offset, or a time (with a
            zone). None: a topic's first channel at the earliest message kept, a later one at the end.
        visibility_timeout: seconds after which a message that was handed out and not settled comes again; `touch`
            begins them anew. None: it waits for ever.
        max_in_flight: messages handed out and not yet settled, at most. 1 gives strict order.
        max_attempts: after so many deliveries a message is dead: it goes to the dead-letter topic, or is dropped and
            counted where there is none. None: it comes again for ever.
        dead_letter: the name of the topic for what is dead or rejected, or None.
        backoff: how long a message waits after a `nack` without a delay; None: it is ready again at once.
        tags: only messages with one of these tags are delivered; the others count as settled. None: all are.
        auto_ack: settled when handed over; a crash loses what was handed over and not yet worked off.
    """

    start: Start = None
    visibility_timeout: float | None = 60.0
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
        _require(self.max_in_flight > 0, f"max_in_flight must be positive, not {self.max_in_flight}")
        _require(
            self.visibility_timeout is None or _positive(self.visibility_timeout),
            f"visibility_timeout must be a positive number of seconds, not {self.visibility_timeout}",
        )
        _require(
            self.max_attempts is None or self.max_attempts > 0, f"max_attempts must be positive: {self.max_attempts}"
        )
        if self.dead_letter is not None:
            check_topic_name(self.dead_letter)
        _require(not isinstance(self.tags, str), "tags is a collection of texts, not a text")
        if isinstance(self.start, str):
            _require(self.start in {"earliest", "latest"}, f"start {self.start!r} is not known")
        elif isinstance(self.start, datetime):
            _require(self.start.tzinfo is not None, "start needs a time zone")
        elif isinstance(self.start, int):
            _require(self.start >= 0, f"start must not be negative: {self.start}")


def time_ns(moment: datetime) -> int:
    """Return nanoseconds since the epoch, exact to the microsecond.

    Raises:
        InvalidOptionError: the time has no zone.
    """
    if moment.tzinfo is None:
        raise InvalidOptionError("the time needs a zone, for example datetime.now(timezone.utc)")
    delta = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000_000 + delta.microseconds * 1000
