"""`aiodq import-diskqueue` and `export-diskqueue`: to and from the files of go-diskqueue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, validators

from aiodq.cli.arguments import Place, whole
from aiodq.cli.exits import DONE, WRONG, CommandError, complain, exit_code
from aiodq.cli.loop import raising_at_signals, run_command
from aiodq.cli.names import known_topic
from aiodq.cli.opening import made_to_get, open_store
from aiodq.cli.output import read_or_not
from aiodq.cli.records import in_batches
from aiodq.cli.show import Meter, counted, print_json, so_far, stdout
from aiodq.diskqueue import NSQD_MAX_BYTES_PER_FILE, read, write
from aiodq.errors import AiodqError
from aiodq.names import check_name, is_ephemeral

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from aiodq.diskqueue import DiskQueueReader

__all__ = ["export_diskqueue", "import_diskqueue", "taken_over"]


def import_diskqueue(
    directory: Place,
    name: str,
    store: Place,
    topic: str,
    /,
    *,
    min_message_bytes: Annotated[int, Parameter(converter=whole, validator=validators.Number(gte=0))] = 0,
    json: bool = False,
) -> int:
    """Put the unread messages of a go-diskqueue into a topic. Its files are only read.

    Damage is reported with its position; the exit code is 1 if messages are lost by it. If the import is interrupted,
    the topic holds the first of the messages, in order; the next import begins at the first one again.

    Args:
        directory: where the queue's files are.
        name: the queue's name, as in NAME.diskqueue.meta.dat.
        store: the store's directory; created if missing.
        topic: the topic's name.
        min_message_bytes: the smallest possible message; 26 for nsqd's. It distinguishes zeros from messages.
        json: print how many messages there were, and what is wrong with the files, as JSON.
    """
    if is_ephemeral(check_name(topic)):
        raise CommandError(f"what is on disk is imported into a topic on disk, not into {topic!r}")
    queue = read(directory, name, min_message_bytes=min_message_bytes)
    return run_command(_import(queue, store, topic, json=json))


async def _import(queue: DiskQueueReader, store: str, topic: str, *, json: bool) -> int:
    number = 0
    try:
        async with open_store(store, create=True) as opened:
            with Meter(f"importing {queue.name}") as meter:
                async for bodies in taken_over(queue, made_to_get(opened, topic).put_many):
                    number += len(bodies)
                    meter.advance(sum(map(len, bodies)), counted(number, "message"))
    except AiodqError as error:
        raise CommandError(f"{error}{so_far(number)}", exit_code(error)) from error
    except asyncio.CancelledError:
        complain(f"interrupted{so_far(number)}")
        raise
    with read_or_not():
        if json:
            print_json({"topic": topic, "messages": number, "findings": queue.findings})
        else:
            for finding in queue.findings:
                complain(f"{finding.kind}: {finding.path} at byte {finding.position}: {finding.reason}")
            stdout().print(f"imported {counted(number, 'message')}")
    return WRONG if any(finding.loses for finding in queue.findings) else DONE


async def taken_over(
    queue: DiskQueueReader, put_many: Callable[[list[bytes]], Awaitable[object]], at_once: int | None = None
) -> AsyncIterator[list[bytes]]:
    """Put a queue's messages in order, and yield those put, as soon as they are on disk.

    Args:
        queue: what to read.
        put_many: the topic's.
        at_once: how many to put at a time at most; fewer where they are large.
    """
    for bodies in in_batches((message.body for message in queue), at_once):
        await put_many(bodies)
        yield bodies


def export_diskqueue(
    store: Place,
    topic: str,
    directory: Place,
    name: str,
    /,
    *,
    channel: str | None = None,
    max_bytes_per_file: Annotated[
        int, Parameter(converter=whole, validator=validators.Number(gte=1))
    ] = NSQD_MAX_BYTES_PER_FILE,
    json: bool = False,
) -> int:
    """Write a topic's messages as the files of a go-diskqueue, byte for byte as it would write them.

    The store may be open in another process; nothing in it is acked. Only bodies are written.

    Args:
        store: the store's directory.
        topic: the topic's name.
        directory: the target directory; it must exist, without files of a queue of that name.
        name: the queue's name.
        channel: write only messages that this channel has not acked; by default all that are kept.
        max_bytes_per_file: as the queue's own option.
        json: print how many messages there were, and what damage was found, as JSON.
    """
    reader = known_topic(store, topic)
    found = reader.scan() if channel is None else reader.waiting(check_name(channel, "channel"))

    def bodies() -> Iterator[bytes]:
        number = 0
        with Meter(f"exporting {topic}") as meter:
            for message in found:
                number += 1
                meter.advance(len(message.body), counted(number, "message"))
                yield message.body

    with raising_at_signals():
        written = write(directory, name, bodies(), max_bytes_per_file=max_bytes_per_file)
    with read_or_not():
        if json:
            print_json({"topic": topic, "messages": written.depth, "damages": reader.damages})
        else:
            for damage in reader.damages:
                complain(f"damage: {damage.path} at byte {damage.position}: {damage.reason}")
            stdout().print(f"exported {counted(written.depth, 'message')}")
    return WRONG if reader.damages else DONE
