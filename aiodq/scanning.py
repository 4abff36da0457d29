"""`Topic.scan`: iterates over a topic's messages in its files, without consuming them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from aiodq.engine.reading.prefetch_reader import SharedReader
from aiodq.message import look_at, pieces_of
from aiodq.storage.read.log_reader import LogReader

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from aiodq.engine.loop.worker_threads import WorkerThreads
    from aiodq.message import Message
    from aiodq.storage.io.filesystem import Opener
    from aiodq.storage.io.quarantine import Damage
    from aiodq.storage.read.log_reader import LogView

__all__ = ["scan_log"]

_PIECE: Final = 256 * 1024


async def scan_log(
    topic: str, fs: Opener, threads: WorkerThreads, view: Callable[[], LogView], offsets: range, *,
    reverse: bool, damaged: Callable[[Sequence[Damage]], None],
) -> AsyncGenerator[Message, None]:  # fmt: skip
    """Yield the messages of a topic at these offsets, of which some may be gone.

    Args:
        topic: its name.
        fs: where its files are.
        threads: where they are read.
        view: returns what may be read now.
        offsets: without gaps.
        reverse: from the newest to the oldest.
        damaged: called with the damage that a read found.

    Raises:
        StorageError: something could not be read.
    """
    reader = SharedReader(fs)
    read, order = (LogReader.read_back, reversed) if reverse else (LogReader.read, iter)
    at, stop = (offsets.stop, offsets.start) if reverse else (offsets.start, offsets.stop)
    try:
        while at != stop:
            result = await threads.call(reader.use, partial(read, view=view(), offset=at, max_bytes=_PIECE))
            if result.damages:
                damaged(result.damages)
            for batch in order(result.batches):
                for piece in order(pieces_of(batch)):
                    for number in order(piece):
                        if batch.first + number not in offsets:
                            return
                        yield look_at(topic, batch, number)
                    await asyncio.sleep(0)
            if (result.next >= at) if reverse else (result.next <= at):
                return
            at = max(result.next, stop) if reverse else min(result.next, stop)
    finally:
        _close(reader, threads)


def _close(reader: SharedReader, threads: WorkerThreads) -> None:
    """Close the files, once a read has ended that may outlive its cancelled caller."""

    def report(_: None, error: BaseException | None) -> None:
        if error is not None:
            reader.close()  # the threads are gone, so nothing is being read

    threads.start(reader.close, report)
