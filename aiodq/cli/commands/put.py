"""`aiodq put`: puts files and the output of pipes into a topic."""

import asyncio
import os
import stat
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Final

import aiofiles
from cyclopts import Parameter

from aiodq.cli.arguments import Place
from aiodq.cli.exits import DONE, CommandError, complain, exit_code
from aiodq.cli.loop import Aside, run_command
from aiodq.cli.opening import made_to_get, open_store
from aiodq.cli.records import BadLineError, LineCutter, WholeCutter, in_batches
from aiodq.cli.show import Meter, counted, human_bytes, print_json, rate, so_far, stdout
from aiodq.errors import AiodqError
from aiodq.names import check_name, is_ephemeral
from aiodq.options import StoreOptions
from aiodq.topic import Topic

__all__ = ["put"]

_STDIN: Final = "-"
_CHUNK: Final = 1 << 18

Cutter = LineCutter | WholeCutter


def put(
    store: Place,
    topic: str,
    /,
    *files: Annotated[str, Parameter(allow_leading_hyphen=True)],
    lines: bool = False,
    whole: bool = False,
    jsonl: bool = False,
    tag: str | None = None,
    json: bool = False,
) -> int:
    """Put messages into a topic and report how many, once all of them are on disk.

    A missing store or topic is created, the topic with a channel `default` for get. An ephemeral topic has nothing on
    disk: its messages go into the memory of the store's owner, which has to be another process.

    Messages are put in batches as they are read, so a file may be larger than memory. What was put before invalid input
    or an interruption stays.

    Args:
        store: the store's directory.
        topic: the topic's name.
        files: the files to read; "-", or none, is standard input.
        lines: each line is a message, without its newline. This is the default.
        whole: each file is one message.
        jsonl: as --lines, but each line has to be JSON.
        tag: a short text that each message carries, for channels to filter by.
        json: print the count as JSON.
    """
    if lines + whole + jsonl > 1:
        raise CommandError("--lines, --whole and --jsonl exclude each other")
    check_name(topic)
    sources = _sources(files or (_STDIN,))
    longest = StoreOptions().max_message_bytes

    def cutter(name: str) -> Cutter:
        return WholeCutter(name, longest) if whole else LineCutter(name, longest, jsonl=jsonl)

    return run_command(_Putting(topic, tag, cutter).run(store, sources, json=json))


def _sources(files: Sequence[str]) -> list[tuple[str, int]]:
    """Open all files before anything is put; return (name, descriptor) of each."""
    sources = []
    for name in files:
        if name == _STDIN:
            sources.append(("standard input", sys.stdin.fileno()))
            continue
        if name.startswith("-"):
            raise CommandError(f"unknown option {name}; a file of that name is ./{name}")
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as cause:
            raise CommandError(f"{name or repr(name)} cannot be read: {cause.strerror}") from cause
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise CommandError(f"{name} is a directory")
        sources.append((name, descriptor))
    return sources


def _total(sources: list[tuple[str, int]]) -> int | None:
    """Return how many bytes there are to read; None where a pipe is among them."""
    found = [os.fstat(descriptor) for _, descriptor in sources]
    return sum(each.st_size for each in found) if all(stat.S_ISREG(each.st_mode) for each in found) else None


class _Putting:
    """One run.

    Attributes:
        messages: how many are durable.
        bytes: of their bodies.
        first, last: their offsets, -1 for none.
    """

    def __init__(self, topic: str, tag: str | None, cutter: Callable[[str], Cutter]) -> None:
        self.messages = self.bytes = 0
        self.first = self.last = -1
        self._topic = topic
        self._tag = tag
        self._cutter = cutter

    async def run(self, store: str, sources: list[tuple[str, int]], *, json: bool) -> int:
        began = time.monotonic()
        try:
            async with open_store(store, create=not is_ephemeral(self._topic)) as opened:
                topic = made_to_get(opened, self._topic)
                with Aside() as aside, Meter(f"put into {self._topic}", _total(sources)) as meter:
                    for name, descriptor in sources:
                        await self._put(topic, _cut(_chunks(aside, descriptor), self._cutter(name), meter))
        except (AiodqError, CommandError) as error:
            code = error.code if isinstance(error, CommandError) else exit_code(error)
            raise CommandError(f"{error}{so_far(self.messages)}", code) from error
        except asyncio.CancelledError:
            complain(f"interrupted{so_far(self.messages)}")
            raise
        self._report(time.monotonic() - began, json=json)
        return DONE

    async def _put(self, topic: Topic, cut: AsyncIterator[list[bytes]]) -> None:
        try:
            async for records in cut:
                await self._store(topic, records)
        except BadLineError as error:
            await self._store(topic, error.before)
            raise

    async def _store(self, topic: Topic, records: list[bytes]) -> None:
        for batch in in_batches(records):
            offsets = await topic.put_many(batch, tag=self._tag)
            self.messages += len(batch)
            self.bytes += sum(map(len, batch))
            self.first = offsets[0] if self.first < 0 else self.first
            self.last = offsets[-1]

    def _report(self, seconds: float, *, json: bool) -> None:
        ephemeral = is_ephemeral(self._topic)
        if json:
            figures = {"topic": self._topic, "messages": self.messages, "bytes": self.bytes, "seconds": seconds}
            offsets = {"first_offset": self.first, "last_offset": self.last} if self.messages else {}
            print_json(figures | offsets | ({"ephemeral": True} if ephemeral else {}), indent=None)
            return
        speed = f"{rate(self.messages, seconds):,.0f} messages/s, {human_bytes(rate(self.bytes, seconds))}/s"
        text = f"{counted(self.messages, 'message')}, {human_bytes(self.bytes)}, in {seconds:.2f} s ({speed})"
        text += ", kept in the memory of the store's owner" * ephemeral
        stdout().print(text)


async def _chunks(aside: Aside, descriptor: int) -> AsyncIterator[bytes]:
    """Yield what there is to read, a chunk at a time."""
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        async with aiofiles.open(descriptor, "rb", buffering=0, closefd=False) as file:
            while chunk := await file.read(_CHUNK):
                yield chunk
        return
    # A terminal or a pipe may stay silent for ever, which must not keep the process from ending.
    while chunk := await aside.call(lambda: os.read(descriptor, _CHUNK)):
        yield chunk


async def _cut(chunks: AsyncIterator[bytes], cutter: Cutter, meter: Meter) -> AsyncIterator[list[bytes]]:
    """Yield records as they are read; memory holds one chunk of input at a time."""
    async for chunk in chunks:
        meter.advance(len(chunk))
        yield cutter.feed(chunk)
    yield cutter.finish()
