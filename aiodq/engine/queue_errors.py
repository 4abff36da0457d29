"""asyncio's three queue exceptions, as aiodq's own."""

from __future__ import annotations

import asyncio
import sys

from aiodq.errors import AiodqError

__all__ = ["QueueEmpty", "QueueFull", "QueueShutDown"]

if sys.version_info >= (3, 13):
    _ShutDownBase = asyncio.QueueShutDown
else:
    _ShutDownBase = Exception


class QueueEmpty(AiodqError, asyncio.QueueEmpty):  # noqa: N818 - asyncio's name
    """Nothing may be delivered now."""

    retriable = True


class QueueFull(AiodqError, asyncio.QueueFull):  # noqa: N818 - asyncio's name
    """No room now: the backlog's bound or the write buffer's is reached."""

    retriable = True


class QueueShutDown(AiodqError, _ShutDownBase):  # noqa: N818 - asyncio's name
    """The queue was shut down or its store closed; nothing more is taken, or there is nothing left to get."""
