"""Backups while a workload runs, each held against what was promised when it began and possible when it was there."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import aiodq
from aiodq.testing import Marked
from tests.proof.ledger import (
    Changed,
    Changing,
    Chosen,
    Closed,
    Closing,
    Committed,
    Committing,
    Created,
    Deleting,
    EffectiveOptions,
    Elapsed,
    Handing,
    Ledger,
    Moving,
    Outliving,
    Purging,
    Put,
    Putting,
    Requeued,
    Requeueing,
    Returning,
    Seeking,
    Settlement,
)
from tests.proof.oracle import judge
from tests.proof.world import PATH, World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from aiodq.testing import Image
    from tests.proof.oracle import Opened, Recoverer

__all__ = ["BackedUp", "BackingUp", "held_against"]

_MOST = 3
"""Backups of one opening of the store."""

_POSSIBLE = (
    Changing, Closing, Committing, Created, Deleting, EffectiveOptions, Elapsed, Handing, Moving, Purging, Putting,
    Requeueing, Returning, Seeking, Settlement,
)  # fmt: skip
"""What may have happened, or not, where it is not among `_CERTAIN`."""

_CERTAIN = (Changed, Chosen, Closed, Committed, Requeued)
"""What says that it has: the other notes that do are no kind of possible one."""


class BackedUp(NamedTuple):
    """A backup: its directory, how long the trace was when it began, and when it was there, None if it is not."""

    path: str
    began: int
    ended: int | None


class BackingUp(World):
    """A world in which each opened store is backed up again and again.

    Attributes:
        backups: all that were begun.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.backups: list[BackedUp] = []

    @asynccontextmanager
    async def store(self, options: aiodq.StoreOptions | None = None) -> AsyncIterator[aiodq.Store]:
        """Open the store, and back it up meanwhile; now and then it is closed amid a backup."""
        async with super().store(options) as store:
            backing = asyncio.create_task(self._back_up(store))
            try:
                yield store
            finally:
                await self.rest()
                how = self.random.choice(("wait", "cancel", "close"))
                if how == "cancel":
                    backing.cancel()
                if how == "wait":
                    await asyncio.wait([backing])
        await asyncio.wait([backing])

    async def _back_up(self, store: aiodq.Store) -> None:
        for _ in range(self.random.randint(1, _MOST)):
            await self.rest()
            number = len(self.backups)
            path, began, ended = f"/backup{self.life}-{number}", len(self.trace), None
            self.backups.append(BackedUp(path, began, None))
            try:
                await store.backup(path)
                ended = len(self.trace)
            except aiodq.AiodqError:
                continue
            finally:
                self.backups[number] = BackedUp(path, began, ended)


def held_against(
    recoverer: Recoverer, world: World, backup: BackedUp, image: Image, until: int | None = None
) -> list[str]:
    """Return what is wrong with a backup: what was promised when it began is there, and nothing that was never put.

    Args:
        recoverer: opens it.
        world: where it was made.
        backup: what to look at.
        image: the disk.
        until: how long the trace was when the power was cut, if it was; the backup may be there or not.
    """
    there: Image = {
        PATH + path.removeprefix(backup.path): data
        for path, data in image.items()
        if path == backup.path or path.startswith(backup.path + "/")
    }
    if not there and (backup.ended is None or (until is not None and until < backup.ended)):
        return []
    ledger = Ledger.of(world.trace[: backup.began])
    ledger.outlive()
    # Whoever is cancelled in the last moment is not told that it is there.
    for operation in world.trace[backup.began : backup.ended]:
        if isinstance(operation, Marked):
            _allow(ledger, operation.label)
    # As it is given up, a message may be in both places, and goes back only later than a backup that has both.
    ledger.requeues = [letter for letter in ledger.requeues if not _is_leaving(ledger, letter)]
    opened = recoverer.open(there)
    return [*_half_done(world, ledger, opened), *judge(ledger, opened)]


def _is_leaving(ledger: Ledger, letter: Requeueing) -> bool:
    """Return whether a message was perhaps being given up when the backup was made."""
    topic = ledger.topics.get(letter.target)
    return topic is not None and letter.name in topic.leaving.get(letter.into, {})


def _half_done(world: World, ledger: Ledger, opened: Opened) -> Iterator[str]:
    """Check the transactions that settle what was put after the moment of the backup, and leave the others."""
    told = [(put.topic, *each) for put in _puts(world) for each in zip(put.names, put.offsets, strict=True)]
    offsets = {(topic, name): offset for topic, name, offset in told}
    left: list[Committing] = []
    for one in ledger.transactions:
        if all(_is_before(opened, topic, offsets.get((topic, name), 0)) for topic, _, name in one.acks):
            left.append(one)
        elif any(_is_there(opened, *put) for put in one.puts):
            yield f"half a transaction: {one.puts}, and what it settles was put later"
    ledger.transactions = left


def _puts(world: World) -> Iterator[Put]:
    for operation in world.trace:
        note = operation.label if isinstance(operation, Marked) else None
        if isinstance(note, Outliving):
            note = note.note
        if isinstance(note, Put):
            yield note


def _is_before(opened: Opened, topic: str, offset: int) -> bool:
    return topic in opened.found and offset < opened.found[topic].end


def _is_there(opened: Opened, topic: str, name: str) -> bool:
    return topic in opened.found and name in opened.found[topic].log.values()


def _allow(ledger: Ledger, note: object) -> None:
    """Add a note of what happened while a backup was made: it may be in it or not."""
    if isinstance(note, _POSSIBLE) and not isinstance(note, _CERTAIN):
        ledger.take(note)
    if isinstance(note, Outliving):
        note = note.note
    if isinstance(note, Put):
        # Where it was, if retention has deleted it since.
        topic = ledger.topics[note.topic]
        topic.gone |= frozenset(note.offsets)
    if isinstance(note, Chosen):
        # By the options before, what all channels had settled may be gone.
        topic = ledger.topics[note.topic]
        topic.purging |= set.intersection(*(may | unseen for may, _, unseen in topic.channels.values()))
