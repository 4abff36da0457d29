"""A client whose connection was cut: its messages are kept until it claims them, or is known to be gone."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from aiodq.shared.connection.finding.rendezvous import UNSEEN
from aiodq.storage.io.processes import lives

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiodq.shared.requests.serving import Client, Share

__all__ = ["CutOff", "Earlier"]

_LONGEST: Final = 5.0
"""Seconds for a process that is alive to connect again: as many as after a change of owners."""

_LOOK: Final = 0.02
"""Seconds between two looks whether it is alive: a killed process has closed its socket a moment before it is gone."""


class CutOff:
    """Whether a client may still come back for its messages after its connection has ended."""

    def __init__(self) -> None:
        """Start with a client that is connected."""
        self._over = asyncio.Event()

    def end(self) -> None:
        """Stop waiting: the client is back, or has left, or the owner ends."""
        self._over.set()

    async def wait(self, process: int) -> bool:
        """Wait until `end` was called, the client's process has ended, or its time is over.

        Args:
            process: its pid, or `UNSEEN`.

        Returns:
            Whether it has ended. One that cannot be seen has, if it is not back in time.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + _LONGEST
        while not self._over.is_set() and lives(process) and loop.time() < end:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK):
                    await self._over.wait()
        return not lives(process) or (process == UNSEEN and not self._over.is_set())


class Earlier:
    """The earlier connections of a client that is back: they keep its messages until it has claimed them."""

    def __init__(self, connections: Sequence[Client] = ()) -> None:
        """Start with these, of which some may not have ended yet."""
        self._connections = connections
        self._shares: dict[str, list[Share]] | None = None

    def shares(self, channel: str) -> Sequence[Share]:
        """Return their shares of a channel, named as in `Share.name`."""
        if self._shares is None:
            self._shares = {}
            for share in (each for one in self._connections for each in one.shares):
                self._shares.setdefault(share.name, []).append(share)
        return self._shares.get(channel, ())

    def leave(self) -> None:
        """End them, as the client has claimed all of its messages; the rest is made ready."""
        for each in self._connections:
            each.leave()
        self._connections, self._shares = (), {}
