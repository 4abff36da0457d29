"""Timeouts, and iterating over the loop's results page by page."""

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
"""Messages, or bytes of them, in one page."""


class HasBody(Protocol):
    """A message."""

    @property
    def body(self) -> bytes:
        """Its bytes."""
        ...


T = TypeVar("T")
M = TypeVar("M", bound=HasBody)


def seconds(timeout: float | timedelta | None) -> float | None:
    """Return a timeout in seconds: 0 or less does not wait, None waits for ever.

    Raises:
        InvalidOptionError: not a timeout; also a `TypeError` if it has another type.
    """
    return None if timeout is None else span_seconds("timeout", timeout, past=True)


async def within(wait: float | None, work: Awaitable[T]) -> T:
    """Return the result of `work`, if it ends within `wait` seconds.

    Raises:
        TimeoutError: it took longer, and was cancelled.
    """
    async with asyncio.timeout(wait):
        return await work


def in_pages(loop_thread: LoopThread, found: AsyncGenerator[M, None]) -> Iterator[M]:
    """Iterate in a thread over an asynchronous generator on the loop, which is closed there at the end."""
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
    """Return the next items, and the error that follows them, if any."""
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
