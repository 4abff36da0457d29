"""The asyncio heart of a store.

Each topic has one *ioLoop*: the only task that changes the log's positions. It decides, and others do: the *segment
writer* encodes and writes, the *syncer* has the device synced off the loop, the *prefetching reader* reads ahead for
channels that are behind, the *metadata persister* keeps journals, checkpoints and descriptions and deletes files. What
they have done comes back to the ioLoop as requests through its queue, as do ticks, purges and the close.

    put -> open batch -> ioLoop -> segment writer -> disk
                                        disk -> prefetcher -> channel engine (a channel's end) -> get

A put is one future. A batch is taken when the one before it is durable, so whatever came in meanwhile shares one sync.
Futures of getters carry wake-ups, never messages: a cancelled getter passes its wake-up on and nothing is lost.

A failure that leaves unknown what the disk holds (a failed fsync above all) fails the whole store, with its cause, and
everyone who waits is told.
"""
