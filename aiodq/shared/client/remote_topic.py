"""A topic of a process that does not own the store: it replaces the engine behind a `Topic`."""

from __future__ import annotations

import asyncio
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from aiodq.engine.loop.futures import surely
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import AiodqError, OwnerLostError, OwnerStalledError
from aiodq.names import is_ephemeral
from aiodq.options import ephemeral
from aiodq.shared.client.remote_puts import RemotePuts, ShortCut
from aiodq.shared.connection.opened.known import Known
from aiodq.shared.connection.watching import ask_for_changes
from aiodq.shared.consuming.placed_puts import PlacedPuts
from aiodq.shared.consuming.remote_channel import RemoteChannel
from aiodq.shared.encoding.options_json import given_channel_options, read_topic_options, topic_options
from aiodq.shared.encoding.stats_json import blank_topic, read_channel_stats, read_topic_stats
from aiodq.stats import ChannelStats
from aiodq.wire.packets import Figures

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from aiodq.clock import Clock
    from aiodq.engine.loop.home_loop import HomeLoop
    from aiodq.engine.loop.worker_threads import WorkerThreads
    from aiodq.engine.transactions.task_transactions import OpenTransactions
    from aiodq.options import ChannelOptions, StoreOptions
    from aiodq.shared.client.owner_report import OwnerReport
    from aiodq.shared.connection.link import Link
    from aiodq.shared.connection.opened.listener import Notice
    from aiodq.shared.consuming.remote_settlement import RemoteSettlement
    from aiodq.stats import TopicStats
    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["RemoteTopic", "TopicHost"]


class TopicHost(Protocol):
    """What is needed of the topic's store; `aiodq.shared.client.remote_store.RemoteStore` implements it."""

    path: str
    options: StoreOptions
    clock: Clock
    link: Link
    loop: asyncio.AbstractEventLoop
    transactions: OpenTransactions
    fs: FileSystem
    threads: WorkerThreads
    home: HomeLoop
    unsent: set[RemotePuts]
    report: OwnerReport

    @property
    def standing(self) -> str:
        """The state of the store, as one word."""
        ...

    @property
    def usable(self) -> bool:
        """Whether the store can be used, regardless of the caller."""
        ...

    def check(self) -> None:
        """Raise if the store cannot be used."""
        ...

    def check_context(self) -> None:
        """Raise if the store belongs to another loop or process than the caller's."""
        ...

    def discard(self, topic: RemoteTopic) -> None:
        """Forget a topic that was deleted or refused: one named later is new."""
        ...

    def store_ref(self) -> object:
        """Return what a handle holds to keep the store open."""
        ...


class _Log(NamedTuple):
    """Where a topic's log begins and ends."""

    begin: int = 0
    end: int = 0
    durable: int = 0


