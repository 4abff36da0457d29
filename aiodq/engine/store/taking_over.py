"""Starting a store's engine from its opened files: each topic and channel gets an engine of its own."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from aiodq.engine.topic.topic_engine import TopicEngine
from aiodq.errors import InvalidNameError
from aiodq.names import check_topic_name
from aiodq.storage.state.topic.stored_options import holding
from aiodq.storage.state.transactions.parked_transactions import drop_owed

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from aiodq.engine.channel.lease.in_flight import InFlight
    from aiodq.engine.opened_files import OpenedStore, OpenedTopic
    from aiodq.engine.store.bulk_adoption import Adopting
    from aiodq.engine.store.whole_store import WholeStore

__all__ = ["take_over"]


def take_over(store: WholeStore, opened: OpenedStore, kind: type[InFlight], adopting: Adopting) -> Iterator[None]:
    """Start all topics and channels, one channel a step, and hand unfinished transactions to the committer.

    Args:
        store: the store's engine.
        opened: the files.
        kind: the class of messages.
        adopting: adopts bulk commits.
    """
    for name, topic in opened.topics.items():
        engine = yield from _start_topic(store, name, topic, kind)
        if name in opened.committed:
            channels = {acks.channel for acks in opened.committed[name].acks}
            channel_engines = [
                channel_engine for channel_engine in engine.channel_engines.values() if channel_engine.name in channels
            ]
            store.committer.recovered(engine, channel_engines, topic.left)
        yield
    for name in opened.committed.keys() - opened.topics.keys():
        engine = store.new_topic(name)
        store.committer.recovered(engine, (), [puts.columns for _, puts in opened.committed[name].puts])
    _do_without(store, opened, adopting)
    if opened.taken:
        store.committer.take_up(partial(drop_owed, store.fs, opened.taken))


def _start_topic(
    store: WholeStore, name: str, topic: OpenedTopic, kind: type[InFlight]
) -> Generator[None, None, TopicEngine]:
    """Start a topic's engine, with the channels and options found on disk.

    INVARIANT: its ioLoop begins only once all of them are there, as it deletes what no channel needs.
    """
    meta = topic.log.meta
    engine = store.add(TopicEngine(name, holding(None, meta.options, store.given), store, topic.log))
    paused = meta.paused
    engine.paused = "" in paused
    for channel, (journal, state) in topic.channels.items():
        channel_engine = store.channel_engine(engine, channel, kind)
        channel_engine.configure(meta.channel_options.get(channel, channel_engine.options))
        channel_engine.pause(paused=channel in paused)
        if store.reclaiming:
            channel_engine.reclaim(under_way=True)
        channel_engine.made = meta.made.get(channel)
        channel_engine.attach(journal, state)
        engine.attached(channel_engine)
        yield
    return engine


def _do_without(store: WholeStore, opened: OpenedStore, adopting: Adopting) -> None:
    """Mark the topics that cannot be used; the store works without them."""
    for name, error in opened.unusable.items():
        store.add(TopicEngine(name, store.options, store, None, unusable=error))
    for name, error in opened.owing.items():
        with suppress(InvalidNameError):  # of an older aiodq; no topic can be called so any more
            store.new_topic(check_topic_name(name)).creation.refused(error)
            adopting.owing.add(name)
    adopting.blocked |= opened.blocked
    adopting.done |= opened.done
