"""The noting of an owner's clients, in a thread of the store: a slow disk holds up only new holders of messages."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiodq.engine.loop.futures import release, wait_in
from aiodq.errors import StorageError, StoreNotFoundError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from aiodq.engine.loop.worker_threads import WorkerThreads
    from aiodq.shared.connection.finding.store_directory import StoreDirectory
    from aiodq.shared.server.noted_clients import NotedClients

__all__ = ["Noting"]


class Noting:
    """Writes the clients one after the other; of those that are noted meanwhile, only the last are written."""

    def __init__(self, noted: NotedClients, place: StoreDirectory, threads: WorkerThreads) -> None:
        """Note nothing yet.

        Args:
            noted: the file.
            place: the store's directory; into one that has taken its place nothing is written.
            threads: the store's, which end before it is released.
        """
        self._noted = noted
        self._place = place
        self._threads = threads
        self._clients: Mapping[int, int] | None = None
        self._asked = self._begun = self._ended = 0
        self._line: dict[asyncio.Future[None], None] = {}

    @property
    def certain(self) -> bool:
        """Whether the next owner can read the clients: otherwise it has to wait for any client."""
        return self._ended == self._asked and self._noted.certain

    def note(self, clients: Mapping[int, int] | None) -> None:
        """Begin to note the clients; None if any client may hold messages."""
        self._clients = clients
        self._asked += 1
        if self._begun == self._ended:
            self._begin()

    async def over(self) -> None:
        """Wait until the clients are noted that were given last.

        Cancellation: they are noted all the same.
        """
        asked = self._asked
        while self._ended < asked:
            await wait_in(self._line)

    def _begin(self) -> None:
        self._begun = self._asked
        write = partial(self._write, self._clients)
        try:
            self._threads.start(write, lambda _, error: self._written(write, error))
        except BaseException:  # on an exhausted stack, for instance: what is noted next is written nevertheless
            self._begun = self._ended
            raise

    def _write(self, clients: Mapping[int, int] | None) -> None:
        if self._is_elsewhere():
            return
        if clients is None:
            self._noted.forget()
        else:
            self._noted.write(clients)

    def _is_elsewhere(self) -> bool:
        """Return whether there is another directory now, into which nothing must be written."""
        try:
            self._place.check()
        except StorageError as error:
            # Other errors do not say so. Unless they are over by then, the writing has them, too, and notes that.
            return isinstance(error, StoreNotFoundError)
        return False

    def _written(self, write: Callable[[], None], error: BaseException | None) -> None:
        if isinstance(error, StorageError):
            write()  # the system gives no thread: a client that holds messages unnoted would lose them to others
        self._ended = self._begun
        if self._ended < self._asked:
            self._begin()
        release(self._line)