class RemoteTopic:
    """The counterpart of `TopicEngine` for a topic that another process owns.

    Attributes:
        log: where it begins and ends, by the owner's last counts and what this process knows since.
        channel_engines: the channels used in this process.
        placed_puts: what this process has put, for their counts.
        named: the options that this process has given for the topic, or None.
        error: why the topic can no longer be used, or None.
    """

    def __init__(self, host: TopicHost, name: str, options: StoreOptions | None) -> None:
        """Set up; `Link.open` has the owner open it."""
        self.name = name
        self.options: StoreOptions
        self.log: _Log = _Log()
        self.clock: Clock = host.clock
        self.link: Link = host.link
        self.loop: asyncio.AbstractEventLoop = host.loop
        self.unsent: set[RemotePuts] = host.unsent
        self.transactions: OpenTransactions = host.transactions
        self.store_ref: Callable[[], object] = host.store_ref
        self.home: HomeLoop = host.home
        self.check_context: Callable[[], None] = host.check_context
        self.channel_engines: dict[str, RemoteChannel] = {}
        self.placed_puts: PlacedPuts = PlacedPuts(lambda: (each.counts for each in self.channel_engines.values()))
        self.error: Exception | None = None
        self.named: StoreOptions | None = options
        self.go_by(options or host.options)
        self._asking: set[asyncio.Task[None]] = set()
        self.fs: FileSystem = host.fs
        self.threads: WorkerThreads = host.threads
        self._host = host
        self._is_known = False
        self._epoch = 0
        self._uuid: str | None = None
        self._last_stats: TopicStats | None = None
        self._orderly = False
        self._known = Known()
        self._turns = asyncio.Lock()
        self.put_buffer: RemotePuts = RemotePuts(self)
        self.group_commit: ShortCut = ShortCut(self.put_buffer)
        self.link.open(name, "", {} if options is None else topic_options(options), self)

    # --- packets from the owner; see `Listener`

    def reopened(self, epoch: int) -> None:
        """Note another owner, which has no topic that was only in the memory of the previous one."""
        if epoch != self._epoch and is_ephemeral(self.name):
            self._uuid = None
        self._epoch = epoch

    def meant(self, epoch: int) -> Mapping[str, str] | None:
        """See `Listener.meant`: once something of it was stored, it is no longer made."""
        if is_ephemeral(self.name) and epoch != self._epoch:
            return None
        if self._uuid is not None:
            return {"uuid": self._uuid}
        is_there = self.log.end or any(channel.is_there for channel in self.channel_engines.values())
        return {} if is_there and not is_ephemeral(self.name) else None

    def opened(self, facts: Mapping[str, Any]) -> None:
        """Note that the topic is open, with its options."""
        self.changed(facts)
        self._is_known, self._orderly = True, bool(facts.get("orderly"))
        self._known.note()
        ask_for_changes(self.link, self.name, "", self)

    def changed(self, facts: Mapping[str, Any]) -> None:
        """Apply the owner's options, which any process may have changed."""
        if "options" not in facts:
            return
        self.options = read_topic_options(facts["options"])
        if isinstance(uuid := facts.get("uuid"), str):
            self._uuid = uuid
        if self.named is not None:
            # A later owner reads stored options from disk: other processes may have changed them by then.
            self.link.opened.name(self.name, "", {**facts["options"], "stored": facts.get("stored") is True})
        else:
            self.link.opened.changed(self.name, "", facts["options"])

    def refused(self, error: Exception) -> None:
        """Make the topic unusable, because the owner refuses to open it or it was deleted."""
        if self.error is None and self._host.standing == "open":
            self._last_stats = self.stats()
        self.error = self.error or error
        self.link.detach(self.name, "", self)
        self._host.discard(self)
        self._known.refuse(error)
        for channel in list(self.channel_engines.values()):
            channel.refused(error)

    def receive(self, packet: Notice, _epoch: int) -> None:
        """Take over where the log begins and ends."""
        if isinstance(packet, Figures):
            self.log = _Log(packet.begin, packet.end, packet.durable)

    def leave(self) -> None:
        """Send nothing: puts that wait for an answer end with the connection."""

    def fail_waiters(self, error: Exception) -> None:
        """Shut the topic down if the store is closed; puts survive the loss of an owner."""
        if isinstance(error, QueueShutDown):
            self.put_buffer.shut_down(error)
            self.refused(error)
        self._known.tell(error)

    def discard(self, channel: RemoteSettlement) -> None:
        """See `SettledTopic`. Existing handles keep it."""
        if self._host.standing != "open":
            return
        if channel.last_stats is None:
            known = self._host.report.channel(self.name, channel.name)
            channel.last_stats = _counted(known, cast("RemoteChannel", channel))
        if isinstance(channel.error, QueueShutDown) and self.channel_engines.get(channel.name) is channel:
            del self.channel_engines[channel.name]

    def forget_channel(self, name: str, known: RemoteChannel | None) -> RemoteChannel | None:
        """Do with a deleted channel as `RemoteStore.forget` does with a topic."""
        channel = self.channel_engines.get(name)
        if channel is None or channel is not known:
            return channel
        del self.channel_engines[name]
        self.link.forget(self.name, name)
        channel.refused(QueueShutDown(f"channel {name!r} was deleted"))
        return None

    def placed(self, offsets: range) -> None:
        """See `PuttingTopic`."""
        begin, end, durable = self.log
        end = max(end, offsets.stop)
        self.log = _Log(begin, end, max(durable, offsets.stop) if self.options.sync == "always" else durable)
        self.placed_puts.add(offsets)

    def find_out(self, then: Callable[[], None]) -> None:
        """See `PuttingTopic`."""
        task = self.loop.create_task(self.look_whether_deleted())
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        surely(task, lambda _: then())

    def refuse_waiting(self) -> None:
        """See `PuttingTopic`."""
        if self.usable:
            self._do(self._refuse_waiting(), lambda _: None)

    async def _refuse_waiting(self) -> None:
        await self.in_turn()
        if await self._waiting_for_room():
            self.link.give_up_puts(self.name)

    async def look_whether_deleted(self) -> None:
        """Make the topic unusable if the owner says that it was deleted, so that it can be opened again."""
        try:
            await self.link.call("view", topic=self.name, once=True)
        except QueueShutDown as error:
            self.refused(error)
        except AiodqError:
            return  # it is unknown; the next refusal asks again

    # --- calls from handles

    @property
    def usable(self) -> bool:
        """See `PuttingTopic`."""
        return self.error is None and self._host.usable

    def check(self) -> None:
        """Raise if the topic cannot be used.

        Raises:
            AiodqError: why.
        """
        self._host.check()
        if self.error is not None:
            raise copy(self.error)

    async def known(self) -> None:
        """Wait until the owner has opened the topic.

        Raises:
            AiodqError: the owner's refusal, or there is no owner.
        """
        await self._known.wait()

    @property
    def store(self) -> str:
        """The store's directory."""
        return self._host.path

    @property
    def standing(self) -> str:
        """The state of the topic, as one word, for reprs."""
        standing = self._host.standing
        if standing != "open":
            return standing
        if self.error is not None:
            return "deleted" if isinstance(self.error, QueueShutDown) else "unusable"
        return "shut down" if self.put_buffer.shut else "open"

    @property
    def visible(self) -> int:
        """The offset up to which channels may deliver, as far as known here."""
        return self.log.end

    @property
    def pending(self) -> int:
        """The number of messages accepted here that the owner has not confirmed."""
        return self.put_buffer.pending

    def catch_up(self) -> None:
        """Do nothing: there is nothing to write at once here."""

    @property
    def exists(self) -> bool:
        """Whether something was put or a channel used, as far as known here, also once the store is closed."""
        return not _is_refused(self.error) and bool(self.log.end or self.channel_engines)

    @property
    def channel_names(self) -> set[str]:
        """The names of the channels opened here, also once the store is closed."""
        return {name for name, channel in self.channel_engines.items() if not _is_refused(channel.error)}

    @property
    def together(self) -> bool:
        """See `PuttingTopic`."""
        return self._is_known and self.options.max_messages is None and self.options.max_bytes is None

    def stats(self) -> TopicStats:
        """Return the owner's last statistics of the topic, with newer counts where this process has them.

        Once it was deleted or refused, they stay as they were.
        """
        if self._last_stats is not None:
            return self._last_stats
        found = self._host.report.topics.get(self.name)
        stats = blank_topic(self.name) if found is None else read_topic_stats(found)
        begin, end, durable = self.log
        channels = dict(stats.channels)
        for name, channel in self.channel_engines.items():
            if channel.error is None:
                channels[name] = _counted(channels.get(name), channel)
        return replace(
            stats,
            begin_offset=max(begin, stats.begin_offset),
            end_offset=max(end, stats.end_offset),
            durable_offset=max(durable, stats.durable_offset),
            pending=self.put_buffer.pending,
            channels=dict(sorted(channels.items())),
        )

    def channel_stats(self, channel: RemoteChannel) -> ChannelStats:
        """Return the owner's last statistics of a channel, with newer counts where this process has them.

        Once it was deleted or refused, they stay as they were.
        """
        if channel.last_stats is not None:
            return channel.last_stats
        known = self._host.report.channel(self.name, channel.name)
        return (
            _counted(known, channel) if channel.error is None else read_channel_stats(known or {"name": channel.name})
        )

    def is_full(self) -> bool:
        """See `PuttingTopic`: by the longest known backlog of a channel."""
        most = self.options.max_messages
        if most is None or self.options.overflow == "drop_oldest":
            return False
        return self.placed_puts.reaches(most - self.put_buffer.pending)

    def go_by(self, options: StoreOptions) -> None:
        """Apply options that were given for the topic, in the way the owner does."""
        self.options = ephemeral(options) if is_ephemeral(self.name) else options

    def name_options(self, options: StoreOptions) -> None:
        """Have the owner apply options, the first that this process gives for the topic."""
        self.named = options
        self.go_by(options)
        content = topic_options(options)
        self.link.opened.name(self.name, "", content)
        self._do(self.link.call("name", {"options": content}, topic=self.name), self.refused)

    def name_channel_options(self, channel: RemoteChannel, options: ChannelOptions) -> None:
        """Have the owner apply options, the first that this process gives for a channel.

        Raises:
            InvalidOptionError: they are too long for a shared store.
        """
        content = given_channel_options(options)
        channel.named = options
        channel.go_by(options)
        self.link.opened.name(self.name, channel.name, content)
        self._do(self._name_channel(channel.name, content), channel.refused)

    async def _name_channel(self, name: str, content: Mapping[str, Any]) -> None:
        await self.link.call("name", {"options": content}, topic=self.name, channel=name)
        await self.link.call("refresh", topic=self.name, channel=name)  # it waits until they are on disk
        self.link.opened.stored(self.name, name, content)

    def keep_channel_options(self, name: str, content: Mapping[str, Any]) -> None:
        """Note a channel's options that an owner has stored."""
        self.link.opened.name(self.name, name, content)
        self.link.opened.stored(self.name, name, content)

    def _do(self, asking: Coroutine[Any, Any, object], refused: Callable[[Exception], None]) -> None:
        """Send a request without a waiter; if the owner refuses it, `refused` is called with the error."""
        task = self.loop.create_task(_asked(asking, refused))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    def open_channel(self, name: str, options: ChannelOptions | None) -> RemoteChannel:
        """Open a channel that is new here.

        Raises:
            InvalidOptionError: its options are too long for a shared store.
        """
        content = {} if options is None else given_channel_options(options)
        channel = self.channel_engines[name] = RemoteChannel(self, name, options)
        channel.named = options
        reported = self._host.report.channel(self.name, name)
        if reported is not None:
            numbers = read_channel_stats(reported)
            channel.counts.assume(numbers.ready, numbers.in_flight, numbers.deferred)
        self.link.open(self.name, name, content, channel)
        return channel

    async def in_turn(self) -> None:
        """Wait until a request to the owner comes after everything accepted here before, but puts that wait for room.

        Raises:
            AiodqError: the owner's refusal, or there is no owner.

        Cancellation: nothing changes.
        """
        self.put_buffer.flush()
        await self.known()
        if not self._orderly:  # an owner of an earlier aiodq
            await self.put_buffer.settled()
            return
        puts = self.link.puts(self.name)
        stop = puts.sequence + len(puts.queued)
        if not puts.queued:
            return
        # One at a time asks the owner, in order of the calls: those after it wait for the same answers.
        async with self._turns:
            while puts.queued and puts.sequence < stop:
                if await self._waiting_for_room():
                    return  # and so do those after it

    async def _waiting_for_room(self) -> bool:
        """Wait until the owner has answered the puts sent before that need not wait for room; return whether any do."""
        puts = self.link.puts(self.name)
        last = puts.sequence
        await self.link.call("view", topic=self.name)
        return any(sequence <= last for sequence in puts.pending)

    async def settle_in(self, channel: str | None = None) -> None:
        """Wait until everything accepted before is stored, and topics and channels used before exist.

        This does not wait for puts that wait for room.

        Raises:
            AiodqError: why not.
        """
        await self.in_turn()
        if self.link.puts(self.name).pending:
            await self._waiting_for_room()
        for one in list(self.channel_engines.values()):
            if channel in {None, one.name}:
                await one.known()
        self.check()


