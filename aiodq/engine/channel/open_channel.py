"""What handles and consumers need of a channel's engine.

There are two implementations: a channel's engine, and its remote substitute if another process owns the store. With
these Protocols, a type checker notices code that uses what only one of the two has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from aiodq.engine.channel.settling_channel import SettlingChannel
from aiodq.engine.graceful_stop import StoppableChannel

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from aiodq.delivery.channel_state import ChannelState
    from aiodq.engine.channel.dead_lettering.crash_suspects import CrashSuspects
    from aiodq.engine.channel.lease.held_by_task import HeldByTask
    from aiodq.engine.channel.lease.open_lease import OpenLease
    from aiodq.engine.channel.loop_turn import LoopTurn

__all__ = ["OpenChannel"]

M = TypeVar("M")


class OpenChannel(SettlingChannel, StoppableChannel, Protocol[M]):
    """A channel that hands out messages: `aiodq.engine.channel.channel_engine.ChannelEngine` is one.

    Attributes:
        kind: the class of its messages.
        open_lease: the lease handed out from: the fast way.
        turn: how long the getters have held the event loop.
        held_by_task: which task holds which messages, as far as a `Queue` handed them out.
        crash_suspects: those of the store.
        counting: whether deliveries are journaled before the getter gets the message.
    """

    kind: type[M]
    open_lease: OpenLease
    turn: LoopTurn
    held_by_task: HeldByTask[Any]
    crash_suspects: CrashSuspects
    counting: bool

    @property
    def store_ref(self) -> Callable[[], object]:
        """Returns the reference that a handle holds to keep the store open."""
        ...

    @property
    def ending(self) -> asyncio.Event:
        """Set once it is to end."""
        ...

    @property
    def special(self) -> bool:
        """Whether each message needs further work before the getter gets it."""
        ...

    @property
    def state(self) -> ChannelState | None:
        """Its state; None until it is created, or where it is not known here."""
        ...

    @property
    def error(self) -> Exception | None:
        """Why it cannot be used, or None."""
        ...

    @property
    def finished(self) -> bool:
        """Whether it is shut down with nothing ready."""
        ...

    @property
    def paused(self) -> bool:
        """Whether a user has paused the channel or its topic."""
        ...

    @property
    def shut(self) -> bool:
        """Whether it ends once nothing is ready."""
        ...

    @property
    def read_here(self) -> int:
        """Bytes read on the event loop so far."""
        ...

    async def was_read(self) -> bool:
        """Wait for what is being read; return whether there may be more messages then."""
        ...

    async def get(self, store_ref: object) -> M:
        """Wait for the next message, which is to hold `store_ref`."""
        ...

    def take_next(self, store_ref: object) -> M | None:
        """Hand out the next message if nothing has to be checked for it."""
        ...

    def take(self, store_ref: object, *, cold: bool = False, thorough: bool = False) -> M | None:
        """Hand out the next message, or None if none may be delivered or none is in memory."""
        ...

    def take_run(self, most: int, store_ref: object) -> list[M]:
        """Hand out up to `most` messages that follow each other."""
        ...

    def note_deliveries(self) -> None:
        """Journal deliveries."""
        ...

    def wake(self, *, everybody: bool = False) -> None:
        """Wake getters for which there is a message."""
        ...
