"""Times to wait, and looking through what there is much of."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from aiodq.errors import AiodqError
from aiodq.values import span_seconds

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Iterator
    from datetime import timedelta

    from aiodq.sync.loop_thread import LoopThread

__all__ = ["in_pages", "seconds", "within"]

_PAGE: Final = 256
_PAGE_BYTES: Final = 1 << 20
"""So many messages, or bytes of them, are looked at in one go."""


class HasBody(Protocol):
    """A message."""

    @property
    def body(self) -> bytes:
        """Its bytes."""
        ...


T = TypeVar("T")
M = TypeVar("M", bound=HasBody)


def seconds(timeout: float | timedelta | None) -> float | None:
    """Return a time to wait in seconds, 0 and less for not at all; None for ever.

    Raises:
        InvalidOptionError: no span of time; a `TypeError` too where it is of another type.
    """
    return None if timeout is None else span_seconds("timeout", timeout, past=True)


async def within(wait: float | None, work: Awaitable[T]) -> T:
    """Return what something gives in so many seconds.

    Raises:
        TimeoutError: it took longer, and was cancelled.
    """
    async with asyncio.timeout(wait):
        return await work


def in_pages(loop_thread: LoopThread, found: AsyncGenerator[M, None]) -> Iterator[M]:
    """Iterate in a thread over what is found on the loop. Given up early, it is closed there."""
    error: AiodqError | None = None
    try:
        while error is None:
            page, error = loop_thread.run(_page, found)
            if not page and error is None:
                return
            yield from page
        raise error
    finally:
        # Not waited for: a generator may be collected in any thread, that of the loop included.
        loop_thread.post(found.aclose)


async def _page(found: AsyncGenerator[M, None]) -> tuple[list[M], AiodqError | None]:
    """Return what comes next, and what is wrong behind that."""
    page: list[M] = []
    size = 0
    try:
        async for each in found:
            page.append(each)
            size += len(each.body)
            if len(page) >= _PAGE or size >= _PAGE_BYTES:
                break
    except AiodqError as error:
        return page, error
    return page, None
