"""Which transaction a task is in, so that a message's own block joins it instead of acking by itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from aiodq.errors import WrongContextError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aiodq.engine.transactions.group_committer import Committer
    from aiodq.engine.transactions.participants import Topic

__all__ = ["Joinable", "OpenTransactions", "TransactionHost"]


class Joinable(NamedTuple):
    """A transaction whose block a task is in.

    Attributes:
        join: settle a message when the transaction commits, and give it back if nothing comes of that.
        end: do nothing of it, as a message's block in it ended with this exception.
    """

    join: Callable[[Any], None]
    end: Callable[[BaseException], None]


class TransactionHost(Protocol):
    """What a transaction asks of its store's engine."""

    path: str
    transactions: OpenTransactions

    @property
    def topics(self) -> Mapping[str, Topic]:
        """The store's topics, by name."""
        ...

    @property
    def committer(self) -> Committer:
        """What commits."""
        ...

    def check(self) -> None:
        """Raise if the store cannot be used from here and now."""
        ...

    def engine(self, name: str) -> Topic:
        """Return a topic, started if it is new."""
        ...


class OpenTransactions:
    """One per store: at most one transaction for each task.

    By the task and not by a context variable: a task that is started inside a block inherits the context, but what it
    does is not the transaction's.

    Attributes:
        host: the store's engine.
    """

    def __init__(self, host: TransactionHost) -> None:
        """Begin with none."""
        self.host: TransactionHost = host
        self._by_task: dict[asyncio.Task[Any] | None, Joinable] = {}

    def enter(self, transaction: Joinable) -> asyncio.Task[Any] | None:
        """Note that this task is in the transaction's block; return the task, to `leave` with.

        Raises:
            WrongContextError: it is in another one's.
        """
        task = asyncio.current_task()
        if task in self._by_task:
            raise WrongContextError(
                "this task is in a transaction of this store already, and transactions do not nest: use that one, or "
                "begin the other in a task of its own"
            )
        self._by_task[task] = transaction
        return task

    def leave(self, task: asyncio.Task[Any] | None) -> None:
        """The block is over, whichever task ends it."""
        self._by_task.pop(task, None)

    def current(self) -> Joinable | None:
        """Return the transaction whose block this task is in, or None."""
        return self._by_task.get(asyncio.current_task()) if self._by_task else None
