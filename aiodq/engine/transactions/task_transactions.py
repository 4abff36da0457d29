"""Which transaction a task is in, so that a message's `async with` block joins it instead of acking on its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from aiodq.errors import WrongContextError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aiodq.engine.transactions.participants import AckRun, Topic
    from aiodq.format.columns import Columns

__all__ = ["Joinable", "OpenTransactions", "TransactionHost"]

_MANY: Final = 100
"""Open transactions up to which nobody looks for those whose task has ended."""


class Joinable(NamedTuple):
    """A transaction whose block a task is in.

    Attributes:
        join: has a message settled when the transaction commits, or given back if it does not commit.
        end: abandons the transaction, as a message's block in it ended with this exception.
    """

    join: Callable[[Any], None]
    end: Callable[[BaseException], None]


class _Committer(Protocol):
    """Commits transactions: `aiodq.engine.committing.group_committer.Committer` does."""

    @property
    def largest(self) -> int:
        """Most bytes of messages that a transaction may put."""
        ...

    async def commit(
        self,
        settlements: Sequence[AckRun],
        puts: Sequence[tuple[Topic, Columns, int]],
        late: Callable[[BaseException | None], None],
    ) -> None:
        """Commit a transaction; return when all of it is durable."""
        ...


class TransactionHost(Protocol):
    """What a transaction needs of its store's engine, or of its remote substitute if another process owns the store."""

    path: str
    transactions: OpenTransactions

    @property
    def inherited(self) -> bool:
        """Whether this is a forked child, which only leaves its blocks: the messages in them are the parent's."""
        ...

    @property
    def topics(self) -> Mapping[str, Topic]:
        """The store's topics, by name."""
        ...

    @property
    def committer(self) -> _Committer:
        """The committer of transactions."""
        ...

    def check(self) -> None:
        """Raise if the store cannot be used, or not from this loop or process."""
        ...

    def engine(self, name: str) -> Topic:
        """Return a topic, started if it is new."""
        ...


class OpenTransactions:
    """The open transactions of one store: at most one for each task.

    The key is the task, not a context variable: a task that is started inside a transaction's block inherits the
    context, but its work is not part of the transaction.

    Attributes:
        host: the store's engine.
    """

    def __init__(self, host: TransactionHost) -> None:
        """Start without transactions."""
        self.host: TransactionHost = host
        self._by_task: dict[asyncio.Task[Any] | None, Joinable] = {}
        self._most = _MANY

    def enter(self, transaction: Joinable) -> asyncio.Task[Any] | None:
        """Note that this task is in the transaction's block; return the task, which `leave` needs.

        Raises:
            WrongContextError: it is in another transaction's block.
        """
        task = asyncio.current_task()
        if task in self._by_task:
            raise WrongContextError(
                "this task is in a transaction of this store already, and transactions do not nest: use that one, or "
                "begin the other in a task of its own"
            )
        if len(self._by_task) >= self._most:
            self._forget_ended()
        self._by_task[task] = transaction
        return task

    def _forget_ended(self) -> None:
        """Forget blocks that their tasks never left: `__aenter__` was called by hand, and `__aexit__` never."""
        self._by_task = {task: joinable for task, joinable in self._by_task.items() if task is None or not task.done()}
        self._most = max(_MANY, 2 * len(self._by_task))

    def leave(self, task: asyncio.Task[Any] | None) -> None:
        """Note that the block of this task has ended, even if another task ends it."""
        self._by_task.pop(task, None)

    def current(self) -> Joinable | None:
        """Return the transaction whose block this task is in, or None."""
        return self._by_task.get(asyncio.current_task()) if self._by_task else None
