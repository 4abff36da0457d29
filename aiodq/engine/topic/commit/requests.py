"""The requests that reach an ioLoop through its queue, and the results of its writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from aiodq.engine.batch.put_batch import Part
    from aiodq.errors import AiodqError

__all__ = [
    "Operation",
    "Request",
    "SyncWanted",
    "Written",
]


@dataclass(slots=True)
class Written:
    """The result of writing a batch.

    Attributes:
        parts: the parts that are in the log now, in order.
        failed: those that are not.
        error: why they failed.
    """

    parts: list[Part] = field(default_factory=list)
    failed: list[Part] = field(default_factory=list)
    error: AiodqError | None = None


@dataclass(slots=True)
class SyncWanted:
    """A request to make everything accepted before durable."""

    done: asyncio.Future[None]


@dataclass(slots=True)
class Operation:
    """A request for work that needs the log for itself: nothing is being written or synced meanwhile.

    Attributes:
        work: done in a thread.
        finish: called on the loop with the result or the error, before anything else happens.
        after: the batch that has to be durable first, by its serial number.
    """

    work: Callable[[], object]
    finish: Callable[[object, Exception | None], None]
    after: int


Request = Operation | SyncWanted
