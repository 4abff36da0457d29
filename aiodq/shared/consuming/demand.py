"""How many messages a process asks of the owner for one channel, and which it gives back as nobody waits for them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, Protocol

from aiodq.engine.loop.futures import surely
from aiodq.shared.connection.in_turns import BACK_AT_ONCE
from aiodq.shared.consuming.pace import WINDOW
from aiodq.wire.packets import Ping, Want

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aiodq.shared.consuming.arrived import Arrived
    from aiodq.shared.consuming.pace import Pace
    from aiodq.wire.packets import Packet

__all__ = ["Demand", "DemandingChannel"]

_KEPT: Final = 1.0
"""Seconds for which a message is kept after `get_nowait` has asked for one in vain."""


class DemandingChannel(Protocol):
    """What is needed of the channel; `aiodq.shared.consuming.remote_channel.RemoteChannel` implements it."""

    error: Exception | None
    shut: bool
    shut_now: bool

    @property
    def claimed(self) -> bool:
        """Whether the owner has answered what of earlier deliveries is still held here."""
        ...

    def request(self, make: Callable[[int], Packet]) -> asyncio.Future[Packet]:
        """Send the owner a request, built with the channel's handle."""
        ...

    def tell_owner(self, make: Callable[[int], Packet]) -> None:
        """Send the owner a packet that needs no answer, unless the channel has ended."""
        ...

    def give_back(self, numbers: Iterable[range]) -> None:
        """Release messages by their numbers."""
        ...


class Demand:
    """The demand of one channel: what getters wait for, and what is prefetched.

    The owner is told how many it may send in all since it has opened the channel, so that nothing counts twice.

    Attributes:
        waiting: the messages that getters wait for.
        got: the messages that the owner has sent.
        wanted: how many it was told that it may send.
        held_back: whether nothing that is here is handed out, as the channel is paused: all of it goes back.
    """

    def __init__(self, channel: DemandingChannel, ready: Arrived, pace: Pace) -> None:
        """Ask for nothing.

        Args:
            channel: the channel.
            ready: the messages that have arrived and are not taken.
            pace: how many to prefetch.
        """
        self.waiting: int = 0
        self.got: int = 0
        self.wanted: int = 0
        self.held_back: bool = False
        self._channel = channel
        self._ready = ready
        self._pace = pace
        self._slower = False
        self._looking_ahead: asyncio.TimerHandle | None = None
        self._returning: asyncio.TimerHandle | None = None
        self._last_withdrawn: asyncio.Future[Packet] | None = None

    @property
    def awaited(self) -> bool:
        """Whether a getter waits, or has asked in vain a moment ago."""
        return bool(self.waiting) or self._returning is not None

    def reset(self) -> None:
        """Begin anew with another owner, which has sent nothing."""
        self.got = self.wanted = 0

    def unfulfilled(self) -> None:
        """Note that the owner sends no more of what was wanted: the next getter asks again."""
        self.wanted = self.got

    def stop(self) -> None:
        """Stop the timers."""
        for timer in (self._returning, self._looking_ahead):
            if timer is not None:
                timer.cancel()

    def leave(self) -> None:
        """Tell the owner which messages were taken here, as no more will be."""
        if self.wanted and self._channel.claimed:
            self._channel.tell_owner(lambda handle: Want(handle, self.got - len(self._ready)))

    # --- asking for more

    def want(self, more: int = 0) -> None:
        """Tell the owner if more is wanted than it knows of: by getters, to be prefetched, and so many `more`."""
        # INVARIANT: not before a new owner knows which messages are held here, and which were given back. Otherwise it
        # would redeliver messages that are held, or deliver newer ones before those.
        wanted = self.got - len(self._ready) + self.waiting + self._pace.ahead + more
        if wanted > self.wanted and self._channel.claimed:
            self._channel.tell_owner(lambda handle: Want(handle, wanted))
            self.wanted = wanted  # not before it is sent, for which the stack may have no room

    def keep_one(self) -> None:
        """Want a message for the next `get_nowait`, and keep it for a moment."""
        if self._returning is not None:
            self._returning.cancel()
        self.want(1)  # the one requested before may have been taken since
        self._returning = asyncio.get_running_loop().call_later(_KEPT, self._keep_none)

    def _keep_none(self) -> None:
        self._returning = None
        self.withdraw_more()

    def prefetch(self) -> None:
        """Request more, if prefetching is on and half of what was prefetched is taken."""
        if self._pace.ahead and self.got - len(self._ready) + self._pace.ahead - self.wanted > self._pace.ahead // 2:
            self.want()

    def look_how_quick(self) -> None:
        """Adjust the prefetch."""
        self._pace.look(time.monotonic(), self._ready.taken, shut=self._channel.shut)
        if self._pace.ahead and self._looking_ahead is None:
            self._looking_ahead = asyncio.get_running_loop().call_later(WINDOW, self._look_ahead)

    def _look_ahead(self) -> None:
        """Check whether prefetched messages are still taken as quickly; otherwise give back what are too many."""
        self._looking_ahead = None
        self.look_how_quick()
        # The pace is never quite the same: only what would take more than twice the time is given back, if this is so
        # again at the next look, as a process that had to wait for the processor once goes on as quickly.
        before, here = self._slower, self.wanted - self.got + len(self._ready)
        self._slower = here > self.waiting + 2 * self._pace.ahead
        if self._slower and (before or not self._pace.ahead):
            self.withdraw_more()

    # --- giving back

    def waits_no_more(self) -> None:
        """Note that `waiting` is less: soon, give back what nobody waits for any more."""
        if not (self.waiting or self._pace.ahead):
            asyncio.get_running_loop().call_soon(self.withdraw_unless_wanted)
        elif not self._pace.ahead and self.wanted > self.got - len(self._ready) + self.waiting + bool(self._returning):
            # One of several was cancelled: what comes for it is the next message, and would wait here for nobody.
            asyncio.get_running_loop().call_soon(self.withdraw_more)

    def withdraw_unless_wanted(self) -> None:
        """Give back messages without a waiting getter; one that asks for its next message has had a turn for that."""
        if not (self.waiting or self._pace.ahead):
            self.withdraw(bool(self._returning))  # one is kept for the next `get_nowait`

    def withdraw(self, waiting: int = 0) -> None:
        """Keep messages for `waiting` getters; give others back, also those still on their way."""
        waiting = 0 if self.held_back else waiting
        kept = min(waiting, len(self._ready))
        wanted, channel = self.got + waiting - kept, self._channel
        if self.wanted > wanted and channel.error is None:
            self.wanted = wanted
            channel.tell_owner(lambda handle: Want(handle, self.wanted))
            self._last_withdrawn = answer = channel.request(lambda _: Ping(wanted))
            surely(answer, lambda _: self.withdraw_more())
        # INVARIANT: until that is answered, something may be on its way that is newer than what is given back: a getter
        # that asks meanwhile would have it first.
        if self._last_withdrawn is not None and not self._last_withdrawn.done() and not channel.shut_now:
            return
        numbers = self._ready.take_back(max(kept, len(self._ready) - BACK_AT_ONCE))
        if numbers and channel.error is None:
            channel.give_back(numbers)
        if len(self._ready) > kept:
            asyncio.get_running_loop().call_soon(self.withdraw_more)
        elif self.held_back:
            self.want()  # the owner tells those who wait in a paused channel, too, if nothing will ever come

    def withdraw_more(self) -> None:
        """Continue giving back, unless the messages are wanted by now."""
        self.withdraw(self.waiting + (self._pace.ahead or bool(self._returning)))
