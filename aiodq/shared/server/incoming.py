"""The memory for incomplete packets at an owner: large ones take turns, so that it is bounded."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

__all__ = ["Incoming", "Sender"]

_SMALL: Final = 256 << 10
"""Bytes of the largest packet that has no turn: about as much is read from a connection at once."""

_MOST: Final = 256 << 20
"""Bytes of all large packets whose turn it is."""

_LOOK: Final = 0.5
"""Seconds between two looks at those whose turn it is, while others wait for theirs."""

_LONGEST_TURN: Final = 10
_LONGEST_QUIET: Final = 2
"""Looks that see a packet incomplete, and such in a row before which nothing came: then its turn is over."""


class Sender(Protocol):
    """A connection over which packets arrive. It can be hashed."""

    def wait(self) -> None:
        """Read no more until its turn comes."""
        ...

    def go_on(self) -> None:
        """Read on, as its turn has come."""
        ...

    def too_slow(self) -> None:
        """End the connection, as its packet was not completed in time while others waited."""
        ...


class _Turn:
    """The turn of a packet."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.looks = 0
        self.quiet = 0


class Incoming:
    """The large packets that arrive at an owner.

    A packet gets room for all of it at once: otherwise several half-read packets could block each other.
    """

    def __init__(self) -> None:
        """Start with none."""
        self._taken = 0
        self._turns: dict[Sender, _Turn] = {}
        self._line: deque[tuple[Sender, int]] = deque()
        self._looking: asyncio.TimerHandle | None = None

    def arrived(self, sender: Sender, length: int, *, anew: bool) -> None:
        """Note that a piece has arrived.

        Args:
            sender: over which connection.
            length: that of the incomplete packet; 0 if there is none after this piece.
            anew: whether the piece has completed a packet, so that this is another one.
        """
        turn = self._turns.get(sender)
        if turn is not None:
            if not anew:
                turn.quiet = 0
                return
            self.ended(sender)
        if length <= _SMALL:
            return
        self._line.append((sender, length))
        self._next()
        if sender not in self._turns:
            sender.wait()
            if self._looking is None:
                self._look_later()

    def ended(self, sender: Sender) -> None:
        """Note that a packet is complete, or the connection has ended."""
        turn = self._turns.pop(sender, None)
        if turn is not None:
            self._taken -= turn.length
        elif self._line:
            self._line = deque(entry for entry in self._line if entry[0] is not sender)
        for each in self._next():
            each.go_on()

    def _next(self) -> list[Sender]:
        """Give turns to the senders for which there is room; return them."""
        given: list[Sender] = []
        while self._line and (not self._taken or self._taken + self._line[0][1] <= _MOST):
            sender, length = self._line.popleft()
            self._taken += length
            self._turns[sender] = _Turn(length)
            given.append(sender)
        if not self._line and self._looking is not None:
            self._looking.cancel()
            self._looking = None
        return given

    def _look_later(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(_LOOK, self._look)

    def _look(self) -> None:
        """End the turns of senders that send nothing, or too slowly, while others wait."""
        self._look_later()
        for sender, turn in list(self._turns.items()):
            turn.looks += 1
            # INVARIANT: between two looks the loop has read what had arrived, even if it was blocked before.
            turn.quiet += 1
            if turn.looks >= _LONGEST_TURN or turn.quiet >= _LONGEST_QUIET:
                sender.too_slow()
