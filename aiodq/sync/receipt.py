"""The receipt that `put_nowait` returns to a thread."""

from __future__ import annotations

from datetime import timedelta

from aiodq.engine.queue_errors import QueueShutDown
from aiodq.engine.topic.puts import receipt
from aiodq.sync.loop_thread import LoopThread
from aiodq.sync.spans import seconds, within
from aiodq.uncopied import Uncopied

__all__ = ["Receipt"]


class Receipt(Uncopied):
    """The result of `put_nowait`: `result` waits until the message is as durable as the policy says.

    Interrupting the waiter does not withdraw the message.
    """

    __slots__ = ("_loop_thread", "_receipt")

    def __init__(self, loop_thread: LoopThread, accepted: receipt.Receipt) -> None:
        """Made by `put_nowait`."""
        self._loop_thread = loop_thread
        self._receipt = accepted

    def __repr__(self) -> str:
        """Show the outcome of the put."""
        return repr(self._receipt)

    def result(self, timeout: float | timedelta | None = None) -> int:
        """Wait for the message to be durable, and return its offset.

        Args:
            timeout: seconds to wait at most, or a `timedelta`; None waits for ever.

        Raises:
            TimeoutError: it is not durable yet.
            StorageError: the message was not stored.
        """
        wait = seconds(timeout)
        try:
            return self._loop_thread.run(lambda: within(wait, self._receipt))
        except QueueShutDown:
            if not self._receipt.done():
                raise
        # The store is closed, which finishes what was accepted.
        return self._receipt._outcome()  # noqa: SLF001 - this is the same receipt, for threads

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self._receipt.done()