def _counted(known: ChannelStats | Mapping[str, Any] | None, channel: RemoteChannel) -> ChannelStats:
    """Return the owner's last statistics of a channel, if any are known, with this process's counts."""
    numbers = known if isinstance(known, ChannelStats) else read_channel_stats(known or {"name": channel.name})
    counts = channel.ready, channel.flying, channel.counts.deferred
    depth = sum(counts)
    return replace(
        numbers, ready=counts[0], in_flight=counts[1], deferred=counts[2], depth=depth,
        # An empty channel has neither an oldest time nor a size, whatever was reported before.
        oldest_ns=numbers.oldest_ns if depth else None,
        backlog_bytes=numbers.backlog_bytes if depth else 0,
    )  # fmt: skip


async def _asked(asking: Coroutine[Any, Any, object], refused: Callable[[Exception], None]) -> None:
    try:
        await asking
    except (OwnerLostError, OwnerStalledError, QueueShutDown):
        return  # the next owner gets the options when it opens the topic
    except AiodqError as error:
        refused(error)


def _is_refused(error: Exception | None) -> bool:
    """Return whether it is for such an error that the owner did not open something.

    What was deleted is forgotten. So what is shut down and still known here, was open when the store was closed.
    """
    return error is not None and not isinstance(error, QueueShutDown)
