"""Messages addressed to a single channel of their topic: dead letters that were put back.

Such a message names its channel in a header of its own. The other channels settle it as soon as they see it, and the
consumer does not see the header. A version that does not know the header delivers the message to every channel.
"""

from __future__ import annotations

from itertools import repeat
from operator import contains
from typing import TYPE_CHECKING, Final

from aiodq.engine.batch.validation import RESERVED_HEADER
from aiodq.format.columns import Flags
from aiodq.storage.read.log_reader import batches_with

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiodq.format.frame import Batch
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.log.topic_log import TopicLog

__all__ = ["FOR", "addressed_in", "addressed_since", "shown"]

FOR: Final = RESERVED_HEADER
"""The header that names the channel."""


def addressed_in(batch: Batch) -> list[tuple[int, str]]:
    """Return the offsets of addressed messages in a batch, each with its channel."""
    headers = batch.columns.headers
    if headers is None or not any(map(contains, headers, repeat(FOR))):  # the usual case, at the speed of C
        return []
    return [(offset, own[FOR]) for offset, own in enumerate(headers, batch.first) if FOR in own]


def addressed_since(fs: FileSystem, log: TopicLog, since: int) -> list[tuple[int, str]]:
    """Return the addressed messages of a log from an offset on, as `addressed_in` does. Blocking.

    Raises:
        StorageError: as mapped from the system's error.
    """
    # Only transactions put such messages.
    batches = batches_with(fs, log.view(), Flags.TRANSACTION | Flags.HEADERS, since)
    return [one for batch in batches for one in addressed_in(batch)]


def shown(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return a message's headers as its consumer sees them."""
    return {name: text for name, text in headers.items() if name != FOR} if FOR in headers else headers
