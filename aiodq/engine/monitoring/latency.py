"""Latency of messages, from put to delivery and from put to ack: per channel, over about the last minute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiodq.engine.loop.clock_timer import monotonic_ns
from aiodq.stats import Latency

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.clock import Clock

__all__ = ["Histogram", "LatencyMeter"]

_SECOND: Final = 1_000_000_000
_WINDOW: Final = 30 * _SECOND
"""Nanoseconds for which one of two histograms is filled; both together cover the last 30 to 60 seconds."""

_FINE: Final = 3
"""Each power of two is divided into 2**3 buckets, so that a percentile is accurate to about 6 %."""

_SAMPLES: Final = 256
"""Messages measured per second; each counts for those in between."""

_STEEPEST: Final = 64
"""The factor by which the weight of a measured message may grow at a time: a burst may be over already."""

_MOST_OPEN: Final = 4096
"""The most measured messages remembered until they are acked."""

_FEW_OPEN: Final = 64
"""So many are remembered without a look at whether they are still in flight."""


class Histogram:
    """Counts of durations, in buckets whose width grows with the duration.

    Attributes:
        counts: the counts, by bucket.
        longest: the longest duration, in nanoseconds.
    """

    __slots__ = ("counts", "longest")

    def __init__(self) -> None:
        """Start empty."""
        self.counts: dict[int, int] = {}
        self.longest: int = 0

    def add(self, duration: int, weight: int) -> None:
        """Count a duration in nanoseconds, with a weight."""
        bits = max((duration >> 10).bit_length() - _FINE - 1, 0)
        bucket = (bits << _FINE) + (duration >> (10 + bits))
        self.counts[bucket] = self.counts.get(bucket, 0) + weight
        self.longest = max(self.longest, duration)


def _middle(bucket: int) -> float:
    """Return the middle of a bucket, in nanoseconds."""
    bits = max((bucket >> _FINE) - 1, 0)
    return float((bucket - (bits << _FINE)) + 0.5) * (1 << (10 + bits))


def latency(*histograms: Histogram) -> Latency | None:
    """Return the latency over all these histograms, or None if they are empty."""
    counts: dict[int, int] = {}
    for histogram in histograms:
        for bucket, count in histogram.counts.items():
            counts[bucket] = counts.get(bucket, 0) + count
    total = sum(counts.values())
    if not total:
        return None
    longest = max(histogram.longest for histogram in histograms)
    shares, passed = (0.5, 0.9, 0.99), 0
    found: list[float] = []
    for bucket in sorted(counts):
        passed += counts[bucket]
        while len(found) < len(shares) and passed >= shares[len(found)] * total:
            found.append(min(_middle(bucket), longest) / _SECOND)
    return Latency(total, found[0], found[1], found[2], longest / _SECOND)


_NOTHING: Final = Histogram()
"""Stands for a histogram to which nothing was added yet, in all windows: most channels are idle."""


class _Window:
    """Two histograms: the one being filled, and the one before it."""

    __slots__ = ("_shown", "before", "filling")

    def __init__(self) -> None:
        self.filling = self.before = _NOTHING
        self._shown: tuple[bool, Latency | None] | None = None

    def add(self, duration: int, weight: int) -> None:
        if self.filling is _NOTHING:
            self.filling = Histogram()
        self.filling.add(duration, weight)
        self._shown = None

    def turn(self, *, forget: bool) -> None:
        self.before, self.filling = (_NOTHING if forget else self.filling), _NOTHING
        self._shown = None

    def shown(self, *, whole: bool) -> Latency | None:
        """Return the latency over both, or the later one; computed again only after an addition."""
        if self._shown is None or self._shown[0] is not whole:
            self._shown = whole, latency(self.filling, self.before) if whole else latency(self.filling)
        return self._shown[1]


class LatencyMeter:
    """The latencies of one channel. For most messages a delivery compares one number, and an ack looks into `open`.

    If more messages come than are measured in a second, every n-th is measured, and counts for those in between.

    Attributes:
        open: measured messages not yet acked: when each was put, its weight and its offset, by delivery number.
        idle: whether there is nothing to be shown, as far as was looked.
    """

    __slots__ = (
        "_acks", "_began", "_clock", "_deliveries", "_full", "_holds", "_period", "_stride", "_used", "idle", "open",
    )  # fmt: skip

    def __init__(self, clock: Clock, holds: Callable[[int, int], bool]) -> None:
        """Start with nothing measured.

        Args:
            clock: tells when a message is delivered and acked.
            holds: returns whether a message, by its offset, is in flight by a delivery number.
        """
        self.open: Final[dict[int, tuple[int, int, int]]] = {}
        self.idle: bool = True
        self._clock = clock
        self._holds = holds
        self._full = _FEW_OPEN
        self._deliveries = _Window()
        self._acks = _Window()
        self._stride = 1
        self._used = 0
        self._period = self._began = monotonic_ns(clock)

    def delivered(self, delivery: int, offset: int, put_ns: int, attempts: int) -> int:
        """Measure a delivery; return the delivery number from which on the next one is to be measured.

        Args:
            delivery: its delivery number.
            offset: the message's.
            put_ns: when it was put, or became due; wall time.
            attempts: how often it was delivered; only first deliveries count.
        """
        self._turn()
        self.idle = False
        if attempts == 1:
            self._deliveries.add(max(self._clock.now_ns() - put_ns, 0), self._stride)
        if len(self.open) >= self._full:
            self._forget()
        self.open[delivery] = (put_ns, self._stride, offset)
        return delivery + self._stride

    def _forget(self) -> None:
        """Forget messages that are no longer in flight, but were not acked: requeued, purged or given up.

        It is done again once there are twice as many as are left, so that it costs each message the same.
        """
        for delivery in [number for number, (_, _, offset) in self.open.items() if not self._holds(offset, number)]:
            del self.open[delivery]
        # The oldest of too many: one not acked for long is not worth the memory.
        for delivery in [*self.open][: len(self.open) - _MOST_OPEN * 3 // 4]:
            del self.open[delivery]
        self._full = min(max(2 * len(self.open), _FEW_OPEN), _MOST_OPEN)

    def acked(self, delivery: int) -> None:
        """Measure an ack, if the delivery was measured."""
        found = self.open.pop(delivery, None)
        if found is not None:
            self.idle = False
            self._acks.add(max(self._clock.now_ns() - found[0], 0), found[1])

    def moved(self, delivery: int, now: int) -> None:
        """Note that a message in flight has another delivery number now."""
        found = self.open.pop(delivery, None)
        if found is not None:
            self.open[now] = found

    def _turn(self) -> None:
        """Start the next window if it is time, and adapt the sampling to the rate of messages."""
        now = monotonic_ns(self._clock)
        if now - self._began >= _WINDOW:
            for window in (self._deliveries, self._acks):
                window.turn(forget=now - self._began >= 2 * _WINDOW)
            self._began = now
        self._used += 1
        took = now - self._period
        if self._used >= _SAMPLES or took >= _SECOND:
            a_second = self._used * self._stride * _SECOND // max(took, 1)
            self._stride = min(max(a_second // _SAMPLES, 1), self._stride * _STEEPEST)
            self._used, self._period = 0, now

    def put_to_deliver(self) -> Latency | None:
        """Return the latency from put to first delivery, over about the last minute."""
        return self._shown(self._deliveries)

    def put_to_ack(self) -> Latency | None:
        """Return the latency from put to ack, likewise."""
        return self._shown(self._acks)

    def _shown(self, window: _Window) -> Latency | None:
        age = monotonic_ns(self._clock) - self._began
        if age >= 2 * _WINDOW:
            self.idle = True
            return None
        return window.shown(whole=age < _WINDOW)
