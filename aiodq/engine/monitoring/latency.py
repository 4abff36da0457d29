"""How long messages take from being put to being delivered, and to being acked: by channel, over about a minute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiodq.engine.clock_timer import monotonic_ns
from aiodq.stats import Latency

if TYPE_CHECKING:
    from aiodq.clock import Clock

__all__ = ["Histogram", "LatencyMeter"]

_SECOND: Final = 1_000_000_000
_WINDOW: Final = 30 * _SECOND
"""Nanoseconds that one of two histograms takes in; both together are shown: the last 30 to 60 seconds."""

_FINE: Final = 3
"""Each power of two is divided into 2**3 buckets, so that a percentile is right to about 6 %."""

_SAMPLES: Final = 256
"""So many messages a second are measured, each standing for as many as were not."""

_STEEPEST: Final = 64
"""The number of messages that one stands for grows by no more than this at a time: a burst may be over already."""

_MOST_OPEN: Final = 4096
"""So many measured messages are remembered at least until they are acked."""


class Histogram:
    """Counts of durations in buckets that grow with them.

    Attributes:
        counts: by bucket.
        longest: nanoseconds.
    """

    __slots__ = ("counts", "longest")

    def __init__(self) -> None:
        """Begin empty."""
        self.counts: dict[int, int] = {}
        self.longest: int = 0

    def add(self, duration: int, weight: int) -> None:
        """Count a duration, nanoseconds, as so many."""
        bits = max((duration >> 10).bit_length() - _FINE - 1, 0)
        bucket = (bits << _FINE) + (duration >> (10 + bits))
        self.counts[bucket] = self.counts.get(bucket, 0) + weight
        self.longest = max(self.longest, duration)


def _middle(bucket: int) -> float:
    """Return the nanoseconds in the middle of a bucket."""
    bits = max((bucket >> _FINE) - 1, 0)
    return float((bucket - (bits << _FINE)) + 0.5) * (1 << (10 + bits))


def latency(*histograms: Histogram) -> Latency | None:
    """Return what histograms hold together, or None where that is nothing."""
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


class _Window:
    """Two histograms: one that is filled, and the one before it."""

    __slots__ = ("_shown", "before", "filling")

    def __init__(self) -> None:
        self.filling = Histogram()
        self.before = Histogram()
        self._shown: tuple[bool, Latency | None] | None = None

    def add(self, duration: int, weight: int) -> None:
        self.filling.add(duration, weight)
        self._shown = None

    def turn(self, *, forget: bool) -> None:
        self.before, self.filling = (Histogram() if forget else self.filling), Histogram()
        self._shown = None

    def shown(self, *, whole: bool) -> Latency | None:
        """Return what both hold, or the later one; worked out anew only where something has come since."""
        if self._shown is None or self._shown[0] is not whole:
            self._shown = whole, latency(self.filling, self.before) if whole else latency(self.filling)
        return self._shown[1]


class LatencyMeter:
    """One per channel. It costs most messages next to nothing: who delivers compares one number, who acks asks `open`.

    Where more come than are measured in a second, every so many-th is, and counts for those in between.

    Attributes:
        open: measured and not acked: when it was put and how many it stands for, by delivery number.
    """

    __slots__ = ("_acks", "_began", "_clock", "_deliveries", "_period", "_stride", "_used", "open")

    def __init__(self, clock: Clock) -> None:
        """Begin with nothing measured."""
        self.open: Final[dict[int, tuple[int, int]]] = {}
        self._clock = clock
        self._deliveries = _Window()
        self._acks = _Window()
        self._stride = 1
        self._used = 0
        self._period = self._began = monotonic_ns(clock)

    def delivered(self, delivery: int, put_ns: int, attempts: int) -> int:
        """A message is handed out; return the delivery number from which on the next one is to be measured.

        Args:
            delivery: its delivery number.
            put_ns: when it was put, or was due; wall time.
            attempts: the first delivery counts.
        """
        self._turn()
        if attempts == 1:
            self._deliveries.add(max(self._clock.now_ns() - put_ns, 0), self._stride)
        if len(self.open) >= _MOST_OPEN:
            del self.open[next(iter(self.open))]  # the oldest: what is not acked for long is not worth the memory
        self.open[delivery] = (put_ns, self._stride)
        return delivery + self._stride

    def acked(self, delivery: int) -> None:
        """A message is acked."""
        found = self.open.pop(delivery, None)
        if found is not None:
            self._acks.add(max(self._clock.now_ns() - found[0], 0), found[1])

    def moved(self, delivery: int, now: int) -> None:
        """A message in flight has another delivery number now."""
        found = self.open.pop(delivery, None)
        if found is not None:
            self.open[now] = found

    def _turn(self) -> None:
        """Begin the next window, and see how many messages come, when it is time."""
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
        """Return how long it took until messages were first handed out, in about the last minute."""
        return self._shown(self._deliveries)

    def put_to_ack(self) -> Latency | None:
        """Return how long it took until messages were acked, likewise."""
        return self._shown(self._acks)

    def _shown(self, window: _Window) -> Latency | None:
        age = monotonic_ns(self._clock) - self._began
        if age >= 2 * _WINDOW:
            return None
        return window.shown(whole=age < _WINDOW)
