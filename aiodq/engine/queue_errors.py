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
    """No message may be delivered now."""

    retriable = True


class QueueFull(AiodqError, asyncio.QueueFull):  # noqa: N818 - asyncio's name
    """There is no room now: the bound of the backlog or of the write buffer is reached."""

    retriable = True


class QueueShutDown(AiodqError, _ShutDownBase):  # noqa: N818 - asyncio's name
    """The queue was shut down or its store closed: nothing more is accepted, or nothing is left to get."""
