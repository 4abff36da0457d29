"""Whether an owner has opened a topic or channel, and the tasks that wait for that."""

from __future__ import annotations

import asyncio

from aiodq.awaited import shielded

__all__ = ["Known"]


class Known:
    """Whether an owner has opened a topic or channel, or refused to."""

    def __init__(self) -> None:
        """Start without knowing."""
        self._known: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def note(self) -> None:
        """Note that it is open."""
        if not self._known.done():
            self._known.set_result(None)

    def refuse(self, error: Exception) -> None:
        """Raise an error in all waiters, present and later ones, unless it is known to be open."""
        if not self._known.done():
            self._known.set_exception(error)
            self._known.exception()  # perhaps it is never awaited

    def tell(self, error: Exception) -> None:
        """Raise an error in the present waiters; later ones wait again."""
        if not self._known.done():
            self.refuse(error)
            self._known = self._known.get_loop().create_future()

    async def wait(self) -> None:
        """Wait until it is open.

        Raises:
            AiodqError: the owner's refusal, or no owner answers.

        Cancellation: nothing changes.
        """
        await shielded(self._known)
