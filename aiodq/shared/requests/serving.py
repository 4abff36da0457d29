"""What serving a client requires of the owner and of the connection, as Protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from aiodq.shared.requests.owner_state.visitors import Visitor

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Sequence

    from aiodq.engine.store.store_engine import StoreEngine
    from aiodq.shared.requests.lent.claims import Claims
    from aiodq.shared.requests.lent.lent_runs import LentRun
    from aiodq.shared.requests.owner_state.client_put_result import ClientPutResult, PutsInProgress
    from aiodq.shared.requests.owner_state.made_changes import MadeChanges
    from aiodq.shared.requests.owner_state.overview import Overview
    from aiodq.shared.requests.owner_state.waiting_bytes import WaitingBytes
    from aiodq.storage.log.producer_table import Origin
    from aiodq.store import Store
    from aiodq.wire.packets import Hello, Packet
    from aiodq.wire.payload import Range

__all__ = ["Client", "Owning", "Share", "Wire"]


class Share(Protocol):
    """A client's share of one channel; `aiodq.shared.requests.lending.Lending` implements it."""

    @property
    def name(self) -> str:
        """The name of the channel, as `topic/channel`."""
        ...

    def hand_over(self, epoch: int, those: Range) -> tuple[list[LentRun], list[Range]]:
        """Hand over what it holds of a range; return that, and the rest."""
        ...

    def stop(self) -> asyncio.Task[Any]:
        """Stop delivering; return the task that ends."""
        ...

    async def give_back(self) -> None:
        """Make everything in it ready again, in order, not counted as delivered."""
        ...


class Client(Visitor, Protocol):
    """A connected client, or one that was cut off and may be back for what it holds."""

    @property
    def shares(self) -> Iterable[Share]:
        """Its share of each channel."""
        ...

    def wait_no_more(self) -> None:
        """Drop its puts that wait for room: the client has another connection, over which it repeats them."""
        ...

    def leave(self) -> None:
        """End the connection, and give back what is left: the client has another one, and has claimed what it holds."""
        ...


class Owning(Protocol):
    """What a session needs of the owner of a store.

    Attributes:
        engine: the store's engine.
        pid: the owner's process.
        own: the producer of the client that belongs to the owner; 0 for none.
        epoch: the owner's epoch.
        largest: bytes of the largest packet.
        puts_in_progress: puts in progress that may be repeated, by topic and origin.
        transacting: transactions in progress that may be repeated.
        waiting: the puts and transactions that wait for room.
        changes: the changes that clients have asked for, each of which is made once.
        overview: what is told to clients that look at the whole store regularly.
        closing: whether it leaves the clients to another owner.
    """

    engine: StoreEngine
    store: Store
    pid: int
    own: int
    epoch: int
    largest: int
    puts_in_progress: PutsInProgress
    transacting: dict[Origin, asyncio.Task[Any]]
    waiting: WaitingBytes
    changes: MadeChanges
    overview: Overview
    closing: bool

    @property
    def clients(self) -> Sequence[Client]:
        """The connected clients, and those that were cut off."""
        ...

    def lends_to(self, client: Hello) -> None:
        """Note that a client opens its first channel, so that it may hold messages."""
        ...

    async def noted(self) -> None:
        """Wait until the next owner can know of all clients that may hold messages."""
        ...

    def came_back(self, client: Hello) -> None:
        """Note that a client has claimed what it held from the previous owner."""
        ...

    def claims(self, place: str) -> Claims:
        """Return what was claimed of a channel, named as `Share.name` is, since this owner began."""
        ...

    def missed(self, producer: int, epoch: int) -> bool:
        """Return whether a client that got messages in this epoch was no client of the previous owner, a later one."""
        ...

    async def reclaimed(self) -> None:
        """Wait until it is known what clients hold from the previous owner."""
        ...

    def failed(self) -> None:
        """Note that the store has failed: others may open it again."""
        ...

    async def moved(self, place: str) -> None:
        """Tell all clients what they no longer hold of a channel, named as in `Lending.name`, or of a topic.

        If it was deleted, they are told that.
        """
        ...


class Wire(Protocol):
    """A connection to a client."""

    def welcomed(self) -> None:
        """Take packets of any size from a client that was welcomed."""
        ...

    def process(self, said: int) -> int:
        """Return the client's process by the pid that it has here, where it says another one; see `process_of`."""
        ...

    def send(self, packet: Packet, request: int = 0) -> None:
        """Send a packet."""
        ...

    def send_soon(self, packet: Packet, request: int) -> None:
        """Send a packet in the next turn of the loop, or before anything else is sent."""
        ...

    def early(self, request: int) -> Callable[[ClientPutResult, int], None] | None:
        """Return a function that answers a put from any thread, with its first offset; None if only the loop may."""
        ...

    def answered(self, put: ClientPutResult) -> bool:
        """Return whether a thread has answered a put; from here on none will. On the loop."""
        ...

    @property
    def clogged(self) -> bool:
        """Whether the other end does not read what was sent."""
        ...

    async def writable(self) -> None:
        """Wait until the other end reads what was sent."""
        ...

    def end(self) -> None:
        """Close, once everything written is sent."""
        ...
