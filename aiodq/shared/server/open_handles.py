"""The topics and channels that one client has open, by handle: it is told of their counts, changes and deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiodq.engine.queue_errors import QueueFull, QueueShutDown
from aiodq.errors import ProtocolError
from aiodq.shared.encoding.options_json import State
from aiodq.shared.requests.meant import topic_uuid
from aiodq.shared.requests.sent_states import SentStates
from aiodq.shared.server.handle_names import HandleNames
from aiodq.shared.server.outdated import Outdated
from aiodq.shared.server.refusals import Refusals, deletion
from aiodq.wire.packets import Figures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from aiodq.engine.topic.topic_engine import TopicEngine
    from aiodq.shared.requests.lending import Lending
    from aiodq.shared.requests.serving import Owning, Wire
    from aiodq.topic import Topic

__all__ = ["OpenHandles"]

_MOST: Final = 50_000
"""Topics and channels that one client may have open at once."""


class OpenHandles:
    """The open handles of one client, and those that were refused, or whose topic or channel was deleted.

    Attributes:
        topics: the topics.
        lendings: the client's share of each channel.
        outdated: the handles of which the client is to be told.
        sent_states: the options and pauses that the client knows.
    """

    def __init__(self, owner: Owning, wire: Wire, forget: Callable[[TopicEngine], None]) -> None:
        """Start without handles; `forget` is called with a topic that was deleted."""
        self.topics: dict[int, Topic] = {}
        self.lendings: dict[int, Lending] = {}
        self.outdated: Outdated = Outdated()
        self.sent_states: SentStates = SentStates(wire)
        self._owner = owner
        self._wire = wire
        self._forget = forget
        self._names = HandleNames()
        self._refusals = Refusals()
        self._figures: dict[int, Figures] = {}
        # The handle by which the client has last opened a topic, by name: also if it was refused or deleted since.
        self._last: dict[str, int] = {}

    def __contains__(self, handle: int) -> bool:
        """Return whether a handle is open."""
        return handle in self.topics or handle in self.lendings

    # --- opening

    def check_new(self, handle: int) -> None:
        """Raise if a handle is or was in use."""
        if handle in self or handle in self._refusals:
            raise ProtocolError(f"the handle {handle} is in use")

    def check_room(self) -> None:
        """Raise if the client has as much open as it may."""
        if len(self.topics) + len(self.lendings) >= _MOST:
            most = f"{_MOST} topics and channels open, the most that an owner opens for one"
            raise QueueFull(f"this process has {most}: spread them over several processes")

    def opens(self, handle: int, topic: str) -> None:
        """Note that the client is opening a topic: from now on it means this one by that name."""
        self._last[topic] = handle

    def add_topic(self, handle: int, topic: Topic) -> dict[str, Any]:
        """Add a topic that is open; return its state as facts."""
        self.topics[handle] = topic
        self._names.add(handle, topic.name)
        self.outdated.add(handle, topic._engine)  # noqa: SLF001 - a session is a topic's other half
        return self.sent_states.note(handle, _state(topic))

    def add_lending(self, handle: int, lending: Lending, channel: str) -> None:
        """Add the client's share of a channel."""
        self.lendings[handle] = lending
        self._names.add(handle, lending.topic, channel)
        self.outdated.add(handle, lending.engine)

    def refuse(self, handle: int, error: Exception, topic: str = "") -> None:
        """Refuse all packets with a handle from now on; `topic` is the name of what it was a handle of, if a topic."""
        forgotten, name = self._refusals.add(handle, error, topic)
        if forgotten and self._last.get(name) == forgotten:
            del self._last[name]

    # --- using

    def topic(self, handle: int, what: str) -> Topic:
        """Return a topic.

        Raises:
            ProtocolError: the handle is no topic's.
            AiodqError: the topic was deleted, or could not be opened.
        """
        topic = self.topics.get(handle)
        if topic is None:
            self._refusals.check(handle)
            raise ProtocolError(f"{what}: the handle {handle} is no topic's")
        return topic

    def lending(self, handle: int) -> Lending:
        """Return the client's share of a channel; *Raises* as `topic`."""
        lending = self.lendings.get(handle)
        if lending is None:
            self._refusals.check(handle)
            raise ProtocolError(f"the handle {handle} is no channel's")
        return lending

    def of_name(self, topic: str) -> int:
        """Return the handle by which the client has last opened a topic of this name, or 0."""
        return self._last.get(topic, 0)

    def deleted_topic(self, handle: int) -> str:
        """Return the name of a deleted topic by its handle; empty if it is none."""
        return self._refusals.topic(handle)

    def check_name(self, name: str) -> None:
        """Raise if the topic that the client opened by this name was deleted or refused, which it may not know yet."""
        handle = self.of_name(name)
        self._refusals.check(handle)
        topic = self.topics.get(handle)
        if topic is not None and (error := deletion(topic)) is not None:
            self._drop_deleted()  # so that the client knows it before it is refused this
            raise error
        if topic is not None and topic._engine in self._owner.engine.deletions.ending:  # noqa: SLF001 - as above
            raise QueueShutDown(f"topic {name!r} was deleted")  # another one of that name is not its topic

    # --- telling the client

    def watch(self, handle: int, request: int) -> None:
        """Answer a request once the options or the pause of a topic or channel have changed."""
        self.sent_states.ask(handle, request)
        self.outdated.note(handle)

    def called(self, handle: int, call: str) -> None:
        """Note that the client has made a call with a handle: what it was told before may be outdated."""
        self.sent_states.assumed(handle, call)
        self.outdated.note(handle)

    def tell(self) -> bool:
        """Tell the client of one handle that is outdated; return False if it does not read, or none is."""
        if self._wire.clogged or not self._owner.engine.usable:
            return False
        handle = self.outdated.take()
        if handle is None:
            return False
        self._look_at(handle)
        return True

    def look_at(self, place: str) -> Iterator[None]:
        """Tell the client of a topic or channel, by name: which messages it no longer holds, and if it was deleted.

        Of a topic, it is told by one step for each of its channels.
        """
        name, _, channel = place.partition("/")
        for handle in self._names.of_channels([name], channel):
            self._look_at(handle)
            yield
        for handle in () if channel else self._names.of_topics([name]):
            self._is_deleted(handle)
            yield

    def _look_at(self, handle: int) -> None:
        """Send the counts of a topic or channel, unless it was deleted: its handle keeps the reason."""
        if not self._is_deleted(handle):
            self.send_figures(handle)
            self._is_deleted(handle)  # a channel is dropped once its client knows why

    def send_all_figures(self, topics: Iterable[str]) -> None:
        """Send the counts of topics and of their channels, by name, whether they have changed or not."""
        topics = list(topics)
        for handle in [*self._names.of_topics(topics), *self._names.of_channels(topics)]:
            self.send_figures(handle, always=True)

    def send_figures(self, handle: int, *, always: bool = False) -> None:
        """Send the counts and the state of a topic or channel, as far as they have changed."""
        self._owner.engine.threads.tell_ended()  # counts that are sent after the answer to a put include it
        lending, topic = self.lendings.get(handle), self.topics.get(handle)
        if lending is None:
            if topic is None:
                return  # dropped since this was begun
            log = topic._engine.log  # noqa: SLF001 - as above
            figures = Figures(handle, 0, 0, 0, log.begin, log.end, log.durable)
            self.sent_states.look(handle, _state(topic))
        else:
            lending.look()
            figures = lending.figures()
            self.sent_states.look(handle, lending.state)
            # The client has corrected its counts by what it got and gave up, until it is sent new ones. Those may equal
            # the previous ones: a message that it gave back may be taken at once, one that timed out may be redelivered
            # to it.
            always = lending.has_changed() or always
        if always or figures != self._figures.get(handle):
            self._figures[handle] = figures
            self._wire.send(figures)

    # --- what was deleted

    def _drop_deleted(self) -> None:
        """Drop the state of deleted topics and channels; keep the reason for packets that still use their handles."""
        for handle in [*self.lendings, *self.topics]:
            self._is_deleted(handle)

    def _is_deleted(self, handle: int) -> bool:
        """Return whether a topic or channel was deleted; if so, drop its state, and keep the reason."""
        lending, topic = self.lendings.get(handle), self.topics.get(handle)
        if lending is not None and (error := lending.error) is not None:
            del self.lendings[handle]
            lending.stop()
            name = ""
        elif topic is not None and (error := deletion(topic)) is not None:
            del self.topics[handle]
            self._forget(topic._engine)  # noqa: SLF001 - as above
            name = topic.name
        else:
            return False
        self._figures.pop(handle, None)
        self._names.remove(handle)
        self.outdated.remove(handle)
        self.sent_states.ended(handle, error)
        self.refuse(handle, error, name)
        return True


def _state(topic: Topic) -> State:
    engine = topic._engine  # noqa: SLF001 - as above
    return State(engine.options, engine.paused, engine.effective_options.stored, topic_uuid(engine))
