"""What an ioLoop needs of the store around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from aiodq.clock import Clock
    from aiodq.engine.burial import DeadLetter
    from aiodq.engine.joining import OpenTransactions
    from aiodq.engine.offload import Offload
    from aiodq.engine.reporter import Reporter
    from aiodq.engine.suspects import Suspects
    from aiodq.engine.vitals import Vitals
    from aiodq.options import StoreOptions
    from aiodq.storage.filesystem import FileSystem
    from aiodq.storage.log import TopicLog
    from aiodq.storage.stored import StoredOptions

__all__ = ["IoLoopHost"]


class IoLoopHost(Protocol):
    """What an ioLoop needs of its store.

    Attributes:
        clock, offload, reporter: the store's.
        given: the options that `open` was given, or None.
        keeps: defaults are never taken for a topic that has no options on disk: nothing is deleted from it.
    """

    clock: Clock
    offload: Offload
    reporter: Reporter
    transactions: OpenTransactions
    suspects: Suspects
    vitals: Vitals
    given: StoreOptions | None
    keeps: bool

    @property
    def path(self) -> str:
        """The store's directory."""
        ...

    @property
    def standing(self) -> str:
        """What may be done with the store, in a word."""
        ...

    def fs_of(self, *names: str) -> FileSystem:
        """Return where a topic's files are, or a channel's of it: in memory where one of the names is ephemeral."""
        ...

    def check(self) -> None:
        """Raise if the store has failed, is closed, or belongs to another loop or process."""
        ...

    def check_context(self) -> None:
        """Raise if the store belongs to another loop or process."""
        ...

    def make_log(self, name: str, record: StoredOptions) -> TopicLog:
        """Make a topic's files, and keep in them what it is to go by. Blocking."""
        ...

    def bury(self, letter: DeadLetter, done: Callable[[Exception | None], None]) -> None:
        """Put a dead letter into its topic, and tell how that ended."""
        ...

    def alone(self) -> AbstractAsyncContextManager[None]:
        """Return a block in which no transaction commits, and before which all that did are in their topics."""
        ...

    def fail(self, error: Exception) -> None:
        """Stop the whole store for this reason."""
        ...
