"""The receipt that `put_nowait` returns."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

from aiodq.awaited import Awaited, mark_retrieved, shielded
from aiodq.engine.batch.put_batch import PutResult

__all__ = ["Receipt"]


class Receipt(Awaited[int]):
    """A receipt of `put_nowait`: awaiting it waits until the message is as durable as the policy says.

    Cancelling the awaiting task does not take the message back.
    """

    __slots__ = ("_loop", "_result")

    def __init__(self, result: PutResult, loop: asyncio.AbstractEventLoop) -> None:
        """Start undecided; made by `put_nowait`."""
        self._result = result
        self._loop = loop

    def __await__(self) -> Generator[Any, None, int]:
        """Return the message's offset.

        Raises:
            StorageError: the message was not stored.
        """
        result = self._result
        if not self.done():
            if result.future is None:
                result.future = self._loop.create_future()
                result.future.add_done_callback(mark_retrieved)  # all tasks that awaited it may have been cancelled
            return (yield from shielded(result.future).__await__())
        return self._outcome()

    def _outcome(self) -> int:
        """Return the offset of a put that is done, or raise its error."""
        if self._result.error is not None:
            raise self._result.error
        return self._result.offset

    def __repr__(self) -> str:
        """Show the state of the message."""
        result = self._result
        if not self.done():
            return "<Receipt not durable yet>"
        error = result.error
        return f"<Receipt offset {result.offset}>" if error is None else f"<Receipt not stored: {error!r:.200}>"

    def done(self) -> bool:
        """Return whether the message was stored, or has failed."""
        return self._result.offset >= 0 or self._result.error is not None
