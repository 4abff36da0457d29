"""`aiodq backup`: a copy of a store, as it is at one moment."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from aiodq.cli.arguments import Place
from aiodq.cli.exits import DONE
from aiodq.cli.loop import run_command
from aiodq.cli.opening import check_parent, open_store
from aiodq.cli.show import Meter, counted, human_bytes, print_json, stdout
from aiodq.storage.io.durable_io import TEMPORARY
from aiodq.storage.store_layout import absolute_path

if TYPE_CHECKING:
    from aiodq.stats import BackupReport
    from aiodq.store import Store

__all__ = ["backup"]

_LOOK_EVERY: Final = 0.2
"""Seconds between two looks at how far it is."""


def backup(store: Place, target: Place, /, *, json: bool = False) -> int:
    """Copy a store, as it is at one moment, into a new directory, which is a store, too. The store may be in use.

    Nothing that was put or acked before is missing. The directory gets its name once all of it is on disk. If a program
    has the store open in mode "exclusive", only that program can make a backup (store.backup).

    Args:
        store: the store's directory.
        target: the directory to make.
        json: print what the backup holds as JSON.
    """
    check_parent(target)
    place = absolute_path(target)

    async def go() -> int:
        async with open_store(store) as opened:
            made = await _metered(opened, place)
        if json:
            print_json(made, indent=None)
        else:
            holds = f"{counted(made.topics, 'topic')}, {counted(made.messages, 'message')}, {human_bytes(made.bytes)}"
            stdout().print(f"{target}: {holds}")
        return DONE

    return run_command(go())


async def _metered(store: Store, target: str) -> BackupReport:
    """Make a backup, here or in the owner's process, and show the progress in bytes."""
    making = asyncio.ensure_future(store.backup(target))
    seen = 0
    try:
        with Meter("backup") as meter:
            while not making.done():
                await asyncio.wait([making], timeout=_LOOK_EVERY)
                there = await asyncio.to_thread(_bytes_in, target + TEMPORARY)
                meter.advance(max(there - seen, 0))
                seen = max(there, seen)
        return await making
    finally:
        making.cancel()


def _bytes_in(directory: str) -> int:
    """Return the total size of the files in a directory, as far as they can be read."""
    found = 0
    for place, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                found += os.lstat(os.path.join(place, name)).st_size
    return found
