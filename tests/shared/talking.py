"""What the children of a crowd have in common (`tests.shared.crowd`): how they tell what they do, and how they end."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")

__all__ = ["say", "unless"]


def say(text: str) -> None:
    """Have it known, whatever becomes of this process: a line is written at once, or not at all."""
    os.write(1, f"{text}\n".encode())


async def unless(ending: asyncio.Event, getting: asyncio.Future[T] | Coroutine[object, object, T]) -> T | None:
    """Return what is got, or None if that is cancelled as this process is to end first."""
    getting = asyncio.ensure_future(getting)
    waiting = asyncio.ensure_future(ending.wait())
    await asyncio.wait((getting, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not getting.done():
        getting.cancel()
    with suppress(asyncio.CancelledError):
        return await getting
    return None
