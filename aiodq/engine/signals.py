"""asyncio's three queue exceptions, as aiodq's own."""

from __future__ import annotations

import asyncio

from aiodq.errors import AiodqError

__all__ = ["QueueEmpty", "QueueFull", "QueueShutDown"]

_ShutDownBase: type[Exception] = getattr(asyncio, "QueueShutDown", Exception)


class QueueEmpty(AiodqError, asyncio.QueueEmpty):  # noqa: N818 - asyncio's name
    """Nothing may be delivered now."""

    retriable = True


class QueueFull(AiodqError, asyncio.QueueFull):  # noqa: N818 - asyncio's name
    """No room now: the backlog's bound or the write buffer's is reached."""

    retriable = True


class QueueShutDown(AiodqError, _ShutDownBase):  # type: ignore[misc, valid-type]  # noqa: N818 - likewise
    """The queue was shut down or its store closed; nothing more is taken, or there is nothing left to get."""
