"""The topics and channels that a process has open at the current owner, by the handles of the connection to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from aiodq.engine.loop.futures import surely
from aiodq.errors import ProtocolError
from aiodq.shared.connection.opened.handle_numbers import HandleNumbers
from aiodq.shared.encoding.answers import understood
from aiodq.shared.encoding.remote_errors import error_of, is_lost
from aiodq.wire.packets import Done, Fail, Open

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from aiodq.shared.connection.opened.listener import Listener
    from aiodq.shared.connection.opened.reopening import Opened, Reopening
    from aiodq.shared.connection.sent.outbox import Outbox
    from aiodq.wire.packets import Packet

__all__ = ["ClientHandles", "OpeningLink"]

_EXISTING_SINCE: Final = 2
"""The version since which owners know EXISTING."""


class OpeningLink(Protocol):
    """What is needed of the link; `aiodq.shared.connection.link.Link` implements it."""

    epoch: int
    opened: Reopening
    outbox: Outbox

    def misunderstood(self, error: ProtocolError) -> None:
        """Give up the connection, as the owner's answer could not be understood."""
        ...


class ClientHandles(HandleNumbers):
    """The handles of one connection at a time, each opened before anything is sent with it.

    Attributes:
        listeners: the receivers of what the owner sends, by handle.
        version: the version of the protocol that the owner speaks.
    """

    def __init__(self, link: OpeningLink, ask: Callable[[Packet], asyncio.Future[Packet]]) -> None:
        """Start without handles.

        Args:
            link: the link.
            ask: sends a request, however long it takes; a `Fail` of `OwnerLostError` if no answer comes.
        """
        super().__init__()
        self.listeners: dict[int, Listener] = {}
        self.version: int = 0
        self._link = link
        self._ask = ask

    def of(self, topic: str, channel: str) -> int:
        """Return a handle, opened before anything is sent with it."""
        return self.get((topic, channel)) or self._open(topic, channel)

    def open(self, topic: str, channel: str) -> None:
        """Open a topic or channel, after everything meant for the previous owner was dropped, and after its topic."""
        self._link.outbox.flush()
        if channel and (topic, "") in self._link.opened:
            self.of(topic, "")
        self._open(topic, channel)
        self._link.opened[topic, channel].listener.reopened(self._link.epoch)

    def forget(self, topic: str, channel: str) -> None:
        """Forget a handle, and whom it concerns."""
        self.listeners.pop(self.pop((topic, channel), 0), None)

    def retire(self, topic: str, channel: str) -> None:
        """Retire a handle as `release` does; nobody is told any more of what comes for it."""
        self.listeners.pop(self.release((topic, channel)), None)

    def _open(self, topic: str, channel: str) -> int:
        handle = self.new((topic, channel))
        opened = self._link.opened.get((topic, channel))
        answer = self._ask(self._packet(handle, topic, channel, opened))
        if opened is not None:
            self.listeners[handle] = opened.listener
            surely(answer, lambda done: self._answered(topic, channel, opened, done.result()))
        return handle

    def is_first(self, topic: str, channel: str) -> bool:
        """Return whether it is opened before puts are repeated: a topic, or a channel that may have to be made."""
        return not channel or self._meant(self._link.opened[topic, channel]) is None

    def _meant(self, opened: Opened) -> Mapping[str, str] | None:
        return opened.listener.meant(self._link.epoch) if self.version >= _EXISTING_SINCE else None

    def _packet(self, handle: int, topic: str, channel: str, opened: Opened | None) -> Open:
        """Return an OPEN that makes nothing anew which is known to have existed, if the owner knows such ones."""
        if opened is None:
            return Open(handle, topic, channel, {})
        meant = self._meant(opened)
        if meant is None:
            return Open(handle, topic, channel, opened.options)
        return Open(handle, topic, channel, {**opened.options, **meant}, existing=True)

    def _answered(self, topic: str, channel: str, opened: Opened, answer: Packet) -> None:
        listener = opened.listener
        if isinstance(answer, Done):
            self._link.opened.stored(topic, channel, opened.options)
            try:
                understood(listener.opened, answer.facts or {}, "OPEN")
            except ProtocolError as error:
                self._link.misunderstood(error)
        elif isinstance(answer, Fail) and not is_lost(answer):
            listener.refused(error_of(answer))
