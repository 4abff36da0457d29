"""The proof: compares what was delivered with what was to be put. It uses no queue, no files and no clock."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = ["Ledger", "Problem", "Script", "Verdict", "digest", "prove"]

Kind: TypeAlias = Literal["lost", "changed", "out of order", "foreign", "stored twice", "delivered after its ack"]

_NEVER: Final = -1
_HASHED_AT_ONCE: Final = 1000
"""Messages that one call hashes: a call for each would cost more than the hashing."""
_TOLD: Final = 10
"""Problems of each kind that are named; all are counted."""


class Script(Protocol):
    """What one producer puts, in order."""

    def __len__(self) -> int:
        """Return how many messages."""
        ...

    def __getitem__(self, position: int, /) -> bytes:
        """Return the message at a position."""
        ...

    def messages(self) -> Iterator[bytes]:
        """Yield all of them."""
        ...

    def where(self, position: int) -> str:
        """Return what people call that position."""
        ...


@dataclass(frozen=True, slots=True)
class Problem:
    """One violation of what was promised.

    Attributes:
        kind: what is wrong.
        where: file and line.
        offset: of the message that shows it, -1 where none does.
    """

    kind: Kind
    where: str
    offset: int = _NEVER


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the proof.

    Attributes:
        expected: messages that had to come.
        delivered: of those, how many came.
        redelivered: deliveries of a message that had come before.
        counts: how often what is wrong.
        problems: the first of each kind.
        digests: by producer, over everything in order: (of the sources, of what came).
    """

    expected: int
    delivered: int
    redelivered: int
    counts: dict[Kind, int]
    problems: tuple[Problem, ...]
    digests: tuple[tuple[str, str], ...]

    @property
    def ok(self) -> bool:
        """True when everything came, as it was, in order, and the digests say the same."""
        return not self.counts and self.expected == self.delivered and all(a == b for a, b in self.digests)

    def count(self, kind: Kind) -> int:
        """Return how often something is wrong."""
        return self.counts.get(kind, 0)

    @property
    def digest(self) -> str:
        """One digest over those of what came, by producer."""
        return digest(came.encode() for _, came in self.digests)


def digest(messages: Iterable[bytes]) -> str:
    """Return a digest over messages in order. No message has a newline in it, so newlines keep them apart."""
    total = hashlib.sha256()
    pending: list[bytes] = []
    for message in messages:
        pending.append(message)
        if len(pending) >= _HASHED_AT_ONCE:
            total.update(b"\n".join(pending) + b"\n")
            pending.clear()
    if pending:
        total.update(b"\n".join(pending) + b"\n")
    return total.hexdigest()


class _Track:
    """One producer's messages as they come."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.next = 0
        self.missing: set[int] = set()
        self.offsets = array("q", [_NEVER]) * len(script)
        self.hash = hashlib.sha256()


class Ledger:
    """Takes deliveries one after the other and keeps account of each line."""

    def __init__(self, scripts: Sequence[Script], locate: Callable[[bytes], tuple[int, int] | None]) -> None:
        """Expect all of the scripts.

        Args:
            scripts: by producer.
            locate: returns the producer and the position that a message says it has.
        """
        self.delivered: int = 0
        self.redelivered: int = 0
        self.expected: int = sum(map(len, scripts))
        self._tracks = [_Track(script) for script in scripts]
        self._locate = locate
        self._settled = bytearray()
        self._counts: Counter[Kind] = Counter()
        self._problems: list[Problem] = []

    def deliver(self, offset: int, body: bytes) -> None:
        """Take one delivery: the message's offset in the log, and what was in it."""
        place = self._locate(body)
        if place is None:
            self._problem("foreign", body[:80].decode(errors="replace"), offset)
            return
        track, position = self._tracks[place[0]], place[1]
        if track.script[position] != body:
            self._problem("changed", track.script.where(position), offset)
        if track.offsets[position] != _NEVER:
            self._again(track, position, offset)
            return
        track.offsets[position] = offset
        track.hash.update(body + b"\n")
        self.delivered += 1
        if position == track.next:
            track.next += 1
        else:
            self._out_of_turn(track, position, offset)

    def _again(self, track: _Track, position: int, offset: int) -> None:
        if track.offsets[position] != offset:
            self._problem("stored twice", track.script.where(position), offset)
            return
        self.redelivered += 1
        if self._settled[offset : offset + 1] == b"\x01":
            self._problem("delivered after its ack", track.script.where(position), offset)

    def _out_of_turn(self, track: _Track, position: int, offset: int) -> None:
        if position > track.next:
            # Lost, unless it comes yet; then it is out of order.
            track.missing.update(range(track.next, position))
            track.next = position + 1
        else:
            track.missing.discard(position)
            self._problem("out of order", track.script.where(position), offset)

    def settled(self, offsets: Iterable[int]) -> None:
        """Note that the acks of these are durable, so that they may not be redelivered."""
        for offset in offsets:
            if offset >= len(self._settled):
                self._settled.extend(bytes(offset + 1))
            self._settled[offset] = 1

    def reached(self, producer: int) -> int:
        """Return the position after the last of a producer's messages that came."""
        return self._tracks[producer].next

    def verdict(self, upto: Sequence[int] | None = None) -> Verdict:
        """Return the result.

        Args:
            upto: by producer, the position before which everything has to have come, and nothing after it has to; None
                for all of it.
        """
        tracks = self._tracks
        ends = [len(track.script) for track in tracks] if upto is None else list(upto)
        counts, problems = Counter(self._counts), list(self._problems)
        for track, end in zip(tracks, ends, strict=True):
            lost = sorted(each for each in track.missing if each < max(track.next, end))
            lost += range(track.next, end)
            if lost:
                counts["lost"] += len(lost)
                problems += [Problem("lost", track.script.where(position)) for position in lost[:_TOLD]]
        came = self.delivered
        digests = tuple(
            (digest(_first(track.script.messages(), max(track.next, end))), track.hash.hexdigest())
            for track, end in zip(tracks, ends, strict=True)
        )
        expected = sum(max(track.next, end) for track, end in zip(tracks, ends, strict=True))
        return Verdict(expected, came, self.redelivered, dict(counts), tuple(problems), digests)

    def _problem(self, kind: Kind, where: str, offset: int) -> None:
        self._counts[kind] += 1
        if self._counts[kind] <= _TOLD:
            self._problems.append(Problem(kind, where, offset))


def _first(messages: Iterator[bytes], count: int) -> Iterator[bytes]:
    return (message for message, _ in zip(messages, range(count), strict=False))


def prove(
    scripts: Sequence[Script],
    locate: Callable[[bytes], tuple[int, int] | None],
    deliveries: Iterable[tuple[int, bytes]],
    settled: Iterable[int] = (),
) -> Verdict:
    """Compare deliveries, as (offset, body), with what was to be put.

    Args:
        scripts: by producer.
        locate: as for `Ledger`.
        deliveries: in the order in which they came.
        settled: offsets whose acks were durable before any of these deliveries.
    """
    ledger = Ledger(scripts, locate)
    ledger.settled(settled)
    for offset, body in deliveries:
        ledger.deliver(offset, body)
    return ledger.verdict()
