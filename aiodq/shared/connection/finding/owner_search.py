"""The search for the owner of a store, which this very process may become."""

from __future__ import annotations

import asyncio
import errno
import random
from typing import TYPE_CHECKING, Final

from aiodq.errors import OwnerLostError
from aiodq.shared.connection.finding.rendezvous import connect, owner_of
from aiodq.shared.encoding.remote_errors import error_of, stalled

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from aiodq.shared.connection.finding.store_directory import StoreDirectory
    from aiodq.shared.connection.wires.link_wire import LinkWire

__all__ = ["OwnerSearch"]

_FIRST_WAIT: Final = 0.002
_LONGEST_WAIT: Final = 0.1
"""Seconds between two attempts to own a store or to find an owner: the first pause, and the longest."""

_SHORT: Final = 0.005
_OWN: Final = 0.015
_HASTE: Final = 0.5
"""Seconds between looks for an owner, and between attempts to own the store, during the first `_HASTE` seconds."""

_LATE: Final = 2.0
"""Seconds after which a change of owners takes longer than it should."""

_NONE_FREE: Final = frozenset({errno.EMFILE, errno.ENFILE})


class OwnerSearch:
    """The searches of one process, one after the other.

    A search goes on until `end`, also if an owner was found that refuses or ends before it has welcomed this process.
    """

    def __init__(
        self, place: StoreDirectory, own: Callable[[], Awaitable[bool]], inside: Callable[[], LinkWire | None],
        outside: Callable[[socket.socket], Awaitable[LinkWire]], *, failover: float, stall: float,
    ) -> None:  # fmt: skip
        """Prepare.

        Args:
            place: the store's directory.
            own: tries to own the store and to serve it; returns whether it does.
            inside: connects without a socket if this very process serves the store; otherwise it returns None.
            outside: makes a connection of a socket.
            failover: seconds that a search takes at most.
            stall: the same, if an owner listens and accepts nobody, unless `failover` is longer.
        """
        self._place = place
        self._own = own
        self._inside = inside
        self._outside = outside
        self._failover = failover
        self._stall = stall
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None
        self._was_served = False

    @property
    def unfinished(self) -> str | None:
        """For how long no owner was found, if that is longer than it should be; otherwise None."""
        since = 0.0 if self._since is None else self._loop.time() - self._since
        return f"for {since:.0f} s nobody has served the store" if since > _LATE else None

    def end(self) -> None:
        """End the search: an owner has welcomed this process."""
        self._since, self._was_served = None, True

    def may_go_on(self, error: Exception) -> bool:
        """Return whether the search goes on before an error is told: descriptors become free."""
        if self._since is None or getattr(error, "errno", None) not in _NONE_FREE:
            return False
        return self._loop.time() <= self._since + self._failover

    def check_time(self) -> None:
        """End the search if it has taken too long.

        Raises:
            OwnerLostError: it has.
        """
        if self._since is not None and self._loop.time() > self._since + self._failover:
            self._since = None
            raise self._nobody()

    async def find(self) -> LinkWire:
        """Return a connection to the owner, which this process may have become.

        Raises:
            OwnerLostError, OwnerStalledError: there is none, or it accepts nobody.
            StorageError: the directory is gone, or as `own` and `connect` raise.

        Cancellation: the search pauses.
        """
        self._since = self._loop.time() if self._since is None else self._since
        pause, own_at = _FIRST_WAIT, self._loop.time()
        while True:
            self._place.check()
            if (inside := self._inside()) is not None:
                return inside
            busy = False
            try:
                sock = connect(self._place.path)
            except BlockingIOError:
                # Somebody owns it: trying to own it too would only slow the owner down.
                busy, sock, own_at = True, None, self._loop.time() + _LONGEST_WAIT
            if sock is not None:
                return await self._outside(sock)
            haste = self._loop.time() < self._since + _HASTE
            if self._loop.time() >= own_at:
                if await self._own():
                    continue
                own_at = self._loop.time() + pause * random.uniform(0.5, 1)  # noqa: S311 - no secret
                pause = min(2 * pause, _OWN if haste else _LONGEST_WAIT)
            now = self._loop.time()
            # An owner that listens, and accepts nobody, has as long as one that does not answer.
            if now > self._since + (max(self._failover, self._stall) if busy else self._failover):
                self._since = None
                raise error_of(stalled(self._place.path, owner_of(self._place.path))) if busy else self._nobody()
            await asyncio.sleep(min(max(own_at - now, 0), _SHORT if haste else _LONGEST_WAIT))

    def _nobody(self) -> OwnerLostError:
        text = f"nobody has served the store for {self._failover:g} s"
        hint = '; open it with mode="shared" in some process, or run aiodq serve' if self._was_served else ""
        return OwnerLostError(text + hint, self._place.path)
