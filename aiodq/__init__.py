"""aiodq is SQLite for queues: a durable, asyncio-native message queue that lives inside your process.

    async with aiodq.open_queue("jobs") as jobs:
        await jobs.put(b"resize cat.png")
        async for job in jobs:
            async with job:
                resize(job.body)

`put` returns when the message is on disk. A message is redelivered until it is acked, never afterwards. `aiodq.sync`
offers the same to threads, without `await`.
"""

import sys as _sys
import typing as _typing
from importlib import import_module as _import_module
from types import FunctionType as _FunctionType

from aiodq.channel import Channel
from aiodq.clock import Clock, SystemClock
from aiodq.consuming.deferred import DeferredMessage
from aiodq.engine.batch.draft import Draft
from aiodq.engine.monitoring.events import Event, Events
from aiodq.engine.queue_errors import QueueEmpty, QueueFull, QueueShutDown
from aiodq.engine.topic.puts.receipt import Receipt
from aiodq.errors import (
    AiodqError,
    AlreadySettledError,
    CorruptionError,
    DeliveryError,
    DiskFullError,
    ExclusiveOnlyError,
    FormatVersionError,
    InvalidMessageError,
    InvalidMessageTypeError,
    InvalidNameError,
    InvalidOptionError,
    InvalidOptionTypeError,
    MessageSizeError,
    MissingExtraError,
    NotAStoreError,
    NotAwaitedError,
    NotInFlightError,
    OffsetError,
    OwnerLostError,
    OwnerStalledError,
    ProtocolError,
    ReadOnlyError,
    StorageError,
    StoreFailedError,
    StoreLockedError,
    StoreNotFoundError,
    WrongContextError,
)
from aiodq.format import frame as _hot
from aiodq.message import Message
from aiodq.opening import Mode, QueueOpening, StoreOpening, open, open_queue, open_reader
from aiodq.options import Alarm, Backoff, ChannelOptions, Retention, StoreOptions
from aiodq.outcomes import Reject, Retry
from aiodq.queue import Queue
from aiodq.running import run
from aiodq.stats import BackupReport, ChannelStats, Health, HeldSegment, Latency, StoreStats, TopicStats
from aiodq.storage.io.quarantine import Damage
from aiodq.storage.offline.store_reader import StoreReader, TopicReader
from aiodq.storage.offline.summaries import ChannelSummary, StoreSummary, TopicSummary
from aiodq.storage.read.stored_message import StoredMessage
from aiodq.store import Store
from aiodq.topic import Topic
from aiodq.transaction import Transaction

__all__ = [
    "AiodqError",
    "Alarm",
    "AlreadySettledError",
    "Backoff",
    "BackupReport",
    "Channel",
    "ChannelOptions",
    "ChannelStats",
    "ChannelSummary",
    "Clock",
    "CorruptionError",
    "Damage",
    "DeferredMessage",
    "DeliveryError",
    "DiskFullError",
    "Draft",
    "Event",
    "Events",
    "ExclusiveOnlyError",
    "FormatVersionError",
    "Health",
    "HeldSegment",
    "InvalidMessageError",
    "InvalidMessageTypeError",
    "InvalidNameError",
    "InvalidOptionError",
    "InvalidOptionTypeError",
    "Latency",
    "Message",
    "MessageSizeError",
    "MissingExtraError",
    "Mode",
    "NotAStoreError",
    "NotAwaitedError",
    "NotInFlightError",
    "OffsetError",
    "OwnerLostError",
    "OwnerStalledError",
    "ProtocolError",
    "Queue",
    "QueueEmpty",
    "QueueFull",
    "QueueOpening",
    "QueueShutDown",
    "ReadOnlyError",
    "Receipt",
    "Reject",
    "Retention",
    "Retry",
    "StorageError",
    "Store",
    "StoreFailedError",
    "StoreLockedError",
    "StoreNotFoundError",
    "StoreOpening",
    "StoreOptions",
    "StoreReader",
    "StoreStats",
    "StoreSummary",
    "StoredMessage",
    "SystemClock",
    "Topic",
    "TopicReader",
    "TopicStats",
    "TopicSummary",
    "Transaction",
    "WrongContextError",
    "open",
    "open_queue",
    "open_reader",
    "run",
]

__version__ = "0.1.0"

__compiled__: bool = not isinstance(_hot.encode_frames, _FunctionType)
"""Whether the hot modules are compiled (`AIODQ_COMPILE=1 pip install …`), or plain Python: what they do is the same."""

if _typing.TYPE_CHECKING:
    from aiodq import sync as sync
else:
    # Hidden from type checkers, to which it would say that every name exists.
    def __getattr__(name: str) -> object:
        """Import `aiodq.sync` at its first use: asynchronous programs do not pay for it."""
        if name == "sync":
            return _import_module("aiodq.sync")
        raise AttributeError(f"module 'aiodq' has no attribute {name!r}", name=name, obj=_sys.modules[__name__])
