"""Stores without a directory."""

from __future__ import annotations

from aiodq.clock import Clock
from aiodq.opening import QueueOpening, StoreOpening, open, open_queue
from aiodq.options import ChannelOptions, StoreOptions
from aiodq.testing.filesystem import SimulatedFileSystem

__all__ = ["memory_queue", "memory_store"]


def memory_store(options: StoreOptions | None = None, *, clock: Clock | None = None) -> StoreOpening:
    """Open a store in memory: as `aiodq.open`, in a directory of its own that ends with it."""
    return open("/memory", options, fs=SimulatedFileSystem(), clock=clock)


def memory_queue(
    options: StoreOptions | None = None, channel: ChannelOptions | None = None, *, clock: Clock | None = None
) -> QueueOpening:
    """Open a queue in memory: as `aiodq.open_queue`, in a directory of its own that ends with it."""
    return open_queue("/memory", options, channel, fs=SimulatedFileSystem(), clock=clock)
