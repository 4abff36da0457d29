"""Clients' puts that an owner has accepted, until their outcome is known."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

from aiodq.awaited import mark_retrieved
from aiodq.engine.batch.put_batch import PutResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.storage.log.producer_table import Origin

__all__ = ["ClientPutResult", "PutsInProgress"]


class ClientPutResult(PutResult):
    """A put that waits only for the log: the client is told in the step in which the outcome is known.

    Attributes:
        messages: the number of messages.
        early: whether a thread may answer the client before the loop does.
        answered: whether the client was answered, or only the loop may still answer it: see `EarlyAnswers`.
    """

    def __init__(
        self,
        messages: int,
        on_done: Callable[[ClientPutResult], None],
        answer: Callable[[ClientPutResult, int], None] | None,
    ) -> None:
        """Start without an outcome.

        Args:
            messages: the number of messages.
            on_done: called once, on the loop, when `offset` or `error` is set.
            answer: answers the client from any thread, with the first offset, if it can.
        """
        self.messages = messages
        self.early: bool = answer is not None
        self.answered: bool = False
        self._on_done = on_done
        self._answer = answer
        self._waiter: asyncio.Future[range] | None = None

    def durable(self, offset: int) -> None:
        """See `PutResult`."""
        if self._answer is not None:
            self._answer(self, offset)

    def stored(self, offset: int) -> None:
        """See `PutResult`."""
        if self._over:
            return
        self.offset = offset
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(range(offset, offset + self.messages))
        self._on_done(self)

    def failed(self, error: Exception) -> None:
        """See `PutResult`."""
        if self._over:
            return
        self.error: Exception | None = error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
        self._on_done(self)

    @property
    def _over(self) -> bool:
        return self.offset >= 0 or self.error is not None

    def waiter(self) -> asyncio.Future[range]:
        """Return a future of the offsets, for another connection over which the same put arrived again."""
        if self._waiter is None:
            self._waiter = asyncio.get_running_loop().create_future()
            self._waiter.add_done_callback(mark_retrieved)  # perhaps it is never awaited
        return self._waiter


PutsInProgress: TypeAlias = "dict[tuple[str, Origin], ClientPutResult | asyncio.Future[range]]"
"""Puts in progress, by topic and origin: a put that arrives again meanwhile is not repeated."""
