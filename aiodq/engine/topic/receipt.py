"""What `put_nowait` gives."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["Receipt"]


class Receipt:
    """What `put_nowait` gives: awaiting it waits until the message is as durable as the policy says.

    Cancelling who awaits does not take the message back.
    """

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[int]) -> None:
        """Made by `put_nowait`."""
        self._future = future
        future.add_done_callback(_noticed)

    def __await__(self) -> Generator[Any, None, int]:
        """Return the message's offset.

        Raises:
            StorageError: the message was not stored.
        """
        return asyncio.shield(self._future).__await__()

    def __repr__(self) -> str:
        """Say what has become of the message."""
        future = self._future
        if not future.done():
            return "<Receipt not durable yet>"
        if future.cancelled():
            return "<Receipt cancelled>"
        error = future.exception()
        return f"<Receipt offset {future.result()}>" if error is None else f"<Receipt not stored: {error!r:.200}>"

    def done(self) -> bool:
        """Return whether it is decided."""
        return self._future.done()


def _noticed(future: asyncio.Future[Any]) -> None:
    """Keep asyncio from complaining about a receipt that nobody awaited."""
    if not future.cancelled():
        future.exception()
