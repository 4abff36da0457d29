"""Notifications of changes that other processes make: options, pauses and deletions of topics and channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.engine.loop.futures import surely
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import ProtocolError
from aiodq.shared.encoding.answers import understood
from aiodq.shared.encoding.remote_errors import error_of
from aiodq.wire.packets import Call, Done, Fail

if TYPE_CHECKING:
    import asyncio

    from aiodq.shared.connection.link import Link
    from aiodq.shared.connection.opened.listener import Listener
    from aiodq.wire.packets import Packet

__all__ = ["ask_for_changes"]


def ask_for_changes(link: Link, topic: str, channel: str, listener: Listener) -> None:
    """Have this owner tell `listener` whenever something is changed; one of an earlier aiodq does not."""

    def answered(done: asyncio.Future[Packet]) -> None:
        answer = done.result()
        if not link.opened.has(topic, channel, listener):
            return  # asking again would open what was deleted
        if isinstance(answer, Done):
            try:
                understood(listener.changed, answer.facts or {}, "changed")
            except ProtocolError as error:
                link.misunderstood(error)
            else:
                ask_for_changes(link, topic, channel, listener)
        elif isinstance(answer, Fail):
            deleted = error_of(answer)
            if isinstance(deleted, QueueShutDown):
                listener.refused(deleted)

    surely(link.request(lambda handle: Call("changed", {"handle": handle}), topic, channel), answered)
