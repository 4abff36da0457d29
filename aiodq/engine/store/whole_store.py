"""The store's engine as its parts see it: they are layered below it, so they declare what they need of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from aiodq.engine.engine_host import TopicEngineHost

if TYPE_CHECKING:
    from aiodq.engine.channel.channel_engine import ChannelEngine
    from aiodq.engine.channel.lease.in_flight import InFlight
    from aiodq.engine.committing.group_committer import Committer
    from aiodq.engine.topic.topic_engine import TopicEngine
    from aiodq.errors import StorageError, StoreFailedError
    from aiodq.options import StoreOptions
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.state.store_identity import StoreIdentity

__all__ = ["WholeStore"]


class _Deletions(Protocol):
    """See `aiodq.engine.store.deletions.Deletions`."""

    def under_way(self, topic: str) -> object: ...


class WholeStore(TopicEngineHost, Protocol):
    """What any part may need of its store: `aiodq.engine.store.store_engine.StoreEngine`, which describes each item."""

    fs: FileSystem
    options: StoreOptions
    topics: dict[str, TopicEngine]
    failure: StoreFailedError | None
    closing: bool
    served: bool

    @property
    def committer(self) -> Committer:
        """The committer of transactions."""
        ...

    @property
    def deletions(self) -> _Deletions:
        """The deletions under way."""
        ...

    @property
    def live(self) -> bool:
        """Whether it is open, and not closed yet."""
        ...

    @property
    def cancelled(self) -> bool:
        """Whether the loop is ending: what was accepted is saved, and there is no time for more."""
        ...

    def identity_for(self, topic: str) -> StoreIdentity | None:
        """Return the identity that a topic's creation makes and its deletion drops; None for a topic in memory."""
        ...

    def add(self, engine: TopicEngine) -> TopicEngine:
        """Start the engine of a topic, and return it."""
        ...

    def new_topic(self, name: str) -> TopicEngine:
        """Start the engine of a topic whose files the first message or channel will create."""
        ...

    def unnamed(self, name: str) -> TopicEngine:
        """Return the engine of a topic without naming options for it, started if it is new."""
        ...

    def channel_engine(self, engine: TopicEngine, channel: str, kind: type[InFlight]) -> ChannelEngine[Any]:
        """Return a topic's channel, created without a state if it is new."""
        ...

    def keep(self, name: str, error: StorageError) -> None:
        """Keep a topic whose deletion has failed, as unusable."""
        ...

    def on_disk(self) -> dict[str, TopicEngine]:
        """Return the topics that have a directory, by name."""
        ...

    def lose(self, name: str, topic: TopicEngine, segment: str = "") -> None:
        """End a topic whose directory was deleted, or the file of the segment being written, if it is still in use."""
        ...

    def begin_closing(self) -> None:
        """Accept nothing from now on."""
        ...

    async def finish(self) -> None:
        """Finish what was accepted, make it durable, release everything."""
        ...

    def release_if_dead(self) -> None:
        """Release everything if the event loop was closed under the store."""
        ...
