"""A claim: what one call settles at once of messages in flight, all of them or none, whatever order they come in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from aiodq.delivery.leases import ACKED, APART, CLAIMED, HELD, MEASURED
from aiodq.engine.channel.lease.held_runs import in_pieces
from aiodq.engine.channel.lease.in_flight import InFlight

if TYPE_CHECKING:
    from aiodq.engine.channel.lease.message_lease import MessageLease
    from aiodq.engine.channel.settling_channel import SettlingChannel

__all__ = ["Claim", "is_claimed"]

M = TypeVar("M", bound=InFlight)

_CLAIMED: Final = bytes([CLAIMED])
_HELD: Final = bytes([HELD])
_ACKED: Final = bytes([ACKED])
_SHORT: Final = 4
"""Messages in a run on average, below which each is looked at by itself."""


class Claim(Generic[M]):
    """Messages in flight of one channel that are marked first, and settled or given back once all others are checked.

    A message costs no call of its own, and no entry but its mark. The marks say which message is given twice.

    INVARIANT: between `take` and the end of the claim the event loop does not go on, and nothing settles by the marks.

    Attributes:
        others: messages that are not in the claim: they have an entry of their own, cannot be settled, or are given
            twice.
    """

    __slots__ = ("_channel_engine", "_leases", "_measured", "_runs", "others")

    def __init__(self, channel_engine: SettlingChannel) -> None:
        """Start without messages of this channel."""
        self.others: list[M] = []
        self._channel_engine = channel_engine
        # Leases with claimed messages; those that follow each other, by the first index and the one after the last; and
        # those whose ack is reported.
        self._leases: dict[MessageLease, None] = {}
        self._runs: list[tuple[MessageLease, int, int]] = []
        self._measured: list[tuple[MessageLease, int]] = []

    def take(self, messages: list[M]) -> None:
        """Claim those of these messages that are in flight through a lease."""
        pieces, end = in_pieces(messages)
        if len(pieces) * _SHORT > len(messages):
            self._take_each(messages)
            return
        for lease, first, at, stop in pieces:
            if lease.channel_engine is not self._channel_engine or lease.marks[first] == APART:
                self.others += messages[at:stop]
            elif not self._take_run(lease, first, first + stop - at):
                self._take_each(messages[at:stop])
        if end < len(messages):
            self._take_each(messages[end:])

    def _take_run(self, lease: MessageLease, first: int, stop: int) -> bool:
        """Claim messages of a lease that follow each other; return False if one of them is not in flight through it."""
        marks, count = lease.marks, stop - first
        measured: list[tuple[MessageLease, int]] = []
        if marks.count(HELD, first, stop) < count:
            at = marks.find(MEASURED, first, stop)
            while at >= 0:
                measured.append((lease, at))
                at = marks.find(MEASURED, at + 1, stop)
            if marks.count(HELD, first, stop) + len(measured) < count:
                return False
        self._runs.append((lease, first, stop))
        self._measured += measured
        marks[first:stop] = _CLAIMED * count
        return True

    def _take_each(self, messages: list[M]) -> None:
        channel_engine, leases, others = self._channel_engine, self._leases, self.others
        last: MessageLease | None = None
        marks = bytearray()
        for message in messages:
            lease: MessageLease = message._run  # noqa: SLF001 - a message has no other name for its place
            if lease is not last:
                if lease.channel_engine is not channel_engine:
                    others.append(message)
                    continue
                leases[lease] = None
                last, marks = lease, lease.marks
            at = message._index  # noqa: SLF001 - as above
            mark = marks[at]
            if mark == HELD:
                marks[at] = CLAIMED
            elif mark == MEASURED:
                self._measured.append((lease, at))
                marks[at] = CLAIMED
            else:
                others.append(message)

    def give_back(self) -> None:
        """End the claim as if it had never been made."""
        self._unmark(_HELD)

    def settle(self) -> None:
        """End the claim: its messages are acked."""
        channel_engine = self._channel_engine
        self._unmark(_ACKED)
        for lease, first, stop in self._runs:
            channel_engine.ack_run(lease, first, stop - first)
        for lease in self._leases:
            channel_engine.ack_marked(lease)
        for lease, at in self._measured:
            if lease.marks[at] == MEASURED:  # else it was in a run
                channel_engine.ack_run(lease, at, 1)

    def _unmark(self, mark: bytes) -> None:
        """Mark what is claimed as in flight again, but messages out of order that are not measured with this mark."""
        for lease, first, stop in self._runs:
            lease.marks[first:stop] = _HELD * (stop - first)
        for lease in self._leases:
            lease.marks = lease.marks.replace(_CLAIMED, mark)
        for lease, at in self._measured:
            lease.marks[at] = MEASURED


def is_claimed(message: InFlight) -> bool:
    """Return whether a message is in a claim."""
    lease: MessageLease = message._run  # noqa: SLF001 - as in `Claim`
    return lease.marks[message._index] == CLAIMED  # noqa: SLF001 - as above
